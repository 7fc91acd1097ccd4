"""One namespace of a LangGraph thread in one session: reads checkpoints from its log and writes them to it.

The path to a checkpoint's note holds exactly the messages of its state. So a checkpoint that adds messages is an append,
and one that removes or edits some is a branch after the last message they share. Does not know configs, threads or
filters.

Nothing is read before it is needed: as long as there is no other writer, a checkpoint is one commit. The index begins with
the latest facts of the journal, and earlier ones are added when something may be among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from hashlib import sha256
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from langchain_core.messages import BaseMessage

from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry, Note
from oakleaf.core.facts import Appended, Fact, Moved, StoredFact, ToolCallsStarted
from oakleaf.core.messages import Message, Text, ToolResult
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor, advance
from oakleaf.core.usage import Call
from oakleaf.errors import OrphanResult, StaleLeaf
from oakleaf.ext import Mirror, SessionReader, read
from oakleaf.session import Session
from oakleaf.stores.base import SessionRow
from oakleaf_frameworks.langgraph.checkpoints import (
    FILLER,
    CallRecord,
    CheckpointIndex,
    CheckpointRecord,
    KnownPath,
    LoadedCheckpoint,
    NewCheckpoint,
    known_path,
    note_data,
    path_messages,
)
from oakleaf_frameworks.langgraph.messages import (
    KEY,
    StoredMessage,
    ValueCodec,
    common_prefix,
    from_langchain,
    response_field,
    stored_message,
    usage_of,
)
from oakleaf_frameworks.shared import NO_RESULT, model_call, model_column

TO_APPEND, BACK = "to append", "back"
"""Why the adapter moved a leaf, as recorded in the journal."""

WINDOW, LARGEST_WINDOW = 16, 1024
"""How many facts of the journal are read at first, and at most, to add earlier notes to the index."""

P = ParamSpec("P")
R = TypeVar("R")
Writes = list[tuple[int, str, Any]]
"""Index, channel and value of what a task wrote."""


def run_key(run_id: str) -> str:
    """Return the key of a run's first checkpoint in a session, for finding the run's sessions."""
    digest = sha256(run_id.encode(errors="surrogatepass")).hexdigest()
    return f"langgraph run {digest[:32]}"


def _retry_if_stale(
    write: Callable[Concatenate[ThreadLog, P], R],
) -> Callable[Concatenate[ThreadLog, P], R]:
    """Run a write at the thread's position; catch up and repeat if another writer was faster."""

    @wraps(write)
    def retried(self: ThreadLog, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            while True:
                try:
                    self._prepare_write()
                    return write(self, *args, **kwargs)
                except StaleLeaf:
                    self.catch_up()

    return retried


class ThreadLog:
    """A session with an index of its latest checkpoints. Safe to use from several threads."""

    def __init__(self, session: Session) -> None:
        self.session, self.reader, self._mirror = session, read(session), Mirror(session)
        self.index = CheckpointIndex()
        self._lock = RLock()
        self._first_fact = self._last_fact = 0
        """The numbers of the earliest and the latest fact that are in the index."""
        self._window = WINDOW
        self._runs: set[str] = set()
        """Runs whose first checkpoint here is known to be recorded under its key."""
        self._has_position = False
        """Whether the index has the fact that put the leaf where it is."""
        self._newest: str | None = None
        """The last checkpoint on the path to the leaf, dropped or not."""
        self._has_foreign_tail = False
        """Whether entries of other writers follow it there."""
        self._known = KnownPath()
        self._leaf_before_move: Leaf | None = None
        """The leaf before a move of ours whose append failed: the thread is still there."""
        self._was_rewound = False
        """Whether another writer moved the leaf to where it is."""

    # -- catching up -------------------------------------------------------------------------------

    def catch_up(self) -> SessionRow:
        """Read the changes of other writers, and reload the leaf."""
        with self._lock:
            row = self.session.refresh()
            if not self._last_fact:
                self.index, self._first_fact, self._has_position = CheckpointIndex(), row.facts + 1, False
                while self._add_earlier() and not self._has_position:
                    pass
                self._locate()
                self._last_fact = row.facts
            elif row.facts != self._last_fact:
                facts = self.session.journal(self._last_fact)
                entries = self._read_spans(facts)
                for fact in facts:
                    for leaf, data in _notes(fact, entries):
                        self.index.add(leaf, data, fact.number)
                self._set_position(facts)
                self._locate()
                self._last_fact = facts[-1].number if facts else self._last_fact
                self._extend_known(entries)
            return row

    def _add_earlier(self) -> bool:
        """Add the facts before the earliest fact in the index; return False without earlier facts."""
        count = min(self._window, self._first_fact - 1)
        if not count:
            return False
        after = self._first_fact - 1 - count
        facts = self.session.journal(after, count)
        entries = self._read_spans(facts)
        for fact in reversed(facts):
            for leaf, data in reversed(_notes(fact, entries)):
                self.index.add_earlier(leaf, data, fact.number)
        if not self._has_position:
            self._set_position(facts)
        self._first_fact, self._window = after + 1, min(2 * self._window, LARGEST_WINDOW)
        return True

    def _set_position(self, facts: Sequence[StoredFact]) -> None:
        """Note the leaf's way to the position after the facts."""
        for stored in facts:
            match stored.fact:
                case Moved(origin=origin, host=host):
                    reason = host.get(KEY)
                    self._leaf_before_move = Leaf(*origin) if reason == TO_APPEND else None
                    self._was_rewound = reason is None
                    self._has_position = True
                case Appended():
                    self._leaf_before_move, self._was_rewound = None, False
                    self._has_position = True

    def _read_spans(self, facts: Iterable[StoredFact]) -> dict[int, list[Entry]]:
        """Return the entries of the facts by branch."""
        spans: dict[int, tuple[int, int]] = {}
        for branch, first, last in filter(None, map(_span, facts)):
            span = spans.get(branch, (first, last))
            spans[branch] = min(first, span[0]), max(last, span[1])
        store, session_id = self.reader.store, self.session.session_id
        return {
            branch: store.path(session_id, leaf=Leaf(branch, last), first=first).entries
            for branch, (first, last) in spans.items()
        }

    def find(self, checkpoint_id: str | None) -> CheckpointRecord | None:
        """Return a checkpoint, dropped or not; None for an unknown id."""
        if checkpoint_id is None:
            return None
        with self._lock:
            while checkpoint_id not in self.index.checkpoints and self._may_be_earlier(checkpoint_id):
                self._add_earlier()
            return self.index.checkpoints.get(checkpoint_id)

    def _may_be_earlier(self, checkpoint_id: str) -> bool:
        """Whether a checkpoint with the id may come before all in the index."""
        highest = self.index.highest_earlier_id
        return self._first_fact > 1 and (highest is None or checkpoint_id <= highest)

    def listed(self) -> Iterator[CheckpointRecord]:
        """Yield the checkpoints not dropped, newest first, reading only on demand."""
        end: str | None = None
        while True:
            with self._lock:
                records, is_whole = self.index.listed(), self._first_fact <= 1
                start = "" if is_whole else self.index.highest_earlier_id
            if start is not None:
                for record in records:
                    if start < record.checkpoint_id and (end is None or record.checkpoint_id <= end):
                        yield record
                end = start
            if is_whole:
                return
            with self._lock:
                self._add_earlier()

    def listed_of_runs(self, run_ids: Collection[str]) -> list[CheckpointRecord]:
        """Return the listed checkpoints of the runs, and read back to the first run."""
        with self._lock:
            if self.catch_up().relation == "fork":  # what it inherits is not in its journal
                self.add_all()
            changes = [self.reader.find_change(run_key(run_id)) for run_id in run_ids]
            self._add_since(min((change.facts for change in changes if change is not None), default=None))
            return [record for record in self.index.listed() if record.run_id in run_ids]

    def _add_since(self, fact: int | None) -> None:
        """Index the log back to this fact."""
        with self._lock:
            while fact is not None and fact < self._first_fact and self._add_earlier():
                pass

    def add_all(self) -> None:
        """Index the whole log."""
        self._add_since(1)

    def _extend_known(self, entries_by_branch: dict[int, list[Entry]]) -> None:
        """Extend the known path to the newest checkpoint, if the entries continue or form the path."""
        newest = self.index.checkpoints.get(self._newest or "")
        entries = [] if newest is None else entries_by_branch.get(newest.leaf.branch, [])
        if newest is None or not entries or self._known.checkpoint_id == newest.checkpoint_id:
            return
        since = self._known.leaf if self._known.leaf.branch == newest.leaf.branch else Leaf(0, 0)
        if entries[0].seq <= since.seq + 1 and since.seq < newest.leaf.seq <= entries[-1].seq:
            fresh = entries[since.seq + 1 - entries[0].seq : newest.leaf.seq + 1 - entries[0].seq]
            messages = [*(self._known.messages if since.seq else []), *path_messages(fresh)]
            self._known = known_path(newest, messages, note_data(fresh[-1]) or {})

    def _locate(self) -> None:
        """Find the newest checkpoint on the path to the leaf, and the entries behind."""
        leaf = self.session.leaf if self._leaf_before_move is None else self._leaf_before_move
        ranges = self.reader.store.path(self.session.session_id, leaf=leaf, first=leaf.seq + 1).ranges
        last_seqs = {part.branch: part.last for part in ranges}
        newest = self._newest_within(last_seqs)
        while newest is None and self._add_earlier():
            newest = self._newest_within(last_seqs)
        if newest is not None and newest.is_input and self._was_rewound:  # the input was taken back
            newest = self.find(newest.parent)
        self._newest = None if newest is None else newest.checkpoint_id
        first = 1 if newest is None else newest.leaf.seq + 1
        tail = self.reader.store.path(self.session.session_id, leaf=leaf, first=first).entries
        notes = [note_data(entry) or {} for entry in tail]
        self._has_foreign_tail = not all(data.keys() & {"writes", "dropped", "call"} for data in notes)

    def _newest_within(self, last_seqs: Mapping[int, int]) -> CheckpointRecord | None:
        """Return the last checkpoint of the index on the path whose part on each branch ends so."""
        records = self.index.checkpoints.values()
        on_path = [record for record in records if record.leaf.seq <= last_seqs.get(record.leaf.branch, 0)]
        return max(on_path, key=lambda record: record.leaf.seq, default=None)

    def _prepare_write(self) -> None:
        """Move the leaf to the thread's position."""
        if not self._last_fact:
            self.catch_up()
        newest = self.index.checkpoints.get(self._newest or "")
        if self._leaf_before_move is not None:
            self._mirror.move(self._leaf_before_move, host={KEY: BACK})
            self._leaf_before_move = None
        elif self._was_rewound and self._has_foreign_tail:
            leaf = self._leaf_at(self.session.leaf, 0) if newest is None else newest.leaf
            self._mirror.move(leaf, host={KEY: BACK})
            self._has_foreign_tail = False
        self._was_rewound = False

    def latest(self) -> CheckpointRecord | None:
        """Return the last checkpoint on the path not dropped, else the newest of all."""
        with self._lock:
            checkpoint_id = self._newest
            while checkpoint_id is not None and checkpoint_id in self.index.dropped:
                record = self.find(checkpoint_id)
                checkpoint_id = None if record is None else record.parent
            if checkpoint_id is None and self._newest is None:
                return None
            return self.find(checkpoint_id) or next(self.listed(), None)

    # -- writing -----------------------------------------------------------------------------------

    @_retry_if_stale
    def put(self, new: NewCheckpoint, codec: ValueCodec, recorded: RecordedCalls | None) -> None:
        """Write a checkpoint after the parent. What others wrote meanwhile stays, on a branch of its own."""
        parent = self.find(new.parent)
        self.find(new.checkpoint_id)  # with what was recorded of it, if it is put again
        parent_path = self._path_to(parent)
        same = common_prefix(parent_path.messages, new.messages, codec)
        base = self._base(parent)
        if same < len(parent_path.messages):
            base = self._leaf_at(base, parent_path.messages[same - 1].seq if same else 0)
        builder = EntryBuilder(self.session, codec, base, parent_path.messages[:same])
        if new.metadata.get("source") != "loop" or (parent is not None and parent.is_input):
            recorded = None  # these messages were given to the graph, no model of it made them
        for message in (new.messages or [])[same:]:
            builder.add_message(message, recorded)
        versions = {
            name: (version, seq)
            for name, (version, seq) in parent_path.versions(codec).items()
            if seq <= base.seq
        }
        data = new.note_data(versions, builder.messages, self.index, codec)
        builder.add(Note({KEY: data}, hidden=True))
        builder.add_starts(
            self.index.has_started
        )  # tools may run before the checkpoint with their calls is put
        leaf, newest, had_tail = self.session.leaf, self._newest, self._has_foreign_tail
        if base != leaf:
            self._mirror.move(base, host={KEY: TO_APPEND})
            self._leaf_before_move = leaf  # until it is appended: if that fails, the leaf moves back
        self._append(builder, data)
        self._leaf_before_move = None
        self._newest, self._has_foreign_tail = new.checkpoint_id, False
        self._known = known_path(self.index.checkpoints[new.checkpoint_id], builder.messages, data)
        if recorded is not None:
            recorded.add(builder.calls)
        if newest is not None and newest > new.checkpoint_id:
            self._mirror.move(leaf, host={KEY: BACK})  # a late checkpoint: the thread stays where it is
            self._newest, self._has_foreign_tail = newest, had_tail

    def _append(self, builder: EntryBuilder, data: dict[str, Any]) -> None:
        run_id, leaf = data.get("run_id"), self.session.leaf
        key = None if run_id is None or run_id in self._runs else run_key(run_id)
        if self.reader.find_change(key) is not None:
            key = None
        appended = self._mirror.append(
            builder.drafts,
            key=key,
            calls=builder.calls,
            row=model_column(builder.calls),
            facts=builder.facts,
        )
        if appended.is_repeat:  # another writer was faster with the first checkpoint of the run
            raise StaleLeaf(self.session.session_id, leaf, appended.leaf)
        if run_id is not None:
            self._runs.add(run_id)
        self.index.add(appended.leaf, data, self._last_fact + 1)
        # Otherwise other facts came between: they are read by the next `catch_up`.
        if appended.fact_number == self._last_fact + builder.fact_count:
            self._last_fact = appended.fact_number

    def _path_to(self, record: CheckpointRecord | None) -> KnownPath:
        if record is None:
            return KnownPath()
        if self._known.leaf == record.leaf:
            return self._known
        paths = PathCache(self.reader, [record.leaf])
        return known_path(record, paths.messages(record.leaf), paths.note(record.leaf))

    def _base(self, parent: CheckpointRecord | None) -> Leaf:
        """Return where to append after `parent`: at the leaf if the thread is there, else on a branch."""
        is_next = self._newest == (None if parent is None else parent.checkpoint_id)
        if is_next and not self._has_foreign_tail:
            return self.session.leaf
        return self._leaf_at(self.session.leaf, 0) if parent is None else parent.leaf

    def _leaf_at(self, leaf: Leaf, seq: int) -> Leaf:
        """Return the entry `seq` on the path to `leaf`, with the branch of the entry."""
        ranges = self.reader.store.path(self.session.session_id, leaf=leaf, first=leaf.seq + 1).ranges
        branches = (part.branch for part in ranges if part.first <= seq <= part.last)
        return Leaf(next(branches, ranges[0].branch if ranges else leaf.branch), seq)

    @_retry_if_stale
    def put_writes(
        self,
        checkpoint_id: str,
        task: str,
        task_path: str,
        writes: Sequence[tuple[int, str, Any]],
        codec: ValueCodec,
    ) -> None:
        """Store a task's writes, once for each task and index; a special write (index below 0) replaces the last."""
        record = self.find(checkpoint_id)
        self._add_since(None if record is None else record.writes_since)
        items = [
            [index, channel, codec.encode(value)]
            for index, channel, value in writes
            if index < 0 or not self.index.has_write(checkpoint_id, task, index)
        ]
        if items:
            data = {"checkpoint": checkpoint_id, "task": task, "path": task_path, "items": items}
            self._append_note({"writes": data}, codec)

    def copy_from(self, source: ThreadLog, codec: ValueCodec) -> None:
        """Put every checkpoint, write and drop of another thread missing here."""
        source.add_all()
        self.add_all()
        records = source.index.listed()[::-1]
        paths = source.paths(records)
        for record in records:
            if record.checkpoint_id not in self.index.checkpoints:
                self.put(
                    source.new_checkpoint(record, paths, codec), codec, None
                )  # its calls are recorded there
            for task, task_path, writes in source.task_writes(record, paths, codec):
                self.put_writes(record.checkpoint_id, task, task_path, writes, codec)
        dropped = source.index.dropped.intersection(self.index.checkpoints) - self.index.dropped
        self.drop(sorted(dropped), codec)

    def drop(self, checkpoint_ids: Sequence[str], codec: ValueCodec) -> None:
        """Stop listing these checkpoints."""
        if checkpoint_ids:
            self._drop(checkpoint_ids, codec)

    @_retry_if_stale
    def _drop(self, checkpoint_ids: Sequence[str], codec: ValueCodec) -> None:
        self._append_note({"dropped": list(checkpoint_ids)}, codec)
        latest = self.latest()
        if latest is not None and latest.checkpoint_id != self._newest:
            self._mirror.move(latest.leaf, host={KEY: BACK})  # the session shows what the graph gets
            self._newest, self._has_foreign_tail = latest.checkpoint_id, False

    def _append_note(
        self, data: dict[str, Any], codec: ValueCodec, started_calls: Collection[str] = ()
    ) -> None:
        builder = EntryBuilder(self.session, codec)
        builder.add(Note({KEY: data}, hidden=True))
        builder.add_starts(started_calls.__contains__)
        self._append(builder, data)

    # -- tool calls that run once ------------------------------------------------------------------

    @_retry_if_stale
    def begin_call(
        self, task: str, call_id: str, checkpoint_id: str, codec: ValueCodec, *, is_repeatable: bool
    ) -> CallRecord | None:
        """Record the start of a call, and return None; or return the call's record, if a start is refused.

        It follows the checkpoint with that id, and so does every record of it.
        """
        self.catch_up()
        self.find(checkpoint_id)
        record = self.index.calls.get((task, call_id))
        if record is not None and record.status in (("done",) if is_repeatable else ("done", "started")):
            return record
        call = {"task": task, "id": call_id, "status": "started"}
        self._append_note({"call": call}, codec, [call_id])
        return None

    @_retry_if_stale
    def end_call(
        self, task: str, call_id: str, status: str, result: dict[str, Any], codec: ValueCodec
    ) -> None:
        """Record the end of a call: `done` with the encoded result, or `raised`."""
        call = {"task": task, "id": call_id, "status": status, **({"result": result} if result else {})}
        self._append_note({"call": call}, codec)

    def call_result(self, record: CallRecord, codec: ValueCodec) -> Any:
        """Return the result of a finished call."""
        return codec.decode(PathCache(self.reader, [record.leaf]).note(record.leaf)["call"]["result"])

    # -- reading -----------------------------------------------------------------------------------

    def paths(self, records: Iterable[CheckpointRecord]) -> PathCache:
        """Return the cache for reading the checkpoints."""
        leaves: list[Leaf] = []
        for record in records:
            self._add_since(record.writes_since)
            leaves.extend(self.index.leaves(record.checkpoint_id))
        return PathCache(self.reader, leaves)

    def metadata(self, record: CheckpointRecord, paths: PathCache, codec: ValueCodec) -> dict[str, Any]:
        metadata: dict[str, Any] = codec.decode(paths.note(record.leaf)["metadata"])
        return metadata

    def load(self, record: CheckpointRecord, paths: PathCache, codec: ValueCodec) -> LoadedCheckpoint:
        """Return a checkpoint as put."""
        note = paths.note(record.leaf)
        channels = [*note["values"], *note["value_seqs"]]
        channels += [note["messages_channel"]] if note["messages_channel"] is not None else []
        return LoadedCheckpoint(
            codec.decode(note["checkpoint"]),
            codec.decode(note["metadata"]),
            {channel: self.value(record, channel, paths, codec) for channel in channels},
            self.pending_writes(record, paths, codec),
        )

    def has_value(self, record: CheckpointRecord, channel: str, paths: PathCache) -> bool:
        note = paths.note(record.leaf)
        return (
            channel == note["messages_channel"] or channel in note["values"] or channel in note["value_seqs"]
        )

    def value(self, record: CheckpointRecord, channel: str, paths: PathCache, codec: ValueCodec) -> Any:
        """Return a channel's value at a checkpoint; KeyError without a value."""
        note = paths.note(record.leaf)
        if channel == note["messages_channel"]:
            return [message.message(codec) for message in self._messages(record, paths)]
        if channel in note["value_seqs"]:
            note = paths.note(record.leaf, note["value_seqs"][channel])
        return codec.decode(note["values"][channel])

    def _messages(self, record: CheckpointRecord, paths: PathCache) -> list[StoredMessage]:
        """Return the messages on the path to a checkpoint, from the known path if possible."""
        cache, leaf = self._known, record.leaf
        if leaf.branch == cache.leaf.branch and leaf.seq <= cache.leaf.seq:
            return [message for message in cache.messages if message.seq <= leaf.seq]
        messages = paths.messages(leaf)
        with self._lock:
            if record.checkpoint_id == self._newest:
                self._known = known_path(record, messages, paths.note(leaf))
        return messages

    def new_checkpoint(self, record: CheckpointRecord, paths: PathCache, codec: ValueCodec) -> NewCheckpoint:
        """Return a checkpoint to put into another thread."""
        loaded, channel = self.load(record, paths, codec), paths.note(record.leaf)["messages_channel"]
        return NewCheckpoint(
            checkpoint=loaded.checkpoint,
            parent=record.parent,
            metadata=loaded.metadata,
            values={name: value for name, value in loaded.values.items() if name != channel},
            changed=frozenset(loaded.values),
            messages=loaded.values.get(channel),
            messages_channel=channel or "",
        )

    def task_writes(
        self, record: CheckpointRecord, paths: PathCache, codec: ValueCodec
    ) -> list[tuple[str, str, Writes]]:
        """Return the pending writes with task and task path."""
        writes = []
        for task, write in self.index.writes(record.checkpoint_id):
            index, channel, value = paths.note(write.leaf)["writes"]["items"][write.position]
            writes.append((task, write.task_path, [(index, channel, codec.decode(value))]))
        return writes

    def pending_writes(
        self, record: CheckpointRecord, paths: PathCache, codec: ValueCodec
    ) -> list[tuple[str, str, Any]]:
        """Return task, channel and value of each pending write."""
        return [
            (task, channel, value)
            for task, _, writes in self.task_writes(record, paths, codec)
            for _, channel, value in writes
        ]


class EntryBuilder:
    """Builds the entries of a checkpoint after the leaf `base`, with the model calls behind the entries.

    A graph's state is freer than a log: a call may stay without a result, a result may come without its call. Open calls
    get results marked as fillers; a message that the log's order does not allow is stored in a note at its position.
    """

    def __init__(
        self,
        session: Session,
        codec: ValueCodec,
        base: Leaf | None = None,
        messages: Sequence[StoredMessage] = (),
    ) -> None:
        self._session, self._codec, reader = session, codec, read(session)
        self._cursor: Cursor = (
            reader.cursor if base is None or base == session.leaf else reader.cursor_at(base)
        )
        self.messages = list(messages)
        self.drafts: list[Draft] = []
        self.calls: list[Call] = []
        self.facts: list[Fact] = []
        self.fact_count = 1
        """How many facts the append will record."""

    def add(self, payload: Message | Note, model: str | None = None, finish: str | None = None) -> None:
        cursor = advance(self._cursor, payload).cursor
        self.fact_count += isinstance(payload, Message) and payload.role == "user"
        self.fact_count += bool(self._cursor.turn and not cursor.turn)
        self.drafts.append(Draft(payload, model, finish))
        self._cursor = cursor

    def add_starts(self, has_started: Callable[[str], bool]) -> None:
        """Record the start of the open calls already started."""
        calls = [call for call in self._cursor.open_calls if has_started(call.call.id)]
        if calls:
            self.facts.append(ToolCallsStarted(calls[0].seq, tuple(call.index for call in calls)))
            self.fact_count += 1

    def add_message(self, message: BaseMessage, recorded: Container[str] | None) -> None:
        """Add a message of the graph. Its model call is recorded unless it is in `recorded`, or that is None."""
        ours = from_langchain(message, self._codec.pack) if self._codec.is_readable else None
        if ours is not None and self._add_entry(ours, message):
            self._remember(ours)
            if recorded is not None:
                self._add_call(message, recorded)
            return
        encoded = self._codec.encode(message)
        self.add(Note({KEY: {"message": encoded}}))
        self._remember(encoded)

    def _add_entry(self, ours: Message, message: BaseMessage) -> bool:
        """Add an entry; return False if refused."""
        model = finish = None
        if ours.role == "assistant":
            model = response_field(message, "model_name", "model")
            finish = response_field(message, "finish_reason", "stop_reason")
        if ours.role != "tool":
            for open_call in self._cursor.open_calls:
                result = ToolResult(open_call.call.id, (Text(NO_RESULT),), error=True, outcome="interrupted")
                self.add(Message("tool", (result,), details={KEY: FILLER}))
        try:
            self.add(ours, model, finish)
        except OrphanResult:
            return False
        return True

    def _remember(self, content: Message | dict[str, Any]) -> None:
        stored, redactor = stored_message(self._cursor.seq, content), read(self._session).store.redactor
        if redactor.may_contain_secret(stored.body):
            hidden = (
                redactor.redact_payload(content)
                if isinstance(content, Message)
                else redactor.redact_json(content)
            )
            redacted = stored_message(stored.seq, cast(Message | dict[str, Any], hidden))
            redacted.copies.extend([redacted.message(self._codec), stored.message(self._codec)])
            stored = redacted
        self.messages.append(stored)

    def _add_call(self, message: BaseMessage, recorded: Container[str]) -> None:
        report, call_id = usage_of(message), message.id
        if report is None or not call_id or "\0" in call_id or call_id in recorded:
            return
        usage, units = report
        provider = response_field(message, "model_provider")
        model = response_field(message, "model_name", "model")
        after, answer = self._cursor.seq - 1, self._cursor.seq
        self.calls.append(
            model_call(
                self._session,
                usage,
                provider,
                model,
                after=after,
                answer=answer,
                call_id=call_id,
                units=units,
            )
        )


class PathCache:
    """Paths of a log, each read once and only as far as needed."""

    def __init__(self, reader: SessionReader, leaves: Iterable[Leaf]) -> None:
        self._store, self._session_id = reader.store, reader.session_id
        self._spans: dict[int, tuple[int, int]] = {}
        self._entries: dict[int, list[Entry]] = {}
        self._messages: dict[int, list[StoredMessage]] = {}
        for leaf in leaves:
            first, last = self._spans.get(leaf.branch, (leaf.seq, leaf.seq))
            self._spans[leaf.branch] = min(first, leaf.seq), max(last, leaf.seq)

    def messages(self, leaf: Leaf) -> list[StoredMessage]:
        """Return the messages on the path to the checkpoint at a leaf."""
        first, last = self.note(leaf)["message_seqs"] or (1, 0)
        messages = self._messages.get(leaf.branch, [])
        if last and (not messages or messages[-1].seq < last):
            path = self._store.path(self._session_id, leaf=leaf, first=first, last=last)
            messages = path_messages(path.entries)
            self._messages[leaf.branch] = messages
        return [message for message in messages if message.seq <= last]

    def note(self, leaf: Leaf, seq: int | None = None) -> dict[str, Any]:
        """Return the data of the note at a leaf, or of the note at `seq` on the path to the leaf."""
        number = leaf.seq if seq is None else seq
        entries = self._entries.get(leaf.branch) or self._read(leaf.branch)
        if number < entries[0].seq:  # a value that was set long ago
            entries = self._store.path(self._session_id, leaf=leaf, first=number, last=number).entries
        return note_data(entries[number - entries[0].seq]) or {}

    def _read(self, branch: int) -> list[Entry]:
        first, last = self._spans[branch]
        leaf = Leaf(branch, last)
        self._entries[branch] = self._store.path(self._session_id, leaf=leaf, first=first).entries
        return self._entries[branch]


def _span(fact: StoredFact) -> tuple[int, int, int] | None:
    """Return branch, first and last seq of a fact's entries; None without entries."""
    leaf = fact.leaf
    if leaf is None or not leaf.seq or (fact.first is None and fact.number > 1):
        return None
    return leaf.branch, fact.first or 1, leaf.seq


def _notes(fact: StoredFact, entries: Mapping[int, list[Entry]]) -> list[tuple[Leaf, dict[str, Any]]]:
    """Return the adapter's notes in a fact, with the leaf at each."""
    span = _span(fact)
    if span is None:
        return []
    branch, first, last = span
    start = entries[branch][0].seq
    return [
        (Leaf(entry.branch, entry.seq), data)
        for entry in entries[branch][first - start : last + 1 - start]
        if (data := note_data(entry)) is not None
    ]


class RecordedCalls:
    """The ids of the messages whose model calls a thread's sessions have recorded; read on first use.

    A subgraph passes its model's messages to its parent: whichever session wrote a message first has recorded its call.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._call_ids: set[str] | None = None

    def __contains__(self, call_id: object) -> bool:
        if self._call_ids is None:
            inherited = read(self._session).inherited_calls()
            self._call_ids = {call.call_id for call in [*self._session.model_calls("tree"), *inherited]}
        return call_id in self._call_ids

    def add(self, calls: Iterable[Call]) -> None:
        if self._call_ids is not None:
            self._call_ids.update(call.call_id for call in calls)
