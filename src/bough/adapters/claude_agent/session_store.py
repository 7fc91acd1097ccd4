"""Bough as the session store of the Claude Agent SDK: `ClaudeAgentOptions(session_store=BoughSessionStore(store))`.

Knows the SDK's protocol: keys, batches, summaries. Does not know how a line becomes an entry: `claude_agent_writing` does.
Work on the store runs on threads by anyio, as the SDK itself does it: the event loop is never held up.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
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

from ...errors import InvalidMessage, InvalidValue, NotFound, SessionTrashed, StaleLeaf
from ...formats.claude_code import TranscriptLine, clean_text, line_kind
from ...log.log import Log
from ...session import Session
from ...stores.base import SessionRow
from .. import require_store
from .mirror import Mirror, lines_of
from .notes import NAME
from .write import Writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...store import Store

R = TypeVar("R")
TRIES = 8
PAGE = 1_000
KNOWN = 256
"""Transcripts whose lines are remembered between batches; of another all are read again."""
PROJECT, SESSION, SUBPATH = "claude_project", "claude_session", "claude_subpath"
_ODD = re.compile(r"[^A-Za-z0-9-]+")


class BoughSessionStore(SessionStore):
    """Transcripts of the Claude Agent SDK as Bough sessions; sub-agents are their tasks.

    What was appended comes back equal, and the same lines are messages, calls, results and usage of a real session. Two
    processes may append to one transcript: the slower one lands behind the other.
    """

    def __init__(self, store: Store, *, agent: str = "claude-agent") -> None:
        self.store, self.agent = require_store(store, "BoughSessionStore"), agent
        self._lock = Lock()
        self._writers: OrderedDict[str, Writer] = OrderedDict()

    # -- the SDK's protocol ------------------------------------------------------------------------

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """All of them, durable on return. One whose uuid is known is passed over."""
        await _cross(self._append, key, [_object(entry) for entry in entries])

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Every line in the order it came, on whichever branch it is; None if there is none."""
        return cast("list[SessionStoreEntry] | None", await _cross(self._load, key))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        rows = await _cross(lambda: list(self._rows(project_key)))
        return [{"session_id": row.tags[SESSION], "mtime": row.updated_at // 1_000} for row in rows]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        return await _cross(self._summaries, project_key)

    async def delete(self, key: SessionKey) -> None:
        """Into the trash, a session with its sub-agents. `bough restore` brings them back."""
        await _cross(self._delete, key)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        return await _cross(lambda: [row.tags[SUBPATH] for row in self._tasks(key)])

    # -- more than the protocol --------------------------------------------------------------------

    async def opened(self, key: SessionKey) -> Session | None:
        """The Bough session of a transcript: show, fork, export it. None if there is none."""
        return await _cross(self._session, key)

    # -- on a thread -------------------------------------------------------------------------------

    def _append(self, key: SessionKey, lines: list[TranscriptLine]) -> None:
        if not lines:
            return
        name = self._base(key)
        with self._lock:
            writer = self._writers.setdefault(name, Writer())
            self._writers.move_to_end(name)
            if len(self._writers) > KNOWN:
                self._writers.popitem(last=False)
        with writer.lock:
            self._write(key, writer, lines)

    def _write(self, key: SessionKey, writer: Writer, lines: list[TranscriptLine]) -> None:
        for attempt in range(TRIES):
            try:
                mirror = writer.mirror or Mirror(self._started(key, lines).log)
                writer.mirror = None  # what fails in the middle is read again
                writer.mirror = _added(mirror, key, lines)
                return
            except (
                StaleLeaf,
                SessionTrashed,
            ):  # another process was faster, or somebody has deleted it meanwhile
                if attempt == TRIES - 1:
                    raise

    def _load(self, key: SessionKey) -> list[TranscriptLine] | None:
        session = self._session(key)
        return lines_of(session.log, session.read_blob) or None if session is not None else None

    def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        found: list[SessionSummaryEntry] = []
        for row in self._rows(project_key):
            state = Log(self.store.backend, row, self.store.runtime).state.get(NAME)
            data = state if isinstance(state, dict) else {}
            mtime = row.updated_at // 1_000
            found.append({"session_id": row.tags[SESSION], "mtime": mtime, "data": data})
        return found

    def _delete(self, key: SessionKey) -> None:
        session = self._session(key)
        gone = [] if session is None else [session.session_id]
        if key.get("subpath") is None:
            listed: SessionListSubkeysKey = {
                "project_key": key["project_key"],
                "session_id": key["session_id"],
            }
            gone.extend(row.session_id for row in self._tasks(listed))
        with self._lock:
            self._writers.clear()  # what is appended from here on is none of theirs
        for session_id in gone:
            if self.store.backend.session(session_id).trashed_at is None:
                self.store.delete(session_id)

    # -- keys and sessions -------------------------------------------------------------------------

    def _rows(self, project_key: str) -> Iterator[SessionRow]:
        """The sessions of a project that hold something, without their sub-agents and without forks of them."""
        for row in self.store.all_sessions(tag=(PROJECT, project_key), limit=PAGE):
            if SUBPATH not in row.tags and row.relation is None and row.leaf.seq:
                yield row

    def _tasks(self, key: SessionListSubkeysKey) -> Iterator[SessionRow]:
        for row in self.store.all_sessions(tag=(SESSION, key["session_id"]), limit=PAGE):
            is_own = row.tags.get(PROJECT) == key["project_key"] and row.relation in (None, "task")
            if is_own and SUBPATH in row.tags and row.leaf.seq:
                yield row

    def _session(self, key: SessionKey) -> Session | None:
        row = self._row(self._living(key)) or self._taken_in(key)
        return None if row is None else Session(Log(self.store.backend, row, self.store.runtime))

    def _row(self, session_id: str) -> SessionRow | None:
        try:
            return self.store.backend.session(session_id)
        except NotFound:
            return None

    def _taken_in(self, key: SessionKey) -> SessionRow | None:
        """A transcript that came here in a bundle, from another tenant perhaps, has the id it had there."""
        wanted = _tags(key)
        for row in self.store.all_sessions(tag=(SESSION, key["session_id"]), limit=PAGE):
            tags = {name: row.tags[name] for name in (PROJECT, SESSION, SUBPATH) if name in row.tags}
            if tags == wanted and row.relation in (None, "task"):
                return row
        return None

    def _started(self, key: SessionKey, lines: list[TranscriptLine]) -> Session:
        found = self._session(key)
        if found is not None:
            return found
        about: dict[str, Any] = {"session_id": self._living(key), "tags": _tags(key)}
        if key.get("subpath") is None:
            return self.store.start(self.agent, **about)
        named = (clean_text(line.get("agentType")) for line in lines if line_kind(line) == "agent_metadata")
        agent = next(named, None) or "subagent"
        parent = self._session({"project_key": key["project_key"], "session_id": key["session_id"]})
        if parent is None:
            return self.store.start(agent, **about)
        about["conversation_id"] = parent.row.conversation_id
        return self.store.start_task(parent, agent, **about)

    def _base(self, key: SessionKey) -> str:
        """The id of a transcript's session: the same in every process, another for every key and every tenant."""
        store = self.store.backend
        parts = (store.space, store.owner, key["project_key"], key["session_id"], key.get("subpath"))
        mark = sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
        last = (key.get("subpath") or "").rpartition("/")[2]
        shown = "-".join(_ODD.sub("-", part)[:64] for part in (key["session_id"], last) if part)
        return f"claude-{shown}-{mark}"

    def _living(self, key: SessionKey) -> str:
        """What was deleted keeps its id, and what is appended afterwards is another session."""
        base = name = self._base(key)
        count = 1
        while (row := self._row(name)) is not None and row.trashed_at is not None:
            count += 1
            name = f"{base}-{count}"
        return name


class Writer:
    """Who appends to one transcript in this process, one batch after the other."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.mirror: Mirror | None = None


def _added(mirror: Mirror, key: SessionKey, lines: list[TranscriptLine]) -> Mirror:
    """What is known behind them; what is known already is not written again."""
    fresh = mirror.unknown(lines)
    if not fresh:
        return mirror
    state = _summary(mirror, key, fresh) if key.get("subpath") is None else None
    try:
        Writing(mirror).run(mirror.numbered(fresh), state)
    except (
        InvalidMessage,
        InvalidValue,
    ):  # a line that no message can be made of; all of them are kept all the same
        mirror = Mirror(mirror.log)
        Writing(mirror, is_told=False).run(mirror.numbered(mirror.unknown(fresh)), state)
    return mirror


def _summary(mirror: Mirror, key: SessionKey, fresh: list[TranscriptLine]) -> dict[str, Any] | None:
    """What the SDK lists a session by, as an update of the state; None if it is as it was."""
    before = mirror.log.state.get(NAME)
    data = before if isinstance(before, dict) else {}
    known: SessionSummaryEntry = {"session_id": key["session_id"], "mtime": 0, "data": data}
    after = fold_session_summary(known, key, cast("list[SessionStoreEntry]", fresh))["data"]
    kept = {name: clean_text(value) if isinstance(value, str) else value for name, value in after.items()}
    return None if kept == data else {**dict.fromkeys(data), **kept}


def _tags(key: SessionKey) -> dict[str, str]:
    tags = {PROJECT: key["project_key"], SESSION: key["session_id"]}
    subpath = key.get("subpath")
    return tags if subpath is None else {**tags, SUBPATH: subpath}


def _object(entry: object) -> TranscriptLine:
    if not isinstance(entry, dict):
        raise InvalidMessage(
            f"a transcript entry is a JSON object, not {type(entry).__name__}; hand in dicts"
        )
    return entry


async def _cross(work: Callable[..., R], *given: Any) -> R:
    """On a thread, to its end: whoever is cancelled while a write is under way may read afterwards."""
    return await to_thread.run_sync(partial(work, *given))
