"""Taking in what another tool told: built in memory by the log's own laws, then written in one transaction.

Ids and times come from the source, so the same source makes the same session: taking it in twice adds nothing, and a
source that has grown since adds what it grew by. What the log's laws refuse is mended where that can be done without
inventing anything (a call without a result gets one that says so) and else counted as lost.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import count

from msgspec import Struct
from msgspec.structs import astuple, replace

from ...core.drafts import Draft
from ...core.entries import BranchSummary, Compaction, Note, Payload, kind_of
from ...core.messages import Message, ToolResult, tool_result
from ...core.tree import Leaf
from ...core.usage import MAX_COUNT, Call, Usage
from ...errors import (
    IdConflict,
    IdTaken,
    InvalidMessage,
    InvalidPosition,
    InvalidValue,
    SessionRunning,
    SessionTrashed,
    StaleLeaf,
)
from ...formats.records import START, EntryRecord, Loss, LossReport, SessionRecord
from ...log.labels import label
from ...log.log import Log
from ...log.new_session import SessionOptions, new_session
from ...log.runtime import Runtime
from ...models.prices import price
from ...stores.base import StoreBackend
from ...stores.memory.store import MemoryStore
from ..copy import import_dumps
from .incremental import FINAL, grow

NOTHING = "it contains no messages; nothing was imported"
NO_RESULT = "The session this was imported from holds no result of this call."


class ToolImportResult(Struct, frozen=True):
    """What became of one session of another tool."""

    tool: str
    source: str
    session_id: str
    """The id it has here."""
    added: tuple[str, ...]
    """The sessions written now, it and its tasks."""
    existing: tuple[str, ...]
    """Those that were here before."""
    entries: int
    """Entries that are new here."""
    losses: dict[str, Loss]
    """What could not be taken over as it was, by what it was."""
    title: str | None = None
    error: str | None = None
    """Why nothing of it was taken in."""


def import_session(
    store: StoreBackend, runtime: Runtime, foreign: SessionRecord, *, new_id: bool = False
) -> ToolImportResult:
    """One session and its tasks. All of it or nothing; of one that has grown since, what it grew by."""
    if not (foreign.entries or foreign.seeds or foreign.tasks):
        lost, about = foreign.losses, (foreign.title, NOTHING)
        return ToolImportResult(foreign.tool, foreign.source, foreign.session_id, (), (), 0, lost, *about)
    shelf = MemoryStore(space=store.space, owner=store.owner)
    losses = LossReport()
    added: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    entries, refused = 0, None
    try:
        SessionBuilder(shelf, runtime, foreign, losses).run()
        added, known, entries = _taken_in(store, runtime, shelf, foreign.session_id, new_id=new_id)
    except (
        InvalidValue,
        IdTaken,
        SessionRunning,
        StaleLeaf,
        SessionTrashed,
    ) as error:  # of this one; the next may be fine
        refused = str(error)
    session_id = added[0] if new_id and added else foreign.session_id
    return ToolImportResult(
        foreign.tool, foreign.source, session_id, added, known, entries, losses, foreign.title, refused
    )


def _taken_in(
    store: StoreBackend, runtime: Runtime, shelf: StoreBackend, session_id: str, *, new_id: bool
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """The sessions written now, those that were here before, and how many entries are new."""
    try:
        return _all_of(store, runtime, shelf, (session_id,), new_id=new_id, children=True)
    except IdConflict:
        with shelf.export_sessions(session_id, children=True) as dumps:
            names = [dump.row.session_id for dump in dumps.sessions]
    added: list[str] = []
    known: list[str] = []
    entries = 0
    for name in names:  # each before its tasks
        try:
            new, old, many = _all_of(store, runtime, shelf, (name,), new_id=False, children=False)
        except IdConflict:
            new, old, many = (), (name,), grow(store, runtime, shelf, name)
        added, known, entries = [*added, *new], [*known, *old], entries + many
    return tuple(added), tuple(known), entries


def _all_of(
    store: StoreBackend,
    runtime: Runtime,
    shelf: StoreBackend,
    names: tuple[str, ...],
    *,
    new_id: bool,
    children: bool,
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    with shelf.export_sessions(*names, children=children) as dumps:
        taken = import_dumps(store, runtime, dumps, new_id=new_id)
    return taken.added, taken.known, taken.entries


class Clock:
    """A world that stands at the time of what is told."""

    def __init__(self, runtime: Runtime, new_id: Callable[[str], str]) -> None:
        self.now = 0
        self.runtime = Runtime(lambda: self.now, new_id, runtime.holder, runtime.is_gone, runtime.redactor)


class SessionBuilder:
    """The session as its source tells it, in a store of its own; what it loses goes to `losses`."""

    def __init__(
        self,
        shelf: StoreBackend,
        runtime: Runtime,
        foreign: SessionRecord,
        losses: LossReport,
        parent: Log | None = None,
    ) -> None:
        self.foreign, self.losses, self.outer = foreign, losses, runtime
        self.clock = Clock(runtime, _ids(foreign.session_id))
        times = [told.at for told in foreign.entries if told.at is not None]
        self.clock.now = (
            foreign.started_at if foreign.started_at is not None else min(times, default=runtime.now())
        )
        self.log = self._started(shelf, parent)
        self.places = {START: self.log.leaf}
        losses.merge(foreign.losses)

    def _started(self, shelf: StoreBackend, parent: Log | None) -> Log:
        foreign = self.foreign
        conversation_id = foreign.session_id
        about: SessionOptions = {
            "owner": shelf.owner,
            "title": foreign.title,
            "relation": "import",
            "state": foreign.state,
            "tags": {"imported_from": foreign.tool, **foreign.tags},
        }
        if parent is not None:
            parent.record("task_started", data={"child": foreign.session_id, "seq": parent.leaf.seq})
            conversation_id = parent.store.session(parent.session_id).conversation_id
            about["relation"] = "task"
            about["parent_session"], about["parent_seq"] = parent.session_id, parent.leaf.seq
        seeds = [Draft(seed) for seed in foreign.seeds]
        runtime = self.clock.runtime
        new, cursor = new_session(
            runtime, shelf.space, foreign.agent, seeds, foreign.session_id, conversation_id, about
        )
        row, _ = shelf.create(new)
        return Log(shelf, row, runtime, cursor)

    def run(self) -> None:
        for told in self.foreign.entries:
            self.clock.now = told.at if told.at is not None else self.clock.now
            self._add(told)
            if told.key is not None:
                self.places[told.key] = self.log.leaf
        if self.foreign.leaf is not None:
            self._stand_behind(self.foreign.leaf)
        self._label()
        self._end()
        for task in self.foreign.tasks:
            SessionBuilder(self.log.store, self.outer, task, self.losses, self.log).run()

    def _add(self, told: EntryRecord) -> None:
        results = told.payload.results if isinstance(told.payload, Message) else ()
        if self._are_awaited(
            results
        ):  # they go where their calls are open, whichever of their like they follow
            self._append(told)
            return
        if told.after is not None:
            self._stand_behind(told.after)
        if results and not self._are_awaited(results):
            self.losses.add("a tool result without an open call", results[0].call_id)
            return
        if not results and not isinstance(told.payload, Note):
            self._close()
        self._append(told)

    def _are_awaited(self, results: tuple[ToolResult, ...]) -> bool:
        waiting = {call.call.id for call in self.log.cursor.open_calls}
        return bool(results) and all(result.call_id in waiting for result in results)

    def _stand_behind(self, key: str) -> None:
        place = self.places.get(key)
        if place is None:
            self.losses.add("a missing parent; the entry follows the previous one instead", key)
        elif place != self.log.leaf:
            self._close()
            self.log.move(place)

    def _append(self, told: EntryRecord) -> None:
        calls = []
        if told.usage is not None and _is_counted(told.usage):
            calls.append(self._call(told, told.usage))
        elif told.usage is not None:
            self.losses.add("usage that is not a count of tokens")
        draft = Draft(self._named(told), told.model, told.finish, told.evidence)
        try:
            self.log.append([draft], calls=calls)
        except (InvalidMessage, InvalidValue) as error:
            self.losses.add("an invalid message", str(error))

    def _call(self, told: EntryRecord, usage: Usage) -> Call:
        """The ledger's row. What is no answer, a summary for instance, was paid for too."""
        after, call_id = self.log.leaf.seq, self.clock.runtime.new_id("")
        by = told.payload.role if isinstance(told.payload, Message) else kind_of(told.payload)
        is_answer = by == "assistant"
        return Call(
            call_id,
            0,
            after,
            after + 1 if is_answer else None,
            self.clock.now,
            usage,
            "answer" if is_answer else by,
            provider=told.provider,
            model=told.model,
            price=price(usage, told.provider, told.model),
        )

    def _named(self, told: EntryRecord) -> Payload:
        """The payload, with the place here of the entry it names there."""
        payload = told.payload
        place = None if told.refers_to is None else self.places.get(told.refers_to)
        if isinstance(payload, Compaction):
            is_kept = (
                place is not None
                and 0 < place.seq <= self.log.leaf.seq
                and self.log.leaf_at(place.seq) == place
            )
            return replace(payload, first_kept=place.seq if place and is_kept else self.log.leaf.seq + 1)
        if isinstance(payload, BranchSummary) and place is not None:
            return replace(payload, leaf_seq=place.seq, leaf_id=self.log.cursor_at(place).entry_id.hex())
        return payload

    def _label(self) -> None:
        for key, words in self.foreign.labels.items():
            try:
                label(self.log, self.places.get(key, Leaf(0, 0)), words)
            except (InvalidPosition, InvalidValue) as error:
                self.losses.add("an invalid label", str(error))

    def _close(self) -> None:
        """What was never answered is told so: no provider takes a history with a call left open."""
        waiting = self.log.cursor.open_calls
        if waiting:
            missing = (tool_result(c.call.id, NO_RESULT, error=True, outcome="interrupted") for c in waiting)
            self.log.append([Draft(message) for message in missing])
            what = "a tool call without a result; an error result was added"
            self.losses.add(what, waiting[0].call.id, len(waiting))

    def _end(self) -> None:
        row = {
            "status": "interrupted" if self.log.cursor.turn else "idle",
            "holder": None,
            "lease_until": None,
        }
        foreign = self.foreign
        data = {"tool": foreign.tool, "source": foreign.source, "losses": self.losses.counts}
        self.log.record(FINAL, data=data, row=row)


def _is_counted(usage: Usage) -> bool:
    return all(count is None or (type(count) is int and 0 <= count <= MAX_COUNT) for count in astuple(usage))


def _ids(session_id: str) -> Callable[[str], str]:
    """The same ones each time: the n-th of this session."""
    numbers = count(1)

    def new_id(prefix: str) -> str:
        made = sha256(f"{session_id} {next(numbers)}".encode()).hexdigest()
        return f"{prefix}_{made[:20]}" if prefix else made[:12]

    return new_id
