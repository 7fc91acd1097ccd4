"""Dumping, in SQLite: everything that makes a session, read through one connection within one snapshot.

Entries, calls and facts stream: a session of a gigabyte needs the memory of its widest entry. Runs on a reader
for `dump`, and on the writer for `take_in`, which compares what comes with what is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apsw

from ...core.tree import Branch
from ...core.usage import Call
from ...errors import NotFound, StoreDamaged
from ..base import Fact, QueuedInput, SessionDetail, StoredEntry
from ..message_limits import LIMIT_FACT_KINDS, MessageLimit, select_inherited_limits
from ..rows import (
    CALL_COLUMNS,
    ENTRY_COLUMNS,
    FACT_COLUMNS,
    SESSION_COLUMNS,
    call_from,
    fact_from,
    session_from,
    stored_from,
)
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

SELECT_SESSION = f"""
select {SESSION_COLUMNS} from session where id = :id and space = :space and (:owner is null or owner = :owner)
"""
SELECT_DETAIL = "select spec, policy, workspace, state from session_detail where no = ?"
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from branch where session_no = :no
    union
    select branch.parent from line join branch on branch.id = line.id where branch.parent is not null
)
select branch.id, session.id, branch.parent, branch.parent_seq,
       coalesce((select max(entry.id) & 4294967295 from entry
                 where entry.id between branch.id << 32 and (branch.id << 32) + 4294967295), branch.parent_seq)
from line join branch on branch.id = line.id left join session on session.no = branch.session_no
order by branch.id
"""
SELECT_OWNERS = """
select distinct session_no from branch join json_each(?) as held on held.value = branch.id order by 1
"""
SELECT_TASKS = """
select started_at, id from session where parent_session = :id and relation = 'task'
  and space = :space and (:owner is null or owner = :owner)
"""
SELECT_SPAN = f"select {ENTRY_COLUMNS}, role, null from entry where id between ? and ? order by id"
SELECT_CALLS = f"select {CALL_COLUMNS} from usage where id > ? and id < ? order by id"
SELECT_FACTS = f"select {FACT_COLUMNS} from journal where id > ? and id < ? order by id"
SELECT_TOLD = f"""
select {FACT_COLUMNS} from journal where id > ? and id < ? and kind in ({", ".join(f"'{kind}'" for kind in LIMIT_FACT_KINDS)})
order by id
"""
SELECT_QUEUED = "select n, body, at from inbox where no = ? order by n"
SELECT_BLOB = "select no, size from blob where space = ? and hash = ?"


