"""A new session in PostgreSQL: row, first branch, seeds and first fact in one statement."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from ...core.tree import Leaf
from ...errors import IdTaken, InvalidPosition, StoreError
from ..base import NewSession, SessionRow
from ..rows import entry_row
from .commit import TIE_BLOB, check_blobs, insert_blobs
from .connections import SET_LOCK_TIMEOUT, SET_SPACE_NAMED, Connections
from .rows import ENTRY_NAMES, SESSION_NAMES, detail_row, json_text, session_row
from .statement import Connection, Statement, run_statement

# Purging looks at every branch of a space to see what still stands on what; a fork must not come between. So
# purges take this lock for themselves, and forks share it.
LOCK = "select 1 from bough.lock where n = 1024 + (hashtextextended(%s, 0) & 1023) for update"
SHARE_LOCK = "select 1 from bough.lock where n = 1024 + (hashtextextended(%s, 0) & 1023) for share"
# The same as a statement that others follow without waiting for what it tells: without the row it fails.
SHARED = Statement.from_positional(
    f"select 1 / count(*) from ({SHARE_LOCK.replace('where', f'where {SET_LOCK_TIMEOUT} and')}) as held"
)
# Always taken before one of those, from other rows: nobody waits in a ring.
LOCK_CONVERSATION = "select 1 from bough.lock where n = hashtextextended(%s, 1) & 1023 for update"
SELECT_FIRST_KEY = f"""
select journal.key from bough.session join bough.journal on journal.session_no = session.no and journal.n = 1
where {SET_SPACE_NAMED} and session.id = %(id)s
"""


# Where a fork is to hang: its session may have been purged since it was read, and what others stand on may end before.
PLACE_EXISTS = f"""
select 1 from bough.entry where {SET_SPACE_NAMED} and entry.branch = %(under_branch)s and entry.seq = %(under_seq)s
union all
select 1 from bough.branch where {SET_SPACE_NAMED} and branch.id = %(under_branch)s and branch.parent_seq = %(under_seq)s
"""


@lru_cache(maxsize=64)
def insertion(seeds: int, *, is_fork: bool) -> Statement:
    """The numbers are drawn only if the id is free and a fork's place is there, so that refusing leaves no gap."""
    given = ", ".join(f"%({name})s" for name in SESSION_NAMES[1:] if name not in ("branch", "tags"))
    names = ", ".join(name for name in SESSION_NAMES[1:] if name not in ("branch", "tags"))
    rows = ", ".join(
        "(" + ", ".join(f"%({name}_{n})s{cast}" for name, cast in _CASTS) + ")" for n in range(seeds)
    )
    entries = f"""entries as (
    insert into bough.entry (branch, space, owner, {", ".join(ENTRY_NAMES)})
    select made.branch, made.space, made.owner, given.* from made cross join (values {rows}) as given),"""
    return Statement.from_named(f"""
with numbers as materialized (
    select nextval('bough.session_no') as no, nextval('bough.branch_id') as branch
    where {SET_SPACE_NAMED}
      and not exists (select 1 from bough.session where {SET_SPACE_NAMED} and session.id = %(id)s)
      {f"and exists ({PLACE_EXISTS})" if is_fork else ""}
), made as (
    insert into bough.session (no, branch, tags, {names})
    select no, branch, %(tags)s::text::jsonb, {given} from numbers
    returning no, branch, seq, space, owner, started_at
), wide as (
    insert into bough.session_detail (no, space, spec, policy, workspace, state)
    select no, space, %(spec)s, %(policy)s, %(workspace)s, %(wide_state)s from made
), grown as (
    insert into bough.branch (id, space, session_no, parent, parent_seq)
    select branch, space, no, %(under_branch)s::bigint, %(under_seq)s::bigint from made
), {entries if seeds else ""} started as (
    insert into bough.journal (session_no, n, space, owner, kind, key, branch, last, data, at)
    select no, 1, space, owner, 'started', %(key)s, branch, seq, %(data)s, started_at from made
)
select branch from made""")


