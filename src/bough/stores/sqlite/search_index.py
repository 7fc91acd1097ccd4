"""The search index of the SQLite store: finding what is new, and bringing it in batch by batch.

Appending never touches it. What is new is found by comparing each session's count of facts with the count
at which it was last indexed, and each branch's entries with the last one indexed; no clock is asked. A batch
is read and cut into words in a snapshot, then written in a short transaction of its own, so that writers
wait for milliseconds. Several processes may do this at once, and a purge come between reading and writing:
the transaction takes an entry only if it is there and was not taken, and a session's mark only if it is
as it was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Any

import apsw
from msgspec import DecodeError, Struct, field

from ...core.codec import decode
from ...core.entries import Payload
from ...core.messages import Message
from ...core.search import TITLE, index_columns
from ...core.search_text import is_error, searchable_text, tool_names
from ...core.tree import Branch, Leaf, reachable_seqs
from ..search_types import IndexProgress
from .connections import Connections

BATCH_ROWS = 250
BATCH_CHARACTERS = (
    100_000  # a batch holds writers up for 7 ms, 25 when segments are merged; smaller ones build slower
)

# `+`, for the index by conversation begins with the space and would be taken: 10 ms for 10,000 sessions, not 1.2.
COUNT_STALE = """
select count(*) from session left join search_mark using (no)
where +session.space = :space and (:owner is null or session.owner = :owner)
  and search_mark.facts is not session.facts
"""
SELECT_STALE = """
select no, session.facts, session.title, session.owner, session.started_at, search_mark.facts, search_mark.title
from session left join search_mark using (no)
where +session.space = :space and (:owner is null or session.owner = :owner) and no >= :resume
  and search_mark.facts is not session.facts
order by no
"""
# Its own branches, and those under them that belonged to a session since purged: the oldest session that
# stands on such entries is who they are found under.
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from branch where session_no = ?1
    union
    select parent.id from line join branch on branch.id = line.id join branch as parent on parent.id = branch.parent
    where not exists (select 1 from session where session.no = parent.session_no)
)
select branch.id, branch.session_no = ?1, branch.parent, branch.parent_seq,
       (select max(search_entry.id) & 4294967295 from search_entry
        where search_entry.id between branch.id << 32 and (branch.id << 32) + 4294967295)
from line join branch on branch.id = line.id order by branch.id
"""
SELECT_NEW = "select id, kind, role, model, finish, body from entry where id between ? and ? order by id"
SELECT_ANSWER = """
select body from entry where id >= ? and id <= ? and role = 'assistant' order by id desc limit 1
"""
TAKE_ENTRY = """
insert or ignore into search_entry (id, session_no, at)
select entry.id, session.no, entry.at from entry join session on session.no = ? where entry.id = ?
"""
INSERT_WORDS = "insert into search (rowid, text, tool, model, mark) values (?, ?, ?, ?, ?)"
SET_MARK = """
insert into search_mark (no, facts, title)
select no, :facts, :title from session
where no = :no and (select facts from search_mark where search_mark.no = :no) is :indexed
on conflict (no) do update set facts = excluded.facts, title = excluded.title
"""


class Row(Struct, frozen=True):
    """An entry or a title on its way into the index."""

    place: int
    session_no: int
    words: tuple[str, ...]
    """By column: text, tool, model, mark."""


class Mark(Struct, frozen=True):
    """A session read to its end: up to which fact, and the title that has become."""

    no: int
    facts: int
    title: str | None
    indexed: int | None
    """The mark as it was read; another one since then means another reader, or a purge."""
    title_place: int
    started_at: int
    is_retitled: bool
    title_row: Row | None


class Batch(Struct):
    rows: list[Row] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    characters: int = 0
    resume: int | None = None
    """The session to go on with; None: nothing is left."""

    def is_full(self) -> bool:
        return len(self.rows) + len(self.marks) >= BATCH_ROWS or self.characters >= BATCH_CHARACTERS


Tenant = tuple[str, str | None]
"""A space, and perhaps an owner within it."""


def catch_up(connections: Connections, tenant: Tenant, progress: IndexProgress | None) -> int:
    """Index all that is new for this tenant; returns how many entries that was."""
    entries, resume = 0, 0
    while True:
        with connections.reading() as reader:
            batch = _read(reader, tenant, resume)
        if not batch.rows and not batch.marks:
            return entries
        entries += connections.write(partial(_put, batch=batch))
        if progress is not None:
            progress(entries, left(connections, tenant))
        if batch.resume is None:
            return entries
        resume = batch.resume


def left(connections: Connections, tenant: Tenant) -> int:
    with connections.reading() as reader:
        return behind(reader, tenant)


def behind(reader: apsw.Connection, tenant: Tenant) -> int:
    """How many sessions have something that is not indexed."""
    space, owner = tenant
    return int(reader.execute(COUNT_STALE, {"space": space, "owner": owner}).get)


def scope(space: str, owner: str | None) -> list[str]:
    """The tenant as words of the index, so that a search does not even walk the hits of others."""
    words = ["space" + sha256(space.encode()).hexdigest()[:16]]
    return words if owner is None else [*words, "owner" + sha256(owner.encode()).hexdigest()[:16]]


