"""Oakleaf as the session store of the Claude Agent SDK: `ClaudeAgentOptions(session_store=OakleafSessionStore(store))`.

Knows the SDK's protocol: keys, batches, summaries. Does not know how a line becomes an entry (`transcript`). Calls to the
store run on threads by anyio, as the SDK's own do, so the event loop never waits for them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterator
from functools import partial
from hashlib import sha256
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anyio import to_thread
from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from oakleaf.errors import InvalidMessage, InvalidValue, SessionTrashed, StaleLeaf
from oakleaf.ext import read_store, session_of
from oakleaf.session import Session
from oakleaf.stores.base import SessionRow
from oakleaf_frameworks.claude_agent.lines import KEY
from oakleaf_frameworks.claude_agent.transcript import BatchWriter, TranscriptIndex, transcript_lines
from oakleaf_frameworks.shared import require_store
from oakleaf_importers.formats.claude_code import TranscriptLine, clean_text, copied_from, line_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from oakleaf.store import Store

R = TypeVar("R")
MAX_ATTEMPTS = 8
PAGE_SIZE = 1_000
CACHE_SIZE = 256
"""Transcripts whose index is kept between batches; others are read again."""
PROJECT_TAG, SESSION_TAG, SUBPATH_TAG = "claude_project", "claude_session", "claude_subpath"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]+")


class OakleafSessionStore(SessionStore):
    """Transcripts of the Claude Agent SDK as Oakleaf sessions; sub-agents are tasks.

    Lines are returned exactly as they were appended, and are also the messages, calls, results and usage of a real session.
    Two processes may append to one transcript: the slower one's lines come after the other's. With `redact=False` lines are
    stored as they are, secrets included.
    """

    def __init__(self, store: Store, *, agent: str = "claude-agent", redact: bool = True) -> None:
        self.store, self.agent = require_store(store, "OakleafSessionStore", redact=redact), agent
        self._lock = Lock()
        self._writers: OrderedDict[str, TranscriptWriter] = OrderedDict()

    # -- the SDK's protocol ------------------------------------------------------------------------

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append all lines, durable on return. A line whose uuid is already stored is skipped."""
        await _run_blocking(self._append, key, [_object(entry) for entry in entries])

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return every line of all branches in order of arrival; None without lines."""
        return cast("list[SessionStoreEntry] | None", await _run_blocking(self._load, key))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        rows = await _run_blocking(lambda: list(self._rows(project_key)))
        return [{"session_id": row.tags[SESSION_TAG], "mtime": row.updated_at // 1_000} for row in rows]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        return await _run_blocking(self._summaries, project_key)

    async def delete(self, key: SessionKey) -> None:
        """Move a session and its sub-agents to the trash; undo with `oakleaf restore`."""
        await _run_blocking(self._delete, key)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        rows = await _run_blocking(lambda: list(self._tasks(key["project_key"], key["session_id"])))
        return [row.tags[SUBPATH_TAG] for row in rows]

    # -- beyond the protocol -----------------------------------------------------------------------

    async def oakleaf_session(self, key: SessionKey) -> Session | None:
        """Return the Oakleaf session of a transcript, to show, fork or export; None if there is none."""
        return await _run_blocking(self._session, key)

    # -- on a thread -------------------------------------------------------------------------------

    def _append(self, key: SessionKey, lines: list[TranscriptLine]) -> None:
        if not lines:
            return
        session_id = self._base_id(key)
        with self._lock:
            writer = self._writers.setdefault(session_id, TranscriptWriter())
            self._writers.move_to_end(session_id)
            if len(self._writers) > CACHE_SIZE:
                self._writers.popitem(last=False)
        with writer.lock:
            self._write(key, writer, lines)

    def _write(self, key: SessionKey, writer: TranscriptWriter, lines: list[TranscriptLine]) -> None:
        for attempt in range(MAX_ATTEMPTS):
            try:
                index = writer.index or TranscriptIndex(self._find_or_start(key, lines))
                writer.index = None  # if the write fails halfway, the index is read again
                writer.index = _append_new(index, key, lines, self._present_sources(key, lines))
                return
            except (StaleLeaf, SessionTrashed):  # another process was faster, or deleted it
                if attempt == MAX_ATTEMPTS - 1:
                    raise

    def _present_sources(self, key: SessionKey, lines: list[TranscriptLine]) -> set[str]:
        """Return the origins of copied lines that are still stored, the trash included."""
        names = {name for line in lines if (name := copied_from(line)) is not None}
        ids = {name: self._base_id({"project_key": key["project_key"], "session_id": name}) for name in names}
        return {name for name in names if read_store(self.store).find_session(ids[name]) is not None}

    def _load(self, key: SessionKey) -> list[TranscriptLine] | None:
        session = self._session(key)
        return transcript_lines(session) or None if session is not None else None

    def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        summaries: list[SessionSummaryEntry] = []
        for row in self._rows(project_key):
            state = session_of(self.store, row).state.get(KEY)
            data = state if isinstance(state, dict) else {}
            mtime = row.updated_at // 1_000
            summaries.append({"session_id": row.tags[SESSION_TAG], "mtime": mtime, "data": data})
        return summaries

    def _delete(self, key: SessionKey) -> None:
        session = self._session(key)
        session_ids = [] if session is None else [session.session_id]
        if key.get("subpath") is None:
            tasks = self._tasks(key["project_key"], key["session_id"])
            session_ids.extend(row.session_id for row in tasks)
        with self._lock:
            self._writers.clear()  # later appends start new sessions
        for session_id in session_ids:
            if self.store.session(session_id).row.trashed_at is None:
                self.store.delete(session_id)

    # -- keys and sessions -------------------------------------------------------------------------

    def _rows(self, project_key: str) -> Iterator[SessionRow]:
        """Yield the non-empty sessions of a project, without sub-agents and forks."""
        for row in self.store.all_sessions(tag=(PROJECT_TAG, project_key), limit=PAGE_SIZE):
            if SUBPATH_TAG not in row.tags and row.relation is None and row.leaf.seq:
                yield row

    def _tasks(self, project_key: str, session_id: str) -> Iterator[SessionRow]:
        for row in self.store.all_sessions(tag=(SESSION_TAG, session_id), limit=PAGE_SIZE):
            is_own = row.tags.get(PROJECT_TAG) == project_key and row.relation in (None, "task")
            if is_own and SUBPATH_TAG in row.tags and row.leaf.seq:
                yield row

    def _session(self, key: SessionKey) -> Session | None:
        row = read_store(self.store).find_session(self._current_id(key)) or self._imported_row(key)
        return None if row is None else session_of(self.store, row)

    def _imported_row(self, key: SessionKey) -> SessionRow | None:
        """Find a transcript imported in a bundle by the session id of the original store."""
        key_tags, names = _tags(key), (PROJECT_TAG, SESSION_TAG, SUBPATH_TAG)
        for row in self.store.all_sessions(tag=(SESSION_TAG, key["session_id"]), limit=PAGE_SIZE):
            is_same = all(row.tags.get(name) == key_tags.get(name) for name in names)
            if is_same and row.relation in (None, "task"):
                return row
        return None

    def _find_or_start(self, key: SessionKey, lines: list[TranscriptLine]) -> Session:
        session = self._session(key)
        if session is not None:
            return session
        session_id, tags = self._current_id(key), _tags(key)
        if key.get("subpath") is None:
            return self.store.start(self.agent, session_id=session_id, tags=tags)
        names = (clean_text(line.get("agentType")) for line in lines if line_kind(line) == "agent_metadata")
        agent = next(names, None) or "subagent"
        parent = self._session({"project_key": key["project_key"], "session_id": key["session_id"]})
        if parent is None:
            return self.store.start(agent, session_id=session_id, tags=tags)
        return self.store.start_task(
            parent, agent, session_id=session_id, tags=tags, conversation_id=parent.row.conversation_id
        )

    def _base_id(self, key: SessionKey) -> str:
        """Return the id of a transcript's session: the same in every process, different for each key and tenant."""
        store = read_store(self.store)
        parts = (store.space, store.owner, key["project_key"], key["session_id"], key.get("subpath"))
        hashed = sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
        last = (key.get("subpath") or "").rpartition("/")[2]
        visible = "-".join(_NOT_PLAIN.sub("-", part)[:64] for part in (key["session_id"], last) if part)
        return f"claude-{visible}-{hashed}"

    def _current_id(self, key: SessionKey) -> str:
        """Return the id of the transcript's current session: deleted sessions keep the id, and the next
        session gets a number.
        """
        base = session_id = self._base_id(key)
        count = 1
        while (
            row := read_store(self.store).find_session(session_id)
        ) is not None and row.trashed_at is not None:
            count += 1
            session_id = f"{base}-{count}"
        return session_id


