"""Oakleaf as the session service of Google's ADK: `Runner(…, session_service=OakleafSessionService(oakleaf.open("agent.db")))`.

Knows ADK's interface, which Oakleaf session an ADK session is, and how an event is appended to it. Does not know how
events become entries (`events`) or how state is stored (`state`). Every call to the store runs on the adapter's threads.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property, partial
from itertools import count
from typing import Any, cast

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

from oakleaf.core.codec import check_text, from_json
from oakleaf.core.entries import Entry, Note
from oakleaf.core.facts import ToolCallsStarted
from oakleaf.core.media import digest, restore_json
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.state import State, fold_state, merge_state
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import IdTaken, NotFound, SessionTrashed, StaleLeaf
from oakleaf.ext import Mirror, read, read_store, run_to_end, session_of
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import PathSnapshot, SessionRow
from oakleaf.wire.gemini import NAME as GEMINI
from oakleaf.wire.gemini import parse as gemini
from oakleaf_frameworks.adk.events import (
    KEY,
    USER,
    EventDrafts,
    Json,
    change_key,
    closing_event_id,
    event_drafts,
    events,
    find_call,
    last_timestamp,
    noted_events,
    record_of,
    share_key,
)
from oakleaf_frameworks.adk.state import (
    HandleCache,
    SessionHandle,
    SharedStates,
    decode_state,
    derived_session_id,
    join_scopes,
    merge_patch,
    needs_current,
    session_owner,
    split_scopes,
    state_patch,
)
from oakleaf_frameworks.shared import model_call, model_column, require_store

SessionName = tuple[str, str, str]
"""An app, a user of it, and ADK's id of a session."""


