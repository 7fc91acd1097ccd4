"""Import a `SessionRecord`: build the session in a memory store by the log's own laws, then write it in one transaction.

Ids and times come from the source, so importing the same source twice adds nothing, and a source that has grown adds only
its new entries. What the log's laws refuse is repaired if nothing has to be invented (a call without a result gets an
error result), and otherwise counted as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.bundle.copy import as_imported, import_exports
from oakleaf.bundle.model_addresses import ModelAddresses
from oakleaf.core.drafts import Blob, Draft
from oakleaf.core.entries import BranchSummary, Compaction, Note, Payload, Settings, kind_of
from oakleaf.core.facts import Imported, ModelCallRecorded, TaskStarted
from oakleaf.core.messages import Message, ToolResult, tool_result
from oakleaf.core.tool_definitions import define_tools
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import (
    IdConflict,
    IdTaken,
    InvalidMessage,
    InvalidPosition,
    InvalidValue,
    SessionRunning,
    SessionTrashed,
    StaleLeaf,
)
from oakleaf.ingest.incremental import append_new_entries
from oakleaf.ingest.records import START, EntryRecord, Loss, LossReport, SessionRecord, is_countable
from oakleaf.log.labels import label
from oakleaf.log.log import Log
from oakleaf.log.new_session import SessionOptions, new_session
from oakleaf.log.runtime import Runtime
from oakleaf.models.prices import price
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.memory.store import MemoryStore

NO_MESSAGES = "it contains no messages; nothing was imported"
MASKED = "an entry with a secret in it, which is masked"
MAX_BATCH = 100
"""Entries appended at once."""
REFUSALS = (InvalidValue, IdTaken, SessionRunning, StaleLeaf, SessionTrashed)
"""Errors of a single session."""
NO_RESULT = "The session this was imported from has no result for this call."


class ToolImportResult(Struct, frozen=True):
    """The result of importing a session of another tool."""

    tool: str
    source: str
    session_id: str
    """The id in this store."""
    added: tuple[str, ...] = ()
    """The written sessions: the session and all tasks."""
    existing: tuple[str, ...] = ()
    """The sessions from before."""
    entries: int = 0
    """New entries."""
    losses: dict[str, Loss] = {}
    """Unconverted items, by description."""
    items: int = 0
    """The lines of the source; its entries, if it has no lines."""
    misread: int = 0
    """The items that were not understood: of unknown kind or shape, or damaged."""
    title: str | None = None
    missing: tuple[str, ...] = ()
    """Facts missing in the source, such as "tool definitions"."""
    unfinished: int = 0
    """Unfinished answers: import again later to add the answers."""
    foreign_addresses: tuple[str, ...] = ()
    """Addresses of models in the import, without any requests unless allowed here on purpose."""
    error: str | None = None
    """The reason why nothing was imported."""
    command_hint: str | None = None
    """The hint at the command line."""


def import_session(
    store: StoreBackend,
    runtime: Runtime,
    record: SessionRecord,
    *,
    new_id: bool = False,
    owner: str | None = None,
) -> ToolImportResult:
    """Import a session and all tasks, all or nothing; of a grown session only the new entries.

    It belongs to `owner`, or else to the owner the store was opened for.
    """
    redactor = runtime.redactor.with_own_count()
    title = None if record.title is None else redactor.redact_text(record.title)
    about = ToolImportResult(
        record.tool,
        record.source,
        record.session_id,
        title=title,
        missing=record.missing,
        unfinished=sum(session.unfinished for session in record.family()),
        items=sum(session.item_count for session in record.family()),
        misread=sum(session.losses.misread_count for session in record.family()),
    )
    if not record.has_content:
        return replace(about, losses=record.losses.for_people(redactor), error=NO_MESSAGES)
    staging = MemoryStore(space=store.space, owner=owner or store.owner)
    losses, addresses = LossReport(), ModelAddresses()
    try:
        SessionBuilder(staging, runtime, record, losses).run()
        added, existing, entries = _write(store, runtime, staging, record, addresses, new_id=new_id)
    except REFUSALS as error:  # the next session may be fine
        lost = losses.for_people(redactor)
        return replace(about, losses=lost, error=error.problem, command_hint=error.command_hint)
    session_id = added[0] if new_id and added else record.session_id
    lost = losses.for_people(redactor)
    about = replace(about, session_id=session_id, added=added, existing=existing, entries=entries)
    return replace(about, losses=lost, foreign_addresses=addresses.addresses)


def preview_session(
    store: StoreBackend, runtime: Runtime, record: SessionRecord, *, new_id: bool = False
) -> ToolImportResult:
    """Return the result of `import_session` without writing; the import runs on a copy in memory."""
    scratch = MemoryStore(space=store.space, owner=store.owner)
    for session_id in () if new_id else [session.session_id for session in record.family()]:
        if (row := store.find_session(session_id)) is None:
            continue
        with store.export_sessions(session_id) as exports:
            scratch.import_sessions(exports, runtime.now())
        if row.trashed_at is not None:
            scratch.trash(session_id, row.trashed_at)
    return import_session(scratch, runtime, record, new_id=new_id)


def _write(
    store: StoreBackend,
    runtime: Runtime,
    staging: StoreBackend,
    record: SessionRecord,
    addresses: ModelAddresses,
    *,
    new_id: bool,
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return the written sessions, the sessions from before, and the number of new entries."""
    try:
        with staging.export_sessions(record.session_id, children=True) as exports:
            exports = addresses.watch(as_imported(exports))
            result = import_exports(store, runtime, exports, new_id=new_id)
        return result.added, result.known, result.entries
    except IdConflict:
        with staging.export_sessions(record.session_id, children=True) as exports:
            session_ids = [dump.row.session_id for dump in exports.sessions]
    added: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()
    entries = 0
    given_ids = (entry.call_id for session in record.family() for entry in session.entries)
    call_ids = frozenset(call_id for call_id in given_ids if call_id is not None)
    for name in session_ids:  # parents before their tasks
        try:
            with staging.export_sessions(name) as exports:
                result = store.import_sessions(as_imported(exports), runtime.now())
            added, existing, entries = added + result.added, existing + result.known, entries + result.entries
        except IdConflict:
            existing += (name,)
            entries += append_new_entries(store, runtime, staging, name, call_ids)
    return added, existing, entries


