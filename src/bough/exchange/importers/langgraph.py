"""LangGraph: a SQLite file of `SqliteSaver`, a whole state in every checkpoint.

Knows how its serializer packs values (msgpack with extensions, JSON before) and reads them without it: an object becomes
its fields, and nothing is ever constructed. Checkpoints whose messages begin alike share them; where they part is a branch.
A pickle is not opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec

from ...core.codec import to_json
from ...core.entries import Note
from ...core.state import State, merge_state
from ...errors import InvalidValue
from ...formats import langchain
from ...formats.jsonl import INVALID_JSON, UNEXPECTED_SHAPE, parse_time
from ...formats.records import START, EntryRecord, LossReport, SessionRecord, patches
from .sqlite_files import Row, Tables, tables

MESSAGES = "messages"
ARRAY = 6
"""The extension for arrays of numbers; all others hold (module, class, fields, …), or a value alone."""
SNAPSHOT = 7
OWN = ("__", "branch:", "to:")
"""How the channels of LangGraph's own begin."""


def sessions(place: str) -> Iterator[SessionRecord]:
    with tables(place, "langgraph", "checkpoints") as found:
        names: dict[str, dict[str, None]] = {}
        for row in found.rows("checkpoints"):
            thread, space = row.get("thread_id"), row.get("checkpoint_ns")
            if isinstance(thread, str):
                names.setdefault(thread, {})[space if isinstance(space, str) else ""] = None
        for thread, spaces in names.items():
            read = {space: Reading(found, thread, space) for space in spaces}
            tasks = tuple(r.foreign() for space, r in read.items() if space and r.told)
            root = read.get("") or Reading(found, thread, "")
            if root.told or tasks:
                yield msgspec.structs.replace(root.foreign(), tasks=tasks)


def unpacked(kind: object, data: object) -> Any:
    """A value the serializer wrote; `ValueError` for one that only Python could read."""
    if kind == "msgpack" and isinstance(data, bytes):
        return msgspec.msgpack.decode(data, ext_hook=_extension)
    if kind == "json" and isinstance(data, str | bytes):
        return msgspec.json.decode(data)
    if kind in ("null", "empty"):
        return None
    raise ValueError(f"a value kept as {kind}")


def _extension(code: int, data: memoryview) -> Any:
    if code == ARRAY:
        return None
    found = msgspec.msgpack.decode(data, ext_hook=_extension)
    if code == SNAPSHOT:
        return found
    return found[2] if isinstance(found, list) and len(found) > 2 else None


class Reading:
    """One thread, or a subgraph's own part of it."""

    def __init__(self, found: Tables, thread: str, space: str) -> None:
        self.thread, self.space = thread, space
        self.losses = LossReport()
        self.told: dict[str, EntryRecord] = {}
        self.leaf = START
        self.started_at: int | None = None
        self._keys: dict[tuple[str, bytes], str] = {}
        self._tails = {START: START}
        """By the key of a message that of the last entry behind it that is none."""
        self._states: dict[str, State] = {START: {}}
        where = "thread_id = ? and checkpoint_ns = ?"
        for row in found.rows("checkpoints", where, thread, space, order="checkpoint_id"):
            self._read(row)

    def foreign(self) -> SessionRecord:
        name = f"{self.thread}:{self.space}" if self.space else self.thread
        agent = self.space.rpartition("|")[2].partition(":")[0] or None
        where = {"leaf": self.leaf, "started_at": self.started_at, "losses": self.losses, "agent": agent}
        return SessionRecord("langgraph", name, tuple(self.told.values()), **where)  # type: ignore[arg-type]

    def _read(self, row: Row) -> None:
        try:
            checkpoint = unpacked(row.get("type"), row.get("checkpoint"))
            values = checkpoint["channel_values"]
            messages = values.get(MESSAGES)
            at = parse_time(checkpoint.get("ts"))
        except (*INVALID_JSON, *UNEXPECTED_SHAPE) as error:
            self.losses.add("a checkpoint that cannot be read", str(error))
            return
        self.started_at = at if self.started_at is None else self.started_at
        tip = START
        for message in messages if isinstance(messages, list) else ():
            tip = self._tell(message, tip, at)
        if isinstance(values, dict) and self.told:
            self._settle(tip, values, at)
        self.leaf = self._tails[tip]

    def _tell(self, message: object, tip: str, at: int | None) -> str:
        """The key of this message behind that one; told if it was not, and passed over if it cannot be."""
        found = langchain.message_fields(message)
        told = None
        content = _digest(message)
        key = self._keys.get((tip, content))
        if key is not None:
            return key
        if found is None:
            self.losses.add("a message of no shape we know", type(message).__name__)
        else:
            told = langchain.read_message(found, self.losses)
        if told is None:
            self._keys[tip, content] = tip
            return tip
        key = self._keys[tip, content] = str(len(self._keys) + 1)
        self.told[key] = msgspec.structs.replace(told, key=key, after=self._tails[tip], at=at)
        self._tails[key], self._states[key] = key, self._states[tip]
        return key

    def _settle(self, tip: str, values: dict[str, Any], at: int | None) -> None:
        """The channels beside the messages are state; what changed since is told as a change."""
        state = self._states[tip]
        other: State = {}
        for name, value in values.items():
            if isinstance(name, str) and name != MESSAGES and not name.startswith(OWN) and value is not None:
                try:
                    to_json(value, name)
                except InvalidValue:
                    self.losses.add("a channel that holds no JSON", name)
                else:
                    other[name] = value
        change = {name: value for name, value in other.items() if state.get(name) != value}
        change |= dict.fromkeys(name for name in state if name not in other)
        for patch in patches(state, change):
            state = merge_state(state, patch)
            key = f"{tip} {len(self.told)}"
            self.told[key] = EntryRecord(Note(state=patch), key, self._tails[tip], at=at)
            self._tails[tip] = key
        self._states[tip] = state


def _digest(message: object) -> bytes:
    return sha256(msgspec.msgpack.encode(message, enc_hook=repr)).digest()
