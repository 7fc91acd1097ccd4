"""The cost of the stored rows themselves: the rows of an Oakleaf commit, written by hand with the bare driver.

`ByHand` writes the same rows as `Ours` into tables of the same layout and page size: the entries with their chain ids, the
head by compare-and-swap, a fact with its key, the call with its tokens. `OneRow` is the minimum that stores all of
it: no head, no other tables, everything in columns of the entries. Neither has checks, redaction, locks or sessions;
they are only baselines.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import Any

import apsw

from oakleaf.core.usage import Usage

from .bare import encode
from .workload import Step

ROOT = b"\0" * 20
SESSION = BRANCH = 1
ENTRY = (
    "id integer primary key, turn, step, kind, role, internal, model, finish, entry_id, at, evidence, body"
)
CALL = "call_id, branch, after_seq, answer_seq, input, output, cache_read, cache_write, purpose, asked"
Execute = Callable[[str, tuple[Any, ...]], object]


class Rows:
    """The rows of a commit; keeps the session's position between steps."""

    def __init__(self) -> None:
        self.seq = self.facts = self.calls = 0
        self.entry_id = ROOT

    def entries(self, step: Step, at: int) -> list[tuple[Any, ...]]:
        rows = []
        for message in step.messages:
            body = encode(message)
            self.seq += 1
            hashed = b"%b%b %d %d\n%b" % (self.entry_id, b"message", 1, 1, body)
            self.entry_id = sha256(hashed).digest()[:20]
            place = (BRANCH << 32 | self.seq, 1, 1, None, message.role, message.role != "user", None, None)
            rows.append((*place, self.entry_id, at, None, body))
        return rows


class ByHand(Rows):
    SCHEMA = f"""
    create table entry ({ENTRY});
    create index entry_public on entry (id) where internal = 0;
    create table session (number integer primary key, branch, seq, facts, calls, input, output, cache_read, cache_write, at);
    insert into session values (1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    create table journal (id integer primary key, kind, key, branch, first_seq, last_seq, data, at);
    create table usage (id integer primary key, {CALL}, at);
    """

    def __init__(self, path: Path, synchronous: str = "full") -> None:
        super().__init__()
        self.connection = apsw.Connection(str(path))
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.connection.execute("pragma page_size = 2048")
        self.connection.execute("pragma journal_mode = wal")
        self.connection.execute(f"pragma synchronous = {synchronous}")
        self.connection.execute(self.SCHEMA)

    def step(self, step: Step) -> None:
        execute = self.connection.cursor().execute
        execute("begin immediate")
        self.write(execute, step, time_ns() // 1_000)
        execute("commit")

    def write(self, execute: Execute, step: Step, at: int) -> None:
        first, usage = self.seq + 1, step.usage
        for row in self.entries(step, at):
            execute("insert into entry values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        execute(
            "update session set facts = ?, at = ?, branch = ?, seq = ?, calls = calls + ?, input = input + ?, "
            "output = output + ?, cache_read = cache_read + ?, cache_write = cache_write + ? "
            "where number = ? and branch = ? and seq = ? and facts = ?",
            (
                *(self.facts + 1, at, BRANCH, self.seq, usage is not None, *counts(usage)),
                *(SESSION, BRANCH, first - 1, self.facts),
            ),
        )
        assert self.connection.changes() == 1
        self.facts += 1
        fact = (SESSION << 32 | self.facts, "appended", new_key(), BRANCH, first, self.seq, None, at)
        execute("insert into journal values (?, ?, ?, ?, ?, ?, ?, ?)", fact)
        if usage is not None:
            self.calls += 1
            call = (new_key(), BRANCH, first - 1, first, *counts(usage), None, None)
            row = (SESSION << 32 | self.calls, *call, at)
            execute("insert into usage values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def close(self) -> None:
        self.connection.close()


class OneRow(ByHand):
    SCHEMA = f"create table entry ({ENTRY}, fact, key, {CALL});"

    def write(self, execute: Execute, step: Step, at: int) -> None:
        first = self.seq + 1
        self.facts += 1
        for row in self.entries(step, at):
            beside = (self.facts, new_key(), None, BRANCH, first - 1, first, *counts(step.usage), None, None)
            execute(f"insert into entry values ({', '.join('?' * 24)})", (*row, *beside))


def counts(usage: Usage | None) -> tuple[int | None, ...]:
    if usage is None:
        return 0, 0, 0, 0
    return usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens


def new_key() -> str:
    return os.urandom(12).hex()
