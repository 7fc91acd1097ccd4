"""The search index of the PostgreSQL store: finding what is new, and bringing it in batch by batch.

Appending never touches it. What is new is found by comparing each session's count of facts with the count at
which it was last indexed, and each branch's entries with the last one indexed. A batch is read and cut into words
in a snapshot, then written in a transaction of its own. Several may do this at once, and a purge come between: an
entry is taken only if it is there and was not taken, and a session's mark only if it is as it was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec import DecodeError, Struct, field

from ...core.codec import decode
from ...core.entries import Payload
from ...core.messages import Message
from ...core.search import COLUMNS, TITLE, Column, index_columns
from ...core.search_text import is_error, searchable_text, tokenize_indexed, tool_names
from ...core.tree import Branch, Leaf, reachable_seqs
from ..search import IndexProgress
from .connections import Connection, Connections

BATCH_ROWS = 250
BATCH_CHARACTERS = 400_000
LONGEST = 400
"""Characters of a word that are indexed; PostgreSQL takes 2,046 bytes. What is proposed is compared in full."""
WIDEST = 900_000
"""Bytes of an entry's words; a tsvector holds 1 MB of them."""
WIDE = "w"
"""The one word of an entry with more: it is proposed for every search."""
LETTERS: dict[Column, str] = {"text": "t", "tool": "o", "model": "m", "mark": "k"}

COUNT_STALE = """
select count(*) from bough.session left join bough.search_mark using (no)
where session.space = %s and search_mark.facts is distinct from session.facts
"""
SELECT_STALE = """
select no, session.facts, session.title, session.started_at, search_mark.facts, search_mark.title
from bough.session left join bough.search_mark using (no)
where session.space = %s and no >= %s and search_mark.facts is distinct from session.facts
order by no limit %s
"""
# Its own branches, and those under them that belonged to a session since purged: the oldest session that
# stands on such entries is who they are found under.
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from bough.branch where session_no = %(no)s
    union
    select parent.id from line join bough.branch on branch.id = line.id
    join bough.branch as parent on parent.id = branch.parent
    where not exists (select 1 from bough.session where session.no = parent.session_no)
)
select branch.id, branch.session_no = %(no)s, branch.parent, branch.parent_seq,
       (select max(search.place) & 4294967295 from bough.search
        where search.place >= branch.id << 32 and search.place < (branch.id + 1) << 32)
