"""Checkpoints as values, as notes in a log, and the index of those notes.

The adapter's notes hold, under `data["langgraph"]`, one of:

    {"source": …, "id": …, "parent": id, "run_id": …, "checkpoint": …, "metadata": …,
     "values": {channel: value}, "value_seqs": {channel: seq}, "messages_channel": channel,
     "message_seqs": [first, last], "highest_id": id, "writes_since": fact}
    {"writes": {"checkpoint": id, "task": id, "path": text, "items": [[index, channel, value], …]}}
    {"message": value}        a message of the graph that may not be an entry of its own
    {"dropped": [id, …]}      checkpoints that are no longer listed; their content stays
    {"call": {"task": namespace, "id": id, "status": …, "result": value}}    a tool call that runs once: started, done,
                              or raised, which ends it without a result

A checkpoint's note holds the values that are new with it; `value_seqs` gives, for the others, the seq of the note on its
path that holds them. `messages_channel` is the channel whose value is the messages of its path, which are the entries
from `message_seqs[0]` to `[1]`.

A log is indexed from its end, only as far as needed. How far that is follows from the notes: no earlier checkpoint has an
id above `highest_id`, and no write of this one was recorded before the fact `writes_since`. Knows no store, graph or serde.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from msgspec import Struct

from oakleaf.core.codec import from_json, to_json
from oakleaf.core.entries import Entry, Note
from oakleaf.core.messages import Message
from oakleaf.core.tree import Leaf
from oakleaf_frameworks.langgraph.messages import KEY, StoredMessage, ValueCodec, stored_message
from oakleaf_frameworks.shared import stored_record

FILLER = {"filler": True}
"""Marks a result that the graph never had: its call was left open, and something else followed."""


class NewCheckpoint(Struct, frozen=True):
    """A checkpoint to put."""

    checkpoint: dict[str, Any]
    """Without its channels' values."""
    parent: str | None
    metadata: dict[str, Any]
    values: dict[str, Any]
    """The values of its channels, without the messages."""
    changed: frozenset[str]
    """The channels whose values are new."""
    messages: list[BaseMessage] | None
    messages_channel: str

    @property
    def checkpoint_id(self) -> str:
        return str(self.checkpoint["id"])

    def note_data(
        self,
        channel_versions: dict[str, tuple[Any, int]],
        messages: Sequence[StoredMessage],
        index: CheckpointIndex,
        codec: ValueCodec,
    ) -> dict[str, Any]:
        """Return the note of the checkpoint, if the path before holds the versions `known` and the messages."""
        versions = self.checkpoint["channel_versions"]
        values: dict[str, Any] = {}
        value_seqs: dict[str, int] = {}
        for name, value in self.values.items():
            version, seq = channel_versions.get(name, (None, 0))
            if name in self.changed or version is None or version != versions.get(name):
                values[name] = codec.encode(value)
            else:
                value_seqs[name] = seq
        run = {"run_id": str(self.metadata["run_id"])} if "run_id" in self.metadata else {}
        return {
            "source": self.metadata.get("source"),
            "id": self.checkpoint_id,
            "parent": self.parent,
            **run,
            "checkpoint": codec.encode(self.checkpoint),
            "metadata": codec.encode(self.metadata),
            "values": values,
            "value_seqs": value_seqs,
            "messages_channel": self.messages_channel if self.messages is not None else None,
            "message_seqs": [messages[0].seq, messages[-1].seq] if messages else None,
            "highest_id": index.highest_id,
            "writes_since": index.first_writes.get(self.checkpoint_id),
        }


class LoadedCheckpoint(Struct, frozen=True):
    """A put checkpoint, with the pending writes."""

    checkpoint: dict[str, Any]
    """Without its channels' values."""
    metadata: dict[str, Any]
    values: dict[str, Any]
    writes: list[tuple[str, str, Any]]


class CheckpointRecord(Struct, frozen=True):
    """The index's record of one checkpoint, and the leaf at its note."""

    checkpoint_id: str
    leaf: Leaf
    parent: str | None
    run_id: str | None
    is_input: bool
    """Whether it holds the graph's input, which the next checkpoint adds to the messages."""
    writes_since: int | None
    """The fact before which none of its writes was recorded, if some were recorded before it."""


class WriteRecord(Struct, frozen=True):
    """The index's record of one pending write: the leaf at the note, and the position there."""

    leaf: Leaf
    position: int
    task_path: str


class CallRecord(Struct, frozen=True):
    """The index's record of one tool call: the leaf at the latest note, and the status there."""

    leaf: Leaf
    status: str


