"""Purging in SQLite: the statements below the steps of `stores.purge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from oakleaf.core.tree import Branch
from oakleaf.stores.sql.purge import Purge
from oakleaf.stores.sqlite.read import SessionReader
from oakleaf.stores.sqlite.search_index import remove_from_index

CHILDREN = "select id from session where parent_session = ?{} order by number"
SELECT_CHILDREN = CHILDREN.format("")
SELECT_TASKS = CHILDREN.format(" and relation = 'task'")
SELECT_TRASHED_TASKS = CHILDREN.format(" and relation = 'task' and trashed_at is not null")
SELECT_CANDIDATES = """
with recursive line (id) as (
    select branch.id from branch join json_each(?) as purged on purged.value = branch.session_number
    union
    select parent.id from line join branch on branch.id = line.id join branch as parent on parent.id = branch.parent
    where not exists (select 1 from session where session.number = parent.session_number)
)
select branch.id, branch.session_number, branch.parent, branch.parent_seq from line join branch on branch.id = line.id
"""
SELECT_FORK_POINTS = """
select branch.parent, branch.parent_seq from branch join json_each(?1) as candidate on candidate.value = branch.parent
where branch.id not in (select value from json_each(?1))
"""
DELETE_CALLS = """
delete from usage where id > ?1 and id < ?2
  and (?4 is null or usage.branch in (select value from json_each(?4))) and not exists (
    select 1 from json_each(?3) as kept
    where kept.value ->> 0 = usage.branch and kept.value ->> 1 >= coalesce(usage.answer_seq, usage.after_seq))
"""
NOT_QUEUED = "not exists (select 1 from inbox where instr(inbox.body, blob.hash))"
"""The body of a queued input names its blobs."""
SELECT_QUEUED_BLOBS = """
select blob.number from inbox join blob on instr(inbox.body, blob.hash) where inbox.session_number in (select value from json_each(?))
"""
DELETE_BLOBS = f"""
delete from blob where number in (select value from json_each(?)) and number not in (select blob_number from blob_use) and {NOT_QUEUED}
"""


def children(connection: apsw.Connection, query: str, parents: list[str]) -> list[str]:
    """Return the children of sessions by `query`, a statement above; the children of the first parent come first."""
    rows: list[Any] = [row for parent in parents for row in connection.execute(query, (parent,))]
    return [row[0] for row in rows]


class SqlitePurge(Purge):
    def __init__(self, reader: SessionReader) -> None:
        self.reader, self.writer = reader, reader.connection

    def session_numbers(self, session_ids: list[str]) -> list[int]:
        query = "select number from session where id = ?"
        return [self.writer.execute(query, (session_id,)).get for session_id in session_ids]

    def candidates(self, numbers: list[int]) -> list[Any]:
        return self.writer.execute(SELECT_CANDIDATES, (str(numbers),)).fetchall()

    def fork_points(self, branches: list[int]) -> list[Any]:
        return self.writer.execute(SELECT_FORK_POINTS, (str(branches),)).fetchall()

    def remove_from_index(self, branches: list[int], numbers: list[int]) -> None:
        remove_from_index(self.writer, branches, numbers)

    def delete_journals(self, numbers: list[int]) -> None:
        spans = [(number << 32, (number + 1) << 32) for number in numbers]
        self.writer.executemany("delete from journal where id > ? and id < ?", spans)

    def delete_sessions(self, numbers: list[int]) -> None:
        bindings = [(number,) for number in numbers]
        for table in ("session_detail", "draft", "inbox"):
            self.writer.executemany(f"delete from {table} where session_number = ?", bindings)
        self.writer.executemany("delete from session where number = ?", bindings)

    def delete_calls(
        self, numbers: Sequence[int], keep: Mapping[int, int], branches: list[int] | None
    ) -> None:
        ranges = str([[branch, seq] for branch, seq in keep.items()])
        only = None if branches is None else str(branches)
        for number in numbers:
            self.writer.execute(DELETE_CALLS, (number << 32, (number + 1) << 32, ranges, only))

    def delete_entries(self, branches: list[Branch], keep: Mapping[int, int]) -> tuple[int, list[Any]]:
        entries, blobs = 0, []
        # Children first: a branch row refers to its parent's.
        for branch in sorted(branches, key=lambda branch: branch.branch, reverse=True):
            number = branch.branch
            last = keep.get(number, branch.parent_seq)
            span = ((number << 32) + last + 1, (number + 1) << 32)
            used = self.writer.execute(
                "select distinct blob_number from blob_use where entry >= ? and entry < ?", span
            )
            blobs += [blob for (blob,) in used.fetchall()]
            self.writer.execute("delete from blob_use where entry >= ? and entry < ?", span)
            self.writer.execute("delete from entry where id >= ? and id < ?", span)
            entries += self.writer.changes()
            self.writer.execute("delete from tool_call where branch = ? and seq > ?", (number, last))
            if number not in keep:
                self.writer.execute("delete from branch where id = ?", (number,))
        return entries, blobs

    def queued_blobs(self, numbers: list[int]) -> list[Any]:
        return [blob for (blob,) in self.writer.execute(SELECT_QUEUED_BLOBS, (str(numbers),)).fetchall()]

    def delete_blobs(self, numbers: list[Any]) -> int:
        self.writer.execute(DELETE_BLOBS, (str(numbers),))
        return self.writer.changes()
