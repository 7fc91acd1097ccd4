"""Bough as the session service of Google's ADK: `Runner(…, session_service=BoughSessionService(bough.open("agent.db")))`.

Knows ADK's interface and which Bough session an ADK session is. Does not know how an event becomes entries
(`adk_events`) and entries events (`adk_reading`), nor how state is kept (`adk_state`). Everything that waits for a store
runs on threads of its own.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions import Session as AdkSession
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from pydantic_core import to_jsonable_python

from ...core.codec import check_text, from_json
from ...core.entries import Note
from ...core.state import State, fold_state
from ...core.tree import Leaf
from ...errors import IdTaken, NotFound, SessionTrashed, StaleLeaf
from ...log.log import Log
from ...session import Session
from ...store import Store
from ...stores.base import PathSnapshot, SessionRow
from .. import require_store
from ..async_bridge import Crossing
from .read import NAME, events, inlined, record_of, told_at
from .state import Handles, Held, Shared, merged, name_of, patch_of, scopes, shown
from .write import write

THREADS = 8
"""Sessions that write at the same time share a commit of the store."""
Name = tuple[str, str, str]
"""An app, a user of it, and ADK's id of a session."""


class BoughSessionService(BaseSessionService):
    """ADK's sessions in a store of Bough's. The store belongs to whoever opened it, and is not closed here.

    A session that somebody else has written to since it was loaded is stale, by where it stands and not by the clock:
    `append_event` raises `StaleSessionError` and nothing is written.
    """

    def __init__(self, store: Store) -> None:
        self.store = require_store(store, "BoughSessionService")
        self._shared = Shared(store)
        self._handles: Handles[Name] = Handles()
        self._cross = Crossing(THREADS)

    # -- what ADK asks for -------------------------------------------------------------------------

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        """A new session, durable on return; `AlreadyExistsError` if there is one of that id."""
        name = app_name, user_id, (session_id or "").strip() or platform_uuid.new_uuid()
        given = to_jsonable_python(state or {}, serialize_unknown=True)
        return await self._cross(self._create, name, given)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> AdkSession | None:
        """The session with its events, or the latest of them; None if there is none."""
        return await self._cross(self._load, (app_name, user_id, session_id.strip()), config)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of an app, or of one user of it, without events; the one that was active last at the end."""
        return ListSessionsResponse(sessions=await self._cross(self._list, app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Into Bough's trash, from which `store.restore` brings it back."""
        await self._cross(self._delete, (app_name, user_id, session_id.strip()))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """What a user's sessions share, without the prefix."""
        return await self._cross(self._shared.read, (app_name, user_id))

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        """Durable on return, and in `session.events`. A partial event is neither."""
        if event.partial:
            return event
        return await self._cross(self._append, session, event)

    # -- more than ADK asks for --------------------------------------------------------------------

    async def opened(self, session: AdkSession) -> Session:
        """The Bough session below: look at it, fork it, export it. `SessionNotFoundError` if it is gone."""
        name = session.app_name, session.user_id, session.id
        return await self._cross(lambda: self.store.session(self._held(name).session.session_id))

    # -- finding, on a thread ----------------------------------------------------------------------

    def _find(self, name: Name) -> Session | None:
        """By the id ADK knows; else it was deleted once and made again; else a fork, by the id Bough gave it."""
        app, _, session_id = name
        asked = (
            partial(self._rows, session_name(name)),
            partial(self.store.all_sessions, agent=app, conversation_id=session_id),
            partial(self._rows, session_id),
        )
        for rows in asked:
            for row in rows():
                if row.trashed_at is None and self._name(row) == name:
                    return Session(Log(self.store.backend, row, self.store.runtime))
        return None

    def _rows(self, session_id: str) -> list[SessionRow]:
        try:
            return [self.store.backend.session(session_id)] if session_id.isprintable() else []
        except NotFound:
            return []

    def _name(self, row: SessionRow) -> Name | None:
        """What ADK calls it; None if it is no session of ADK's."""
        if row.agent is None or "adk_state" in row.tags:
            return None
        if "adk_user" in row.tags and row.relation is None:
            return row.agent, row.tags["adk_user"], row.conversation_id
        # Of a fork or a copy only the path tells whose it is.
        seeds = self.store.backend.path(row.session_id, first=1, last=1).entries
        seed = record_of(seeds[0]) if seeds else None
        return (row.agent, seed["user"], row.session_id) if seed is not None and "user" in seed else None

    def _held(self, name: Name) -> Held:
        held = self._handles.get(name)
        if held is None:
            session = self._find(name)
            if session is None:
                raise SessionNotFoundError(f"Session {name[2]} not found.")
            held = self._handles.keep(name, session)
        return held

    # -- creating, listing, deleting ---------------------------------------------------------------

    def _create(self, name: Name, given: State) -> AdkSession:
        app, user, session_id = name
        for_app, for_user, own = scopes(given)
        made = self.store.runtime.new_id("")
        shared = {key: value for key, value in given.items() if key.startswith(("app:", "user:"))}
        seed = Note({NAME: {"app": app, "user": user, "made": made} | ({"state": shared} if shared else {})})
        about: dict[str, Any] = {
            "conversation_id": session_id,
            "owner": self.store.backend.owner or user or None,
            "tags": {"adk_user": user},
            "state": patch_of({}, own),
        }
        if self._find(name) is not None:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.")
        session = self._started(name, seed, about)
        self._share(name, for_app, for_user, f"{session.session_id}/{made}")
        self._handles.pop(name, None)
        self._handles.keep(name, session).settled = made
        created = self._load(name, None)
        assert created is not None
        return created

    def _started(self, name: Name, seed: Note, about: dict[str, Any]) -> Session:
        """The first name that is free: those before it lie in the trash, which keeps what it has."""
        for nth in count(1):
            session_id = session_name(name, nth)
            try:
                return self.store.start(name[0], [seed], session_id=session_id, **about)
            except IdTaken:
                if any(row.trashed_at is None for row in self._rows(session_id)):
                    raise AlreadyExistsError(f"Session with id {name[2]} already exists.") from None
        raise AssertionError("numbers do not end")

    def _list(self, app: str, user: str | None) -> list[AdkSession]:
        owner = user or None if self.store.backend.owner is None else None
        found = []
        users: dict[str, State] = {}
        for_app = self._shared.read((app, None))
        for row in self.store.all_sessions(agent=app, owner=owner, limit=200):
            name = self._name(row)
            if name is None or user not in (None, name[1]):
                continue
            if name[1] not in users:
                users[name[1]] = self._shared.read((app, name[1]))
            reading = self.store.backend.path(row.session_id, newest=2, detail=True)
            found.append(_session(name, reading, merged(for_app, users[name[1]], self._state(reading)), []))
        return sorted(found, key=lambda one: (one.last_update_time, one.user_id, one.id))

    def _delete(self, name: Name) -> None:
        session = self._find(name)
        if session is not None:
            self.store.delete(session.session_id)
        self._handles.pop(name, None)

    # -- loading -----------------------------------------------------------------------------------

    def _load(self, name: Name, config: GetSessionConfig | None) -> AdkSession | None:
        most = None if config is None else config.num_recent_events
        current = self._current(name, most)
        if current is None:
            return None
        held, reading, found = current
        self._settle(name, held, reading, found)
        if config is not None and config.after_timestamp is not None:
            found = [event for event in found if event.timestamp >= config.after_timestamp]
        found = found if most is None else found[max(0, len(found) - most) :]
        for_app = self._shared.read((name[0], None))
        for_user = self._shared.read(name[:2])
        return _session(name, reading, merged(for_app, for_user, self._state(reading)), found)

    def _current(self, name: Name, most: int | None) -> tuple[Held, PathSnapshot, list[Event]] | None:
        """A handle on the session and what it holds now. One that was kept may be of a session that is gone."""
        while True:
            known = self._handles.get(name)
            session = self._find(name) if known is None else known.session
            if session is None:
                return None
            with suppress(NotFound):
                reading, found = self._read(session, most)
                if reading.row.trashed_at is None:
                    return known or self._handles.keep(name, session), reading, found
            self._handles.pop(name, None)

    def _read(self, session: Session, most: int | None) -> tuple[PathSnapshot, list[Event]]:
        """The session as it stands, and at least the `most` latest events of it, if it has as many."""
        newest = None if most is None else 2 * most + 4
        while True:
            reading = self.store.backend.path(session.session_id, newest=newest, detail=True)
            found = list(events(reading.entries, self._blob))
            if newest is None or len(reading.entries) < newest or len(found) > (most or 0):
                return reading, found
            newest = 4 * newest

    def _state(self, reading: PathSnapshot) -> State:
        cached = None if reading.detail is None else reading.detail.state
        if cached is not None:
            state = from_json(cached)
        elif reading.entries and reading.entries[0].seq == 1:
            state = fold_state(reading.entries)
        else:  # after a rewind or a fork it is not cached
            state = self.store.session(reading.row.session_id).state
        return shown(inlined(state, self._blob))

    def _blob(self, digest: str) -> bytes | None:
        found = self.store.backend.blob(digest)
        return None if found is None else found.data

    # -- appending ---------------------------------------------------------------------------------

    def _append(self, session: AdkSession, event: Event) -> Event:
        name = session.app_name, session.user_id, session.id
        held = self._held(name)
        with held.lock:  # two that share `session` follow each other; two copies of it are two writers
            if any(one.id == event.id and one == event for one in reversed(session.events)):
                return event  # handed in again
            self._apply_temp_state(session, event)
            event = self._trim_temp_delta_state(event)
            delta = to_jsonable_python(event.actions.state_delta, serialize_unknown=True)
            app, user, own = scopes(delta)
            leaf, is_new = self._written(held, session, event, own)
            self._share(name, app, user, f"{held.session.session_id}/{event.id}", is_new=is_new)
            held.settled = event.id
            session._storage_update_marker = str(leaf)
            session.last_update_time = event.timestamp
            return self._commit_event_to_session(session, event)

    def _written(self, held: Held, session: AdkSession, event: Event, delta: State) -> tuple[Leaf, bool]:
        """Behind the place it was loaded at. Where the session stands now, and whether it was written now."""
        try:
            return write(held.session, self._loaded_at(held, session), event, delta)
        except StaleLeaf as stale:
            raise StaleSessionError(
                "The session has been modified in storage since it was loaded, and nothing was appended. "
                f"Load it again with get_session, look at what is new, then decide. ({stale})"
            ) from stale
        except (NotFound, SessionTrashed) as gone:
            self._handles.pop((session.app_name, session.user_id, session.id), None)
            raise SessionNotFoundError(f"Session {session.id} not found.") from gone

    def _loaded_at(self, held: Held, session: AdkSession) -> Leaf:
        """Where it stood when it was loaded. One that nobody loaded is told by its latest event."""
        branch, _, seq = (session._storage_update_marker or "").partition(":")
        if branch.isdecimal() and seq.isdecimal():
            return Leaf(int(branch), int(seq))
        reading, found = self._read(held.session, 1)
        last = found[-1].id if found else None
        if last == (session.events[-1].id if session.events else None):
            return reading.row.leaf
        raise StaleLeaf(held.session.session_id, Leaf(0, 0), reading.row.leaf)

    def _share(self, name: Name, app: State, user: State, change: str, *, is_new: bool = True) -> None:
        if app:
            self._shared.write((name[0], None), app, change, is_new=is_new)
        if user:
            self._shared.write(name[:2], user, change, is_new=is_new)

    def _settle(self, name: Name, held: Held, reading: PathSnapshot, found: list[Event]) -> None:
        """What the latest event changes for others is written after it: a process may have died in between."""
        seed = next((record_of(entry) for entry in reading.entries[:1]), None) or {}
        latest: str | None = found[-1].id if found else seed.get("made")
        delta = found[-1].actions.state_delta if found else seed.get("state", {})
        app, user, _ = scopes(delta)
        if latest is None or held.settled == latest:
            return
        if app or user:
            self._share(name, app, user, f"{reading.row.session_id}/{latest}", is_new=False)
        held.settled = latest


def session_name(name: Name, nth: int = 1) -> str:
    """The id in Bough. More than one session may have had a name in ADK: those in the trash keep theirs."""
    for what, part in zip(("app_name", "user_id", "session_id"), name, strict=True):
        check_text(part, what)
    return name_of(name[2], "session", *name, *([nth] if nth > 1 else []))


def _session(name: Name, reading: PathSnapshot, state: State, found: list[Event]) -> AdkSession:
    row, last = reading.row, told_at(reading.entries)
    if last is None:
        last = (row.updated_at if row.leaf.seq > row.seed_count else row.started_at) / 1e6
    app, user, session_id = name
    session = AdkSession(
        app_name=app, user_id=user, id=session_id, state=state, events=found, last_update_time=last
    )
    session._storage_update_marker = str(row.leaf)
    return session