class OakleafSessionService(BaseSessionService):
    """ADK's sessions in an Oakleaf store. The caller opens the store and closes it. With `redact=False` events and state are
    stored as they are, secrets included.

    A session is stale if another process has written to it since it was loaded, judged by its leaf and not by the clock:
    `append_event` raises `StaleSessionError` and nothing is written.
    """

    def __init__(self, store: Store, *, redact: bool = True) -> None:
        self.store = require_store(store, "OakleafSessionService", redact=redact)
        self._shared = SharedStates(self.store)
        self._handles: HandleCache[SessionName] = HandleCache()

    # -- ADK's interface ---------------------------------------------------------------------------

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        """Create a session, durable on return; `AlreadyExistsError` if the id is in use."""
        name = app_name, user_id, (session_id or "").strip() or platform_uuid.new_uuid()
        initial = to_jsonable_python(state or {}, serialize_unknown=True)
        return await run_to_end(self._create, name, initial)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> AdkSession | None:
        """Return the session with all or the latest events; None for a missing session."""
        return await run_to_end(self._load, (app_name, user_id, session_id.strip()), config)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app or of a user, without events; the most recently active session last."""
        return ListSessionsResponse(sessions=await run_to_end(self._list, app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Move the session to the trash; `store.restore` brings it back."""
        await run_to_end(self._delete, (app_name, user_id, session_id.strip()))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that a user's sessions share, without the prefix."""
        return await run_to_end(self._shared.read, (app_name, user_id))

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        """Append an event, durable on return, and add it to `session.events`. A partial event is ignored."""
        if event.partial:
            return event
        return await run_to_end(self._append, session, event)

    # -- beyond ADK's interface --------------------------------------------------------------------

    async def oakleaf_session(self, session: AdkSession) -> Session:
        """Return the Oakleaf session, to inspect, fork or export; `SessionNotFoundError` after a delete."""
        name = session.app_name, session.user_id, session.id
        return await run_to_end(lambda: self.store.session(self._handle(name).session.session_id))

    # -- finding a session -------------------------------------------------------------------------

    def _find(self, name: SessionName) -> Session | None:
        """Find by the derived id; then a session created again after a delete; then a fork, by the Oakleaf id."""
        app, _, session_id = name
        lookups = (
            partial(self._rows, oakleaf_session_id(self.store, name)),
            partial(self.store.all_sessions, agent=app, conversation_id=session_id),
            partial(self._rows, session_id),
        )
        for rows in lookups:
            for row in rows():
                if row.trashed_at is None and self._name(row) == name:
                    return session_of(self.store, row)
        return None

    def _rows(self, session_id: str) -> list[SessionRow]:
        row = read_store(self.store).find_session(session_id) if session_id.isprintable() else None
        return [] if row is None else [row]

    def _name(self, row: SessionRow) -> SessionName | None:
        """Return a session's name in ADK; None for a foreign session."""
        if row.agent is None or "adk_state" in row.tags:
            return None
        if "adk_user" in row.tags and row.relation is None:
            return row.agent, row.tags["adk_user"], row.conversation_id
        # The user of a fork or a copy is recorded only on its path.
        seeds = read_store(self.store).path(row.session_id, first=1, last=1).entries
        seed = record_of(seeds[0]) if seeds else None
        return (row.agent, seed["user"], row.session_id) if seed is not None and "user" in seed else None

    def _handle(self, name: SessionName) -> SessionHandle:
        handle = self._handles.get(name)
        if handle is None:
            session = self._find(name)
            if session is None:
                raise SessionNotFoundError(f"Session {name[2]} not found.")
            handle = self._handles.add(name, session)
        return handle

    # -- creating, listing, deleting ---------------------------------------------------------------

    def _create(self, name: SessionName, initial: State) -> AdkSession:
        if self._find(name) is not None:
            raise AlreadyExistsError(f"Session with id {name[2]} already exists.")
        app_state, user_state, own = split_scopes(initial)
        creation_id = read_store(self.store).new_id()
        session = self._start(name, creation_id, initial, own)
        self._share(name, app_state, user_state, f"{session.session_id}/{creation_id}")
        self._handles.pop(name, None)
        self._handles.add(name, session).shared_through = creation_id
        created = self._load(name, None)
        assert created is not None
        return created

    def _start(self, name: SessionName, creation_id: str, initial: State, own: State) -> Session:
        """Start under the first free id; earlier ids belong to sessions in the trash."""
        app, user, session_id = name
        shared = {key: value for key, value in initial.items() if key.startswith(("app:", "user:"))}
        record = {"app": app, "user": user, "creation_id": creation_id}
        seed = Note({KEY: record | ({"state": shared} if shared else {})})
        for number in count(1):
            oakleaf_id = oakleaf_session_id(self.store, name, number)
            try:
                return self.store.start(
                    app,
                    [seed],
                    session_id=oakleaf_id,
                    conversation_id=session_id,
                    owner=session_owner(self.store, user),
                    tags={"adk_user": user},
                    state=state_patch({}, own),
                )
            except IdTaken:
                if any(row.trashed_at is None for row in self._rows(oakleaf_id)):
                    raise AlreadyExistsError(f"Session with id {session_id} already exists.") from None
        raise AssertionError("count() does not end")

    def _list(self, app: str, user: str | None) -> list[AdkSession]:
        owner = user or None if read_store(self.store).owner is None else None
        sessions = []
        user_states: dict[str, State] = {}
        app_state = self._shared.read((app, None))
        for row in self.store.all_sessions(agent=app, owner=owner, limit=200):
            name = self._name(row)
            if name is None or user not in (None, name[1]):
                continue
            if name[1] not in user_states:
                user_states[name[1]] = self._shared.read((app, name[1]))
            snapshot = read_store(self.store).path(row.session_id, newest=2, detail=True)
            state = join_scopes(app_state, user_states[name[1]], self._state(snapshot))
            sessions.append(_adk_session(name, snapshot, state, []))
        return sorted(sessions, key=lambda session: (session.last_update_time, session.user_id, session.id))

    def _delete(self, name: SessionName) -> None:
        session = self._find(name)
        if session is not None:
            self.store.delete(session.session_id)
        self._handles.pop(name, None)

    # -- loading -----------------------------------------------------------------------------------

    def _load(self, name: SessionName, config: GetSessionConfig | None) -> AdkSession | None:
        limit = None if config is None else config.num_recent_events
        current = self._current(name, limit)
        if current is None:
            return None
        handle, snapshot, latest = current
        self._finish_sharing(name, handle, snapshot, latest)
        if config is not None and config.after_timestamp is not None:
            latest = [event for event in latest if event.timestamp >= config.after_timestamp]
        latest = latest if limit is None else latest[max(0, len(latest) - limit) :]
        app_state = self._shared.read((name[0], None))
        user_state = self._shared.read(name[:2])
        return _adk_session(name, snapshot, join_scopes(app_state, user_state, self._state(snapshot)), latest)

    def _current(
        self, name: SessionName, limit: int | None
    ) -> tuple[SessionHandle, PathSnapshot, list[Event]] | None:
        """Return a handle on the session and its present content. A cached handle may be of a deleted session."""
        while True:
            cached = self._handles.get(name)
            session = self._find(name) if cached is None else cached.session
            if session is None:
                return None
            with suppress(NotFound):
                snapshot, latest = self._read(session, limit)
                if snapshot.row.trashed_at is None:
                    return cached or self._handles.add(name, session), snapshot, latest
            self._handles.pop(name, None)

    def _read(self, session: Session, limit: int | None) -> tuple[PathSnapshot, list[Event]]:
        """Read the session, with at least the `limit` latest events."""
        newest = None if limit is None else 2 * limit + 4
        while True:
            snapshot = read_store(self.store).path(session.session_id, newest=newest, detail=True)
            latest = list(events(snapshot.entries, self._blob))
            if newest is None or len(snapshot.entries) < newest or len(latest) > (limit or 0):
                return snapshot, latest
            newest = 4 * newest

    def _state(self, snapshot: PathSnapshot) -> State:
        cached = None if snapshot.detail is None else snapshot.detail.state
        if cached is not None:
            state = from_json(cached)
        elif snapshot.entries and snapshot.entries[0].seq == 1:
            state = fold_state(snapshot.entries)
        else:  # not cached after a rewind or a fork
            state = self.store.session(snapshot.row.session_id).state
        return decode_state(restore_json(state, self._blob))

    def _blob(self, hash_: str) -> bytes | None:
        blob = read_store(self.store).blob(hash_)
        return None if blob is None or digest(blob.data) != hash_ else blob.data

    # -- appending ---------------------------------------------------------------------------------

    def _append(self, session: AdkSession, event: Event) -> Event:
        name = session.app_name, session.user_id, session.id
        handle = self._handle(name)
        with handle.lock:  # users of one `session` object follow each other; two copies of it are two writers
            if any(earlier.id == event.id and earlier == event for earlier in reversed(session.events)):
                return event  # appended before
            self._apply_temp_state(session, event)
            event = self._trim_temp_delta_state(event)
            delta = to_jsonable_python(event.actions.state_delta, serialize_unknown=True)
            app_delta, user_delta, own = split_scopes(delta)
            before = handle.session.leaf.seq
            leaf, is_new = self._write(handle, session, event, own)
            if event.author == USER and leaf.seq > before + 1:
                session.events.extend(self._closing_events(handle.session, before, event))
            shared = share_key(event)
            self._share(name, app_delta, user_delta, f"{handle.session.session_id}/{shared}", is_new=is_new)
            handle.shared_through = shared
            session._storage_update_marker = str(leaf)
            session.last_update_time = event.timestamp
            return self._commit_event_to_session(session, event)

    def _closing_events(self, session: Session, before: int, event: Event) -> list[Event]:
        """Return the event with the results of lost calls, if stored with this event."""
        event_id = closing_event_id(event)
        return [one for one in events(session.path(since=before), self._blob) if one.id == event_id]

    def _write(
        self, handle: SessionHandle, session: AdkSession, event: Event, delta: State
    ) -> tuple[Leaf, bool]:
        """Append after the leaf the session was loaded at. Return the new leaf, and whether it was written now."""
        try:
            return append_event(handle.session, self._loaded_leaf(handle, session), event, delta)
        except StaleLeaf as stale:
            raise StaleSessionError(
                "The session has been modified in storage since it was loaded, and nothing was appended. "
                f"Load it again with get_session and check the new events before you retry. ({stale})"
            ) from stale
        except (NotFound, SessionTrashed) as error:
            self._handles.pop((session.app_name, session.user_id, session.id), None)
            raise SessionNotFoundError(f"Session {session.id} not found.") from error

    def _loaded_leaf(self, handle: SessionHandle, session: AdkSession) -> Leaf:
        """Return the leaf a session was loaded at. One that was not loaded here is judged by its latest event."""
        branch, _, seq = (session._storage_update_marker or "").partition(":")
        if branch.isdecimal() and seq.isdecimal():
            return Leaf(int(branch), int(seq))
        snapshot, latest = self._read(handle.session, 1)
        last_id = latest[-1].id if latest else None
        if last_id == (session.events[-1].id if session.events else None):
            return snapshot.row.leaf
        raise StaleLeaf(handle.session.session_id, Leaf(0, 0), snapshot.row.leaf)

    def _share(
        self,
        name: SessionName,
        app_delta: State,
        user_delta: State,
        key: str,
        *,
        is_new: bool = True,
    ) -> None:
        if app_delta:
            self._shared.write((name[0], None), app_delta, key, is_new=is_new)
        if user_delta:
            self._shared.write(name[:2], user_delta, key, is_new=is_new)

    def _finish_sharing(
        self, name: SessionName, handle: SessionHandle, snapshot: PathSnapshot, latest: list[Event]
    ) -> None:
        """Write the latest event's changes of shared state, if the appending process died before."""
        seed = next((record_of(entry) for entry in snapshot.entries[:1]), None) or {}
        shared: str | None = share_key(latest[-1]) if latest else seed.get("creation_id")
        delta = latest[-1].actions.state_delta if latest else seed.get("state", {})
        app_delta, user_delta, _ = split_scopes(delta)
        if shared is None or handle.shared_through == shared:
            return
        if app_delta or user_delta:
            self._share(name, app_delta, user_delta, f"{snapshot.row.session_id}/{shared}", is_new=False)
        handle.shared_through = shared


