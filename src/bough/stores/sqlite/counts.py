"""Counting, in SQLite: one statement each, however many sessions or calls there are."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, get_args

import apsw

from ...core.entries import Entry
from ...core.tree import Leaf, Range
from ...core.usage import Totals
from ...errors import InvalidArgument
from ..base import SessionQuery, SessionRow, StoreBackend
from ..counts import DAY, CountColumn, DailyUsage, StorageSize
from ..rows import ENTRY_COLUMNS, entries_from
from .connections import Connections
from .session_query import conditions

SELECT_SPENT = f"""
select usage.at / {DAY} as day, nullif(session.agent, '') as whose, nullif(usage.model, '') as answered_by,
       coalesce(usage.bucket, 'live') as of,
       count(*), coalesce(sum(usage.input_tokens), 0), coalesce(sum(usage.output_tokens), 0),
       coalesce(sum(usage.cache_read_tokens), 0), coalesce(sum(usage.cache_write_tokens), 0),
       coalesce(sum(usage.cost_microcents), 0), sum(usage.cost_microcents is null),
       sum(usage.input_tokens is null and usage.output_tokens is null)
from usage join session on session.no = usage.id >> 32
where session.space = :space and (:owner is null or session.owner = :owner) and usage.at >= :since
group by 1, 2, 3, 4 order by day, coalesce(whose, ''), coalesce(answered_by, ''), of
"""
SELECT_HELD = """
select count(*), coalesce(sum(length(entry.body)), 0)
from branch join entry on entry.id between branch.id << 32 and (branch.id << 32) + 4294967295
where branch.session_no = :no
"""
SELECT_HELD_BLOBS = """
select count(*), coalesce(sum(size), 0) from blob where no in (
    select blob_use.blob_no from branch
    join blob_use on blob_use.entry between branch.id << 32 and (branch.id << 32) + 4294967295
    where branch.session_no = :no)
"""
# Named, for a range of ids alone would make SQLite walk the messages too.
SELECT_ASIDES = f"""
select {ENTRY_COLUMNS} from entry indexed by entry_aside
where kind is not null and id between ? and ? order by id
"""


class SqliteCounting(StoreBackend):
    """The verbs that look at much and tell little."""

    _connections: Connections

    @abstractmethod
    def _line(self, connection: apsw.Connection, leaf: Leaf) -> list[Range]: ...

    @abstractmethod
    def _refuse_stray(self, connection: apsw.Connection, row: SessionRow, leaf: Leaf) -> None: ...

    @abstractmethod
    def _row(self, connection: apsw.Connection, session_id: str) -> SessionRow: ...

    @abstractmethod
    def _no(self, connection: apsw.Connection, session_id: str) -> int: ...

    def count(self, query: SessionQuery, by: CountColumn) -> dict[str, int]:
        if by not in get_args(CountColumn):  # it becomes part of the statement
            raise InvalidArgument("by", by, ", ".join(get_args(CountColumn)))
        where, bindings = conditions(query, self.space, self.owner)
        select = f"select coalesce({by}, ''), count(*) from session where {where} group by 1"
        with self._connections.reading() as reader:
            found: list[tuple[Any, ...]] = reader.execute(select, bindings).fetchall()
        return {str(value): int(count) for value, count in found}

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        bindings = {"space": self.space, "owner": self.owner, "since": since}
        with self._connections.reading() as reader:
            rows: list[tuple[Any, ...]] = reader.execute(SELECT_SPENT, bindings).fetchall()
        return [DailyUsage(row[0], row[1], row[2], row[3], Totals(*row[4:])) for row in rows]

    def storage_size(self, session_id: str) -> StorageSize:
        with self._connections.reading() as reader:
            no = {"no": self._no(reader, session_id)}
            entries, size = reader.execute(SELECT_HELD, no).get
            branches = reader.execute("select count(*) from branch where session_no = :no", no).get
            blobs, blob_size = reader.execute(SELECT_HELD_BLOBS, no).get
        return StorageSize(entries, size, branches, blobs, blob_size)

    def non_message_entries(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        with self._connections.reading() as reader:
            row = self._row(reader, session_id)
            rows: list[tuple[Any, ...]] = []
            end = row.leaf if leaf is None else leaf
            self._refuse_stray(reader, row, end)
            for part in self._line(reader, end):
                base = part.branch << 32
                rows += reader.execute(SELECT_ASIDES, (base | part.first, base | part.last)).fetchall()
        return entries_from(rows)