class CheckpointIndex:
    """The checkpoints, pending writes and tool calls of a session, from the latest notes; later notes win."""

    def __init__(self) -> None:
        self.checkpoints: dict[str, CheckpointRecord] = {}
        self.calls: dict[tuple[str, str], CallRecord] = {}
        """By the namespace of the task that runs it and the id of the call, which alone may be used again."""
        self.dropped: set[str] = set()
        self.highest_id: str | None = None
        """The highest id of all checkpoints of the log, in the index or not."""
        self.highest_earlier_id: str | None = None
        """The highest id of the checkpoints before the earliest one in the index."""
        self.first_writes: dict[str, int] = {}
        """By checkpoint, a fact before which none of the writes in the index was recorded."""
        self._writes: dict[str, dict[tuple[str, int], WriteRecord]] = {}

    def add(self, leaf: Leaf, data: dict[str, Any], fact: int) -> None:
        """Add a note later than all in the index, recorded by this fact or a later fact."""
        if "checkpoint" in data:
            self.checkpoints[data["id"]] = self._record(leaf, data)
            self.dropped.discard(data["id"])
        elif "writes" in data:
            self._writes_like(data["writes"], fact).update(_write_records(leaf, data["writes"]))
        elif "dropped" in data:
            self.dropped.update(data["dropped"])
        elif "call" in data:
            call = data["call"]
            self.calls[call["task"], call["id"]] = CallRecord(leaf, call["status"])

    def add_earlier(self, leaf: Leaf, data: dict[str, Any], fact: int) -> None:
        """Add a note that is earlier than all in the index."""
        if "checkpoint" in data:
            self.checkpoints.setdefault(data["id"], self._record(leaf, data))
            self.highest_earlier_id = data["highest_id"] or ""
        elif "writes" in data:
            records = self._writes_like(data["writes"], fact)
            records.update(_write_records(leaf, data["writes"]) | records)
        elif "dropped" in data:
            self.dropped.update(name for name in data["dropped"] if name not in self.checkpoints)
        elif "call" in data:
            call = data["call"]
            self.calls.setdefault((call["task"], call["id"]), CallRecord(leaf, call["status"]))

    def _record(self, leaf: Leaf, data: dict[str, Any]) -> CheckpointRecord:
        self.highest_id = max(self.highest_id or "", data["id"], data["highest_id"] or "")
        return CheckpointRecord(
            data["id"],
            leaf,
            data["parent"],
            data.get("run_id"),
            data["source"] == "input",
            data["writes_since"],
        )

    def _writes_like(self, writes: dict[str, Any], fact: int) -> dict[tuple[str, int], WriteRecord]:
        """Return the indexed writes of the same checkpoint."""
        name = writes["checkpoint"]
        self.first_writes[name] = min(fact, self.first_writes.get(name, fact))
        return self._writes.setdefault(name, {})

    def has_started(self, call_id: str) -> bool:
        """Whether a call with the id has started and not ended."""
        return any(name == call_id and call.status == "started" for (_, name), call in self.calls.items())

    def has_write(self, checkpoint_id: str, task: str, index: int) -> bool:
        return (task, index) in self._writes.get(checkpoint_id, ())

    def writes(self, checkpoint_id: str) -> list[tuple[str, WriteRecord]]:
        """Return task and write, in the graph's order of application."""
        records = self._writes.get(checkpoint_id, {})
        ordered = sorted(records.items(), key=lambda item: (item[1].task_path, *item[0]))
        return [(task, record) for (task, _), record in ordered]

    def listed(self) -> list[CheckpointRecord]:
        """Return the checkpoints not dropped, newest first: ids grow with time."""
        records = list(self.checkpoints.values())  # copied in one step: a graph may be running meanwhile
        listed = (record for record in records if record.checkpoint_id not in self.dropped)
        return sorted(listed, key=lambda record: record.checkpoint_id, reverse=True)

    def leaves(self, checkpoint_id: str) -> list[Leaf]:
        """Return the leaves at all notes of a checkpoint."""
        writes = list(self._writes.get(checkpoint_id, {}).values())
        return [self.checkpoints[checkpoint_id].leaf, *(record.leaf for record in writes)]


def _write_records(leaf: Leaf, writes: dict[str, Any]) -> dict[tuple[str, int], WriteRecord]:
    return {
        (writes["task"], index): WriteRecord(leaf, position, writes["path"])
        for position, (index, _, _) in enumerate(writes["items"])
    }


class KnownPath(Struct, frozen=True):
    """The content of the path to a checkpoint, cached."""

    checkpoint_id: str | None = None
    leaf: Leaf = Leaf(0, 0)
    messages: list[StoredMessage] = []
    checkpoint: bytes = b""
    """The checkpoint as its note holds it, as bytes: the graph may change its own copy."""
    value_seqs: dict[str, int] = {}
    """By channel, the seq of the note that holds its value."""

    def versions(self, codec: ValueCodec) -> dict[str, tuple[Any, int]]:
        """Return, by channel, the version and the seq of the note with the value."""
        if not self.checkpoint:
            return {}
        versions = codec.decode(from_json(self.checkpoint))["channel_versions"]
        return {name: (versions.get(name), seq) for name, seq in self.value_seqs.items()}


def known_path(record: CheckpointRecord, messages: list[StoredMessage], data: dict[str, Any]) -> KnownPath:
    seqs = data["value_seqs"] | dict.fromkeys(data["values"], record.leaf.seq)
    checkpoint = to_json(data["checkpoint"], "checkpoint")
    return KnownPath(record.checkpoint_id, record.leaf, messages, checkpoint, seqs)


def note_data(entry: Entry) -> dict[str, Any] | None:
    """Return the data of one of the adapter's notes; None for any other entry."""
    return stored_record(entry.payload, KEY) if isinstance(entry.payload, Note) else None


def path_messages(path: Iterable[Entry]) -> list[StoredMessage]:
    """Return the graph's messages on a path."""
    messages: list[StoredMessage] = []
    for entry in path:
        content = entry.message or (note_data(entry) or {}).get("message")
        is_filler = isinstance(content, Message) and (content.details or {}).get(KEY) == FILLER
        if content is not None and not is_filler:
            messages.append(stored_message(entry.seq, content))
    return messages
