"""Exporting and importing whole sessions in PostgreSQL: the statements below the steps of `stores.transfer`.

Entries, calls and facts stream through server-side cursors.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from psycopg.errors import UniqueViolation

from oakleaf.core.drafts import NewEntry
from oakleaf.core.facts import StoredFact
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.usage import Call
from oakleaf.errors import IdConflict, NotFound
from oakleaf.stores.base import QueuedInput, SessionDetail, SessionRow
from oakleaf.stores.sql.rows import (
    call_from,
    call_row,
    entry_row,
    fact_from,
    fact_row,
    session_from,
    stored_from,
)
from oakleaf.stores.sql.session_rows import SESSION_NAMES, detail_from, detail_row, session_row
from oakleaf.stores.sql.transfer import PIECE_BYTES, BlobStream, SessionExport, SessionImporter, TableExporter
from oakleaf_postgres.store.commit import TIE_BLOB, insert_branch, tool_call_rows
from oakleaf_postgres.store.connections import SET_SPACE, Connection, Row
from oakleaf_postgres.store.rows import (
    CALL_COLUMNS,
    CALL_NAMES,
    CALL_TYPES,
    ENTRY_COLUMNS,
    ENTRY_NAMES,
    ENTRY_TYPES,
    FACT_COLUMNS,
    JOURNAL_NAMES,
    SESSION_COLUMNS,
    caller_clock,
)

STREAM_ROWS = 200

# With the space itself: no policy applies to an operator's role.
MINE = f"""{SET_SPACE} and session.id = %(id)s and session.space = %(space)s
    and (%(owner)s::text is null or session.owner = %(owner)s)"""
SELECT_SESSION = f"select {SESSION_COLUMNS} from oakleaf.session where {MINE}"
SELECT_DETAIL = "select spec, policy, workspace, state from oakleaf.session_detail where session_number = %s"
TREE = f"""
with recursive line (id) as (
    select branch.id from oakleaf.session join oakleaf.branch on branch.session_number = session.number where {MINE}
    union
    select branch.parent from line join oakleaf.branch on branch.id = line.id where branch.parent is not null
)
"""
"""The branches of a session and their ancestors."""
SELECT_BRANCHES = f"""
{TREE}
select branch.id, session.id, branch.parent, branch.parent_seq,
       coalesce((select pg_catalog.max(entry.seq) from oakleaf.entry where entry.branch = branch.id), branch.parent_seq)
from line join oakleaf.branch on branch.id = line.id left join oakleaf.session on session.number = branch.session_number
where {SET_SPACE} order by branch.id
"""
STORED = f"""
select {ENTRY_COLUMNS}, entry.role,
       (select pg_catalog.string_agg(blob.hash, ' ') from oakleaf.blob_use join oakleaf.blob on blob.number = blob_number
        where blob_use.branch = entry.branch and blob_use.seq = entry.seq)
"""
SELECT_STORED = f"""
{STORED}
from oakleaf.session join oakleaf.branch on branch.session_number = session.number join oakleaf.entry on entry.branch = branch.id
where {MINE} order by entry.branch, entry.seq
"""
SELECT_STORED_PART = f"""
{STORED}
from oakleaf.session join oakleaf.branch on branch.id = %(branch)s join oakleaf.entry on entry.branch = branch.id
where {MINE} and entry.seq between %(first)s and %(last)s
  and (branch.session_number = session.number or branch.id in ({TREE} select line.id from line)) order by entry.seq
"""
SELECT_OWNERS = "select distinct session_number from oakleaf.branch where id = any(%s) order by 1"
SELECT_TASKS = """
select started_at, id from oakleaf.session where parent_session = %(id)s and relation = 'task'
  and (%(owner)s::text is null or owner = %(owner)s)
