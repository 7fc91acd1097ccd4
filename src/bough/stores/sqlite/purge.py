"""Forgetting, in SQLite: what goes with a session and what a surviving fork keeps.

Runs inside one transaction, so a crash half-way leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import apsw

from ...core.tree import Branch, Leaf, reachable_seqs
from ...errors import NotTrashed
from ..base import SessionRow
from ..message_limits import retained_limit_facts
from ..purge_types import PurgeResult
from ..rows import fact_from
from .export_sessions import SELECT_TOLD
from .import_sessions import INSERT_FACT, fact_row
from .search_index import forget

SELECT_CHILDREN = "select id from session where parent_session = ? and relation = 'task' order by no"
SELECT_TRASHED = """
select id from session where parent_session = ? and relation = 'task' and trashed_at is not null order by no
"""
SELECT_BELOW = "select id from session where parent_session = ? order by no"
SELECT_DOOMED = """
with recursive line (id) as (
    select branch.id from branch join json_each(?) as gone on gone.value = branch.session_no
    union
    select parent.id from line join branch on branch.id = line.id join branch as parent on parent.id = branch.parent
    where not exists (select 1 from session where session.no = parent.session_no)
)
select branch.id, branch.session_no, branch.parent, branch.parent_seq from line join branch on branch.id = line.id
"""
DELETE_CALLS = """
delete from usage where id > ?1 and id < ?2
  and (?4 is null or usage.branch in (select value from json_each(?4))) and not exists (
    select 1 from json_each(?3) as kept
    where kept.value ->> 0 = usage.branch and kept.value ->> 1 >= coalesce(usage.answer_seq, usage.after_seq))
"""
DELETE_BLOBS = """
delete from blob where no in (select value from json_each(?)) and no not in (select blob_no from blob_use)
"""


def below(connection: apsw.Connection, session_id: str, query: str = SELECT_CHILDREN) -> list[str]:
    """Its children by that query and theirs, deepest first; a ring of parents is walked once."""
    found = {session_id: None}
    level = [session_id]
    while level:
        rows: list[Any] = [row for parent in level for row in connection.execute(query, (parent,))]
        children: list[str] = [row[0] for row in rows]
        level = [name for name in dict.fromkeys(children) if name not in found]
        found.update(dict.fromkeys(level))
    return list(found)[:0:-1]


def purge(writer: apsw.Connection, row: SessionRow, *, with_forks: bool) -> PurgeResult:
    if row.trashed_at is None:
        raise NotTrashed(row.session_id)
    query = SELECT_BELOW if with_forks else SELECT_TRASHED
    ids = [*below(writer, row.session_id, query), row.session_id]
    numbers: list[int] = [writer.execute("select no from session where id = ?", (name,)).get for name in ids]
    doomed = {
        number: (Branch(number, None, parent, seq), session_no)
        for number, session_no, parent, seq in writer.execute(SELECT_DOOMED, (str(numbers),))
    }
    keep = reachable_seqs({number: branch for number, (branch, _) in doomed.items()}, _feet(writer, doomed))
    forget(writer, list(doomed), numbers)
    gone = {session_no for _, session_no in doomed.values()}.difference(numbers)
    _forget_facts(writer, numbers, lambda place: place.seq <= keep.get(place.branch, -1))
    _forget_facts(
        writer,
        gone,
        lambda place: place.branch not in doomed or place.seq <= keep.get(place.branch, -1),
    )
    for no in numbers:
        _forget_session(writer, no)
    _forget_calls(writer, numbers, keep, None)
    _forget_calls(writer, gone, keep, str(list(doomed)))  # other forks may stand on its other branches
    entries, kept, blobs = _forget_branches(writer, doomed, keep)
    writer.execute(DELETE_BLOBS, (str(blobs),))
    return PurgeResult(tuple(ids), entries, kept, writer.changes())


def _feet(writer: apsw.Connection, doomed: Iterable[int]) -> list[Leaf]:
    """Where branches that stay hang on branches that might go."""
    names = list(doomed)
    found = writer.execute(
        """select branch.parent, branch.parent_seq from branch join json_each(?1) as held on held.value = branch.parent
           where branch.id not in (select value from json_each(?1))""",
        (str(names),),
    )
    return [Leaf(branch, seq) for branch, seq in found]


def _forget_session(writer: apsw.Connection, no: int) -> None:
    writer.execute("delete from session_detail where no = ?", (no,))
    writer.execute("delete from draft where no = ?", (no,))
    writer.execute("delete from inbox where no = ?", (no,))
    writer.execute("delete from session where no = ?", (no,))


def _forget_facts(writer: apsw.Connection, numbers: Iterable[int], stays: Callable[[Leaf], bool]) -> None:
    """Journals go, but for how much the calls of turns were given that stay."""
    for no in numbers:
        span = (no << 32, (no + 1) << 32)
        left = retained_limit_facts(map(fact_from, writer.execute(SELECT_TOLD, span).fetchall()), stays)
        writer.execute("delete from journal where id > ? and id < ?", span)
        writer.executemany(INSERT_FACT, (fact_row(no, fact) for fact in left))


def _forget_calls(
    writer: apsw.Connection, numbers: Iterable[int], keep: dict[int, int], branches: str | None
) -> None:
    """Rows of these sessions, all or those on these branches, go, but for those of answers that stay."""
    kept = str([[branch, seq] for branch, seq in keep.items()])
    for no in numbers:
        writer.execute(DELETE_CALLS, (no << 32, (no + 1) << 32, kept, branches))


def _forget_branches(
    writer: apsw.Connection, doomed: dict[int, tuple[Branch, int]], keep: dict[int, int]
) -> tuple[int, int, list[int]]:
    """How many entries went, how many stayed, and the blobs the former used."""
    gone, kept = 0, 0
    blobs: list[Any] = []
    for number in sorted(doomed, reverse=True):  # children first: a branch row refers to its parent's
        branch, _ = doomed[number]
        last = keep.get(number, branch.parent_seq)
        span = ((number << 32) + last + 1, (number + 1) << 32)
        used = writer.execute("select distinct blob_no from blob_use where entry >= ? and entry < ?", span)
        blobs += [blob for (blob,) in used.fetchall()]
        writer.execute("delete from blob_use where entry >= ? and entry < ?", span)
        writer.execute("delete from entry where id >= ? and id < ?", span)
        gone += writer.changes()
        if number in keep:
            kept += max(0, last - branch.parent_seq)
        else:
            writer.execute("delete from branch where id = ?", (number,))
    return gone, kept, blobs
