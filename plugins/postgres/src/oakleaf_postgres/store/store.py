"""The store on PostgreSQL: any number of machines, tenants separated by the database itself.

Knows which reads and writes are one statement and which need a transaction. `connections` handles a connection that
breaks, `commit` and `create` write changes and sessions, `purge` decides what may be deleted. `schema.migrate`
creates the schema, under another role than the one that works here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import lru_cache, partial
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from psycopg.errors import UniqueViolation

from oakleaf.core.codec import decode_message, from_json
from oakleaf.core.drafts import Blob
from oakleaf.core.entries import Entry
from oakleaf.core.facts import Fact, Signal, StoredFact, kind_of
from oakleaf.core.messages import Message
from oakleaf.core.search import Search
from oakleaf.core.tree import Branch, Leaf, Range, contains_leaf
from oakleaf.core.usage import Call
from oakleaf.errors import (
    Fenced,
    IdTaken,
    InvalidPosition,
    NotFound,
    NotTrashed,
    ServerUnreachable,
    SessionTrashed,
    StoreDamaged,
)
from oakleaf.stores.base import (
    ACTIVITY_STEP,
    LABEL,
    STATUSES,
    CallPlace,
    Change,
    CommitResult,
    Finding,
    ImportResult,
    IndexProgress,
    NewSession,
    PathSnapshot,
    PurgeResult,
    QueuedInput,
    SearchPage,
    SessionDetail,
    SessionExports,
    SessionHead,
    SessionQuery,
    SessionRow,
    StorageSize,
    StoredEntry,
    is_callers_key,
    next_fence,
)
from oakleaf.stores.sql.database_store import DatabaseStore, path_ranges
from oakleaf.stores.sql.purge import descendants
from oakleaf.stores.sql.rows import call_from, entries_from, fact_from, session_from, stored_from
from oakleaf.stores.sql.session_query import session_conditions, walks_ids
from oakleaf.stores.sql.session_rows import detail_from
from oakleaf_postgres.absurd.signals import wake_task
from oakleaf_postgres.errors import needs_absurd
from oakleaf_postgres.store.commit import (
    IS_CALLERS_KEY,
    commit_locked,
    committed,
    expression_of,
    find_committed,
    fits_statement,
    insert_blobs,
    lock_head,
    repeat_of,
    shape_of,
    statement,
    values_of,
)
from oakleaf_postgres.store.connections import (
    SET_LOCK_TIMEOUT,
    SET_SPACE,
    ConnectionLost,
    PostgresConnections,
    Row,
)
from oakleaf_postgres.store.create import (
    LOCK,
    LOCK_CONVERSATION,
    SELECT_FIRST_KEY,
    SHARE_LOCK,
    insert_session,
    insert_session_within,
    lock_row,
)
from oakleaf_postgres.store.guard import SqlEffect, SqlGuard
from oakleaf_postgres.store.purge import (
    NOT_QUEUED,
    SELECT_CHILDREN,
    SELECT_TASKS,
    SELECT_TRASHED_TASKS,
    PostgresPurge,
    children,
)
from oakleaf_postgres.store.rows import (
    CALL_COLUMNS,
    CLOCK_LEAD,
    ENTRY_COLUMNS,
    FACT_COLUMNS,
    SESSION_COLUMNS,
    caller_clock,
)
from oakleaf_postgres.store.scrub import scrub
from oakleaf_postgres.store.search import PostgresSearch
from oakleaf_postgres.store.search_index import PostgresSearchIndex
from oakleaf_postgres.store.statement import Connection, Statement
from oakleaf_postgres.store.transfer import (
    MINE,
    SELECT_BRANCHES,
    SELECT_SESSION,
    SELECT_STORED,
    SELECT_STORED_PART,
    TREE,
    PostgresExporter,
    PostgresImporter,
)
from oakleaf_postgres.store.url import Address

if TYPE_CHECKING:
    from oakleaf.stores.tasks import QueueStatus, TaskQueue

# A path is one statement, and so one snapshot and one round trip. Its first row holds, as JSON in place of a body, the
# session's row, the branches the path crosses and, on request, the detail; the others are the entries.
# Under a policy PostgreSQL uses an index only for values from leakproof functions, and `coalesce` does not count as
# one: so what is requested is computed first.
SELECT_PATH = f"""
with recursive me as materialized (
    select {SESSION_COLUMNS} from oakleaf.session where {MINE}
), requested as materialized (
    select coalesce(%(branch)s::bigint, branch) as branch, coalesce(%(seq)s::bigint, seq) as seq,
           greatest(%(first)s::bigint, coalesce(%(seq)s::bigint, seq) - %(newest)s::bigint + 1) as first,
           coalesce(%(last)s::bigint, %(seq)s::bigint, seq) as last
    from me
), line (id, parent, parent_seq, session_number, last) as (
    select id, parent, parent_seq, session_number, (select seq from requested) from oakleaf.branch
    where {SET_SPACE} and branch.id = (select branch from requested)
    union all
    select under.*, least(line.last, line.parent_seq) from line cross join lateral (
        -- `offset 0` makes it one index probe per step; as a join PostgreSQL may read the whole table for each.
        select id, parent, parent_seq, session_number from oakleaf.branch
        where branch.id = line.parent and branch.id < line.id offset 0 -- a forged ring ends here
    ) as under
)
select null::bigint, null::bigint, null::bigint, null, null::boolean, null, null, null::bytea, null::bigint, null::bytea,
    pg_catalog.convert_to(pg_catalog.json_build_array(pg_catalog.to_json(me), (
        select pg_catalog.json_agg(pg_catalog.json_build_array(id, parent, parent_seq, session_number)) from line
    ){{detail}})::text, 'UTF8')