"""
SELECT_RANGE = f"""
select {ENTRY_COLUMNS}, entry.role, null from oakleaf.entry where branch = %s and seq between %s and %s order by seq
"""
SELECT_CALLS = f"select {CALL_COLUMNS} from oakleaf.usage where session_number = %s order by number"
SELECT_FACTS = f"select {FACT_COLUMNS} from oakleaf.journal where session_number = %s order by number"
SELECT_INBOX = (
    "select number, body, at, imported from oakleaf.inbox where session_number = %s order by number"
)
SELECT_BLOB = "select number, size from oakleaf.blob where space = %s and hash = %s"
SELECT_PIECE = "select substring(bytes from %s::integer for %s::integer) from oakleaf.blob where number = %s"

BATCH_ROWS, BATCH_BYTES = 500, 8 << 20


def _insert_rows(table: str, columns: Iterable[tuple[str, str]]) -> str:
    """Return a statement for inserting many rows, an array per column: planning costs more than a row.

    Not COPY, which PostgreSQL refuses under row level security.
    """
    names, types = zip(*columns, strict=True)
    arrays = (f"%{'b' if kind == 'bytea' else 's'}::{kind}[]" for kind in types)
    return f"insert into oakleaf.{table} ({', '.join(names)}) select * from unnest({', '.join(arrays)})"


_SESSION_COLUMNS = (("session_number", "bigint"), ("space", "text"), ("owner", "text"))
INSERT_ENTRIES = _insert_rows(
    "entry",
    [("branch", "bigint"), ("space", "text"), ("owner", "text"), *zip(ENTRY_NAMES, ENTRY_TYPES, strict=True)],
)
INSERT_TOOL_CALLS = _insert_rows(
    "tool_call", [("branch", "bigint"), ("space", "text"), ("hash", "bigint"), ("seq", "bigint")]
)
INSERT_CALLS = _insert_rows(
    "usage", [*_SESSION_COLUMNS, ("number", "bigint"), *zip(CALL_NAMES, CALL_TYPES, strict=True)]
)
# Usage since a time is looked for in the sessions that were active since then.
SET_ACTIVITY = """
update oakleaf.session set active_at = last.at
from (select max(at) as at from oakleaf.usage where session_number = %(number)s) as last
where number = %(number)s and last.at > session.active_at
"""
FACT_TYPES = ("bigint", "text", "text", "bigint", "bigint", "bigint", "text", "bigint")
INSERT_FACTS = _insert_rows("journal", [*_SESSION_COLUMNS, *zip(JOURNAL_NAMES, FACT_TYPES, strict=True)])
INSERT_SESSION = f"""
insert into oakleaf.session ({", ".join(SESSION_NAMES[1:])}, active_at)
values ({", ".join("%s::text::jsonb" if name == "tags" else "%s" for name in SESSION_NAMES[1:])}, %s) returning number
"""
INSERT_DETAIL = """
insert into oakleaf.session_detail (session_number, space, spec, policy, workspace, state) values (%s, %s, %s, %s, %s, %s)
"""
# With a key: only a client's input has none, and a worker would answer it.
INSERT_INPUT = """
insert into oakleaf.inbox (session_number, number, space, owner, body, at, imported, key) values (%s, %s, %s, %s, %s, %s, %s, gen_random_uuid()::text)
"""
INSERT_BLOB = """
insert into oakleaf.blob (space, hash, mime, size, at, bytes) values (%s, %s, %s, %s, %s, %s)
"""


class PostgresExporter(TableExporter):
    def __init__(self, connection: Connection, space: str, owner: str | None, url: str) -> None:
        super().__init__(space, owner, url)
        self.connection = connection

    def _rows(self, query: Any, bindings: Any) -> list[Row]:
        return self.connection.execute(query, bindings, binary=True).fetchall()

    def _stream(self, query: Any, bindings: Any) -> Iterator[Row]:
        with self.connection.cursor(secrets.token_hex(8)) as cursor:
            cursor.itersize = STREAM_ROWS
            yield from cursor.execute(query, bindings, binary=True)

    def _bindings(self, session_id: str) -> dict[str, Any]:
        return {"id": session_id, "space": self.space, "owner": self.owner, "clock": caller_clock()}

    def find(self, session_id: str) -> tuple[int, SessionRow]:
        rows = self._rows(SELECT_SESSION, self._bindings(session_id))
        if not rows:
            raise NotFound(session_id)
        return int(rows[0][0]), session_from(rows[0])

    def detail(self, key: int) -> SessionDetail:
        return detail_from(self._rows(SELECT_DETAIL, (key,))[0])

    def branch_tree(self, session_id: str, key: int) -> list[Branch]:
        return [Branch(*row) for row in self._rows(SELECT_BRANCHES, self._bindings(session_id))]

    def tasks(self, session_id: str) -> list[Any]:
        return self._rows(SELECT_TASKS, self._bindings(session_id))

    def branch_entries(self, branch: int, first: int, last: int) -> Iterator[NewEntry]:
        for row in self._stream(SELECT_RANGE, (branch, first, last)):
            yield stored_from(row).entry

    def branch_owners(self, branches: Sequence[int]) -> list[int]:
        return [number for (number,) in self._rows(SELECT_OWNERS, (list(branches),))] if branches else []

    def calls(self, key: int) -> Iterator[Call]:
        return map(call_from, self._stream(SELECT_CALLS, (key,)))

    def facts(self, key: int) -> Iterator[StoredFact]:
        return map(fact_from, self._stream(SELECT_FACTS, (key,)))

    def inbox(self, key: int) -> Iterator[QueuedInput]:
        return (QueuedInput(*row) for row in self._rows(SELECT_INBOX, (key,)))

    def blob(self, digest: str) -> tuple[int, Iterable[bytes]] | None:
        rows = self._rows(SELECT_BLOB, (self.space, digest))
        return None if not rows else (rows[0][1], self._pieces(*rows[0]))

    def _pieces(self, number: int, size: int) -> Iterator[bytes]:
        for start in range(1, size + 1, PIECE_BYTES):
            yield self._rows(SELECT_PIECE, (start, PIECE_BYTES, number))[0][0]


class PostgresImporter(SessionImporter):
    def __init__(self, exporter: PostgresExporter) -> None:
        super().__init__(exporter)
        self.writer = exporter.connection

    def _insert_each(self, query: Any, rows: Iterable[tuple[Any, ...]]) -> None:
        for batch in _batches(rows):
            with self.writer.cursor() as cursor:
                cursor.executemany(query, batch)

    def _insert_arrays(self, query: Any, rows: Iterable[tuple[Any, ...]]) -> None:
        for batch in _batches(rows):
            self.writer.execute(query, [_array(column) for column in zip(*batch, strict=True)])

    def write(self, export: SessionExport) -> None:
        try:
            super().write(export)
        except UniqueViolation:
            raise IdConflict(export.row.session_id) from None

    def has_session(self, session_id: str) -> bool:
        query = "select 1 from oakleaf.session where id = %s"
        return self.writer.execute(query, (session_id,)).fetchone() is not None

    def insert_session(self, row: SessionRow, detail: SessionDetail) -> int:
        values = session_row(row, branch=0, seq=0)
        inserted = self.writer.execute(INSERT_SESSION, [*values.values(), row.updated_at]).fetchone()
        assert inserted is not None
        self.writer.execute(INSERT_DETAIL, (inserted[0], self.space, *detail_row(detail)))
        return int(inserted[0])

    def reserve_key(self) -> int:
        row = self.writer.execute("select nextval('oakleaf.session_number')").fetchone()
        assert row is not None
        return int(row[0])

    def insert_branch(self, key: int, parent: Leaf | None) -> int:
        return insert_branch(self.writer, self.space, key, parent)

    def set_leaf(self, key: int, leaf: Leaf) -> None:
        query = "update oakleaf.session set branch = %s, seq = %s where number = %s"
        self.writer.execute(query, (leaf.branch, leaf.seq, key))

    def insert_entries(self, entries: Iterator[tuple[int, NewEntry]], owner: str | None) -> None:
        tool_calls: list[tuple[Any, ...]] = []

        def rows() -> Iterator[tuple[Any, ...]]:
            for branch, entry in entries:
                tool_calls.extend((branch, self.space, *row) for row in tool_call_rows([entry]))
                yield (branch, self.space, owner, *entry_row(entry))

        for batch in _batches(rows()):
            self._insert_arrays(INSERT_ENTRIES, batch)
            self._insert_arrays(INSERT_TOOL_CALLS, tool_calls)
            tool_calls.clear()

    def insert_calls(self, key: int, calls: Iterable[Call], owner: str | None) -> None:
        numbered = enumerate(calls, 1)
        rows = ((key, self.space, owner, n, *call_row(call, call.branch)) for n, call in numbered)
        self._insert_arrays(INSERT_CALLS, rows)
        self.writer.execute(SET_ACTIVITY, {"number": key})

    def insert_facts(self, key: int, facts: Iterable[StoredFact], owner: str | None) -> None:
        self._insert_arrays(INSERT_FACTS, (self._fact_row(key, fact, owner) for fact in facts))

    def _fact_row(self, key: int, fact: StoredFact, owner: str | None) -> tuple[Any, ...]:
        return (key, self.space, owner, fact.number, *fact_row(fact))

    def insert_inbox(self, key: int, inputs: Iterable[QueuedInput], owner: str | None) -> None:
        rows = (
            (key, queued.number, self.space, owner, queued.body, queued.at, queued.is_imported)
            for queued in inputs
        )
        self._insert_each(INSERT_INPUT, rows)

    def has_blob(self, digest: str) -> bool:
        return self.writer.execute(SELECT_BLOB, (self.space, digest)).fetchone() is not None

    def insert_blob(self, blob: BlobStream, at: int) -> None:
        data = b"".join(blob.pieces)
        self.writer.execute(INSERT_BLOB, (self.space, blob.hash, blob.mime, blob.size, at, data))

    def link_blobs(self, places: Iterable[tuple[int, int, str]]) -> None:
        rows = ((branch, seq, self.space, digest) for branch, seq, digest in places)
        self._insert_each(TIE_BLOB, rows)


def _array(column: tuple[Any, ...]) -> list[Any]:
    """Wrap bytes for a typed array: our connections send bytes untyped, and memoryviews have a type."""
    return [memoryview(value) if isinstance(value, bytes) else value for value in column]


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Group rows by count and size: a single row may hold a gigabyte."""
    batch: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum([len(value) for value in row if isinstance(value, bytes | str)])
        if len(batch) == BATCH_ROWS or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
