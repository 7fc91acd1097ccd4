"""Forgetting, in PostgreSQL: what goes with a session and what a surviving fork keeps.

Runs inside one transaction that holds the space's lock, so no fork comes between and a crash half-way leaves
everything as it was. The rows are gone for every reader at once; their bytes leave the files when the tables are
written anew (`postgres_schema.scrub`, by their owner).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from ...core.tree import Branch, Leaf, reachable_seqs
from ...errors import NotTrashed
from ..base import Fact, PurgeResult
from ..message_limits import LIMIT_FACT_KINDS, retained_limit_facts
from ..rows import fact_from
from .commit import Head
from .connections import Connection
from .export_sessions import SELECT_TOLD
from .rows import json_text
from .search_index import forget

SELECT_CHILDREN = """
select id, parent_session from bough.session where parent_session = any(%s) and relation = 'task' order by no
"""
SELECT_TRASHED = """
select id, parent_session from bough.session
where parent_session = any(%s) and relation = 'task' and trashed_at is not null order by no
"""
SELECT_BELOW = "select id, parent_session from bough.session where parent_session = any(%s) order by no"
SELECT_DOOMED = """
with recursive line (id) as (
    select id from bough.branch where session_no = any(%s)
    union
    select parent.id from line join bough.branch on branch.id = line.id
    join bough.branch as parent on parent.id = branch.parent
    where not exists (select 1 from bough.session where session.no = parent.session_no)
)
select branch.id, branch.session_no, branch.parent, branch.parent_seq
from line join bough.branch on branch.id = line.id
"""
SELECT_FEET = """
select parent, parent_seq from bough.branch where parent = any(%(held)s) and id <> all(%(held)s)
"""
DELETE_CALLS = """
delete from bough.usage where session_no = any(%s) and not exists (
    select 1 from unnest(%s::bigint[], %s::bigint[]) as kept (branch, seq)
    where kept.branch = usage.branch and kept.seq >= coalesce(usage.answer_seq, usage.after_seq))
"""
# Of each branch what lies behind its last kept entry.
DELETE_USES = """
delete from bough.blob_use using unnest(%s::bigint[], %s::bigint[]) as cut (branch, last)
where blob_use.branch = cut.branch and blob_use.seq > cut.last returning blob_no
"""
DELETE_ENTRIES = """
delete from bough.entry using unnest(%s::bigint[], %s::bigint[]) as cut (branch, last)
where entry.branch = cut.branch and entry.seq > cut.last
"""
DELETE_BLOBS = """
delete from bough.blob where no = any(%s) and not exists (select 1 from bough.blob_use where blob_no = blob.no)
"""
INSERT_LEFT = """
insert into bough.journal (session_no, space, owner, n, kind, branch, data, at) values (%s, %s, %s, %s, %s, %s, %s, %s)
"""
OF_SESSION = ("draft", "inbox", "session_detail")


def below(connection: Connection, session_id: str, query: Any = SELECT_CHILDREN) -> list[str]:
    """Its children by that query and theirs, deepest first; a ring of parents is walked once."""
    found = {session_id: None}
    level = [session_id]
    while level:
        place = {name: n for n, name in enumerate(level)}
        rows = [(place[parent], name) for name, parent in connection.execute(query, (level,))]
        rows.sort(key=itemgetter(0))  # the children of the first parent first, as in every store
        level = [name for name in dict.fromkeys(name for _, name in rows) if name not in found]
        found.update(dict.fromkeys(level))
    return list(found)[:0:-1]


def purge(writer: Connection, head: Head, session_id: str, *, with_forks: bool) -> PurgeResult:
    if head.trashed_at is None:
        raise NotTrashed(session_id)
    query = SELECT_BELOW if with_forks else SELECT_TRASHED
    ids = [*below(writer, session_id, query), session_id]
    numbers = [
        no for (no,) in writer.execute("select no from bough.session where id = any(%s) for update", (ids,))
    ]
    doomed = {
        number: (Branch(number, None, parent, seq), session_no)
        for number, session_no, parent, seq in writer.execute(SELECT_DOOMED, (numbers,))
    }
    feet = [Leaf(*row) for row in writer.execute(SELECT_FEET, {"held": list(doomed)})]
    keep = reachable_seqs({number: branch for number, (branch, _) in doomed.items()}, feet)
    forget(writer, list(doomed), numbers)
    owners = {*numbers, *(session_no for _, session_no in doomed.values())}
    for no in owners:
        _forget_facts(writer, no, partial(_stays, keep, () if no in numbers else doomed.keys()))
    for table in OF_SESSION:
        gone: Any = f"delete from bough.{table} where no = any(%s)"
        writer.execute(gone, (numbers,))
    writer.execute("delete from bough.session where no = any(%s)", (numbers,))
    writer.execute(DELETE_CALLS, (list(owners), list(keep), list(keep.values())))
    entries, kept, blobs = _forget_branches(writer, [branch for branch, _ in doomed.values()], keep)
    dropped = writer.execute(DELETE_BLOBS, (blobs,)).rowcount
    return PurgeResult(tuple(ids), entries, kept, dropped)


def _stays(keep: Mapping[int, int], looked_at: Collection[int], place: Leaf) -> bool:
    """Of one that was gone before, others may stand on branches that are not looked at now."""
    is_elsewhere = bool(looked_at) and place.branch not in looked_at
    return is_elsewhere or place.seq <= keep.get(place.branch, -1)


def _forget_facts(writer: Connection, no: int, stays: Callable[[Leaf], bool]) -> None:
    """A journal goes, but for how much the calls of turns were given that stay."""
    told = writer.execute(SELECT_TOLD, (no, list(LIMIT_FACT_KINDS)), binary=True).fetchall()
    left = retained_limit_facts(map(fact_from, told), stays)
    of = writer.execute(
        "select space, owner from bough.journal where session_no = %s limit 1", (no,)
    ).fetchone()
    writer.execute("delete from bough.journal where session_no = %s", (no,))
    for fact in left:
        assert of is not None  # it had facts
        writer.execute(
            INSERT_LEFT, (no, *of, fact.number, fact.kind, fact.data.get("branch"), _rest(fact), fact.at)
        )


def _rest(fact: Fact) -> str | None:
    return json_text({name: value for name, value in fact.data.items() if name != "branch"}, "journal data")


def _forget_branches(
    writer: Connection, doomed: Iterable[Branch], keep: dict[int, int]
) -> tuple[int, int, list[int]]:
    """How many entries went, how many stayed, and the blobs the former used."""
    branches = list(doomed)
    cut = (
        [branch.branch for branch in branches],
        [keep.get(branch.branch, branch.parent_seq) for branch in branches],
    )
    blobs = {no for (no,) in writer.execute(DELETE_USES, cut)}
    gone = writer.execute(DELETE_ENTRIES, cut).rowcount
    kept = sum(
        max(0, keep[branch.branch] - branch.parent_seq) for branch in branches if branch.branch in keep
    )
    free = [branch.branch for branch in branches if branch.branch not in keep]
    writer.execute("delete from bough.branch where id = any(%s)", (free,))
    return gone, kept, list(blobs)
