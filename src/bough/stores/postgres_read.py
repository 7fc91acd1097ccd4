"""Reading, in PostgreSQL: a session's row, its path and everything that hangs on it.

Each verb is one statement, and so one snapshot; a path is two, the second of which reads what cannot have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ..core.entries import Entry
from ..core.tree import Branch, Leaf, Range, lineage, window
from ..core.usage import Call
from ..errors import Damaged, NotFound
from .postgres_connections import NAMED_GATE, Connection, Connections, Row
from .postgres_dump import MINE, SELECT_BRANCHES, SELECT_SESSION, SELECT_STORED
from .postgres_query import conditions
from .postgres_rows import CALL_COLUMNS, ENTRY_COLUMNS, FACT_COLUMNS, SESSION_COLUMNS, detail_from
from .rows import call_from, entry_from, fact_from, session_from, stored_from
from .store import Detail, Fact, Page, Query, Reading, SessionRow, Store, Stored

# The row, the branches its path crosses and, if asked for, the wide part: what a path is, without an entry.
SELECT_LINE = f"""
with recursive me as materialized (
    select {SESSION_COLUMNS} from bough.session where {MINE}
), line (id, parent, parent_seq) as (
    select id, parent, parent_seq from bough.branch
    where {NAMED_GATE} and branch.id = coalesce(%(branch)s::bigint, (select me.branch from me))
    union all
    select under.* from line cross join lateral (
        -- Fenced, so that it is a probe for each step; joined, PostgreSQL may read the whole table for each.
        select id, parent, parent_seq from bough.branch
        where branch.id = line.parent and branch.id < line.id offset 0 -- a forged ring ends here
    ) as under
)
select me.*, (select array_agg(array[id, coalesce(parent, 0), parent_seq]) from line){{wide}} from me
"""
WIDE = ", ".join(
    f"(select session_detail.{name} from bough.session_detail where session_detail.no = me.no)"
    for name in ("spec", "policy", "workspace", "state")
)
SELECT_PATH, SELECT_WIDE_PATH = SELECT_LINE.format(wide=""), SELECT_LINE.format(wide=f", {WIDE}")
SESSION_WIDTH = SESSION_COLUMNS.count(",") + 1
# Entries never change, so they may be read after the row and still be those of its moment, if the session was
# not purged in between.
IS_HERE = f"{NAMED_GATE} and exists (select 1 from bough.session where {NAMED_GATE} and session.no = %(no)s)"
SELECT_RANGE = f"""
select {ENTRY_COLUMNS} from bough.entry
where {IS_HERE} and entry.branch = %(branch)s and entry.seq between %(first)s and %(last)s{{only}}
order by entry.seq
"""
SELECT_RANGES = f"""
select entry.* from unnest(%(branches)s::bigint[], %(firsts)s::bigint[], %(lasts)s::bigint[]) as part (branch, first, last)
cross join lateral (
    select {ENTRY_COLUMNS} from bough.entry
    where entry.branch = part.branch and entry.seq between part.first and part.last{{only}} order by entry.seq
) as entry
where {IS_HERE}
"""
SELECT_DETAIL = f"""
select spec, policy, workspace, state
from bough.session join bough.session_detail on session_detail.no = session.no where {MINE}
"""
SELECT_JOURNAL = f"""
select {FACT_COLUMNS.replace("branch", "journal.branch")} from bough.session
join bough.journal on journal.session_no = session.no
where {MINE} and journal.n > %(after)s order by journal.n limit %(limit)s
"""
SELECT_CALLS = f"""
select {CALL_COLUMNS} from bough.session join bough.usage on usage.session_no = session.no where {MINE}
order by usage.n
"""
PUBLIC, ASIDE = " and not entry.internal", " and entry.kind is not null"
SELECT_CALLS_BELOW = f"""
with recursive line (id) as (
    select branch.id from bough.session join bough.branch on branch.session_no = session.no where {MINE}
    union
    select branch.parent from line join bough.branch on branch.id = line.id where branch.parent is not null
), others as (
    select distinct branch.session_no from line join bough.branch on branch.id = line.id
    where {NAMED_GATE} and branch.session_no <> (select session.no from bough.session where {MINE})
)
select {CALL_COLUMNS} from others join bough.usage using (session_no) where {NAMED_GATE} order by usage.session_no, usage.n
"""


class PostgresReading(Store):
    """The verbs that read sessions."""

    _connections: Connections

    def _named(self, session_id: str) -> dict[str, Any]:
        try:
            session_id.encode()
        except UnicodeEncodeError:  # half a character names no session
            raise NotFound(session_id) from None
        if "\0" in session_id:
            raise NotFound(session_id)
        return {"id": session_id, "space": self.space, "owner": self.owner}

    def _of_session(self, query: str, session_id: str, **more: Any) -> list[Row]:
        """Rows that hang on a session. An empty answer may mean that there is none: then it is asked for."""
        found = self._connections.rows(query, {**self._named(session_id), **more})
        if not found:
            self.session(session_id)
        return found

    def _row(self, connection: Connection, session_id: str) -> SessionRow:
        found = connection.execute(SELECT_SESSION, self._named(session_id), binary=True).fetchone()
        if found is None:
            raise NotFound(session_id)
        return session_from(found)

    def session(self, session_id: str) -> SessionRow:
        found = self._connections.rows(SELECT_SESSION, self._named(session_id))
        if not found:
            raise NotFound(session_id)
        return session_from(found[0])

    def detail(self, session_id: str) -> Detail:
        return detail_from(self._of_session(SELECT_DETAIL, session_id)[0])

    def sessions(self, query: Query) -> Page:
        where, bindings = conditions(query, self.owner)
        rows = self._connections.rows(
            f"select {SESSION_COLUMNS} from bough.session where {NAMED_GATE} and {where} "
            "order by no desc limit %(limit)s",
            {**bindings, "space": self.space, "limit": query.limit + 1},
        )
        more = len(rows) > query.limit
        rows = rows[: query.limit]
        return Page([session_from(row) for row in rows], str(rows[-1][0]) if more else None)

    def path(
        self,
        session_id: str,
        *,
        leaf: Leaf | None = None,
        first: int = 1,
        last: int | None = None,
        newest: int | None = None,
        public: bool = False,
        detail: bool = False,
    ) -> Reading:
        while True:
            no, row, ranges, wide = self._line(session_id, leaf, detail)
            end = row.leaf if leaf is None else leaf
            begin = first if newest is None else max(first, end.seq - newest + 1)
            asked = window(ranges, begin, end.seq if last is None else last)
            entries = self._entries(no, asked, PUBLIC if public else "")
            if entries or not asked or self._is_here(no):
                return Reading(row, tuple(ranges), entries, wide)

    def _line(
        self, session_id: str, leaf: Leaf | None, detail: bool
    ) -> tuple[int, SessionRow, list[Range], Detail | None]:
        query = SELECT_WIDE_PATH if detail else SELECT_PATH
        bindings = {**self._named(session_id), "branch": None if leaf is None else leaf.branch}
        found = self._connections.rows(query, bindings)
        if not found:
            raise NotFound(session_id)
        told = found[0]
        row = session_from(told)
        branches = {n: Branch(n, None, parent or None, seq) for n, parent, seq in told[SESSION_WIDTH] or ()}
        wide = detail_from(told[SESSION_WIDTH + 1 :]) if detail else None
        return told[0], row, self._ranges(branches, row.leaf if leaf is None else leaf), wide

    def _ranges(self, branches: dict[int, Branch], leaf: Leaf) -> list[Range]:
        try:
            return lineage(branches, leaf)
        except KeyError as error:
            why = f"branch {error} is missing on the way to {leaf}; session.verify() tells more"
            raise Damaged(self.where, why) from None

    def asides(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        no, _, ranges, _ = self._line(session_id, leaf, detail=False)
        return self._entries(no, ranges, ASIDE)

    def _entries(self, no: int, ranges: Sequence[Range], only: str) -> list[Entry]:
        if not ranges:
            return []
        bindings: dict[str, Any] = {"space": self.space, "no": no}
        if len(ranges) == 1:
            part = ranges[0]
            query = SELECT_RANGE
            bindings |= {"branch": part.branch, "first": part.first, "last": part.last}
        else:
            query = SELECT_RANGES
            bindings |= {"branches": [part.branch for part in ranges]}
            bindings |= {"firsts": [part.first for part in ranges], "lasts": [part.last for part in ranges]}
        rows = self._connections.rows(query.format(only=only), bindings)
        try:
            found = list(map(entry_from, rows))
        except (msgspec.DecodeError, TypeError) as error:
            why = f"an entry of branches {ranges} cannot be read ({error}); session.verify() names it"
            raise Damaged(self.where, why) from None
        if len(ranges) > 1:
            found.sort(key=_seq)  # they come in order, but nothing promises it
        return found

    def _is_here(self, no: int) -> bool:
        query = f"select 1 from bough.session where {NAMED_GATE} and session.no = %(no)s"
        return bool(self._connections.rows(query, {"space": self.space, "no": no}))

    def entries(self, session_id: str) -> list[Stored]:
        return [stored_from(row) for row in self._of_session(SELECT_STORED, session_id)]

    def branches(self, session_id: str) -> list[Branch]:
        return [Branch(*row) for row in self._of_session(SELECT_BRANCHES, session_id)]

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]:
        found = self._of_session(SELECT_JOURNAL, session_id, after=after, limit=limit)
        return [fact_from(row) for row in found]

    def calls(self, session_id: str) -> list[Call]:
        return [call_from(row) for row in self._of_session(SELECT_CALLS, session_id)]

    def calls_below(self, session_id: str) -> list[Call]:
        return [call_from(row) for row in self._of_session(SELECT_CALLS_BELOW, session_id)]


_seq = attrgetter("seq")