class SessionBuilder:
    """Builds a session and all tasks in a memory store."""

    def __init__(
        self,
        staging: StoreBackend,
        runtime: Runtime,
        record: SessionRecord,
        losses: LossReport,
        parent: Log | None = None,
    ) -> None:
        self.record, self.losses, self.outer = record, losses, runtime
        self.redactor = runtime.redactor.with_own_count()
        new_id = _ids(record.session_id)
        self.runtime = Runtime(lambda: self.now, new_id, runtime.holder, runtime.is_gone, self.redactor)
        times = [entry.at for entry in record.entries if entry.at is not None]
        self.now = record.started_at if record.started_at is not None else min(times, default=runtime.now())
        """The time of the present record."""
        self.log = self._start(staging, parent)
        self.places = {START: self.log.leaf}
        self.waiting: list[EntryRecord] = []
        losses.merge(record.losses)
        self._count_redactions()

    def _count_redactions(self, drafts: Sequence[Draft] = ()) -> None:
        """Count masked fields: the session's own fields, or each masked draft."""
        redactor = self.redactor
        if not redactor.redactions:
            return
        masked = 0
        for draft in drafts if len(drafts) > 1 else ():
            redactor.redactions = 0
            redactor.redact_payload(draft.payload)
            masked += redactor.redactions > 0
        self.losses.add(MASKED, count=max(masked, 1))
        redactor.redactions = 0

    def _start(self, staging: StoreBackend, parent: Log | None) -> Log:
        record = self.record
        self.redactor.check_name(record.source, "session id")  # escaped it would not be recognised
        conversation_id = record.conversation_id or record.session_id
        about: SessionOptions = {
            "owner": staging.owner,
            "title": record.title,
            "relation": "import",
            "state": record.state,
            "tags": {"imported_from": record.tool, **self.redactor.redact_json(record.tags)},
        }
        if parent is not None:
            parent.record(TaskStarted(record.session_id, parent.leaf.seq))
            conversation_id = parent.store.session(parent.session_id).conversation_id
            about["relation"] = "task"
            about["parent_session"], about["parent_seq"] = parent.session_id, parent.leaf.seq
        seeds = [Draft(seed) for seed in record.seeds]
        new, cursor = new_session(
            self.runtime,
            staging.space,
            self.redactor.redact_json(record.agent),
            seeds,
            record.session_id,
            conversation_id,
            about,
        )
        row, _ = staging.create(new)
        return Log(staging, row, self.runtime, cursor)

    def run(self) -> None:
        for batch in _batches(self.record.entries):
            self._add_batch(batch)
        if self.waiting and not self.log.cursor.open_calls:
            self._append_waiting()
        if self.record.leaf is not None:
            self._move_after(self.record.leaf)
        self._label()
        self._end()
        for task in self.record.tasks:
            SessionBuilder(self.log.store, self.outer, task, self.losses, self.log).run()

    def _add_batch(self, batch: Sequence[EntryRecord]) -> None:
        """Add the steps of a turn in a single change, in half the time; step by step if a step is refused."""
        first, *others = batch
        self._set_time(first)
        if self._make_room(first):
            if others and self._append_all(batch):
                return
            self._append(first)
        self._note_place(first, self.log.leaf)
        for entry in others:
            self._set_time(entry)
            if self._make_room(entry):
                self._append(entry)
            self._note_place(entry, self.log.leaf)

    def _note_place(self, entry: EntryRecord, leaf: Leaf) -> None:
        if entry.key is not None:
            self.places[entry.key] = leaf

    def _set_time(self, entry: EntryRecord) -> None:
        self.now = entry.at if entry.at is not None else self.now

    def _make_room(self, entry: EntryRecord) -> bool:
        """Move to the entry's place; return whether the entry may be appended there now."""
        results = entry.payload.results if isinstance(entry.payload, Message) else ()
        if self._are_open(results):  # they belong where their calls are, whatever they follow in the source
            return True
        if entry.after is not None:
            self._move_after(entry.after)
        if results and not self._are_open(results):
            self.losses.add("a tool result without an open call", results[0].call_id)
            return False
        if isinstance(entry.payload, Settings) and self.log.cursor.open_calls:
            self.waiting.append(entry)  # only results and notes may follow a call
            return False
        if not results and not isinstance(entry.payload, Note):
            self._close_calls()
            self._append_waiting()
        return True

    def _append_waiting(self) -> None:
        """Append the settings after the awaited results."""
        waiting, self.waiting = self.waiting, []
        for entry in waiting:
            self._append(entry)

    def _are_open(self, results: tuple[ToolResult, ...]) -> bool:
        if not results:
            return False
        open_calls = {call.call.id for call in self.log.cursor.open_calls}
        return all(result.call_id in open_calls for result in results)

    def _move_after(self, key: str) -> None:
        place = self.places.get(key)
        if place is None:
            self.losses.add("a missing parent; the entry follows the previous one instead", key)
        elif place != self.log.leaf:
            self._close_calls()
            self._append_waiting()
            self.log.move(place)

    def _append_all(self, batch: Sequence[EntryRecord]) -> bool:
        """Append answers and results together, or nothing; return whether all were appended."""
        if any(entry.usage is not None and not is_countable(entry.usage) for entry in batch):
            return False
        before, started_at = self.log.leaf.seq, self.now
        drafts: list[Draft] = []
        calls: list[Call] = []
        for after, entry in enumerate(batch, before):
            self._set_time(entry)
            if entry.usage is not None:
                calls.append(self._call(entry, entry.usage, after))
            drafts.append(Draft(entry.payload, entry.model, entry.finish, entry.evidence, at=self.now))
        try:
            self.log.append(drafts, calls=calls)
        except (InvalidMessage, InvalidValue):
            self.now, self.redactor.redactions = started_at, 0
            return False
        branch = self.log.leaf.branch
        for seq, entry in enumerate(batch, before + 1):
            self._note_place(entry, Leaf(branch, seq))
        self._count_redactions(drafts)
        return True

    def _append(self, entry: EntryRecord) -> None:
        calls = []
        if entry.usage is not None and is_countable(entry.usage):
            calls.append(self._call(entry, entry.usage, self.log.leaf.seq))
        elif entry.usage is not None:
            self.losses.add("usage that is not a count of tokens")
        payload, blobs = self._payload(entry), tuple[Blob, ...]()
        if isinstance(payload, Settings) and entry.tools is not None:
            tools = define_tools(entry.tools, self.redactor)
            payload, blobs = replace(payload, tool_definitions=tools.definitions), (tools.blob,)
        draft = Draft(payload, entry.model, entry.finish, entry.evidence, blobs)
        try:
            self.log.append([draft], calls=calls)
        except (InvalidMessage, InvalidValue) as error:
            self.losses.add("an invalid message", str(error))
            if calls:  # it was paid for anyway
                self.log.record(ModelCallRecorded(), calls=[replace(call, answer_seq=None) for call in calls])
        self._count_redactions([draft])

    def _call(self, entry: EntryRecord, usage: Usage, after: int) -> Call:
        """Return the ledger row of the model call. A summary was paid for as well, not only an answer."""
        call_id = entry.call_id or self.runtime.new_id("")
        by = entry.payload.role if isinstance(entry.payload, Message) else kind_of(entry.payload)
        is_answer = by == "assistant"
        return Call(
            call_id,
            0,
            after,
            after + 1 if is_answer else None,
            self.now,
            usage,
            "answer" if is_answer else by,
            provider=entry.provider,
            model=entry.model,
            price=entry.price or price(usage, entry.provider, entry.model, entry.units),
        )

    def _payload(self, entry: EntryRecord) -> Payload:
        """Return the payload with the position of the entry behind `refers_to`."""
        payload = entry.payload
        place = None if entry.refers_to is None else self.places.get(entry.refers_to)
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
        for key, words in self.record.labels.items():
            try:
                label(self.log, self.places.get(key, Leaf(0, 0)), words)
            except (InvalidPosition, InvalidValue) as error:
                self.losses.add("an invalid label", str(error))

    def _close_calls(self) -> None:
        """Close open calls with error results: no provider accepts a history with an open call."""
        open_calls = self.log.cursor.open_calls
        if open_calls:
            missing = (
                tool_result(c.call.id, NO_RESULT, error=True, outcome="interrupted") for c in open_calls
            )
            self.log.append([Draft(message) for message in missing])
            what = "a tool call without a result; an error result was added"
            self.losses.add(what, open_calls[0].call.id, len(open_calls))

    def _end(self) -> None:
        row: dict[str, Any] = {"holder": None, "lease_until": None}
        if self.log.cursor.turn:
            row["status"] = "interrupted"
        record = self.record
        models = (entry.model for entry in reversed(record.entries) if entry.model is not None)
        if (model := next(models, None)) is not None:
            row["model"] = model
        title = self.log.store.session(self.log.session_id).title
        self.log.record(Imported(record.tool, record.source, self.losses.counts, title), row=row)