_CASTS = [
    ("seq", "::bigint"),
    ("turn", "::bigint"),
    ("step", "::bigint"),
    ("kind", "::text"),
    ("role", "::text"),
    ("internal", "::boolean"),
    ("model", "::text"),
    ("finish", "::text"),
    ("entry_id", "::bytea"),
    ("at", "::bigint"),
    ("evidence", "::bytea"),
    ("body", "::bytea"),
]


def bindings_of(new: NewSession) -> dict[str, Any]:
    row, under = new.row, new.fork_point
    seq = new.seeds[-1].seq if new.seeds else under.seq if under else 0
    spec, policy, workspace, state = detail_row(new.detail)
    data = {"relation": row.relation, "parent": row.parent_session} if row.parent_session else {}
    found = session_row(row, branch=None, seq=seq, facts=1)
    found |= {"spec": spec, "policy": policy, "workspace": workspace, "wide_state": state}
    found |= {"under_branch": under.branch if under else None, "under_seq": under.seq if under else 0}
    found |= {"key": new.key, "data": json_text(data, "journal data")}
    for n, seed in enumerate(new.seeds):
        found |= {f"{name}_{n}": value for name, value in zip(ENTRY_NAMES, entry_row(seed), strict=True)}
    return found


def lock(writer: Connection, query: str, name: str) -> None:
    """Until the end of the transaction. Two names may share a row: then one waits for the other without need."""
    taken: Any = query
    if writer.execute(taken, (name,)).fetchone() is None:
        raise StoreError("bough.lock lacks rows that migrate made; run: bough migrate")


def created_row(new: NewSession, branch: int, seq: int) -> SessionRow:
    return replace(new.row, leaf=Leaf(branch, seq), facts=1)


def is_plain(new: NewSession) -> bool:
    """Whether it is one statement: no blobs to bring, few seeds."""
    has_media = any(seed.media for seed in new.seeds)
    return not new.blobs and not has_media and len(new.seeds) <= 16


def insert_plain(connections: Connections, new: NewSession, space: str) -> SessionRow | None:
    """In one round trip. None: the id is taken in this space.

    A fork has its lock by a statement of its own: the one that waits for it sees what was there before it waited.
    """
    statement, given = insertion(len(new.seeds), is_fork=new.fork_point is not None), bindings_of(new)
    values = [given[name] for name in statement.names]
    if new.fork_point is None:
        found = connections.run_statement(statement, values)
    else:
        found = connections.run_pipeline([(SHARED, (space,)), (statement, values)])
        if not found and not connections.query(PLACE_EXISTS, given):
            raise InvalidPosition(str(new.fork_point), 0, new.fork_point.seq)
    return created_row(new, int(found[0][0] or 0), given["seq"]) if found else None


def insert(writer: Connection, new: NewSession, space: str) -> SessionRow | None:
    """The same in a transaction, with what else it may bring."""
    statement, given = insertion(len(new.seeds), is_fork=new.fork_point is not None), bindings_of(new)
    if new.fork_point is not None:
        lock(writer, SHARE_LOCK, space)
        if writer.execute(PLACE_EXISTS, given).fetchone() is None:
            raise InvalidPosition(str(new.fork_point), 0, new.fork_point.seq)
    check_blobs(writer, space, new.seeds, new.blobs)
    insert_blobs(writer, space, new.blobs, new.row.started_at)
    found = run_statement(writer, statement, [given[name] for name in statement.names])
    if not found:
        return None
    branch = int(found[0][0] or 0)
    used = [(branch, seed.seq, space, digest) for seed in new.seeds for digest in seed.media]
    if used:
        with writer.cursor() as cursor:
            cursor.executemany(TIE_BLOB, used)
    return created_row(new, branch, given["seq"])


def check_same(new: NewSession, row: SessionRow, seeds: list[bytes]) -> None:
    """A session of that id is here: it must be the same one."""
    wanted = [seed.entry_id for seed in new.seeds]
    if row.owner != new.row.owner or seeds != wanted or new.fork_point is not None:
        raise IdTaken(new.row.session_id)
