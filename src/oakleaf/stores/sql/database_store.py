"""The reads shared by the stores on SQLite and PostgreSQL: lists, counts and other reads of one statement."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from oakleaf.core.drafts import Blob
from oakleaf.core.tree import Branch, Leaf, Range, lineage
from oakleaf.core.usage import MAX_COUNT, Totals
from oakleaf.errors import StoreDamaged
from oakleaf.stores.base import SessionPage, SessionQuery, StoreBackend, UnreferencedBlobs, check_limit
from oakleaf.stores.counts import (
    IS_REPLAY,
    SELECT_DAILY_USAGE,
    USAGE_COLUMNS,
    USAGE_SUMS,
    CountColumn,
    DailyUsage,
    UsageSums,
    check_count_column,
    daily_usage_from,
    usage_sums,
    usage_tag,
)
from oakleaf.stores.sql.session_query import page_from, sort_clause


def path_ranges(rows: Iterable[Sequence[Any]], leaf: Leaf, url: str) -> list[Range]:
    """Return the ranges of the path to a leaf; a row is number, parent and parent_seq of a branch."""
    try:
        return lineage({row[0]: Branch(row[0], None, row[1], row[2]) for row in rows}, leaf)
    except KeyError as error:
        why = f"branch {error} is missing on the path to {leaf}"
        raise StoreDamaged(url, why) from None


class DatabaseStore(StoreBackend):
    """A store on a database; the subclass provides the statements. Their values are bound by name."""

    limit: str
    """How the statement of a list names the value `limit`."""
    list_columns: str
    """The columns of a session and `active_at`."""
    tag_value: str
    """The value of a session's tag `tag`; null without one."""
    select_next_space: str
    """The first space after `after`, of all sessions: a probe of an index."""
    usage_source: str
    """The tables and conditions of the calls after `since`."""
    count_statuses: str
    """Count the sessions of each status, at most `most` of each."""
    count_own_statuses: str
    """The same for an owner."""
    select_started: str
    """Select one session that started between `first` and `last`, if there is one."""
    queued_source: str
    """The tables and conditions of the queued inputs of sessions not running."""
    select_lost_branches: str
    select_blob: str
    unreferenced_source: str
    """The table and conditions of the unreferenced blobs put before `before`."""

    @abstractmethod
    def _query(self, query: str, **values: Any) -> list[Any]:
        """Return all rows of a statement; `space` and `owner` are bound, too."""

    @abstractmethod
    def _source(self, query: SessionQuery) -> tuple[str, dict[str, Any]]:
        """Return the tables, conditions and bindings of a query."""

    def _newest(self, query: SessionQuery, columns: str, limit: int) -> tuple[str, dict[str, Any]]:
        """Return a statement for the first rows of a list, and the bindings."""
        source, bindings = self._source(query)
        select = f"select {columns} from {source} order by {self._sort_clause(query)} limit {self.limit}"
        return select, {**bindings, "limit": limit}

    def _sort_clause(self, query: SessionQuery) -> str:
        return sort_clause(query)

    def spaces(self) -> list[str] | None:
        if self.owner is not None:
            return None
        names, last = list[str](), ""
        while rows := self._query(self.select_next_space, after=last):
            ((last,),) = rows
            names.append(last)
        return names

    def sessions(self, query: SessionQuery) -> SessionPage:
        if not self._has_started(query):
            return SessionPage([])
        select, bindings = self._newest(query, self.list_columns, query.limit + 1)
        return page_from(self._query(select, **bindings), query)

    def count(self, query: SessionQuery, by: CountColumn, newest: int | None = None) -> dict[str, int]:
        check_count_column(by)
        if not self._has_started(query):
            return {}
        query = replace(query, order="active", before=None)
        if newest is None:
            source, bindings = self._source(query)
        else:
            check_limit("newest", newest)
            select, bindings = self._newest(query, by, newest)
            source = f"({select}) as listed"
        return dict(self._query(f"select coalesce({by}, ''), count(*) from {source} group by 1", **bindings))

    def _has_started(self, query: SessionQuery) -> bool:
        """Whether any session has started within the times of the query. Without one, a list in another order reads all."""
        first, last = query.started_from, query.started_before
        if first is None and last is None:
            return True
        first, last = 0 if first is None else first, MAX_COUNT if last is None else last
        return bool(self._query(self.select_started, first=first, last=last))

    def status_counts(self, most: int) -> dict[str, int]:
        check_limit("most", most)
        query = self.count_statuses if self.owner is None else self.count_own_statuses
        return dict(self._query(query, most=most))

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        query = f"{SELECT_DAILY_USAGE} {self.usage_source} group by 1, 2, 3, 4"
        return daily_usage_from(self._query(query, since=since))

    def usage_by(self, by: str, since: int = 0) -> UsageSums:
        tag = usage_tag(by)
        value = USAGE_COLUMNS[by] if tag is None else f"coalesce({self.tag_value}, '')"
        query = f"select {value}, {IS_REPLAY}, {USAGE_SUMS} {self.usage_source} group by 1, 2"
        rows = self._query(query, since=since, tag=tag)
        return usage_sums((name, bool(is_replay), Totals(*sums)) for name, is_replay, *sums in rows)

    def queued_input_count(self) -> int:
        ((count,),) = self._query(f"select count(*) {self.queued_source}")
        return int(count)

    def sessions_with_input(self, limit: int) -> dict[str, int]:
        query = f"""select session.id, count(*) {self.queued_source}
group by session.id order by min(inbox.at), session.id limit {self.limit}"""
        return dict(self._query(query, limit=limit))

    def lost_branches(self) -> list[int]:
        return [number for (number,) in self._query(self.select_lost_branches)]

    def blob(self, digest: str) -> Blob | None:
        rows = self._query(self.select_blob, hash=digest)
        return Blob(*rows[0]) if rows else None

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        query = f"select count(*), cast(coalesce(sum(size), 0) as bigint) {self.unreferenced_source}"
        return UnreferencedBlobs(*self._query(query, before=before)[0])
