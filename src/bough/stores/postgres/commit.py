"""What one change does to the PostgreSQL tables when it is not one statement, and why it was refused when it was.

`apply` looks at the session under its lock, refuses in the words of the contract, or writes in a few statements
within a transaction that somebody else opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET, Struct

from ...core.drafts import Blob, NewEntry
from ...core.tree import Leaf
from ...core.usage import Totals, difference, total
from ...errors import Fenced, InvalidPosition, MissingBlob, NotFound, SessionTrashed, StaleLeaf
from ..base import Change, CommitResult
from ..rows import call_from, call_row, entry_row
from .commit_statement import GROWTH, TOTALS, row_values, sets_of
from .connections import Connection, Row
from .rows import CALL_COLUMNS, CALL_NAMES, ENTRY_NAMES, FACT_COLUMNS, json_text

SELECT_HEAD = """
select no, branch, seq, facts, calls, fence, trashed_at, owner,
       (select session_no from bough.branch where branch.id = session.branch) = no,
       (select max(entry.seq) from bough.entry where entry.branch = session.branch)
from bough.session where id = %(id)s and (%(owner)s::text is null or owner = %(owner)s) for no key update
"""
SELECT_KEY = f"""
select {FACT_COLUMNS} from bough.journal where session_no = %s and key = %s order by n desc limit 1
"""
INSERT_BRANCH = """
insert into bough.branch (space, session_no, parent, parent_seq) values (%s, %s, %s, %s) returning id
"""
INSERT_ENTRY = f"""
insert into bough.entry (branch, space, owner, {", ".join(ENTRY_NAMES)})
values (%s, %s, %s, {", ".join(["%s"] * len(ENTRY_NAMES))})
"""
INSERT_CALL = f"""
insert into bough.usage (session_no, n, space, owner, {", ".join(CALL_NAMES)})
values (%s, %s, %s, %s, {", ".join(["%s"] * len(CALL_NAMES))})
"""
REPLACE_CALL = f"""
update bough.usage set ({", ".join(CALL_NAMES)}) = row({", ".join(["%s"] * len(CALL_NAMES))})
where session_no = %s and n = %s
"""
SELECT_STARTED = f"""
select n, {CALL_COLUMNS} from bough.usage where session_no = %s and call_id = %s order by n desc limit 1
"""
INSERT_FACT = f"""
insert into bough.journal (session_no, space, owner, {FACT_COLUMNS})
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
INSERT_BLOB = """
insert into bough.blob (space, hash, mime, size, at, bytes) values (%s, %s, %s, %s, %s, %s)
on conflict (space, hash) do update set at = greatest(blob.at, excluded.at)
"""
TIE_BLOB = """
insert into bough.blob_use (branch, seq, blob_no, space)
select %s, %s, no, space from bough.blob where space = %s and hash = %s on conflict do nothing
"""


class Head(Struct, frozen=True):
    """Of a session under its lock: what a change is held against."""

    no: int
    leaf: Leaf
    facts: int
    calls: int
    fence: int
    trashed_at: int | None
    owner: str | None
    is_growing: bool


def lock_head(writer: Connection, session_id: str, owner: str | None) -> Head:
    found = writer.execute(SELECT_HEAD, {"id": session_id, "owner": owner}).fetchone()
    if found is None:
        raise NotFound(session_id)
    no, branch, seq, facts, calls, fence, trashed_at, whose, is_own, tail = found
    is_growing = bool(is_own) and (tail is None or tail == seq)
    return Head(no, Leaf(branch, seq), facts, calls, fence, trashed_at, whose, is_growing)


def apply(writer: Connection, change: Change, space: str, owner: str | None) -> CommitResult:
    head = lock_head(writer, change.session_id, owner)
    if head.trashed_at is not None:
        raise SessionTrashed(change.session_id)
    if change.fence is not None and change.fence != head.fence:
        raise Fenced(change.session_id, change.fence, head.fence)
    if change.after is not None and change.after != head.leaf:
        return _repeated(writer, change, head)
    check_blobs(writer, space, change.entries, change.blobs)
    if change.move_to is not None:
        _check_move(writer, change.move_to, head.leaf)
    insert_blobs(writer, space, change.blobs, change.at)
    leaf = head.leaf if change.move_to is None else change.move_to
    if change.entries:
        leaf = _grow(writer, change, head, leaf, space)
    growth = _add_calls(writer, change, head, space, leaf.branch)
    facts = _add_facts(writer, change, head, space, leaf)
    _update_row(writer, change, head, leaf, growth)
    if change.move_to is not None or (change.entries and change.fence is not None):
        # A draft dies with the answer it became, and with a rewind; only a fenced runner leaves drafts.
        writer.execute("delete from bough.draft where no = %s", (head.no,))
    if change.inbox_number is not None:
        writer.execute("delete from bough.inbox where no = %s and n = %s", (head.no, change.inbox_number))
    if change.state is not UNSET:
        state = None if change.state is None else change.state.decode()
        writer.execute("update bough.session_detail set state = %s where no = %s", (state, head.no))
    return CommitResult(leaf, facts)


