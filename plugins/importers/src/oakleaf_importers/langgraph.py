"""Import LangGraph: a SQLite file of `SqliteSaver`, where every checkpoint holds the whole state.

The serializer's values (msgpack with extensions, JSON in older versions) are read without its classes: an object becomes
its fields, nothing is constructed, and pickles are not opened. Checkpoints that begin with the same messages share
them; where they differ, a branch starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec

from oakleaf.core.codec import is_storable
from oakleaf.core.entries import Note
from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.core.state import State, merge_state
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, patches
from oakleaf_importers.formats import langchain
from oakleaf_importers.formats.json_values import UNEXPECTED_SHAPE, as_list, parse_time
from oakleaf_importers.sqlite_files import Row, SourceTables, open_tables

MESSAGES = "messages"
ARRAY_EXTENSION = 6
"""Holds arrays of numbers. All others but the snapshot hold (module, class, fields, …)."""
SNAPSHOT_EXTENSION = 7
INTERNAL_CHANNELS = ("__", "branch:", "to:")
"""The prefixes of LangGraph's own channels."""


def read_sessions(source: str) -> Iterator[SessionRecord]:
    with open_tables(source, "langgraph", "checkpoints") as tables:
        namespaces: dict[str, dict[str, None]] = {}
        for row in tables.rows("checkpoints"):
            thread, namespace = row.get("thread_id"), row.get("checkpoint_ns")
            if isinstance(thread, str):
                namespaces.setdefault(thread, {})[namespace if isinstance(namespace, str) else ""] = None
        for thread, names in namespaces.items():
            threads = {name: LangGraphThread(tables, thread, name) for name in names}
            tasks = tuple(part.record() for name, part in threads.items() if name and part.entries)
            root = threads.get("") or LangGraphThread(tables, thread, "")
            if root.entries or tasks:
                yield msgspec.structs.replace(root.record(), tasks=tasks)


IMPORTER = Importer(
    source="a SQLite file of LangGraph's SqliteSaver",
    sessions=read_sessions,
    versions="langgraph-checkpoint 4.3",
)


def unpack(kind: object, data: object) -> Any:
    """Decode a value of the serializer; `ValueError` for a value only Python can read."""
    if kind == "msgpack" and isinstance(data, bytes):
        return msgspec.msgpack.decode(data, ext_hook=_read_extension)
    if kind == "json" and isinstance(data, str | bytes):
        return msgspec.json.decode(data)
    if kind in ("null", "empty"):
        return None
    raise ValueError(f"a value stored as {kind}")


def _read_extension(code: int, data: memoryview) -> Any:
    if code == ARRAY_EXTENSION:
        return None
    value = msgspec.msgpack.decode(data, ext_hook=_read_extension)
    if code == SNAPSHOT_EXTENSION:
        return value
    return value[2] if isinstance(value, list) and len(value) > 2 else None


class LangGraphThread:
    """Reads the checkpoints of one thread, or of a subgraph's namespace in the thread."""

    def __init__(self, tables: SourceTables, thread: str, namespace: str) -> None:
        self.thread, self.namespace = thread, namespace
        self.losses = LossReport()
        self.entries: dict[str, EntryRecord] = {}
        self.leaf = START
        self.started_at: int | None = None
        self._keys: dict[tuple[str, bytes], str] = {}
        """By the key of the previous message and the digest of a message: its key."""
        self._tails = {START: START}
        """By the key of a message: the key of the last state change after it, or its own."""
        self._states: dict[str, State] = {START: {}}
        condition = "thread_id = ? and checkpoint_ns = ?"
        for row in tables.rows("checkpoints", condition, thread, namespace, order="checkpoint_id"):
            self._add_checkpoint(row)

    def record(self) -> SessionRecord:
        return SessionRecord(
            "langgraph",
            f"{self.thread}:{self.namespace}" if self.namespace else self.thread,
            tuple(self.entries.values()),
            leaf=self.leaf,
            conversation_id=None if self.namespace else self.thread,
            agent=self.namespace.rpartition("|")[2].partition(":")[0] or None,
            started_at=self.started_at,
            losses=self.losses,
            missing=("system prompt", "tool definitions", "options"),
        )

    def _add_checkpoint(self, row: Row) -> None:
        try:
            checkpoint = unpack(row.get("type"), row.get("checkpoint"))
            values = checkpoint["channel_values"]
            messages = values.get(MESSAGES)
            at = parse_time(checkpoint.get("ts"))
        except (*INVALID_JSON, *UNEXPECTED_SHAPE) as error:
            self.losses.misread("a checkpoint that cannot be read", str(error))
            return
        self.started_at = at if self.started_at is None else self.started_at
        tip = START
        for message in as_list(messages):
            tip = self._add_message(message, tip, at)
        if isinstance(values, dict) and self.entries:
            self._add_state(tip, values, at)
        self.leaf = self._tails[tip]

    def _add_message(self, message: object, tip: str, at: int | None) -> str:
        """Return the key of the message after `tip`; the key of `tip` for an unreadable message."""
        digest = sha256(msgspec.msgpack.encode(message, enc_hook=repr)).digest()
        key = self._keys.get((tip, digest))
        if key is not None:
            return key
        fields, entry = langchain.message_fields(message), None
        if fields is None:
            self.losses.misread("a message of unknown shape", type(message).__name__)
        else:
            entry = langchain.read_message(fields, self.losses)
        if entry is None:
            self._keys[tip, digest] = tip
            return tip
        key = self._keys[tip, digest] = str(len(self._keys) + 1)
        self.entries[key] = msgspec.structs.replace(entry, key=key, after=self._tails[tip], at=at)
        self._tails[key], self._states[key] = key, self._states[tip]
        return key

    def _add_state(self, tip: str, channels: dict[str, Any], at: int | None) -> None:
        """Add what changed in the channels besides the messages as a state change."""
        state = self._states[tip]
        values: State = {}
        for name, value in channels.items():
            is_state = isinstance(name, str) and name != MESSAGES and not name.startswith(INTERNAL_CHANNELS)
            if is_state and value is not None:
                if is_storable(value):
                    values[name] = value
                else:
                    self.losses.add("a channel whose value is not JSON", name)
        changes = {name: value for name, value in values.items() if state.get(name) != value}
        changes |= dict.fromkeys(name for name in state if name not in values)
        for patch in patches(state, changes):
            state = merge_state(state, patch)
            key = f"{tip} {len(self.entries)}"
            self.entries[key] = EntryRecord(Note(state=patch), key, self._tails[tip], at=at)
            self._tails[tip] = key
        self._states[tip] = state