def _batches(entries: Sequence[EntryRecord]) -> Iterator[Sequence[EntryRecord]]:
    """Yield all entries in order. The steps of a turn, answers with the results of all their calls, come together as far as
    each follows the one before it; anything else comes alone."""
    start = 0
    while start < len(entries):
        end = start + 1
        open_calls = _calls(entries[start])
        has_calls = bool(open_calls)
        while has_calls and end < min(len(entries), start + MAX_BATCH):
            entry, payload = entries[end], entries[end].payload
            if entry.after not in (None, entries[end - 1].key) or not isinstance(payload, Message):
                break
            if payload.role == "assistant" and not open_calls:
                open_calls = _calls(entry)
                has_calls = bool(open_calls)
            elif len(payload.results) == 1 and payload.results[0].call_id in open_calls:
                open_calls.remove(payload.results[0].call_id)
            else:
                break
            end += 1
        yield entries[start:end]
        start = end


def _calls(entry: EntryRecord) -> list[str]:
    return [call.id for call in entry.payload.calls] if isinstance(entry.payload, Message) else []


def _ids(session_id: str) -> Callable[[str], str]:
    """Return a function for ids, the same on every import: hashes of a counter."""
    numbers = count(1)

    def new_id(prefix: str) -> str:
        digest = sha256(f"{session_id} {next(numbers)}".encode()).hexdigest()
        return f"{prefix}_{digest[:20]}" if prefix else digest[:12]

    return new_id