from line join bough.branch on branch.id = line.id order by branch.id
"""
SELECT_NEW = """
select seq, kind, role, model, finish, body from bough.entry
where branch = %s and seq between %s and %s order by seq limit %s
"""
SELECT_ANSWER = """
select body from bough.entry where branch = %s and seq <= %s and role = 'assistant' order by seq desc limit 1
"""
TAKE_ENTRY = """
insert into bough.search (place, space, session_no, at, words)
select %s::bigint, entry.space, session.no, entry.at, array_to_tsvector(%s::text[])
from bough.entry join bough.session on session.no = %s where entry.branch = %s and entry.seq = %s
on conflict (place) do nothing
"""
TAKE_TITLE = """
insert into bough.search (place, space, session_no, at, words)
values (%s, %s, %s, %s, array_to_tsvector(%s::text[]))
"""
SET_MARK = """
insert into bough.search_mark (no, space, facts, title)
select no, space, %(facts)s::bigint, %(title)s::text from bough.session
where no = %(no)s and (select facts from bough.search_mark where no = %(no)s) is not distinct from %(indexed)s::bigint
on conflict (no) do update set facts = excluded.facts, title = excluded.title
"""


class Row(Struct, frozen=True):
    """An entry or a title on its way into the index."""

    leaf: Leaf
    session_no: int
    words: list[str]
    size: int

    @property
    def place(self) -> int:
        return self.leaf.branch << 32 | self.leaf.seq


class Mark(Struct, frozen=True):
    """A session read to its end: up to which fact, and the title that has become."""

    no: int
    facts: int
    title: str | None
    indexed: int | None
    """The mark as it was read; another one since then means another reader, or a purge."""
    started_at: int
    is_retitled: bool
    title_row: Row


class Batch(Struct):
    rows: list[Row] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    characters: int = 0
    resume: int | None = None
    """The session to go on with; None: nothing is left."""

    def is_full(self) -> bool:
        return len(self.rows) + len(self.marks) >= BATCH_ROWS or self.characters >= BATCH_CHARACTERS


def catch_up(connections: Connections, space: str, progress: IndexProgress | None) -> int:
    """Index all that is new in this space; returns how many entries that was."""
    entries, resume = 0, 0
    while True:
        batch = connections.read_snapshot(partial(_read, space=space, resume=resume))
        if not batch.rows and not batch.marks:
            return entries
        entries += connections.write(partial(_put, space=space, batch=batch))
        if progress is not None:
            progress(entries, connections.read_snapshot(partial(behind, space=space)))
        if batch.resume is None:
            return entries
        resume = batch.resume


def behind(reader: Connection, space: str) -> int:
    found = reader.execute(COUNT_STALE, (space,)).fetchone()
    return 0 if found is None else int(found[0])


def space_word(space: str) -> str:
    """The tenant as a word of the index, so that a search does not even walk the hits of others."""
    return "s" + sha256(space.encode()).hexdigest()[:16]


def lexemes(held: Mapping[Column, str], space: str) -> list[str]:
    found = {
        LETTERS[column] + word[:LONGEST] for column in COLUMNS for word, *_ in tokenize_indexed(held[column])
    }
    is_wide = sum(len(word.encode()) for word in found) > WIDEST
    return [space_word(space), *([WIDE] if is_wide else sorted(found))]


def _read(reader: Connection, space: str, resume: int) -> Batch:
    batch = Batch()
    stale = reader.execute(SELECT_STALE, (space, resume, BATCH_ROWS + 1)).fetchall()
    for no, facts, title, started_at, indexed, old_title in stale:
        if batch.is_full():
            batch.resume = no
            break
        found = reader.execute(SELECT_BRANCHES, {"no": no}).fetchall()
        for entry in _new_entries(reader, found, no, space):
            if batch.is_full():
                batch.resume = no
                return batch
            batch.rows.append(entry)
            batch.characters += entry.size
        first = Leaf(min((id_ for id_, is_own, *_ in found if is_own), default=0), 0)
        held = lexemes(index_columns(title or "", kind=TITLE), space)
        mark = Mark(no, facts, title, indexed, started_at, title != old_title, Row(first, no, held, 0))
        batch.marks.append(mark)
    return batch


def _new_entries(reader: Connection, found: list[Any], no: int, space: str) -> Iterator[Row]:
    left = {id_: Branch(id_, None, parent, seq) for id_, is_own, parent, seq, _ in found if not is_own}
    feet = [Leaf(parent, seq) for _, is_own, parent, seq, _ in found if is_own and parent is not None]
    ends = reachable_seqs(left, feet)
    for id_, _, _, parent_seq, indexed in found:
        first, last = max(indexed or 0, parent_seq) + 1, ends.get(id_, 0xFFFFFFFF)
        names: dict[str, str] | None = None
        for seq, kind, role, model, finish, body in _pages(reader, id_, first, last):
            payload = readable(kind, body)
            if payload is None:  # damaged: `verify` names it, and a search goes on without it
                continue
            if role == "tool" and names is None:
                names = asked(reader, Leaf(id_, seq))
            elif role == "assistant" and isinstance(payload, Message):
                names = {call.id: call.name for call in payload.calls}
            held = held_of(payload, (kind, role, model, finish), names or {})
            yield Row(Leaf(id_, seq), no, lexemes(held, space), len(held["text"]))


def _pages(reader: Connection, branch: int, first: int, last: int) -> Iterator[Any]:
    """The entries of a branch, a batch at a time: a session of a gigabyte is not read for its first 250."""
    while True:
        rows = reader.execute(SELECT_NEW, (branch, first, last, BATCH_ROWS), binary=True).fetchall()
        yield from rows
        if len(rows) < BATCH_ROWS:
            return
        first = rows[-1][0] + 1


def held_of(payload: Payload, about: tuple[Any, ...], names: Mapping[str, str]) -> dict[Column, str]:
    """What each column of the index holds of an entry; `about` it: kind, role, model and finish."""
    kind, role, model, finish = about
    return index_columns(
        searchable_text(payload),
        tools=tool_names(payload, names),
        model=model,
        role=role,
        kind=kind or "message",
        error=is_error(payload, finish),
    )


def readable(kind: str | None, body: bytes) -> Payload | None:
    try:
        return decode(kind or "message", body)
    except (DecodeError, TypeError):
        return None


def asked(reader: Connection, place: Leaf) -> dict[str, str]:
    """Names by id of the calls of the last answer before a place, on whichever branch under it that stands."""
    branch: int | None = place.branch
    seq = place.seq - 1
    while branch is not None:
        found = reader.execute(SELECT_ANSWER, (branch, seq), binary=True).fetchone()
        payload = None if found is None else readable(None, found[0])
        if isinstance(payload, Message):
            return {call.id: call.name for call in payload.calls}
        under = reader.execute(
            "select parent, parent_seq from bough.branch where id = %s", (branch,)
        ).fetchone()
        branch, seq = (None, 0) if under is None else under
    return {}


def _put(writer: Connection, space: str, batch: Batch) -> int:
    taken = 0
    if batch.rows:
        with writer.cursor() as cursor:
            cursor.executemany(
                TAKE_ENTRY,
                [(row.place, row.words, row.session_no, row.leaf.branch, row.leaf.seq) for row in batch.rows],
            )
            taken = cursor.rowcount
    for mark in batch.marks:
        bindings = {"no": mark.no, "facts": mark.facts, "title": mark.title, "indexed": mark.indexed}
        if writer.execute(SET_MARK, bindings).rowcount and mark.is_retitled:
            _put_title(writer, space, mark)
    return taken


def _put_title(writer: Connection, space: str, mark: Mark) -> None:
    row = mark.title_row
    writer.execute("delete from bough.search where place = %s", (row.place,))
    if mark.title is not None:
        writer.execute(TAKE_TITLE, (row.place, space, mark.no, mark.started_at, row.words))


# -- forgetting ------------------------------------------------------------------------------------

# What stays for a fork is found under another session from now on: who stands on it is read anew. The count
# goes down each time, so that a batch read before this purge cannot say it was done.
READ_ANEW = """
with recursive above (id) as (
    select unnest(%s::bigint[])
    union
    select branch.id from above join bough.branch on branch.parent = above.id
)
insert into bough.search_mark (no, space, facts)
select distinct session.no, session.space, -1
from above join bough.branch using (id) join bough.session on session.no = branch.session_no
on conflict (no) do update set facts = least(search_mark.facts, 0) - 1
"""
FORGET_WORDS = """
delete from bough.search using unnest(%s::bigint[]) as gone (branch)
where search.place >= gone.branch << 32 and search.place < (gone.branch + 1) << 32
"""


def forget(writer: Connection, branches: list[int], sessions: list[int]) -> None:
    """No word of these branches, nor of these sessions' titles, stays in the index."""
    writer.execute(READ_ANEW, (branches,))
    writer.execute(FORGET_WORDS, (branches,))
    writer.execute("delete from bough.search_mark where no = any(%s::bigint[])", (sessions,))
