"""Purging in PostgreSQL: the statements below the steps of `stores.purge`.

The transaction holds the space's lock, so no fork comes between. The rows are gone at once for every reader that begins
afterwards; their bytes leave the files when the tables are rewritten (`scrub`, by their owner).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from oakleaf.core.tree import Branch
from oakleaf.stores.sql.purge import Purge
from oakleaf_postgres.store.connections import Connection
from oakleaf_postgres.store.search_index import remove_from_index
from oakleaf_postgres.store.transfer import PostgresExporter

CHILDREN = "select id, parent_session from oakleaf.session where parent_session = any(%s){} order by number"
SELECT_CHILDREN = CHILDREN.format("")
SELECT_TASKS = CHILDREN.format(" and relation = 'task'")
SELECT_TRASHED_TASKS = CHILDREN.format(" and relation = 'task' and trashed_at is not null")
SELECT_CANDIDATES = """
with recursive line (id) as (
    select id from oakleaf.branch where session_number = any(%s)
    union
    select parent.id from line join oakleaf.branch on branch.id = line.id
    join oakleaf.branch as parent on parent.id = branch.parent
    where not exists (select 1 from oakleaf.session where session.number = parent.session_number)
)
select branch.id, branch.session_number, branch.parent, branch.parent_seq
from line join oakleaf.branch on branch.id = line.id
"""
SELECT_FORK_POINTS = """
select parent, parent_seq from oakleaf.branch where parent = any(%(branches)s) and id <> all(%(branches)s)
"""
DELETE_CALLS = """
delete from oakleaf.usage where session_number = any(%s) and (%s::bigint[] is null or usage.branch = any(%s)) and not exists (
    select 1 from unnest(%s::bigint[], %s::bigint[]) as kept (branch, seq)
    where kept.branch = usage.branch and kept.seq >= coalesce(usage.answer_seq, usage.after_seq))
"""
# Of each branch everything after its last kept entry.
DELETE_USES = """
delete from oakleaf.blob_use using unnest(%s::bigint[], %s::bigint[]) as cut (branch, last)
where blob_use.branch = cut.branch and blob_use.seq > cut.last returning blob_number
"""
DELETE_ENTRIES = """
delete from oakleaf.entry using unnest(%s::bigint[], %s::bigint[]) as cut (branch, last)
where entry.branch = cut.branch and entry.seq > cut.last
"""
DELETE_TOOL_CALLS = DELETE_ENTRIES.replace("entry", "tool_call")
QUEUED = "inbox.space = blob.space and position(blob.hash::bytea in inbox.body) > 0"
"""The body of a queued input names its blobs."""
NOT_QUEUED = f"not exists (select 1 from oakleaf.inbox where {QUEUED})"
SELECT_QUEUED_BLOBS = f"select blob.number from oakleaf.inbox join oakleaf.blob on {QUEUED} where inbox.session_number = any(%s)"
DELETE_BLOBS = f"""
delete from oakleaf.blob where number = any(%s) and not exists (select 1 from oakleaf.blob_use where blob_number = blob.number)
  and {NOT_QUEUED}
"""


def children(connection: Connection, query: Any, parents: list[str]) -> list[str]:
    """Return the children of sessions by a statement above, children of the first parent first."""
    order = {parent: n for n, parent in enumerate(parents)}
    rows = [(order[parent], name) for name, parent in connection.execute(query, (parents,))]
    return [name for _, name in sorted(rows, key=itemgetter(0))]


class PostgresPurge(Purge):
    def __init__(self, exporter: PostgresExporter) -> None:
        self.exporter, self.writer, self.space = exporter, exporter.connection, exporter.space

    def session_numbers(self, session_ids: list[str]) -> list[int]:
        query = "select number from oakleaf.session where id = any(%s) for update"
        return [number for (number,) in self.writer.execute(query, (session_ids,))]

    def candidates(self, numbers: list[int]) -> Iterable[Any]:
        return self.writer.execute(SELECT_CANDIDATES, (numbers,))

    def fork_points(self, branches: list[int]) -> Iterable[Any]:
        return self.writer.execute(SELECT_FORK_POINTS, {"branches": branches})

    def remove_from_index(self, branches: list[int], numbers: list[int]) -> None:
        remove_from_index(self.writer, self.space, branches, numbers)

    def delete_journals(self, numbers: list[int]) -> None:
        self.writer.execute("delete from oakleaf.journal where session_number = any(%s)", (numbers,))

    def delete_sessions(self, numbers: list[int]) -> None:
        for table in ("draft", "inbox", "session_detail"):
            query: Any = f"delete from oakleaf.{table} where session_number = any(%s)"
            self.writer.execute(query, (numbers,))
        self.writer.execute("delete from oakleaf.session where number = any(%s)", (numbers,))

    def delete_calls(
        self, numbers: Sequence[int], keep: Mapping[int, int], branches: list[int] | None
    ) -> None:
        values = (list(numbers), branches, branches, list(keep), list(keep.values()))
        self.writer.execute(DELETE_CALLS, values)

    def delete_entries(self, branches: list[Branch], keep: Mapping[int, int]) -> tuple[int, list[Any]]:
        numbers = [branch.branch for branch in branches]
        cuts = (numbers, [keep.get(branch.branch, branch.parent_seq) for branch in branches])
        blobs = {number for (number,) in self.writer.execute(DELETE_USES, cuts)}
        entries = self.writer.execute(DELETE_ENTRIES, cuts).rowcount
        self.writer.execute(DELETE_TOOL_CALLS, cuts)
        deleted = [number for number in numbers if number not in keep]
        self.writer.execute("delete from oakleaf.branch where id = any(%s)", (deleted,))
        return entries, list(blobs)

    def queued_blobs(self, numbers: list[int]) -> list[Any]:
        return [number for (number,) in self.writer.execute(SELECT_QUEUED_BLOBS, (numbers,))]

    def delete_blobs(self, numbers: list[Any]) -> int:
        return self.writer.execute(DELETE_BLOBS, (numbers,)).rowcount
