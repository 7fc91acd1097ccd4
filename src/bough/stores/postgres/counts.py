"""Counting, in PostgreSQL: one statement each, however many sessions or calls there are."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, get_args

from ...core.usage import Totals
from ...errors import InvalidArgument, NotFound
from ..base import SessionQuery, StoreBackend
from ..counts import DAY, CountColumn, DailyUsage, StorageSize
from .connections import SET_SPACE, Connection, Connections
from .export_sessions import SELECT_SESSION
from .session_query import conditions

SELECT_SPENT = f"""
select usage.at / {DAY} as day, nullif(session.agent, '') as whose, nullif(usage.model, '') as answered_by,
       coalesce(usage.bucket, 'live') as of_bucket,
       count(*), coalesce(sum(usage.input_tokens), 0)::bigint, coalesce(sum(usage.output_tokens), 0)::bigint,
       coalesce(sum(usage.cache_read_tokens), 0)::bigint, coalesce(sum(usage.cache_write_tokens), 0)::bigint,
       coalesce(sum(usage.cost_microcents), 0)::bigint, count(*) filter (where usage.cost_microcents is null),
       count(*) filter (where usage.input_tokens is null and usage.output_tokens is null)
from bough.usage join bough.session on session.no = usage.session_no
where {SET_SPACE} and session.space = %(space)s and (%(owner)s::text is null or session.owner = %(owner)s)
  and usage.at >= %(since)s
group by 1, 2, 3, 4
"""
SELECT_HELD = """
with own as materialized (
    select branch.id from bough.branch where session_no = %(no)s
), used as (
    select distinct blob_use.blob_no from own join bough.blob_use on blob_use.branch = own.id
)
select (select count(*) from own join bough.entry on entry.branch = own.id),
       (select coalesce(sum(length(entry.body)), 0)::bigint from own join bough.entry on entry.branch = own.id),
       (select count(*) from own),
       (select count(*) from used),
       (select coalesce(sum(blob.size), 0)::bigint from used join bough.blob on blob.no = used.blob_no)
"""


class PostgresCounting(StoreBackend):
    """The verbs that look at much and tell little."""

    _connections: Connections

    @abstractmethod
    def _named(self, session_id: str) -> dict[str, Any]: ...

    def count(self, query: SessionQuery, by: CountColumn) -> dict[str, int]:
        if by not in get_args(CountColumn):  # it becomes part of the statement
            raise InvalidArgument("by", by, ", ".join(get_args(CountColumn)))
        where, bindings = conditions(query, self.owner)
        select = f"""select coalesce({by}, ''), count(*) from bough.session
            where {SET_SPACE} and {where} group by 1"""
        return dict(self._connections.query(select, {**bindings, "space": self.space}))

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        bindings = {"space": self.space, "owner": self.owner, "since": since}
        rows = self._connections.query(SELECT_SPENT, bindings)
        found = [
            DailyUsage(day, agent, model, bucket, Totals(*sums)) for day, agent, model, bucket, *sums in rows
        ]
        # Here and not in the statement: its order of text would be that of the database's language.
        return sorted(found, key=lambda one: (one.day, one.agent or "", one.model or "", one.bucket))

    def storage_size(self, session_id: str) -> StorageSize:
        def work(reader: Connection) -> StorageSize:
            found = reader.execute(SELECT_SESSION, self._named(session_id), binary=True).fetchone()
            if found is None:
                raise NotFound(session_id)
            row = reader.execute(SELECT_HELD, {"no": found[0]}).fetchone()
            assert row is not None
            return StorageSize(*row)

        return self._connections.read_snapshot(work)