def _repeated(writer: Connection, change: Change, head: Head) -> CommitResult:
    """The leaf moved: either this very change did it, or the writer is stale.

    No index on the key: it would cost every append, and this scan is paid by the late one only.
    """
    assert change.after is not None
    found = writer.execute(SELECT_KEY, (head.no, change.key)).fetchone()
    if found is None or found[3] is None:
        raise StaleLeaf(change.session_id, change.after, head.leaf)
    return CommitResult(Leaf(found[3], found[5]), found[0], is_repeat=True)


def find_committed(writer: Connection, change: Change, owner: str | None) -> CommitResult | None:
    """Whether a change whose answer was lost was written: its key is in the journal.

    The lock waits for a server process that may still be writing it. Asked before anything is refused, for since
    then the session may have been taken over or trashed.
    """
    head = lock_head(writer, change.session_id, owner)
    found = writer.execute(SELECT_KEY, (head.no, change.key)).fetchone()
    is_moving = bool(change.entries) or change.move_to is not None
    if found is None or (is_moving and head.leaf == change.after):  # the key of an earlier change
        return None
    leaf = head.leaf if found[3] is None else Leaf(found[3], found[5])
    return CommitResult(leaf, found[0] + len(change.facts))


def _grow(writer: Connection, change: Change, head: Head, under: Leaf, space: str) -> Leaf:
    branch = under.branch
    if not head.is_growing or change.move_to is not None:
        branch = insert_branch(writer, space, head.no, under)
    insert_entries(writer, branch, change.entries, space, head.owner)
    return Leaf(branch, change.entries[-1].seq)


def insert_branch(writer: Connection, space: str, no: int, under: Leaf | None) -> int:
    given = (space, no, under.branch if under else None, under.seq if under else 0)
    found = writer.execute(INSERT_BRANCH, given).fetchone()
    assert found is not None
    return int(found[0])


def insert_entries(
    writer: Connection, branch: int, entries: Sequence[NewEntry], space: str, owner: str | None
) -> None:
    with writer.cursor() as cursor:
        cursor.executemany(INSERT_ENTRY, [(branch, space, owner, *entry_row(entry)) for entry in entries])
        used = [(branch, entry.seq, space, digest) for entry in entries for digest in entry.media]
        if used:
            cursor.executemany(TIE_BLOB, used)


def check_blobs(writer: Connection, space: str, entries: Iterable[NewEntry], coming: Sequence[Blob]) -> None:
    brought = {blob.hash for blob in coming}
    for digest in (digest for entry in entries for digest in entry.media if digest not in brought):
        query = "select 1 from bough.blob where space = %s and hash = %s for key share"
        if writer.execute(query, (space, digest)).fetchone() is None:
            raise MissingBlob(digest)


def insert_blobs(writer: Connection, space: str, blobs: Iterable[Blob], at: int) -> None:
    for blob in blobs:
        writer.execute(INSERT_BLOB, (space, blob.hash, blob.mime, len(blob.data), at, blob.data))


def _check_move(writer: Connection, to: Leaf, present: Leaf) -> None:
    held = writer.execute(
        "select 1 from bough.entry where branch = %s and seq = %s "
        "union all select 1 from bough.branch where id = %s and parent_seq = %s",
        (to.branch, to.seq, to.branch, to.seq),
    ).fetchone()
    if held is None:
        raise InvalidPosition(str(to), 0, present.seq)


def _add_calls(writer: Connection, change: Change, head: Head, space: str, branch: int) -> Totals:
    growth, count = total(change.calls), head.calls
    for call in change.calls:
        row = call_row(call, branch)
        started: Row | None = None
        if change.replaces_call:
            started = writer.execute(SELECT_STARTED, (head.no, call.call_id)).fetchone()
        if started is None:
            count += 1
            writer.execute(INSERT_CALL, (head.no, count, space, head.owner, *row))
        else:
            growth = difference(growth, total([call_from(started[1:])]))
            writer.execute(REPLACE_CALL, (*row, head.no, started[0]))
    return growth


def _add_facts(writer: Connection, change: Change, head: Head, space: str, leaf: Leaf) -> int:
    first = change.entries[0].seq if change.entries else None
    place = (leaf.branch, first, leaf.seq) if change.after is not None else (None, None, None)
    of_head, data = (head.no, space, head.owner), json_text(change.data, "journal data")
    rows = [(*of_head, head.facts + 1, change.kind, change.key, *place, data, change.at)]
    for n, fact in enumerate(change.facts, head.facts + 2):
        said = json_text(fact.data, "journal data")
        rows.append((*of_head, n, fact.kind, None, None, None, None, said, change.at))
    with writer.cursor() as cursor:
        cursor.executemany(INSERT_FACT, rows)
    return head.facts + len(rows)


def _update_row(writer: Connection, change: Change, head: Head, leaf: Leaf, growth: Totals) -> None:
    sets: Any = f"update bough.session set {GROWTH}{TOTALS}{sets_of(change.columns, bool(change.tags))}"
    sets += ", branch = %s, seq = %s where no = %s"
    writer.execute(sets, [*row_values(change, growth), leaf.branch, leaf.seq, head.no])
