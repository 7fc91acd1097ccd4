"""Create a session in PostgreSQL: row, first branch, seeds and first fact in one statement."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from oakleaf.core.facts import encode_fact
from oakleaf.core.tree import Leaf
from oakleaf.errors import InvalidPosition, StoreError
from oakleaf.stores.base import NewSession, SessionRow
from oakleaf.stores.sql.rows import body_text, entry_row
from oakleaf.stores.sql.session_rows import SESSION_NAMES, detail_row, session_row
from oakleaf_postgres.store.commit import (
    MAX_ROWS,
    TOOL_CALL_NAMES,
    TOOL_CALL_TYPES,
    check_blobs,
    insert_blobs,
    tie_blobs,
    tool_call_rows,
)
from oakleaf_postgres.store.connections import SET_LOCK_TIMEOUT, SET_SPACE, PostgresConnections
from oakleaf_postgres.store.rows import (
    CLOCK_LEAD,
    ENTRY_NAMES,
    ENTRY_TYPES,
    caller_clock,
    named_row,
    named_rows,
)
from oakleaf_postgres.store.statement import Connection, Rows, Statement, run_statement

# A purge reads every branch of a space to see what is still needed, and no fork may come between. So purges take
# this lock alone, and forks share it. Two names may hash to one row: then one waits for the other without need.
LOCK = "select 1 from oakleaf.lock where number = 1024 + (hashtextextended(%s, 0) & 1023) for update"
# A fork takes it with a statement of its own: one that waited for a lock has a snapshot from before it waited.
SHARE_LOCK = "select 1 from oakleaf.lock where number = 1024 + (hashtextextended(%s, 0) & 1023) for share"
# Always taken before one of those, from other rows: no deadlock.
LOCK_CONVERSATION = "select 1 from oakleaf.lock where number = hashtextextended(%s, 1) & 1023 for update"
SELECT_FIRST_KEY = """
select journal.key from oakleaf.session join oakleaf.journal on journal.session_number = session.number and journal.number = 1
where session.id = %(id)s for no key update of session
"""
# Where a fork begins: its session may have been purged since it was read, or cut off before this position.
POSITION_EXISTS = f"""
select 1 from oakleaf.entry where {SET_SPACE} and entry.branch = %(fork_branch)s and entry.seq = %(fork_seq)s
union all
select 1 from oakleaf.branch
where {SET_SPACE} and branch.id = %(fork_branch)s and branch.parent_seq = %(fork_seq)s
"""
VALUES = {"lease_until": f"%(lease_until)s::bigint + {CLOCK_LEAD}"}
ROW_NAMES = tuple(name for name in SESSION_NAMES[1:] if name not in ("branch", "tags"))


@lru_cache(maxsize=64)
def statement(seeds: int, tool_calls: int, *, is_fork: bool) -> Statement:
    """The numbers are drawn only if the id is free and a fork's position exists, so a refusal leaves no gap."""
    entries = f"""entries as (
    insert into oakleaf.entry (branch, space, owner, {", ".join(ENTRY_NAMES)})
    select created.branch, created.space, created.owner, new.* from created
    cross join (values {named_rows("seed", ENTRY_NAMES, ENTRY_TYPES, seeds)}) as new),"""
    calls = f"""tool_calls as (
    insert into oakleaf.tool_call (branch, space, hash, seq)
    select created.branch, created.space, new.* from created
    cross join (values {named_rows("tool_call", TOOL_CALL_NAMES, TOOL_CALL_TYPES, tool_calls)}) as new),"""
    entries += calls if tool_calls else ""
    return Statement.parse(f"""
with numbers as materialized (
    select pg_catalog.nextval('oakleaf.session_number') as number, pg_catalog.nextval('oakleaf.branch_id') as branch
    where {SET_SPACE} and {SET_LOCK_TIMEOUT} -- for another client that is creating the same id
      and not exists (select 1 from oakleaf.session where {SET_SPACE} and session.id = %(id)s)
      {f"and exists ({POSITION_EXISTS})" if is_fork else ""}
), created as (
    insert into oakleaf.session (number, branch, tags, active_at, {", ".join(ROW_NAMES)})
    select number, branch, %(tags)s::text::jsonb, %(updated_at)s, {", ".join(VALUES.get(name, f"%({name})s") for name in ROW_NAMES)}
    from numbers
    returning number, branch, seq, space, owner, started_at
), detail as (
    insert into oakleaf.session_detail (session_number, space, spec, policy, workspace, state)
    select number, space, %(spec)s, %(policy)s, %(workspace)s, %(detail_state)s from created
), branch as (
    insert into oakleaf.branch (id, space, session_number, parent, parent_seq)
    select branch, space, number, %(fork_branch)s::bigint, %(fork_seq)s::bigint from created
), {entries if seeds else ""} fact as (
    insert into oakleaf.journal (session_number, number, space, owner, kind, key, branch, last_seq, data, at)
    select number, 1, space, owner, %(kind)s, %(key)s, branch, seq, %(data)s, started_at from created
)
select branch from created""")


