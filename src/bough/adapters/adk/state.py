"""State as ADK has it, on state as Bough has it: three scopes, and values that are replaced and never merged.

The state of a session is its own, by updates along its path. That of an app, and that of a user of an app, is the state
of a small session of its own: notes, one for each event that changed it. Two who write at once both get through, one
after the other. Knows scopes and names; does not know events.
"""

from __future__ import annotations

from hashlib import sha256
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote

from google.adk.sessions.state import State as AdkState

from ...core.codec import from_json, to_json
from ...core.entries import Note
from ...core.state import State
from ...errors import NotFound, StaleLeaf
from ...session import Session
from ...store import Store
from .read import NAME

WHOLE = "adk:json"
"""The one key of a value kept as JSON text: a merge patch cannot say null."""
SHOWN = 80
"""How much of a name is shown in an id: ids are for typing, and an index takes only so many bytes."""

Scope = tuple[str, str | None]
"""An app, or a user of an app."""
K = TypeVar("K")


def scopes(delta: State) -> tuple[State, State, State]:
    """What belongs to the app, to the user and to the session; what is temporary belongs to nobody."""
    app, user, own = {}, {}, {}
    for key, value in delta.items():
        if key.startswith(AdkState.APP_PREFIX):
            app[key.removeprefix(AdkState.APP_PREFIX)] = value
        elif key.startswith(AdkState.USER_PREFIX):
            user[key.removeprefix(AdkState.USER_PREFIX)] = value
        elif not key.startswith(AdkState.TEMP_PREFIX):
            own[key] = value
    return app, user, own


def merged(app: State, user: State, own: State) -> State:
    """All three as ADK shows them to an agent."""
    apps = {AdkState.APP_PREFIX + key: value for key, value in app.items()}
    users = {AdkState.USER_PREFIX + key: value for key, value in user.items()}
    return {**own, **apps, **users}


def patch_of(present: State, delta: State) -> State:
    """The merge patch that puts the values of `delta` in place of what is there."""
    return {key: replacing(present.get(key), _kept(value)) for key, value in delta.items()}


def needs_present(delta: State) -> bool:
    """Whether what is there has to be known: only an object would be merged with what it is to replace."""
    return any(value is None or isinstance(value, dict) for value in delta.values())


def replacing(before: Any, after: Any) -> Any:
    """The merge patch that makes `after` of `before`."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    gone = dict.fromkeys(key for key in before if key not in after)
    return {**gone, **{key: replacing(before.get(key), value) for key, value in after.items()}}


def shown(state: State) -> State:
    """The values as they were handed in."""
    return {key: _shown(value) for key, value in state.items()}


def _kept(value: Any) -> Any:
    is_odd = value is None or (isinstance(value, dict) and (WHOLE in value or _has_null(value)))
    return {WHOLE: to_json(value, "state").decode()} if is_odd else value


def _shown(value: Any) -> Any:
    return from_json(value[WHOLE]) if isinstance(value, dict) and value.keys() == {WHOLE} else value


def _has_null(value: dict[str, Any]) -> bool:
    """Within objects: a list is replaced as a whole, whatever it holds."""
    return any(item is None or (isinstance(item, dict) and _has_null(item)) for item in value.values())


def name_of(shown: str, *parts: str | int | None) -> str:
    """A session's id in Bough: it begins as ADK's own does, and ends in a hash of all that names it in ADK."""
    hashed = sha256(to_json(parts, "name of a session")).hexdigest()
    return f"{quote(shown, safe='')[:SHOWN]}~{hashed[:16]}"


class Held:
    """A handle on a session, and a lock for those who write to it here."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = Lock()
        self.settled: str | None = None
        """The latest event whose changes of shared state are known to be written."""


class Handles(dict[K, Held]):
    """Handles by name. It is a cache: a new handle reads what an old one remembers."""

    MOST = 1_000

    def keep(self, name: K, session: Session) -> Held:
        if len(self) >= self.MOST:
            self.clear()
        return self.setdefault(name, Held(session))


class Shared:
    """The states of apps and of their users."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._handles: Handles[Scope] = Handles()

    def read(self, scope: Scope) -> State:
        name = self._name(scope)
        try:
            cached = self._store.backend.detail(name).state
        except NotFound:
            return {}
        return shown(self._store.session(name).state if cached is None else from_json(cached))

    def write(self, scope: Scope, delta: State, change: str, *, is_new: bool = True) -> None:
        """Change it, whoever else does meanwhile. If it is not new it may have been written before a process died."""
        held = self._handles.get(scope) or self._handles.keep(scope, self._opened(scope))
        session = held.session
        with held.lock:
            while is_new or not _has(session, change):
                leaf = session.leaf
                note = Note({NAME: {"change": change}}, patch_of(session.state, delta))
                try:
                    session.append([note], after=leaf, key=change)
                    return
                except StaleLeaf:
                    is_new = False

    def _name(self, scope: Scope) -> str:
        app, user = scope
        if user is not None:
            return name_of(f"state-of-{user}", "user", app, user)
        # Opened for an owner a store sees nobody else's sessions: then an app has a state for each owner.
        return name_of(f"state-of-{app}", "app", app, self._store.backend.owner)

    def _opened(self, scope: Scope) -> Session:
        app, user = scope
        try:
            return self._store.session(self._name(scope))
        except NotFound:
            seed = Note({NAME: {"state_of": {"app": app, "user": user}}})
        owner = self._store.backend.owner or user or None
        title = f"State of app {app}" if user is None else f"State of user {user} in app {app}"
        about: dict[str, Any] = {"title": title, "tags": {"adk_state": "yes"}, "owner": owner, "state": {}}
        return self._store.start(app, [seed], session_id=self._name(scope), **about)


def _has(session: Session, change: str) -> bool:
    """Whether it was written, by whomever. Stands where the session stands now: what is written after that is stale."""
    session.refresh()
    return any(fact.key == change for fact in session.journal())