class Snapshot:
    """A connection within one transaction, asked for whole sessions."""

    def __init__(self, connection: apsw.Connection, space: str, owner: str | None, where: str) -> None:
        self.connection, self.space, self.owner, self.where = connection, space, owner, where

    def dumps(self, session_ids: Sequence[str], *, children: bool) -> SessionExports:
        for name in session_ids:
            self._found(name)
        names = sessions_with_tasks(session_ids, self._tasks) if children else session_ids
        return SessionExports((self.dump(name)[0] for name in names), self.blobs)

    def dump(self, session_id: str) -> tuple[SessionExport, dict[int, int]]:
        """The session, and the numbers of its branches in the dump by the store's own."""
        found = self._found(session_id)
        no, row = int(found[0]), session_from(found)
        branches, numbers = renumber_branches(self.branches(no), session_id, self.where)
        below = self.calls_below(branches, numbers)
        foreign = [branch for branch in branches if branch.session_id is None]
        given = self.given_below(foreign, numbers)
        wide: tuple[Any, ...] = self.connection.execute(SELECT_DETAIL, (no,)).get
        dump = SessionExport(
            row=portable_row(row, numbers),
            detail=SessionDetail(*(None if text is None else text.encode() for text in wide)),
            branches=branches,
            inherited_calls=tuple(below),
            inherited_limits=given,
            entries=self.entries(branches, numbers),
            calls=self._calls(no, numbers),
            facts=self._facts(no, numbers),
            inbox=(QueuedInput(*row) for row in self.connection.execute(SELECT_QUEUED, (no,))),
            inherited_hash=lambda: hash_inherited(self.entries(foreign, numbers), below, given),
        )
        return dump, numbers

    def _found(self, session_id: str) -> tuple[Any, ...]:
        bindings = {"id": session_id, "space": self.space, "owner": self.owner}
        found: tuple[Any, ...] | None = self.connection.execute(SELECT_SESSION, bindings).fetchone()
        if found is None:
            raise NotFound(session_id)
        return found

    def _tasks(self, session_id: str) -> list[tuple[int, str]]:
        bindings = {"id": session_id, "space": self.space, "owner": self.owner}
        found: list[Any] = self.connection.execute(SELECT_TASKS, bindings).fetchall()
        return found

    def branches(self, no: int) -> list[Branch]:
        return [Branch(*row) for row in self.connection.execute(SELECT_BRANCHES, {"no": no})]

    def entries(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> Iterator[StoredEntry]:
        own = {n: number for number, n in numbers.items()}
        for branch in branches:
            base = own[branch.branch] << 32
            span = (base | branch.parent_seq + 1, base | branch.tail)
            for row in self.connection.execute(SELECT_SPAN, span):
                yield StoredEntry(branch.branch, stored_from(row).entry)

    def calls_below(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> list[Call]:
        foreign = [branch for branch in branches if branch.session_id is None]
        rows = (row for no in self._owners(foreign, numbers) for row in self._call_rows(no))
        return select_inherited_calls(map(call_from, rows), foreign, numbers)

    def given_below(self, foreign: Iterable[Branch], numbers: Mapping[int, int]) -> tuple[MessageLimit, ...]:
        foreign = list(foreign)
        return select_inherited_limits(map(self.told, self._owners(foreign, numbers)), foreign, numbers)

    def told(self, no: int) -> list[Fact]:
        """The facts of a journal that tell how much calls were given."""
        rows: list[Any] = self.connection.execute(SELECT_TOLD, (no << 32, (no + 1) << 32)).fetchall()
        return list(map(fact_from, rows))

    def _owners(self, foreign: Iterable[Branch], numbers: Mapping[int, int]) -> list[int]:
        """Whose branches they are, or were."""
        own = {n: number for number, n in numbers.items()}
        held = str([own[branch.branch] for branch in foreign])
        owners: list[Any] = self.connection.execute(SELECT_OWNERS, (held,)).fetchall()
        return [no for (no,) in owners]

    def _call_rows(self, no: int) -> Iterable[tuple[Any, ...]]:
        rows: Iterable[Any] = self.connection.execute(SELECT_CALLS, (no << 32, (no + 1) << 32))
        return rows

    def _calls(self, no: int, numbers: Mapping[int, int]) -> Iterator[Call]:
        for row in self._call_rows(no):
            if row[1] not in numbers:
                raise StoreDamaged(
                    self.where, f"call {row[0]} was made on branch {row[1]}, which is not there"
                )
            yield call_from((row[0], numbers[row[1]], *row[2:]))

    def _facts(self, no: int, numbers: Mapping[int, int]) -> Iterator[Fact]:
        for row in self.connection.execute(SELECT_FACTS, (no << 32, (no + 1) << 32)):
            fact = fact_from(row)
            try:
                yield renumber_fact(fact, numbers)
            except (KeyError, TypeError, ValueError) as error:
                raise StoreDamaged(
                    self.where, f"fact {fact.number} names a branch that is not there ({error})"
                ) from None

    def blobs(self, mimes: Mapping[str, str]) -> Iterator[BlobStream]:
        for digest in sorted(mimes):
            found = self.connection.execute(SELECT_BLOB, (self.space, digest)).fetchone()
            if found is not None:
                yield BlobStream(digest, mimes[digest], found[1], self._pieces(found[0]))

    def _pieces(self, no: int) -> Iterator[bytes]:
        with contextlib.closing(self.connection.blob_open("main", "blob", "bytes", no, False)) as blob:
            while piece := blob.read(PIECE_BYTES):
                yield piece

    def hash_of(self, line: Sequence[Branch], numbers: dict[int, int]) -> bytes:
        """What these branches hold, told by those numbers; for `footing`."""
        below, given = self.calls_below(line, numbers), self.given_below(line, numbers)
        return hash_inherited(self.entries(line, numbers), below, given)