from me
union all
select entry.* from line cross join lateral (
    select {ENTRY_COLUMNS} from oakleaf.entry
    where entry.branch = line.id
      and entry.seq between greatest(line.parent_seq + 1, (select first from requested))
                        and least(line.last, (select last from requested)){{only}}
    order by entry.seq
) as entry
where {SET_SPACE}
"""
# The branches of a path are walked from its leaf to its root, and the input is looked for from the root: the first of them
# is the one with the lowest seq.
SELECT_HEADS = f"""
select id, facts, status, trashed_at from oakleaf.session
where {SET_SPACE} and space = %(space)s and id = any(%(ids)s::text[]) and (%(owner)s::text is null or owner = %(owner)s)
"""
SELECT_FIRST_INPUTS = f"""
with recursive line (session_id, id, parent, parent_seq, last) as (
    select session.id, branch.id, branch.parent, branch.parent_seq, session.seq
    from oakleaf.session join oakleaf.branch on branch.id = session.branch
    where {SET_SPACE} and session.space = %(space)s and session.id = any(%(ids)s::text[])
      and (%(owner)s::text is null or session.owner = %(owner)s)
    union all
    select line.session_id, under.*, least(line.last, line.parent_seq) from line cross join lateral (
        select id, parent, parent_seq from oakleaf.branch
        where branch.id = line.parent and branch.id < line.id offset 0
    ) as under
)
select distinct on (line.session_id) line.session_id, entry.body from line cross join lateral (
    select seq, body from oakleaf.entry
    where entry.branch = line.id and entry.seq between line.parent_seq + 1 and line.last
      and entry.turn = entry.seq and not entry.internal
    order by entry.seq limit 1
) as entry
where {SET_SPACE} order by line.session_id, entry.seq
"""
DETAIL = "".join(
    f", (select session_detail.{name} from oakleaf.session_detail where session_detail.session_number = me.number)"
    for name in ("spec", "policy", "workspace", "state")
)
DETAIL += ", (select pg_catalog.count(*) from oakleaf.inbox where inbox.session_number = me.number)"
PUBLIC_ONLY = " and not entry.internal"
INPUTS_ONLY = " and entry.turn = entry.seq"
CONTROL_ENTRIES_ONLY = " and entry.kind is not null and entry.kind <> 'note'"
SELECT_WITH_DETAIL = f"""
select detail.*, {SESSION_COLUMNS} from oakleaf.session cross join lateral (
    select spec, policy, workspace, state from oakleaf.session_detail where session_detail.session_number = session.number
) as detail where {MINE}
"""
SELECT_JOURNAL = f"""
select {FACT_COLUMNS} from oakleaf.session
left join oakleaf.journal on journal.session_number = session.number and journal.number > %(after)s
where {MINE} order by journal.number limit %(limit)s
"""
SELECT_FACTS_OF_KIND = f"""
select {FACT_COLUMNS} from oakleaf.session
left join oakleaf.journal on journal.session_number = session.number and journal.kind = %(kind)s
where {MINE} order by journal.number
"""
# With the index of labels, which applies only if the statement says so.
SELECT_LABELS = SELECT_FACTS_OF_KIND.replace("%(kind)s", f"'{LABEL}'")
# A value that the planner must not know. With values PostgreSQL plans a list anew each time it is read if that seems to pay,
# which it does from some thousand sessions on (0.17 of 0.38 ms), or it sorts a space that it takes for a small one. In a
# subquery a value is unknown, so that a plan is made once for a connection; of an unknown limit PostgreSQL expects a tenth of
# all rows, and walks the index that has the order of the list.
UNPLANNED = "(select %({})s)"
# Fenced, so that it is a probe for each row of the tag, in their order, until the page is full.
LISTED = f"""(
    select session_number as tagged_number, active_at as tagged_at from oakleaf.session_tag
    where {SET_SPACE} and session_tag.space = (select %(space)s) and session_tag.tag_hash = (select %(tag)s::bytea)
) as tagged cross join lateral (
    select * from oakleaf.session
    where session.number = tagged_number and {{}} offset 0
) as session"""
HAS_TAG = "session.tags ->> %(tag_name)s::text = %(tag_value)s::text"
TITLE = "\x1ftitle"
"""The name under which a title is among the tags: that of no tag of a person."""
SELECT_CHANGE = f"""
select {FACT_COLUMNS}, session.branch, session.seq from oakleaf.session
left join oakleaf.journal on journal.session_number = session.number and journal.key = %(key)s and {IS_CALLERS_KEY}
where {MINE} order by journal.number desc nulls last limit 1
"""
# One probe of the index for each branch of the session and of the tasks below it. `union` ends a forged ring of parents.
SELECT_TOOL_CALLS = f"""
with recursive family (number, id) as (
    select session.number, session.id from oakleaf.session where {MINE}
    union
    select task.number, task.id from family
    join oakleaf.session as task on task.parent_session = family.id and task.relation = 'task'
)
select family.id, place.branch, place.seq from family
join oakleaf.branch on branch.session_number = family.number
cross join lateral (
    select tool_call.branch, tool_call.seq from oakleaf.tool_call
    where tool_call.branch = branch.id and tool_call.hash = %(hash)s offset 0
) as place
where {SET_SPACE} order by place.branch desc, place.seq desc
"""
SELECT_OWN_TOOL_CALLS = f"""
select tool_call.branch, tool_call.seq, tool_call.hash from oakleaf.session
join oakleaf.branch on branch.session_number = session.number join oakleaf.tool_call on tool_call.branch = branch.id where {MINE}
"""
SELECT_CALLS = f"""
select {CALL_COLUMNS} from oakleaf.session left join oakleaf.usage on usage.session_number = session.number where {MINE}
order by usage.number
"""
SELECT_INHERITED_CALLS = f"""
{TREE}, others as (
    select distinct branch.session_number from line join oakleaf.branch on branch.id = line.id
    where {SET_SPACE} and branch.session_number <> (select session.number from oakleaf.session where {MINE})
)
select {CALL_COLUMNS} from others join oakleaf.usage using (session_number) where {SET_SPACE} order by usage.session_number, usage.number
"""
# The first calls of a session are read; the others are found by the index of long ledgers, whose expression this is.
CALLS_BETWEEN = f"""
    select {CALL_COLUMNS}, usage.number from oakleaf.usage
    where usage.session_number = branch.session_number and usage.branch = branch.id and usage.number {{}} 256
      and case when usage.answer_seq is null then usage.after_seq else usage.answer_seq end between %(first)s and %(last)s
