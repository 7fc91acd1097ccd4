"""The baseline: the driver alone, one table, entries only, one commit per step.

No session, chain, journal or usage; the driver's defaults. `Standard` is the obvious first version: Python's own driver,
with a text key for the session.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from oakleaf.core.messages import Message

from .workload import Step

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
INSERT = "insert into entry (body) values (?)"


class Bare:
    def __init__(self, path: Path, synchronous: str = "full") -> None:
        self.path = path
        self.connection = apsw.Connection(str(path))
        self.connection.execute("pragma journal_mode = wal")
        self.connection.execute(f"pragma synchronous = {synchronous}")
        self.connection.execute("create table if not exists entry (id integer primary key, body blob)")

    def append(self, messages: Sequence[Message]) -> None:
        execute = self.connection.execute
        execute("begin immediate")
        for message in messages:
            execute(INSERT, (encode(message),))
        execute("commit")

    def step(self, step: Step) -> None:
        self.append(step.messages)

    def one_by_one(self, turn: Sequence[Step]) -> None:
        """Write the turn with one commit per message."""
        for step in turn:
            for message in step.messages:
                self.append((message,))

    def load(self) -> list[Any]:
        return self._load(1)

    def tail(self, count: int) -> list[Any]:
        last = int(self.connection.execute("select max(id) from entry").get)
        return self._load(last - count + 1)

    def _load(self, first: int) -> list[Any]:
        query = "select body from entry where id between ? and ? order by id"
        rows: list[Any] = self.connection.execute(query, (first, 1 << 62)).fetchall()
        return [decode(body) for (body,) in rows]

    def close(self) -> None:
        self.connection.close()


class Standard:
    """Python's own `sqlite3`, entries by (session, seq)."""

    def __init__(self, path: Path, synchronous: str = "full") -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("pragma journal_mode = wal")
        self.connection.execute(f"pragma synchronous = {synchronous}")
        self.connection.execute(
            "create table entry (session text, seq integer, body blob, primary key (session, seq))"
        )
        self.seq = 0

    def step(self, step: Step) -> None:
        execute = self.connection.execute
        execute("begin immediate")
        for message in step.messages:
            self.seq += 1
            execute("insert into entry values (?, ?, ?)", ("ses_1", self.seq, encode(message)))
        execute("commit")

    def close(self) -> None:
        self.connection.close()
