"""Dumping, in PostgreSQL: everything that makes a session, read through one connection within one snapshot.

Entries, calls and facts stream through cursors of the server. Runs on a reader for `dump`, and on the writer for
`take_in`, which compares what comes with what is there.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.tree import Branch
from ...core.usage import Call
from ...errors import NotFound, StoreDamaged
from ..base import Fact, QueuedInput, StoredEntry
from ..message_limits import LIMIT_FACT_KINDS, MessageLimit, select_inherited_limits
from ..rows import call_from, fact_from, session_from, stored_from
from ..transfer import (
    PIECE_BYTES,
    BlobStream,
    SessionExport,
    SessionExports,
    hash_inherited,
    portable_row,
    renumber_branches,
    renumber_fact,
    select_inherited_calls,
    sessions_with_tasks,
)
from .connections import SET_SPACE, Connection, Row
from .rows import CALL_COLUMNS, ENTRY_COLUMNS, FACT_COLUMNS, SESSION_COLUMNS, detail_from

ROWS_AT_ONCE = 200

MINE = f"{SET_SPACE} and session.id = %(id)s and (%(owner)s::text is null or session.owner = %(owner)s)"
SELECT_SESSION = f"select {SESSION_COLUMNS} from bough.session where {MINE}"
SELECT_DETAIL = "select spec, policy, workspace, state from bough.session_detail where no = %s"
SELECT_BRANCHES = f"""
with recursive line (id) as (
    select branch.id from bough.session join bough.branch on branch.session_no = session.no where {MINE}
    union
    select branch.parent from line join bough.branch on branch.id = line.id where branch.parent is not null
)
select branch.id, session.id, branch.parent, branch.parent_seq,
       coalesce((select max(entry.seq) from bough.entry where entry.branch = branch.id), branch.parent_seq)
from line join bough.branch on branch.id = line.id left join bough.session on session.no = branch.session_no
where {SET_SPACE} order by branch.id
"""
SELECT_STORED = f"""
select {ENTRY_COLUMNS}, entry.role,
       (select string_agg(blob.hash, ' ') from bough.blob_use join bough.blob on blob.no = blob_no
        where blob_use.branch = entry.branch and blob_use.seq = entry.seq)
from bough.session join bough.branch on branch.session_no = session.no join bough.entry on entry.branch = branch.id
where {MINE} order by entry.branch, entry.seq
"""
SELECT_OWNERS = "select distinct session_no from bough.branch where id = any(%s) order by 1"
SELECT_TASKS = """
select started_at, id from bough.session where parent_session = %(id)s and relation = 'task'
  and (%(owner)s::text is null or owner = %(owner)s)