"""
SELECT_CALLS_BETWEEN = f"""
{TREE}
select {CALL_COLUMNS} from line join oakleaf.branch on branch.id = line.id cross join lateral (
    {CALLS_BETWEEN.format("<=")} union all {CALLS_BETWEEN.format(">")}
) as usage
where {SET_SPACE} and branch.id = %(branch)s order by usage.number
"""
# A branch grows at its end, so that a later call answers a later entry: found at once if it is one of the newest. As a join
# PostgreSQL would read and sort all calls of the session: 19 ms instead of 0.6 for 50,000 calls.
SELECT_LATEST_ANSWER_CALL = f"""
{TREE}
select usage.* from line join oakleaf.branch on branch.id = line.id cross join lateral (
    select {CALL_COLUMNS} from oakleaf.usage
    where usage.session_number = branch.session_number and usage.branch = branch.id
      and usage.answer_seq <= %(last)s and usage.purpose is null
    order by usage.number desc limit 1
) as usage
where {SET_SPACE} and branch.id = %(branch)s
"""


SELECT_IS_BOUND = "select pg_catalog.row_security_active('oakleaf.session'::regclass)"
SELECT_LATEST = f"""
select {SESSION_COLUMNS} from oakleaf.session
where {SET_SPACE} and space = %(space)s and conversation_id = %(conversation)s
  and (%(owner)s::text is null or owner = %(owner)s)
  and (relation is null or relation = 'import') and trashed_at is null
order by number desc limit 1
"""
SELECT_INBOX = f"""
select inbox.number, inbox.body, inbox.at, inbox.imported from oakleaf.session
left join oakleaf.inbox on inbox.session_number = session.number
where {MINE} order by inbox.number limit %(limit)s
"""
# Whether an input was queued: it waits, or a change after the `facts` of then took it.
SELECT_QUEUED_KEY = """
select 1 from oakleaf.inbox where session_number = %(session)s and key = %(key)s
union all
select 1 from oakleaf.journal where session_number = %(session)s and number > %(facts)s and input_key = %(key)s
"""
SELECT_DRAFT = f"""
select draft.text from oakleaf.session
left join oakleaf.draft on draft.session_number = session.number and draft.branch = session.branch and not exists (
    select 1 from oakleaf.entry
    where entry.branch = draft.branch and entry.seq > draft.seq and entry.seq <= session.seq
      and entry.kind is distinct from 'note')
where {MINE}
"""
SAVE_DRAFT = """
insert into oakleaf.draft (session_number, space, branch, seq, fence, text, at) values (%s, %s, %s, %s, %s, %s, %s)
on conflict (session_number) do update set (branch, seq, fence, text, at) =
    row(excluded.branch, excluded.seq, excluded.fence, excluded.text, excluded.at)
"""
# If one of these changes nothing, what prevented it is read afterwards.
LEASE = f"""
update oakleaf.session set holder = %(holder)s, lease_until = %(until)s + {CLOCK_LEAD},
    fence = fence + (holder is distinct from %(holder)s)::integer
where {SET_SPACE} and {SET_LOCK_TIMEOUT}{{condition}} and id = %(id)s and space = %(space)s
  and (%(owner)s::text is null or owner = %(owner)s) and trashed_at is null
  and (holder is null or holder = %(holder)s or coalesce(lease_until, 0) <= %(at)s + {CLOCK_LEAD}
    or fence = %(take_from)s)
returning fence
"""
SET_LEASE = f"""
update oakleaf.session set holder = %(holder)s, lease_until = %(until)s::bigint + {CLOCK_LEAD}, fence = %(fence)s where id = %(id)s
"""
RENEW = f"""
update oakleaf.session set lease_until = %(until)s + {CLOCK_LEAD}
where {SET_SPACE} and {SET_LOCK_TIMEOUT}{{condition}} and id = %(id)s and space = %(space)s
  and (%(owner)s::text is null or owner = %(owner)s) and fence = %(fence)s and holder is not null
returning number
"""
RELEASE = f"""
update oakleaf.session set holder = null, lease_until = null
where {SET_SPACE} and {SET_LOCK_TIMEOUT}{{condition}} and id = %(id)s and space = %(space)s
  and (%(owner)s::text is null or owner = %(owner)s) and fence = %(fence)s
returning number
"""
MAX_EXTENDABLE = 10_000
ENQUEUE = """
insert into oakleaf.inbox (session_number, number, space, owner, key, body, at)
select %s, coalesce(max(number), 0) + 1, %s, %s, %s, %s, %s from oakleaf.inbox where session_number = %s returning number
"""
SELECT_STORAGE_SIZE = """
with own as materialized (
    select branch.id from oakleaf.branch where session_number = %(number)s
), used as (
    select distinct blob_use.blob_number from own join oakleaf.blob_use on blob_use.branch = own.id
)
select (select count(*) from own join oakleaf.entry on entry.branch = own.id),
       (select coalesce(sum(length(entry.body)), 0)::bigint from own join oakleaf.entry on entry.branch = own.id),
       (select count(*) from own),
       (select count(*) from used),
       (select coalesce(sum(blob.size), 0)::bigint from used join oakleaf.blob on blob.number = used.blob_number)