def _read(reader: apsw.Connection, tenant: Tenant, resume: int) -> Batch:
    batch, space = Batch(), tenant[0]
    wanted = {"space": space, "owner": tenant[1], "resume": resume}
    for no, facts, title, owner, started_at, indexed, old_title in reader.execute(SELECT_STALE, wanted):
        if batch.is_full():
            batch.resume = no
            break
        own = " ".join(scope(space, owner))
        found: list[tuple[Any, ...]] = reader.execute(SELECT_BRANCHES, (no,)).fetchall()
        for entry in _new_entries(reader, found, no, own):
            if batch.is_full():
                batch.resume = no
                return batch
            batch.rows.append(entry)
            batch.characters += len(entry.words[0])
        place = min((id_ for id_, is_own, *_ in found if is_own), default=0) << 32
        titled = None if title is None else _row(place, no, index_columns(title, kind=TITLE), own)
        batch.marks.append(Mark(no, facts, title, indexed, place, started_at, title != old_title, titled))
    return batch


def _new_entries(reader: apsw.Connection, found: list[tuple[Any, ...]], no: int, own: str) -> Iterator[Row]:
    left = {id_: Branch(id_, None, parent, seq) for id_, is_own, parent, seq, _ in found if not is_own}
    feet = [Leaf(parent, seq) for _, is_own, parent, seq, _ in found if is_own and parent is not None]
    ends = reachable_seqs(left, feet)
    for id_, _, _, parent_seq, indexed in found:
        first = max(indexed or 0, parent_seq) + 1
        last = ends.get(id_, 0xFFFFFFFF)
        names: dict[str, str] | None = None
        for place, kind, role, model, finish, body in reader.execute(
            SELECT_NEW, (id_ << 32 | first, id_ << 32 | last)
        ):
            payload = readable(kind, body)
            if payload is None:  # damaged: `verify` names it, and a search goes on without it
                continue
            if role == "tool" and names is None:
                names = asked(reader, Leaf(id_, place & 0xFFFFFFFF))
            elif role == "assistant" and isinstance(payload, Message):
                names = {call.id: call.name for call in payload.calls}
            held = index_columns(
                searchable_text(payload),
                tools=tool_names(payload, names or {}),
                model=model,
                role=role,
                kind=kind or "message",
                error=is_error(payload, finish),
            )
            yield _row(place, no, held, own)


def _row(place: int, no: int, held: Any, own: str) -> Row:
    return Row(place, no, (held["text"], held["tool"], held["model"], f"{held['mark']} {own}"))


def readable(kind: str | None, body: bytes) -> Payload | None:
    try:
        return decode(kind or "message", body)
    except (DecodeError, TypeError):
        return None


def asked(reader: apsw.Connection, place: Leaf) -> dict[str, str]:
    """Names by id of the calls of the last answer before a place, on whichever branch under it that stands."""
    branch: int | None = place.branch
    seq = place.seq - 1
    while branch is not None:
        found = reader.execute(SELECT_ANSWER, (branch << 32, branch << 32 | seq)).fetchone()
        payload = None if found is None else readable(None, found[0])
        if isinstance(payload, Message):
            return {call.id: call.name for call in payload.calls}
        under = reader.execute("select parent, parent_seq from branch where id = ?", (branch,)).fetchone()
        branch, seq = (None, 0) if under is None else under
    return {}


def _put(writer: apsw.Connection, batch: Batch) -> int:
    taken = 0
    for row in batch.rows:
        writer.execute(TAKE_ENTRY, (row.session_no, row.place))
        if writer.changes():
            writer.execute(INSERT_WORDS, (row.place, *row.words))
            taken += 1
    for mark in batch.marks:
        bindings = {"no": mark.no, "facts": mark.facts, "title": mark.title, "indexed": mark.indexed}
        writer.execute(SET_MARK, bindings)
        if writer.changes() and mark.is_retitled:
            _put_title(writer, mark)
    return taken


def _put_title(writer: apsw.Connection, mark: Mark) -> None:
    writer.execute("delete from search where rowid = ?", (mark.title_place,))
    writer.execute("delete from search_entry where id = ?", (mark.title_place,))
    if mark.title_row is not None:
        writer.execute(
            "insert into search_entry (id, session_no, at) values (?, ?, ?)",
            (mark.title_place, mark.no, mark.started_at),
        )
        writer.execute(INSERT_WORDS, (mark.title_place, *mark.title_row.words))


# -- forgetting ------------------------------------------------------------------------------------

# What stays for a fork is found under another session from now on: who stands on it is read anew. The count
# goes down each time, so that a batch read before this purge cannot say it was done.
READ_ANEW = """
with recursive above (id) as (
    select value from json_each(?)
    union
    select branch.id from above join branch on branch.parent = above.id
)
insert into search_mark (no, facts)
select distinct session.no, -1 from above join branch using (id) join session on session.no = branch.session_no
where true
on conflict (no) do update set facts = min(facts, 0) - 1
"""


def forget(writer: apsw.Connection, branches: list[int], sessions: list[int]) -> None:
    """No word of these branches, nor of these sessions' titles, stays in the index.

    A deleted row's words stay in the index until segments are merged, so they are: all into one.
    """
    writer.execute(READ_ANEW, (str(branches),))
    gone = 0
    for branch in branches:
        span = (branch << 32, (branch + 1) << 32)
        writer.execute(
            "delete from search where rowid in (select id from search_entry where id >= ? and id < ?)", span
        )
        writer.execute("delete from search_entry where id >= ? and id < ?", span)
        gone += writer.changes()
    writer.execute("delete from search_mark where no in (select value from json_each(?))", (str(sessions),))
    if gone or writer.changes():
        writer.execute("insert into search (search) values ('optimize')")