"""
SELECT_SPAN = f"""
select {ENTRY_COLUMNS}, entry.role, null from bough.entry where branch = %s and seq between %s and %s order by seq
"""
SELECT_CALLS = f"select {CALL_COLUMNS} from bough.usage where session_no = %s order by n"
SELECT_FACTS = f"select {FACT_COLUMNS} from bough.journal where session_no = %s order by n"
SELECT_TOLD = f"""
select {FACT_COLUMNS} from bough.journal where session_no = %s and kind = any(%s) order by n
"""
SELECT_QUEUED = "select n, body, at from bough.inbox where no = %s order by n"
SELECT_BLOB = "select no, size from bough.blob where space = %s and hash = %s"
SELECT_PIECE = "select substring(bytes from %s::integer for %s::integer) from bough.blob where no = %s"


class Snapshot:
    """A connection within one transaction, asked for whole sessions."""

    def __init__(self, connection: Connection, space: str, owner: str | None, where: str) -> None:
        self.connection, self.space, self.owner, self.where = connection, space, owner, where

    def _rows(self, query: Any, bindings: Any) -> list[Row]:
        return self.connection.execute(query, bindings, binary=True).fetchall()

    def _stream(self, query: Any, bindings: Any) -> Iterator[Row]:
        with self.connection.cursor(secrets.token_hex(8)) as cursor:
            cursor.itersize = ROWS_AT_ONCE
            yield from cursor.execute(query, bindings, binary=True)

    def dumps(self, session_ids: Sequence[str], *, children: bool) -> SessionExports:
        for name in session_ids:
            self._found(name)
        names = sessions_with_tasks(session_ids, self._tasks) if children else session_ids
        return SessionExports((self.dump(name)[0] for name in names), self.blobs)

    def dump(self, session_id: str) -> tuple[SessionExport, dict[int, int]]:
        """The session, and the numbers of its branches in the dump by the store's own."""
        found = self._found(session_id)
        no, row = int(found[0]), session_from(found)
        branches, numbers = renumber_branches(self.branches(session_id), session_id, self.where)
        below = self.calls_below(branches, numbers)
        foreign = [branch for branch in branches if branch.session_id is None]
        given = self.given_below(foreign, numbers)
        dump = SessionExport(
            row=portable_row(row, numbers),
            detail=detail_from(self._rows(SELECT_DETAIL, (no,))[0]),
            branches=branches,
            inherited_calls=tuple(below),
            inherited_limits=given,
            entries=self.entries(branches, numbers),
            calls=self._calls(no, numbers),
            facts=self._facts(no, numbers),
            inbox=(QueuedInput(*row) for row in self._rows(SELECT_QUEUED, (no,))),
            inherited_hash=lambda: hash_inherited(self.entries(foreign, numbers), below, given),
        )
        return dump, numbers

    def _named(self, session_id: str) -> dict[str, Any]:
        return {"id": session_id, "space": self.space, "owner": self.owner}

    def _found(self, session_id: str) -> Row:
        found = self._rows(SELECT_SESSION, self._named(session_id))
        if not found:
            raise NotFound(session_id)
        return found[0]

    def _tasks(self, session_id: str) -> list[Any]:
        return self._rows(SELECT_TASKS, self._named(session_id))

    def branches(self, session_id: str) -> list[Branch]:
        return [Branch(*row) for row in self._rows(SELECT_BRANCHES, self._named(session_id))]

    def entries(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> Iterator[StoredEntry]:
        own = {n: number for number, n in numbers.items()}
        for branch in branches:
            span = (own[branch.branch], branch.parent_seq + 1, branch.tail)
            for row in self._stream(SELECT_SPAN, span):
                yield StoredEntry(branch.branch, stored_from(row).entry)

    def calls_below(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> list[Call]:
        foreign = [branch for branch in branches if branch.session_id is None]
        rows = (row for no in self._owners(foreign, numbers) for row in self._stream(SELECT_CALLS, (no,)))
        return select_inherited_calls(map(call_from, rows), foreign, numbers)

    def given_below(self, foreign: Iterable[Branch], numbers: Mapping[int, int]) -> tuple[MessageLimit, ...]:
        foreign = list(foreign)
        return select_inherited_limits(map(self._told, self._owners(foreign, numbers)), foreign, numbers)

    def _told(self, no: int) -> list[Fact]:
        """The facts of a journal that tell how much calls were given."""
        return list(map(fact_from, self._rows(SELECT_TOLD, (no, list(LIMIT_FACT_KINDS)))))

    def _owners(self, foreign: Iterable[Branch], numbers: Mapping[int, int]) -> list[int]:
        """Whose branches they are, or were."""
        own = {n: number for number, n in numbers.items()}
        held = [own[branch.branch] for branch in foreign]
        return [no for (no,) in self._rows(SELECT_OWNERS, (held,))] if held else []

    def _calls(self, no: int, numbers: Mapping[int, int]) -> Iterator[Call]:
        for row in self._stream(SELECT_CALLS, (no,)):
            if row[1] not in numbers:
                raise StoreDamaged(
                    self.where, f"call {row[0]} was made on branch {row[1]}, which is not there"
                )
            yield call_from((row[0], numbers[row[1]], *row[2:]))

    def _facts(self, no: int, numbers: Mapping[int, int]) -> Iterator[Fact]:
        for row in self._stream(SELECT_FACTS, (no,)):
            fact = fact_from(row)
            try:
                yield renumber_fact(fact, numbers)
            except (KeyError, TypeError, ValueError) as error:
                why = f"fact {fact.number} names a branch that is not there ({error})"
                raise StoreDamaged(self.where, why) from None

    def blobs(self, mimes: Mapping[str, str]) -> Iterator[BlobStream]:
        for digest in sorted(mimes):
            found = self._rows(SELECT_BLOB, (self.space, digest))
            if found:
                no, size = found[0]
                yield BlobStream(digest, mimes[digest], size, self._pieces(no, size))

    def _pieces(self, no: int, size: int) -> Iterator[bytes]:
        for begin in range(1, size + 1, PIECE_BYTES):
            yield self._rows(SELECT_PIECE, (begin, PIECE_BYTES, no))[0][0]

    def hash_of(self, line: Sequence[Branch], numbers: dict[int, int]) -> bytes:
        """What these branches hold, told by those numbers; for `footing`."""
        below, given = self.calls_below(line, numbers), self.given_below(line, numbers)
        return hash_inherited(self.entries(line, numbers), below, given)