"""


@lru_cache(maxsize=8)
def _lease_statement(update: str, condition: str) -> Statement:
    return Statement.parse(update.format(condition=f" and {condition}" if condition else ""))


@lru_cache
def _path_query(detail: str, only: str) -> str:
    """Return the same string object each time, for psycopg's cache of parsed queries."""
    return SELECT_PATH.format(detail=detail, only=only)


class PostgresStore(DatabaseStore):
    limit = UNPLANNED.format("limit") + "::bigint"
    list_columns = f"{SESSION_COLUMNS}, session.active_at"
    # By the sessions that were active since then: so no index of calls is needed, and none of another space is read.
    tag_value = "session.tags ->> %(tag)s::text"
    select_next_space = "select space from oakleaf.session where space > %(after)s order by space limit 1"
    usage_source = f"""
from oakleaf.session cross join lateral (
    select * from oakleaf.usage where usage.session_number = session.number and usage.at >= %(since)s offset 0
) as usage
where {SET_SPACE} and session.space = %(space)s and (%(owner)s::text is null or session.owner = %(owner)s)
  and session.active_at >= %(since)s::bigint - {ACTIVITY_STEP}
"""
    count_statuses = f"""
select known.status, counted.number from pg_catalog.unnest(array{list(STATUSES)}) as known (status), lateral (
    select pg_catalog.count(*) as number from (
        select 1 from oakleaf.session
        where {SET_SPACE} and session.space = (select %(space)s) and session.status = known.status and session.trashed_at is null
        order by session.active_at desc, session.number desc limit (select %(most)s::bigint)) as listed) as counted
where counted.number > 0
"""
    count_own_statuses = f"""
select status, least(pg_catalog.count(*), %(most)s) from oakleaf.session
where {SET_SPACE} and space = %(space)s and owner = %(owner)s and trashed_at is null group by status
"""
    select_started = f"""
select 1 from oakleaf.session
where {SET_SPACE} and space = (select %(space)s) and started_at >= %(first)s and started_at < %(last)s limit 1
"""
    queued_source = f"""
from oakleaf.inbox join oakleaf.session on session.number = inbox.session_number
where {SET_SPACE} and inbox.space = %(space)s and (%(owner)s::text is null or session.owner = %(owner)s)
  and session.trashed_at is null and session.status <> 'running'
"""
    select_lost_branches = f"""
with recursive line (id) as (
    select branch.id from oakleaf.branch join oakleaf.session on session.number = branch.session_number
    where {SET_SPACE} and branch.space = %(space)s
    union
    select branch.parent from line join oakleaf.branch on branch.id = line.id where branch.parent is not null
)
select id from oakleaf.branch where {SET_SPACE} and space = %(space)s and id not in (select id from line) order by id
"""
    select_blob = f"""
select hash, mime, bytes from oakleaf.blob where {SET_SPACE} and space = %(space)s and hash = %(hash)s
"""
    unreferenced_source = f"""
from oakleaf.blob where {SET_SPACE} and space = %(space)s and at < %(before)s
  and not exists (select 1 from oakleaf.blob_use where blob_number = blob.number) and {NOT_QUEUED}
"""

    effects = (SqlEffect,)

    def __init__(self, url: str, *, space: str = "default", owner: str | None = None) -> None:
        address = Address.parse(url)
        self.url, self.space, self.owner = address.safe_url, space, owner
        self._whole_url = url
        self._connections = PostgresConnections(address, space)
        self._extendable: set[tuple[str, int] | None] = set()
        """Sessions and branches of theirs that this store has extended: a branch stays its session's own."""

    def close(self) -> None:
        self._connections.close()

    @property
    def connections(self) -> PostgresConnections:
        """For an engine with statements in the store's space."""
        return self._connections

    def for_tenant(self, space: str, owner: str | None = None) -> PostgresStore:
        other = copy(self)
        other.space, other.owner = space, owner
        other._connections = self._connections.for_space(space)
        return other

    def guarded(self, guard: SqlGuard) -> PostgresStore:
        """Return a view of the store under a condition: without the condition no change, no session, no blob."""
        other = copy(self)
        other._connections = self._connections.guarded(guard)
        return other

    def _query(self, query: str, **values: Any) -> list[Any]:
        return self._connections.query(query, {"space": self.space, "owner": self.owner, **values})

    # -- reading -----------------------------------------------------------------------------------

    def spaces(self) -> list[str] | None:
        """Return the own space alone for roles under row level security, without a grant."""
        ((is_bound,),) = self._query(SELECT_IS_BOUND)
        return None if is_bound else super().spaces()

    def _named(self, session_id: str) -> dict[str, Any]:
        try:
            session_id.encode()
        except UnicodeEncodeError:  # a lone surrogate is in no id
            raise NotFound(session_id) from None
        if "\0" in session_id:
            raise NotFound(session_id)
        return {"id": session_id, "space": self.space, "owner": self.owner, "clock": caller_clock()}

    def _session_rows(self, query: str, session_id: str, **more: Any) -> list[Row]:
        """Return the session's rows; raise NotFound for a missing session."""
        rows = self._connections.query(query, {**self._named(session_id), **more})
        if not rows:
            self.session(session_id)
        return rows

    def _joined_rows(self, query: str, session_id: str, **more: Any) -> list[Row]:
        """Return the rows of a left join from the session: a row of nulls means no rows, and one query is enough."""
        rows = self._connections.query(query, {**self._named(session_id), **more})
        if not rows:
            raise NotFound(session_id)
        return [] if rows[0][0] is None else rows

    def session(self, session_id: str) -> SessionRow:
        rows = self._connections.query(SELECT_SESSION, self._named(session_id))
        if not rows:
            raise NotFound(session_id)
        return session_from(rows[0])

    def session_with_detail(self, session_id: str) -> tuple[SessionRow, SessionDetail]:
        row = self._session_rows(SELECT_WITH_DETAIL, session_id)[0]
        return session_from(row[4:]), detail_from(row[:4])

    def _source(self, query: SessionQuery) -> tuple[str, dict[str, Any]]:
        conditions, bindings = session_conditions(
            _listed_by_tag(query),
            self.space,
            self.owner,
            parameter="%({})s",
            indexed_parameter=UNPLANNED,
            space_column="session.space",
            walked_id="(id || '')",
            key_condition="number in (select session_number from oakleaf.journal"
            " where session_number = session.number and key = %(key)s::text and left(key, 1) <> '~')",
        )
        if query.tag is None and query.title is None:
            return f"oakleaf.session where {SET_SPACE} and {conditions}", bindings
        if query.tag is None:
            bindings["tag"] = tag_hash(TITLE, query.title or "")
            return f"{LISTED.format('true')} where {SET_SPACE} and {conditions}", bindings
        name, value = bindings["tag_name"], bindings["tag_value"] = query.tag
        bindings["tag"] = tag_hash(name, value)
        return f"{LISTED.format(HAS_TAG)} where {SET_SPACE} and {conditions}", bindings

    def _sort_clause(self, query: SessionQuery) -> str:
        """Return the order of a list, for an id prefix in a form without an index, or PostgreSQL walks all
        sessions.
        """
        order = super()._sort_clause(_listed_by_tag(query))
        return order.replace(" desc", " + 0 desc") if query.id_prefix and not walks_ids(query) else order

    def heads(self, session_ids: Sequence[str]) -> dict[str, SessionHead]:
        rows = self._query(SELECT_HEADS, ids=list(session_ids))
        return {name: SessionHead(*head) for name, *head in rows}

    def first_inputs(self, session_ids: Sequence[str]) -> dict[str, Message]:
        inputs: dict[str, Message] = {}
        for session_id, body in self._query(SELECT_FIRST_INPUTS, ids=list(session_ids)):
            with suppress(msgspec.DecodeError):
                inputs[session_id] = decode_message(body)
        return inputs

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
        query = _path_query(DETAIL if detail else "", PUBLIC_ONLY if public else "")
        head, entries = self._read_path(query, session_id, leaf, part)
        columns, branches, *values = from_json(head)
        row = session_from(tuple(columns.values()))
        self._check_leaf(columns, branches or (), leaf)
        ranges = path_ranges(branches or (), row.leaf if leaf is None else leaf, self.url)
        if not detail:
            return PathSnapshot(row, tuple(ranges), entries)
        return PathSnapshot(row, tuple(ranges), entries, detail_from(tuple(values[:-1])), values[-1])

    def inputs(self, session_id: str, *, leaf: Leaf | None = None) -> list[int]:
        return [entry.seq for entry in self._selected_entries(INPUTS_ONLY, session_id, leaf)]

    def control_entries(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        return self._selected_entries(CONTROL_ENTRIES_ONLY, session_id, leaf)

    def _selected_entries(self, condition: str, session_id: str, leaf: Leaf | None) -> list[Entry]:
        """Return the entries of the path under a condition."""
        part = {"first": 1, "last": None, "newest": None}
        head, entries = self._read_path(_path_query("", condition), session_id, leaf, part)
        columns, branches = from_json(head)
        self._check_leaf(columns, branches or (), leaf)
        return entries

    def _check_leaf(
        self, columns: dict[str, Any], branches: Sequence[Sequence[Any]], leaf: Leaf | None
    ) -> None:
        """Raise InvalidPosition for a leaf of another session: the policies hide other tenants only."""
        if leaf is None or leaf == Leaf(columns["branch"], columns["seq"]):
            return
        if any(n == leaf.branch and number == columns["number"] for n, _, _, number in branches):
            return
        if not contains_leaf(self.branches(columns["id"]), columns["id"], leaf):
            raise InvalidPosition(str(leaf), 0, columns["seq"])

    def _read_path(
        self, query: str, session_id: str, leaf: Leaf | None, part: dict[str, int | None]
    ) -> tuple[bytes, list[Entry]]:
        """Return the first row's JSON, and the entries in order."""
        place = {"branch": None, "seq": None} if leaf is None else {"branch": leaf.branch, "seq": leaf.seq}
        rows = self._connections.query(query, {**self._named(session_id), **part, **place})
        heads = [n for n, row in enumerate(rows) if row[0] is None]
        if not heads:
            raise NotFound(session_id)
        head: bytes = rows.pop(heads[0])[-1]
        try:
            entries = entries_from(rows)
        except (msgspec.DecodeError, TypeError) as error:
            why = f"an entry of session {session_id} cannot be read ({error})"
            raise StoreDamaged(self.url, why) from None
        entries.sort(key=_seq)  # the statement promises no order of branches
        return head, entries

    def entries(self, session_id: str, part: Range | None = None) -> list[StoredEntry]:
        if part is None:
            return [stored_from(row) for row in self._session_rows(SELECT_STORED, session_id)]
        bindings = {"branch": part.branch, "first": part.first, "last": part.last}
        return [stored_from(row) for row in self._session_rows(SELECT_STORED_PART, session_id, **bindings)]

    def find_tool_calls(self, session_id: str, call_hash: int) -> list[CallPlace]:
        rows = self._session_rows(SELECT_TOOL_CALLS, session_id, hash=call_hash)
        return [CallPlace(name, Leaf(branch, seq)) for name, branch, seq in rows]

    def tool_calls(self, session_id: str) -> set[tuple[Leaf, int]]:
        rows = self._session_rows(SELECT_OWN_TOOL_CALLS, session_id)
        return {(Leaf(branch, seq), call_hash) for branch, seq, call_hash in rows}

    def branches(self, session_id: str) -> list[Branch]:
        return [Branch(*row) for row in self._session_rows(SELECT_BRANCHES, session_id)]

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[StoredFact]:
        rows = self._joined_rows(SELECT_JOURNAL, session_id, after=after, limit=limit)
        return [fact_from(row) for row in rows]

    def facts_of(self, session_id: str, type_: type[Fact]) -> list[StoredFact]:
        kind = kind_of(type_)
        query = SELECT_LABELS if kind == LABEL else SELECT_FACTS_OF_KIND
        return [fact_from(row) for row in self._joined_rows(query, session_id, kind=kind)]

    def calls(self, session_id: str) -> list[Call]:
        return [call_from(row) for row in self._joined_rows(SELECT_CALLS, session_id)]

    def inherited_calls(self, session_id: str) -> list[Call]:
        return [call_from(row) for row in self._session_rows(SELECT_INHERITED_CALLS, session_id)]

    def calls_between(self, session_id: str, branch: int, first: int, last: int) -> list[Call]:
        rows = self._session_rows(SELECT_CALLS_BETWEEN, session_id, branch=branch, first=first, last=last)
        return [call_from(row) for row in rows]

    def latest_answer_call(self, session_id: str, branch: int, last: int) -> Call | None:
        rows = self._session_rows(SELECT_LATEST_ANSWER_CALL, session_id, branch=branch, last=last)
        return call_from(rows[0]) if rows else None

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, change: Change) -> CommitResult:
        deadline = self._connections.deadline()
        try:
            return self._commit(change)
        except ConnectionLost as error:
            return self._settle(change, error, deadline)

    def find_change(self, session_id: str, key: str) -> CommitResult | None:
        rows = self._joined_rows(SELECT_CHANGE, session_id, key=key)
        if not rows:
            return None
        self._confirm(session_id)
        return repeat_of(rows[0], Leaf(*rows[0][8:]))

    def _confirm(self, session_id: str) -> None:
        """Wait until a session's readable facts are durable, on the synchronous standby, too: see `write`."""

        self._connections.write(lambda writer: lock_head(writer, session_id, self.owner))

    def _commit(self, change: Change) -> CommitResult:
        branch = None if change.after is None else (change.session_id, change.after.branch)
        is_known = branch in self._extendable
        fits = fits_statement(change) and not isinstance(change.fact, Signal)
        done = self._run_statement(change, is_known=is_known) if fits else None
        if done is None:
            done = self._connections.transaction(partial(self._commit_locked, change))
        if change.move_to is not None:
            self._extendable.discard((change.session_id, done.leaf.branch))
        elif change.entries and not is_known:
            if len(self._extendable) >= MAX_EXTENDABLE:
                self._extendable.clear()
            self._extendable.add((change.session_id, done.leaf.branch))
        return done

    def _commit_locked(self, change: Change, writer: Connection) -> CommitResult:
        done = commit_locked(writer, change, self.space, self.owner)
        if isinstance(change.fact, Signal) and not done.is_repeat:
            wake_task(writer, change.session_id)
        return done

    def _run_statement(self, change: Change, *, is_known: bool) -> CommitResult | None:
        """Write the change as a statement; None if nothing was written, whatever the reason."""
        condition, guard_values = self._guard()
        shape = shape_of(change, self.owner, "extend" if is_known else "check")
        values = values_of(change, shape, self.space, self.owner, change.move_to) | guard_values
        try:
            rows = self._connections.run_statement(
                statement(shape, condition, expression_of(change.effect)), values
            )
        except UniqueViolation:
            if shape.branch != "extend":
                raise
            return None  # the leaf was moved back by another process: its branch has entries after it
        return committed(rows)

    def _guard(self) -> tuple[str, dict[str, Any]]:
        guard = self._connections.guard
        return ("", {}) if guard is None else (guard.condition, dict(guard.values))

    def _settle(self, change: Change, error: ConnectionLost, deadline: float) -> CommitResult:
        """Find the outcome of a change with a lost answer.

        If its key is in the journal it was written. If not it is tried again; should the server still be writing the
        first one, the compare and swap lets only one through.
        """
        while True:
            self._connections.recover(error, deadline)
            try:
                result = self._connections.settle(lambda writer: find_committed(writer, change, self.owner))
                if result is not None:
                    return result
                done = self._commit(change)
                if done.is_repeat and not is_callers_key(change.key):
                    return CommitResult(done.leaf, done.facts + len(change.facts))
                return done
            except ConnectionLost as again:
                error = again

    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        deadline = self._connections.deadline()
        try:
            return self._create(new)
        except ConnectionLost as error:
            return self._settle_create(new, error, deadline)

    def _settle_create(
        self, new: NewSession, error: ConnectionLost, deadline: float
    ) -> tuple[SessionRow, bool]:
        """Find whether a session with a lost answer was created, by the first key; else create the session."""

        def find(writer: Connection) -> bool:
            found = writer.execute(SELECT_FIRST_KEY, {"id": new.row.session_id}).fetchone()
            return found is not None and found[0] == new.key

        while True:
            self._connections.recover(error, deadline)
            try:
                if self._connections.settle(find):
                    return self.session(new.row.session_id), True
                return self._create(new)
            except ConnectionLost as again:
                error = again

    def _create(self, new: NewSession) -> tuple[SessionRow, bool]:
        try:
            row = insert_session(self._connections, new, self.space)
        except UniqueViolation:
            row = None  # another space has it, which must not show, or another process just created it
        return (row, True) if row is not None else (self._existing(new), False)

    def _existing(self, new: NewSession) -> SessionRow:
        """Return the session with the id; raise IdTaken for a different session."""
        try:
            self._confirm(new.row.session_id)
            row = self.session(new.row.session_id)
        except NotFound:
            raise IdTaken(new.row.session_id) from None
        started = self.journal(row.session_id, 0, 1)[0].leaf
        count = 0 if started is None else started.seq
        seeds = self.path(row.session_id, last=count).entries if count else []
        new.check_same(row, [seed.entry_id for seed in seeds])
        return row

    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """Look and create under a lock of the conversation, for which other callers wait."""
        bindings = {
            "space": self.space,
            "owner": new.row.owner,
            "conversation": new.row.conversation_id,
            "clock": caller_clock(),
        }
        rows = self._connections.query(SELECT_LATEST, bindings)
        if rows:
            return session_from(rows[0]), False
        name = f"{self.space}\0{new.row.conversation_id}".encode().hex()

        def work(writer: Connection) -> tuple[SessionRow, bool]:
            lock_row(writer, LOCK_CONVERSATION, name)
            latest = writer.execute(SELECT_LATEST, bindings, binary=True).fetchone()
            if latest is not None:
                return session_from(latest), False
            row = insert_session_within(writer, new, self.space)
            return (row, True) if row is not None else (self._existing(new), False)

        return self._connections.write(work)

    def trash(self, session_id: str, at: int) -> list[str]:
        def work(writer: Connection) -> list[str]:
            head = lock_head(writer, session_id, self.owner)
            ids = self._with_children(writer, session_id, SELECT_TASKS)
            if head.trashed_at is None:
                query = "update oakleaf.session set trashed_at = %s where id = any(%s) and trashed_at is null"
                writer.execute(query, (at, ids))
            return ids

        return self._connections.write(work)

    def restore(self, session_id: str) -> list[str]:
        def work(writer: Connection) -> list[str]:
            head = lock_head(writer, session_id, self.owner)
            ids = self._with_children(writer, session_id, SELECT_TASKS)
            query = "update oakleaf.session set trashed_at = null where id = any(%s) and trashed_at = %s"
            writer.execute(query, (ids, head.trashed_at))
            return ids

        # Repeated after a lost answer it restores nothing and returns the same ids.
        return self._connections.write(work)

    def _with_children(self, connection: Connection, session_id: str, query: str) -> list[str]:
        return [*descendants(partial(children, connection, query), session_id), session_id]

    def purge(self, session_id: str, *, with_forks: bool = False, scrub: bool = True) -> PurgeResult:
        def work(writer: Connection) -> PurgeResult:
            lock_row(writer, LOCK, self.space)
            if lock_head(writer, session_id, self.owner).trashed_at is None:
                raise NotTrashed(session_id)
            query = SELECT_CHILDREN if with_forks else SELECT_TRASHED_TASKS
            session_ids = self._with_children(writer, session_id, query)
            return PostgresPurge(self._exporter(writer)).run(session_ids)

        def was_committed(writer: Connection, _: PurgeResult) -> bool:
            lock_row(writer, LOCK, self.space)
            return not self._has(writer, session_id)

        return self._connections.write(work, was_committed)

    def scrub(self) -> bool:
        scrub(self._whole_url)
        return True

    def lease(
        self, session_id: str, holder: str, until: int, at: int, *, take_from: int | None = None
    ) -> int:
        values = {"holder": holder, "until": until, "at": at, "take_from": take_from}
        fence = self._update_lease(LEASE, session_id, **values)
        if fence is not None:
            return fence
        return self._connections.write(
            lambda writer: self._lease(writer, session_id, holder, until, at, take_from)
        )

    def _lease(
        self, writer: Connection, session_id: str, holder: str, until: int, at: int, take_from: int | None
    ) -> int:
        lock_head(writer, session_id, self.owner)
        _, row = self._exporter(writer).find(session_id)
        fence = next_fence(row, holder, at, take_from)
        values = {"id": session_id, "holder": holder, "until": until, "fence": fence, "clock": caller_clock()}
        writer.execute(SET_LEASE, values)
        return fence

    def renew(self, session_id: str, fence: int, until: int) -> bool:
        return self._update_lease(RENEW, session_id, fence=fence, until=until) is not None

    def release(self, session_id: str, fence: int) -> None:
        if self._update_lease(RELEASE, session_id, fence=fence) is None:
            # Another runner has it, which is as good; or the session is missing, or not ours to write.
            self._connections.write(lambda writer: lock_head(writer, session_id, self.owner))

    def _update_lease(self, update: str, session_id: str, **values: Any) -> int | None:
        """Change the lease with a repeatable statement. None: nothing was changed."""
        condition, guard_values = self._guard()
        lease = _lease_statement(update, condition)
        values |= {"id": session_id, "space": self.space, "owner": self.owner, **guard_values}
        rows = self._connections.retry(lambda: self._connections.run_statement(lease, values))
        return rows[0][0] if rows else None

    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        def work(writer: Connection) -> None:
            head = lock_head(writer, session_id, self.owner)
            if head.fence != fence:
                raise Fenced(session_id, fence, head.fence)
            row = (head.number, self.space, leaf.branch, leaf.seq, fence, text.encode(), at)
            writer.execute(SAVE_DRAFT, row)

        self._connections.write(work)

    def draft(self, session_id: str) -> str | None:
        rows = self._joined_rows(SELECT_DRAFT, session_id)
        return rows[0][0].decode() if rows else None

    def enqueue(self, session_id: str, body: bytes, at: int, effect: SqlEffect | None = None) -> int:
        """Queue an input, with an effect in the same transaction."""
        key, facts = secrets.token_hex(16), 0

        def work(writer: Connection) -> int:
            nonlocal facts
            head = lock_head(writer, session_id, self.owner)
            facts = head.facts
            if head.trashed_at is not None:
                raise SessionTrashed(session_id)
            values = (head.number, self.space, head.owner, key, body, at, head.number)
            row = writer.execute(ENQUEUE, values).fetchone()
            assert row is not None
            if effect is not None:
                effect.run(writer)
            return int(row[0])

        def was_committed(writer: Connection, _: int) -> bool:
            head = lock_head(writer, session_id, self.owner)
            values = {"session": head.number, "key": key, "facts": facts}
            return writer.execute(SELECT_QUEUED_KEY, values).fetchone() is not None

        return self._connections.write(work, was_committed)

    def inbox(self, session_id: str, limit: int | None = None) -> list[QueuedInput]:
        rows = self._joined_rows(SELECT_INBOX, session_id, limit=limit)
        return [QueuedInput(*row) for row in rows]

    def put_blob(self, blob: Blob, at: int) -> None:
        self._connections.write(lambda writer: insert_blobs(writer, self.space, (blob,), at))

    def delete_unreferenced_blobs(self, before: int) -> int:
        def work(writer: Connection) -> int:
            query: Any = f"delete {self.unreferenced_source}"
            return writer.execute(query, {"space": self.space, "before": before}).rowcount

        def was_committed(writer: Connection, _: int) -> bool:
            lock_row(writer, LOCK, self.space)
            query: Any = f"select 1 {self.unreferenced_source}"
            return writer.execute(query, {"space": self.space, "before": before}).fetchone() is None

        return self._connections.write(work, was_committed)

    # -- workers and health ----------------------------------------------------------------------

    def tasks(self, queue: str) -> TaskQueue:
        with needs_absurd():
            from oakleaf_postgres.absurd.task_queue import AbsurdTaskQueue
        return AbsurdTaskQueue(self.connections, queue)

    def queues(self) -> list[QueueStatus]:
        from oakleaf_postgres.absurd.health import queue_statuses

        return [status.summary for status in queue_statuses(self)]

    def findings(self) -> list[Finding]:
        from oakleaf_postgres.absurd.health import engine_health
        from oakleaf_postgres.store.health import login_health, rights_health

        return [*login_health(self), *rights_health(self), *engine_health(self)]

    # -- sizes and searching --------------------------------------------------------------------

    def lost_logins(self) -> list[tuple[str, str]]:
        """Return logins, with owners, bound to an owner of the space and without a role now."""
        query = f"select login.* from oakleaf.lost_logins() as login where {SET_SPACE}"
        return [(role, owner) for role, owner in self._query(query)]

    def storage_size(self, session_id: str) -> StorageSize:
        def work(reader: Connection) -> StorageSize:
            number, _ = self._exporter(reader).find(session_id)
            row = reader.execute(SELECT_STORAGE_SIZE, {"number": number}).fetchone()
            assert row is not None
            return StorageSize(*row)

        return self._connections.read_snapshot(work)

    def _index(self) -> PostgresSearchIndex:
        return PostgresSearchIndex(self._connections, self.space, self.owner, self.url)

    def index(self, progress: IndexProgress | None = None) -> int:
        return self._index().catch_up(progress)

    def search(self, search: Search) -> SearchPage:
        return self._connections.read_snapshot(
            lambda reader: PostgresSearch(self._exporter(reader), reader, search, self._index()).page()
        )

    # -- transfer ----------------------------------------------------------------------------------

    def _exporter(self, connection: Connection) -> PostgresExporter:
        return PostgresExporter(connection, self.space, self.owner, self.url)

    @contextmanager
    def export_sessions(self, *session_ids: str, children: bool = False) -> Iterator[SessionExports]:
        with self._connections.snapshot() as reader:
            yield self._exporter(reader).export_all(session_ids, children=children)

    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        """Exports are read once, so a broken connection is not retried: the sessions are looked up instead."""
        results: list[ImportResult] = []

        def work(writer: Connection) -> ImportResult:
            lock_row(writer, SHARE_LOCK, self.space)
            results.append(PostgresImporter(self._exporter(writer)).import_all(exports, at))
            return results[0]

        try:
            return self._connections.transaction(work, tries=1)
        except ConnectionLost as error:
            if results and self._have_all(results[0].added):
                return results[0]
            raise ServerUnreachable(self.url, f"{error.reason}; nothing was imported") from None

    def _have_all(self, session_ids: Sequence[str]) -> bool:
        """Whether the sessions are stored, and on the synchronous standby, too."""

        def work(writer: Connection) -> bool:
            lock_row(writer, SHARE_LOCK, self.space)
            return all(self._has(writer, session_id) for session_id in session_ids)

        return self._connections.write(work)

    def _has(self, connection: Connection, session_id: str) -> bool:
        return connection.execute(SELECT_SESSION, self._named(session_id)).fetchone() is not None


def _listed_by_tag(query: SessionQuery) -> SessionQuery:
    """Return a query in the order of the rows of tags, if the rows hold the title."""
    return query if query.title is None else replace(query, tag=query.tag or (TITLE, query.title))


def tag_hash(name: str, value: str) -> bytes:
    """Return a tag's hash in `session_tag`: the same as `oakleaf.tag_hash`."""
    return sha256(f"{name}\x1f{value}".encode()).digest()[:16]


_seq = attrgetter("seq")