def values_of(new: NewSession) -> dict[str, Any]:
    row, parent = new.row, new.fork_point
    seq = new.seeds[-1].seq if new.seeds else parent.seq if parent else 0
    values = session_row(row, branch=None, seq=seq, facts=1)
    values |= zip(("spec", "policy", "workspace", "detail_state"), detail_row(new.detail), strict=True)
    values |= {
        "clock": caller_clock(),
        "fork_branch": parent.branch if parent else None,
        "fork_seq": parent.seq if parent else 0,
        "key": new.key,
    }
    values["kind"], body = encode_fact(new.fact)
    values["data"] = body_text(body)
    for n, seed in enumerate(new.seeds):
        values.update(zip(named_row("seed", ENTRY_NAMES, n), entry_row(seed), strict=True))
    for n, tool_call in enumerate(tool_call_rows(new.seeds)):
        values.update(zip(named_row("tool_call", TOOL_CALL_NAMES, n), tool_call, strict=True))
    return values


def lock_row(writer: Connection, query: Any, name: str) -> None:
    """Lock a row of oakleaf.lock until the end of the transaction."""
    if writer.execute(query, (name,)).fetchone() is None:
        raise StoreError("oakleaf.lock lacks rows that migrate made; run: oakleaf migrate")


def insert_session(connections: PostgresConnections, new: NewSession, space: str) -> SessionRow | None:
    """Insert a session, in one round trip for a session with few seeds and without a fork or blobs. None: the
    id is taken in this space.
    """
    is_small = len(new.seeds) <= MAX_ROWS and not new.blobs and not any(seed.media for seed in new.seeds)
    if new.fork_point is None and is_small and connections.guard is None:
        return _created_row(new, connections.run_statement(_statement_for(new), values_of(new)))
    return connections.transaction(lambda writer: insert_session_within(writer, new, space))


def insert_session_within(writer: Connection, new: NewSession, space: str) -> SessionRow | None:
    """Insert any session in the open transaction."""
    check_blobs(writer, space, new.seeds, new.blobs)
    insert_blobs(writer, space, new.blobs, new.row.started_at, new.seeds)
    values = values_of(new)
    if new.fork_point is not None:
        lock_row(writer, SHARE_LOCK, space)
    row = _created_row(new, run_statement(writer, _statement_for(new), values))
    if row is None and new.fork_point is not None and not writer.execute(POSITION_EXISTS, values).fetchone():
        raise InvalidPosition(str(new.fork_point), 0, new.fork_point.seq)
    if row is not None:
        tie_blobs(writer, row.leaf.branch, new.seeds, space)
    return row


def _statement_for(new: NewSession) -> Statement:
    tool_calls = len(tool_call_rows(new.seeds))
    return statement(len(new.seeds), tool_calls, is_fork=new.fork_point is not None)


def _created_row(new: NewSession, rows: Rows) -> SessionRow | None:
    if not rows:
        return None
    seq = new.seeds[-1].seq if new.seeds else new.fork_point.seq if new.fork_point else 0
    return replace(new.row, leaf=Leaf(rows[0][0], seq), facts=1)
