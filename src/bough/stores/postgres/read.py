"""Reading, in PostgreSQL: a session's row, its path and everything that hangs on it.

Each verb is one statement, and so one snapshot and one round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from ...core.codec import from_json
from ...core.entries import Entry
from ...core.tree import Branch, Leaf, Range, contains_leaf, lineage
from ...core.usage import Call
from ...errors import InvalidPosition, NotFound, StoreDamaged
from ..base import (
    Fact,
    PathSnapshot,
    SessionDetail,
    SessionPage,
    SessionQuery,
    SessionRow,
    StoreBackend,
    StoredEntry,
)
from ..rows import call_from, entries_from, fact_from, session_from, stored_from
from .connections import SET_SPACE, Connection, Connections, Row
from .export_sessions import MINE, SELECT_BRANCHES, SELECT_SESSION, SELECT_STORED
from .rows import CALL_COLUMNS, ENTRY_COLUMNS, FACT_COLUMNS, SESSION_COLUMNS, detail_from
from .session_query import conditions

# A path is one statement: the head, which is the row, the branches the path crosses and, if asked for, the wide part,
# as JSON in the place of a body; then the entries. So all of it is of one moment, and one round trip.
# What a policy guards is looked up by index only through values that cannot tell anything, and PostgreSQL takes
# `coalesce` for one that might: so what is asked for is worked out first.
SELECT_LINE = f"""
with recursive me as materialized (
    select {SESSION_COLUMNS} from bough.session where {MINE}
), asked as materialized (
    select coalesce(%(branch)s::bigint, branch) as branch, coalesce(%(seq)s::bigint, seq) as seq,
           greatest(%(first)s::bigint, coalesce(%(seq)s::bigint, seq) - %(newest)s::bigint + 1) as first,
           coalesce(%(last)s::bigint, %(seq)s::bigint, seq) as last
    from me
), line (id, parent, parent_seq, session_no, last) as (
    select id, parent, parent_seq, session_no, (select seq from asked) from bough.branch
    where {SET_SPACE} and branch.id = (select branch from asked)
    union all
    select under.*, least(line.last, line.parent_seq) from line cross join lateral (
        -- Fenced, so that it is a probe for each step; joined, PostgreSQL may read the whole table for each.
        select id, parent, parent_seq, session_no from bough.branch
        where branch.id = line.parent and branch.id < line.id offset 0 -- a forged ring ends here
    ) as under
)
select null::bigint, null::bigint, null::bigint, null, null::boolean, null, null, null::bytea, null::bigint, null::bytea,
    convert_to(json_build_array(to_json(me), (
        select json_agg(json_build_array(id, parent, parent_seq, session_no)) from line
    ){{wide}})::text, 'UTF8')