class TranscriptWriter:
    """Serializes the batches appended to one transcript in this process."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.index: TranscriptIndex | None = None


def _append_new(
    index: TranscriptIndex, key: SessionKey, lines: list[TranscriptLine], sources: Collection[str]
) -> TranscriptIndex:
    """Append the lines not stored yet, and return the index after the lines.

    The calls of lines copied from `sources` are counted there.
    """
    new = index.new_lines(lines)
    if not new:
        return index
    state = _summary(index, key, new) if key.get("subpath") is None else None
    try:
        BatchWriter(index, sources=sources).write(index.number(new), state)
    except (InvalidMessage, InvalidValue):  # a line that cannot be a message: store all of them unchanged
        index = TranscriptIndex(index.session)
        BatchWriter(index, parses=False).write(index.number(index.new_lines(new)), state)
    return index


def _summary(index: TranscriptIndex, key: SessionKey, new: list[TranscriptLine]) -> dict[str, Any] | None:
    """Return the update of the SDK's session list; None if nothing changed."""
    before = index.session.state.get(KEY)
    data = before if isinstance(before, dict) else {}
    summary: SessionSummaryEntry = {"session_id": key["session_id"], "mtime": 0, "data": data}
    after = fold_session_summary(summary, key, cast("list[SessionStoreEntry]", new))["data"]
    cleaned = {name: clean_text(value) if isinstance(value, str) else value for name, value in after.items()}
    return None if cleaned == data else {**dict.fromkeys(data), **cleaned}


def _tags(key: SessionKey) -> dict[str, str]:
    tags = {PROJECT_TAG: key["project_key"], SESSION_TAG: key["session_id"]}
    subpath = key.get("subpath")
    return tags if subpath is None else {**tags, SUBPATH_TAG: subpath}


def _object(entry: object) -> TranscriptLine:
    if not isinstance(entry, dict):
        raise InvalidMessage(f"a transcript entry must be a dict, not {type(entry).__name__}")
    return entry


async def _run_blocking(function: Callable[..., R], *args: Any) -> R:
    """Run on a thread to the end: a caller cancelled during a write may read afterwards."""
    return await to_thread.run_sync(partial(function, *args))