def oakleaf_session_id(store: Store, name: SessionName, number: int = 1) -> str:
    """Return the id in Oakleaf. `number` counts the sessions of that name: those in the trash keep their ids."""
    for field, part in zip(("app_name", "user_id", "session_id"), name, strict=True):
        check_text(part, field)
    place = read_store(store).space, session_owner(store, name[1])
    return derived_session_id(name[2], "session", *name, *place, number)


def _adk_session(name: SessionName, snapshot: PathSnapshot, state: State, latest: list[Event]) -> AdkSession:
    row, updated = snapshot.row, last_timestamp(snapshot.entries)
    if updated is None:
        updated = (row.updated_at if row.leaf.seq > row.seed_count else row.started_at) / 1e6
    app, user, session_id = name
    session = AdkSession(
        app_name=app, user_id=user, id=session_id, state=state, events=latest, last_update_time=updated
    )
    session._storage_update_marker = str(row.leaf)
    return session


# -- appending one event to an Oakleaf session --------------------------------------------------------


def append_event(session: Session, after: Leaf, event: Event, delta: State) -> tuple[Leaf, bool]:
    """Append an event after the leaf `after`, with `delta`, the change of the session's own state. Durable on
    return.

    Return the new leaf, and whether the event was written now: a caller that did not get the reply may call again.
    A note that others added meanwhile is no change of the conversation: the event goes behind it. `StaleLeaf` if the
    session's leaf has moved for another reason.
    """
    while True:
        try:
            return _append_event(session, after, event, delta)
        except StaleLeaf:
            session.refresh()
            if not _has_only_notes_since(session, after):
                raise
            after = session.leaf