from me
union all
select entry.* from line cross join lateral (
    select {ENTRY_COLUMNS} from bough.entry
    where entry.branch = line.id
      and entry.seq between greatest(line.parent_seq + 1, (select first from asked))
                        and least(line.last, (select last from asked)){{only}}
    order by entry.seq
) as entry
where {SET_SPACE}
"""
WIDE = "".join(
    f", (select session_detail.{name} from bough.session_detail where session_detail.no = me.no)"
    for name in ("spec", "policy", "workspace", "state")
)
PUBLIC, ASIDE = " and not entry.internal", " and entry.kind is not null"
SELECT_DETAIL = f"""
select spec, policy, workspace, state
from bough.session join bough.session_detail on session_detail.no = session.no where {MINE}
"""
SELECT_DESCRIBED = f"""
select wide.*, {SESSION_COLUMNS} from bough.session cross join lateral (
    select spec, policy, workspace, state from bough.session_detail where session_detail.no = session.no
) as wide where {MINE}
"""
SELECT_JOURNAL = f"""
select {FACT_COLUMNS.replace("branch", "journal.branch")} from bough.session
left join bough.journal on journal.session_no = session.no and journal.n > %(after)s
where {MINE} order by journal.n limit %(limit)s
"""
SELECT_LENGTHS = f"""
select id, facts from bough.session
where {SET_SPACE} and id = any(%(ids)s::text[]) and (%(owner)s::text is null or owner = %(owner)s)
"""
SELECT_CALLS = f"""
select {CALL_COLUMNS} from bough.session left join bough.usage on usage.session_no = session.no where {MINE}
order by usage.n
"""
SELECT_CALLS_BELOW = f"""
with recursive line (id) as (
    select branch.id from bough.session join bough.branch on branch.session_no = session.no where {MINE}
    union
    select branch.parent from line join bough.branch on branch.id = line.id where branch.parent is not null
), others as (
    select distinct branch.session_no from line join bough.branch on branch.id = line.id
    where {SET_SPACE} and branch.session_no <> (select session.no from bough.session where {MINE})
)
select {CALL_COLUMNS} from others join bough.usage using (session_no) where {SET_SPACE} order by usage.session_no, usage.n
"""


@lru_cache
def _line_of(wide: str, only: str) -> str:
    """One text for each kind, so that psycopg knows it again without reading it."""
    return SELECT_LINE.format(wide=wide, only=only)


class PostgresReading(StoreBackend):
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
        found = self._connections.query(query, {**self._named(session_id), **more})
        if not found:
            self.session(session_id)
        return found

    def _hanging(self, query: str, session_id: str, **more: Any) -> list[Row]:
        """The same by a query that has one row without a key where nothing hangs, and needs not ask twice."""
        found = self._connections.query(query, {**self._named(session_id), **more})
        if not found:
            raise NotFound(session_id)
        return [] if found[0][0] is None else found

    def _row(self, connection: Connection, session_id: str) -> SessionRow:
        found = connection.execute(SELECT_SESSION, self._named(session_id), binary=True).fetchone()
        if found is None:
            raise NotFound(session_id)
        return session_from(found)

    def session(self, session_id: str) -> SessionRow:
        found = self._connections.query(SELECT_SESSION, self._named(session_id))
        if not found:
            raise NotFound(session_id)
        return session_from(found[0])

    def detail(self, session_id: str) -> SessionDetail:
        return detail_from(self._of_session(SELECT_DETAIL, session_id)[0])

    def session_with_detail(self, session_id: str) -> tuple[SessionRow, SessionDetail]:
        found = self._of_session(SELECT_DESCRIBED, session_id)[0]
        return session_from(found[4:]), detail_from(found[:4])

    def sessions(self, query: SessionQuery) -> SessionPage:
        where, bindings = conditions(query, self.owner)
        rows = self._connections.query(
            f"select {SESSION_COLUMNS} from bough.session where {SET_SPACE} and {where} "
            "order by no desc limit %(limit)s",
            {**bindings, "space": self.space, "limit": query.limit + 1},
        )
        more = len(rows) > query.limit
        rows = rows[: query.limit]
        return SessionPage([session_from(row) for row in rows], str(rows[-1][0]) if more else None)

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
    ) -> PathSnapshot:
        part = {"first": first, "last": last, "newest": newest}
        query = _line_of(WIDE if detail else "", PUBLIC if public else "")
        head, entries = self._line(query, session_id, leaf, part)
        told, branches, *wide = from_json(head)
        row = session_from(tuple(told.values()))
        self._refuse_stray(told, branches or (), leaf)
        ranges = self._ranges(branches or (), row.leaf if leaf is None else leaf)
        return PathSnapshot(row, tuple(ranges), entries, detail_from(tuple(wide)) if detail else None)

    def non_message_entries(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        part = {"first": 1, "last": None, "newest": None}
        head, entries = self._line(_line_of("", ASIDE), session_id, leaf, part)
        told, branches = from_json(head)
        self._refuse_stray(told, branches or (), leaf)
        return entries

    def _refuse_stray(self, me: dict[str, Any], branches: Sequence[Sequence[Any]], leaf: Leaf | None) -> None:
        """What the policy does not hide may be another session's of this tenant: only what it stands on is its own."""
        is_present = leaf is None or (me["branch"], me["seq"]) == (leaf.branch, leaf.seq)
        if leaf is None or is_present or any(n == leaf.branch and no == me["no"] for n, _, _, no in branches):
            return
        if not contains_leaf(self.branches(me["id"]), me["id"], leaf):
            raise InvalidPosition(str(leaf), 0, me["seq"])

    def _line(
        self, query: str, session_id: str, leaf: Leaf | None, part: dict[str, int | None]
    ) -> tuple[bytes, list[Entry]]:
        """The head as JSON, and the entries in their order."""
        place = {"branch": None, "seq": None} if leaf is None else {"branch": leaf.branch, "seq": leaf.seq}
        rows = self._connections.query(query, {**self._named(session_id), **part, **place})
        heads = [n for n, row in enumerate(rows) if row[0] is None]
        if not heads:
            raise NotFound(session_id)
        head: bytes = rows.pop(heads[0])[-1]
        try:
            found = entries_from(rows)
        except (msgspec.DecodeError, TypeError) as error:
            why = f"an entry of session {session_id} cannot be read ({error}); session.verify() names it"
            raise StoreDamaged(self.url, why) from None
        found.sort(key=_seq)  # branch by branch, and nothing promises the order of those
        return head, found

    def _ranges(self, branches: Iterable[Sequence[Any]], leaf: Leaf) -> list[Range]:
        try:
            return lineage({n: Branch(n, None, parent, seq) for n, parent, seq, _ in branches}, leaf)
        except KeyError as error:
            why = f"branch {error} is missing on the way to {leaf}; session.verify() tells more"
            raise StoreDamaged(self.url, why) from None

    def entries(self, session_id: str) -> list[StoredEntry]:
        return [stored_from(row) for row in self._of_session(SELECT_STORED, session_id)]

    def branches(self, session_id: str) -> list[Branch]:
        return [Branch(*row) for row in self._of_session(SELECT_BRANCHES, session_id)]

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]:
        found = self._hanging(SELECT_JOURNAL, session_id, after=after, limit=limit)
        return [fact_from(row) for row in found]

    def lengths(self, session_ids: Sequence[str]) -> dict[str, int]:
        """How many facts each of them has, of many at once; those that are not there are left out."""
        bindings = {"space": self.space, "owner": self.owner, "ids": list(session_ids)}
        return dict(self._connections.query(SELECT_LENGTHS, bindings))

    def calls(self, session_id: str) -> list[Call]:
        return [call_from(row) for row in self._hanging(SELECT_CALLS, session_id)]

    def inherited_calls(self, session_id: str) -> list[Call]:
        return [call_from(row) for row in self._of_session(SELECT_CALLS_BELOW, session_id)]


_seq = attrgetter("seq")
