"""ADK's state kept in Oakleaf's: three scopes, whose values are replaced and never merged.

A session's own state is updated along its path. The state of an app, and of a user of an app, is the state of a small
session of its own: one note for each event that changed it. Two concurrent writers both succeed, one after the other.
Knows scopes and session ids; does not know events.
"""

from __future__ import annotations

import re
from hashlib import sha256
from threading import Lock
from typing import Any, TypeVar

from google.adk.sessions.state import State as AdkState

from oakleaf.core.codec import from_json, to_json
from oakleaf.core.entries import Note
from oakleaf.core.state import State
from oakleaf.errors import NotFound, StaleLeaf
from oakleaf.ext import read_store
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf_frameworks.adk.events import KEY

JSON_KEY = "adk:json"
"""The only key of a value stored as JSON text: a merge patch cannot express null."""
VISIBLE_LENGTH = 80
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_@.-]|^[.]+")
"""How much of ADK's own id appears in a session id: ids are typed by people, and index keys are limited."""

Scope = tuple[str, str | None]
"""An app, or a user of an app."""
K = TypeVar("K")


def split_scopes(delta: State) -> tuple[State, State, State]:
    """Split a delta into the app's, the user's and the session's; temporary values are dropped."""
    app, user, own = {}, {}, {}
    for key, value in delta.items():
        if key.startswith(AdkState.APP_PREFIX):
            app[key.removeprefix(AdkState.APP_PREFIX)] = value
        elif key.startswith(AdkState.USER_PREFIX):
            user[key.removeprefix(AdkState.USER_PREFIX)] = value
        elif not key.startswith(AdkState.TEMP_PREFIX):
            own[key] = value
    return app, user, own


def join_scopes(app: State, user: State, own: State) -> State:
    """Join the three scopes as ADK shows them to an agent."""
    apps = {AdkState.APP_PREFIX + key: value for key, value in app.items()}
    users = {AdkState.USER_PREFIX + key: value for key, value in user.items()}
    return {**own, **apps, **users}


def state_patch(current: State, delta: State) -> State:
    """Return the merge patch from the current values to the values of `delta`."""
    return {key: merge_patch(current.get(key), _encode(value)) for key, value in delta.items()}


def needs_current(delta: State) -> bool:
    """Whether `state_patch` needs the current values: only objects are merged."""
    return any(value is None or isinstance(value, dict) for value in delta.values())


def merge_patch(before: Any, after: Any) -> Any:
    """Return the merge patch that turns `before` into `after`."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    removed = dict.fromkeys(key for key in before if key not in after)
    return {**removed, **{key: merge_patch(before.get(key), value) for key, value in after.items()}}


def _encode(value: Any) -> Any:
    needs_text = value is None or (isinstance(value, dict) and (JSON_KEY in value or _has_null(value)))
    return {JSON_KEY: to_json(value, "state").decode()} if needs_text else value


def _has_null(value: dict[str, Any]) -> bool:
    """Whether an object contains null; lists are replaced as a whole and need no look."""
    return any(item is None or (isinstance(item, dict) and _has_null(item)) for item in value.values())


def decode_state(state: State) -> State:
    """Decode stored values."""
    return {
        key: from_json(value[JSON_KEY]) if isinstance(value, dict) and value.keys() == {JSON_KEY} else value
        for key, value in state.items()
    }


def derived_session_id(visible: str, *parts: str | int | None) -> str:
    """Return an Oakleaf session id: the visible part, and a hash of the full identity in ADK."""
    hashed = sha256(to_json(parts, "name of a session")).hexdigest()
    plain = _NOT_PLAIN.sub("-", visible)[:VISIBLE_LENGTH]
    return f"{plain}~{hashed[:16]}"


def session_owner(store: Store, user: str | None) -> str | None:
    """Return the owner of a user's sessions: the owner of the store, else the user."""
    return read_store(store).owner or user or None


class SessionHandle:
    """An open session, and a lock for the writers in this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = Lock()
        self.shared_through: str | None = None
        """The id of the latest event whose changes of shared state are known to be written."""


class HandleCache(dict[K, SessionHandle]):
    """Handles by name. Losing one costs nothing but reading again."""

    LIMIT = 1_000

    def add(self, name: K, session: Session) -> SessionHandle:
        if len(self) >= self.LIMIT:
            self.clear()
        return self.setdefault(name, SessionHandle(session))


class SharedStates:
    """The states of apps and of users."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._handles: HandleCache[Scope] = HandleCache()

    def read(self, scope: Scope) -> State:
        session_id = self._session_id(scope)
        try:
            cached = read_store(self._store).detail(session_id).state
        except NotFound:
            return {}
        return decode_state(self._store.session(session_id).state if cached is None else from_json(cached))

    def write(self, scope: Scope, delta: State, change_key: str, *, is_new: bool = True) -> None:
        """Apply a delta despite concurrent writers.

        With `is_new=False` it may already have been written by a process that died; then it is not written again.
        """
        handle = self._handles.get(scope) or self._handles.add(scope, self._open(scope))
        session = handle.session
        with handle.lock:
            while is_new or not _has_change(session, change_key):
                leaf = session.leaf
                note = Note({KEY: {"change": change_key}}, state_patch(session.state, delta))
                try:
                    session.append([note], after=leaf, key=change_key)
                    return
                except StaleLeaf:
                    is_new = False

    def _session_id(self, scope: Scope) -> str:
        """Return an id for each space and owner: a store sees only the own sessions."""
        app, user = scope
        visible = f"state-of-{app if user is None else user}"
        place = read_store(self._store).space, session_owner(self._store, user)
        return derived_session_id(visible, "state", app, user, *place)

    def _open(self, scope: Scope) -> Session:
        app, user = scope
        try:
            return self._store.session(self._session_id(scope))
        except NotFound:
            return self._store.start(
                app,
                [Note({KEY: {"state_of": {"app": app, "user": user}}})],
                session_id=self._session_id(scope),
                title=f"State of app {app}" if user is None else f"State of user {user} in app {app}",
                tags={"adk_state": "yes"},
                owner=session_owner(self._store, user),
                state={},
            )


def _has_change(session: Session, change_key: str) -> bool:
    """Whether anyone has written the change. Reloads the leaf, so a later write by another makes ours stale."""
    session.refresh()
    return any(fact.key == change_key for fact in session.journal())