def _has_only_notes_since(session: Session, leaf: Leaf) -> bool:
    """Return whether only notes of other writers were added to the path since then."""
    path = session.path(since=leaf.seq - 1)
    if not path or (path[0].branch, path[0].seq) != (leaf.branch, leaf.seq):
        return False
    added = path[1:]
    return bool(added) and all(isinstance(e.payload, Note) and record_of(e) is None for e in added)


def _append_event(session: Session, after: Leaf, event: Event, delta: State) -> tuple[Leaf, bool]:
    if session.leaf != after:
        session.refresh()
    if session.leaf != after:
        return _leaf_of_change(session, after, change_key(event)), False
    patch = state_patch(session.state if needs_current(delta) else {}, delta)
    if event.actions.rewind_before_invocation_id:
        patch = _rewind(session, event.actions.rewind_before_invocation_id, patch)
        after = session.leaf
    drafts = event_drafts(event, read(session).cursor, patch, SessionHistory(session))
    calls = _model_calls(event, drafts, session)
    appended = Mirror(session).append(
        drafts.drafts,
        after=after,
        key=change_key(event),
        calls=calls,
        row=model_column(calls),
        facts=_started_calls(drafts, session),
    )
    return appended.leaf, True


class SessionHistory:
    """The path before a new event. Usually none of it is read."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def call(self, call_id: str) -> ToolCall | None:
        return find_call(reversed(self._session.path()), call_id)

    def calling_event(self) -> Json:
        return record_of(self._since_calls[0]) or {}

    def noted_events(self) -> list[Json]:
        is_last = self._session.open_tool_calls[0].seq == self._session.leaf.seq
        return [] if is_last else noted_events(self._since_calls)

    @cached_property
    def _since_calls(self) -> list[Entry]:
        return self._session.path(since=self._session.open_tool_calls[0].seq - 1)


def _leaf_of_change(session: Session, leaf: Leaf, key: str) -> Leaf:
    """Return the leaf after the change with the key; `StaleLeaf` without a change."""
    for fact in read(session).facts_backwards():
        if fact.key == key and fact.leaf is not None:
            return fact.leaf
    raise StaleLeaf(session.session_id, leaf, session.leaf)


def _rewind(session: Session, invocation_id: str, patch: State) -> State:
    """Move the leaf before an invocation; return the patch that restores ADK's state of the time."""
    state = merge_state(session.state, patch)
    for entry in session.path():
        record = record_of(entry) or {}
        if record.get("invocation_id") == invocation_id:
            session.rewind(entry.seq - record.get("entry_count", 1))
            break
    return cast(State, merge_patch(session.state, state))


def _started_calls(drafts: EventDrafts, session: Session) -> list[ToolCallsStarted]:
    """Return the calls that may have run before a crash: ADK runs tools right after storing the answer."""
    index = drafts.answer_index
    answer = None if index is None else drafts.drafts[index].payload
    if index is None or not isinstance(answer, Message) or not answer.calls:
        return []
    seq = session.leaf.seq + index + 1
    return [ToolCallsStarted(seq, tuple(range(len(answer.calls))))]


def _model_calls(event: Event, drafts: EventDrafts, session: Session) -> list[Call]:
    """Return the model call that produced an event, if ADK reports the usage."""
    if event.usage_metadata is None:
        return []
    reply = {"candidates": [{}], "usage_metadata": event.usage_metadata}
    usage = gemini.parse_reply(reply).usage or Usage()
    model = event.model_version
    provider = GEMINI if model is not None and GEMINI in model else None
    after = session.leaf.seq + (drafts.answer_index or 0)
    answer = None if drafts.answer_index is None else after + 1
    # An event may carry an error and content: then the content is its answer.
    failed = event.error_code is not None and answer is None
    return [model_call(session, usage, provider, model, after=after, answer=answer, failed=failed)]
