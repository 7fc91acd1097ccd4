"""Exporting and importing whole sessions in SQLite: the statements below the steps of `stores.transfer`.

Entries, calls and facts stream: a session of a gigabyte needs the memory of its largest entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

from oakleaf.core.drafts import NewEntry
from oakleaf.core.facts import StoredFact
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.usage import Call
from oakleaf.stores.base import QueuedInput, SessionDetail, SessionRow
from oakleaf.stores.sql.rows import ENTRY_COLUMNS, call_row, fact_row, stored_from
from oakleaf.stores.sql.session_rows import session_row
from oakleaf.stores.sql.transfer import PIECE_BYTES, BlobStream, SessionImporter, TableExporter
from oakleaf.stores.sqlite.commit import (
    INSERT_BRANCH,
    INSERT_CALL,
    INSERT_FACT,
    SET_LEAF,
    insert_entries,
    insert_row,
)
from oakleaf.stores.sqlite.read import SessionReader

SELECT_OWNERS = """
select distinct session_number from branch join json_each(?) as named on named.value = branch.id order by 1
"""
SELECT_TASKS = """
select started_at, id from session where parent_session = :id and relation = 'task'
  and space = :space and (:owner is null or owner = :owner)
"""
SELECT_RANGE = f"select {ENTRY_COLUMNS}, role, null from entry where id between ? and ? order by id"
SELECT_BLOB = "select number, size from blob where space = ? and hash = ?"
INSERT_INPUT = "insert into inbox (session_number, number, body, at, imported) values (?, ?, ?, ?, ?)"
INSERT_BLOB = """
insert into blob (space, hash, mime, size, at, bytes) values (?, ?, ?, ?, ?, zeroblob(?)) returning number
"""
LINK_BLOB = "insert or ignore into blob_use select ?, number from blob where space = ? and hash = ?"
# Usage since a time is looked for in the sessions that were active since then.
SET_ACTIVITY = """
update session set active_at = max(active_at, coalesce((select max(at) from usage where id > ? and id < ?), 0)) where number = ?
"""
RESERVE_NUMBER = "update sqlite_sequence set seq = seq + 1 where name = 'session' returning seq"
FIRST_NUMBER = "insert into sqlite_sequence (name, seq) values ('session', 1) returning seq"


class SqliteExporter(SessionReader, TableExporter):
    def branch_tree(self, session_id: str, key: int) -> list[Branch]:
        return self.branches(key)

    def tasks(self, session_id: str) -> list[tuple[int, str]]:
        bindings = {"id": session_id, "space": self.space, "owner": self.owner}
        rows: list[Any] = self.connection.execute(SELECT_TASKS, bindings).fetchall()
        return rows

    def branch_entries(self, branch: int, first: int, last: int) -> Iterator[NewEntry]:
        for row in self.connection.execute(SELECT_RANGE, (branch << 32 | first, branch << 32 | last)):
            yield stored_from(row).entry

    def branch_owners(self, branches: Sequence[int]) -> list[int]:
        rows: list[Any] = self.connection.execute(SELECT_OWNERS, (str(list(branches)),)).fetchall()
        return [number for (number,) in rows]

    def blob(self, digest: str) -> tuple[int, Iterable[bytes]] | None:
        row = self.connection.execute(SELECT_BLOB, (self.space, digest)).fetchone()
        return None if row is None else (row[1], self._pieces(row[0]))

    def _pieces(self, number: int) -> Iterator[bytes]:
        with contextlib.closing(self.connection.blob_open("main", "blob", "bytes", number, False)) as blob:
            while piece := blob.read(PIECE_BYTES):
                yield piece


class SqliteImporter(SessionImporter):
    def __init__(self, exporter: SqliteExporter) -> None:
        super().__init__(exporter)
        self.writer = exporter.connection

    def has_session(self, session_id: str) -> bool:
        query = "select 1 from session where id = ?"
        return self.writer.execute(query, (session_id,)).fetchone() is not None

    def insert_session(self, row: SessionRow, detail: SessionDetail) -> int:
        return insert_row(self.writer, session_row(row, branch=0, seq=0), row.updated_at, detail)

    def reserve_key(self) -> int:
        number: Any = self.writer.execute(RESERVE_NUMBER).get
        if number is None:  # the store has never had a session
            number = self.writer.execute(FIRST_NUMBER).get
        return int(number)

    def insert_branch(self, key: int, parent: Leaf | None) -> int:
        branch, seq = (None, 0) if parent is None else (parent.branch, parent.seq)
        self.writer.execute(INSERT_BRANCH, (key, branch, seq))
        return self.writer.last_insert_rowid()

    def set_leaf(self, key: int, leaf: Leaf) -> None:
        self.writer.execute(SET_LEAF, (leaf.branch, leaf.seq, key))

    def insert_entries(self, entries: Iterator[tuple[int, NewEntry]], owner: str | None) -> None:
        for branch, entry in entries:
            insert_entries(self.writer, branch, [entry])

    def insert_calls(self, key: int, calls: Iterable[Call], owner: str | None) -> None:
        rows = ((*call_row(call, call.branch), key << 32 | n) for n, call in enumerate(calls, 1))
        self.writer.executemany(INSERT_CALL, rows)
        self.writer.execute(SET_ACTIVITY, (key << 32, (key + 1) << 32, key))

    def insert_facts(self, key: int, facts: Iterable[StoredFact], owner: str | None) -> None:
        insert_facts(self.writer, key, facts)

    def insert_inbox(self, key: int, inputs: Iterable[QueuedInput], owner: str | None) -> None:
        rows = ((key, queued.number, queued.body, queued.at, queued.is_imported) for queued in inputs)
        self.writer.executemany(INSERT_INPUT, rows)

    def has_blob(self, digest: str) -> bool:
        return self.writer.execute(SELECT_BLOB, (self.space, digest)).fetchone() is not None

    def insert_blob(self, blob: BlobStream, at: int) -> None:
        bindings = (self.space, blob.hash, blob.mime, blob.size, at, blob.size)
        number: Any = self.writer.execute(INSERT_BLOB, bindings).get
        if blob.size:
            with self.writer.blob_open("main", "blob", "bytes", number, True) as file:
                for piece in blob.pieces:
                    file.write(piece)

    def link_blobs(self, places: Iterable[tuple[int, int, str]]) -> None:
        rows = ((branch << 32 | seq, self.space, digest) for branch, seq, digest in places)
        self.writer.executemany(LINK_BLOB, rows)


def insert_facts(writer: apsw.Connection, number: int, facts: Iterable[StoredFact]) -> None:
    writer.executemany(INSERT_FACT, ((number << 32 | fact.number, *fact_row(fact)) for fact in facts))
