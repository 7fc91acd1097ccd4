"""The search index in SQLite: an FTS5 table of words, and the statements below the steps of `stores.search_index`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from typing import Any

import apsw
from msgspec.structs import asdict

from oakleaf.core.search import Column
from oakleaf.stores.sql.search_index import IndexedBranch, IndexedSession, IndexRow, SearchIndex, StaleSession

STALE = "session.space = :space and (:owner is null or session.owner = :owner) and session.needs_indexing"
COUNT_STALE = f"select count(*) from session indexed by session_needs_indexing where {STALE}"
SELECT_STALE = f"""
select session.number, session.facts, session.title, session.owner, session.started_at, search_progress.facts, search_progress.title
from session indexed by session_needs_indexing left join search_progress on search_progress.session_number = session.number
where {STALE} and session.number >= :first order by session.number
"""
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from branch where session_number = ?1
    union
    select parent.id from line join branch on branch.id = line.id join branch as parent on parent.id = branch.parent
    where not exists (select 1 from session where session.number = parent.session_number)
)
select branch.id, branch.session_number = ?1, branch.parent, branch.parent_seq,
       (select max(search_entry.id) & 4294967295 from search_entry
        where search_entry.id between branch.id << 32 and (branch.id << 32) + 4294967295)
from line join branch on branch.id = line.id order by branch.id
"""
SELECT_NEW = """
select id & 4294967295, kind, role, model, finish, body from entry where id between ? and ? order by id
"""
SELECT_ANSWER = """
select body from entry where id >= ? and id <= ? and role = 'assistant' order by id desc limit 1
"""
INSERT_ENTRY = """
insert or ignore into search_entry (id, session_number, at)
select entry.id, session.number, entry.at from entry join session on session.number = ? where entry.id = ?
"""
INSERT_TITLE = "insert into search_entry (id, session_number, at) values (?, ?, ?)"
INSERT_WORDS = "insert into search (rowid, text, tool, model, marker) values (?, ?, ?, ?, ?)"
SET_PROGRESS = """
insert into search_progress (session_number, facts, title)
select number, :facts, :title from session
where number = :number and (select facts from search_progress where search_progress.session_number = :number) is :indexed_facts
on conflict (session_number) do update set facts = excluded.facts, title = excluded.title
"""
MERGED_PAGES = 64
"""Pages of the index merged in a transaction: about 10 ms."""
FEW_PAGES = 16
"""Pages merged with a batch while a search waits; a turn makes one or two pages."""
CLEAR_STALE = "update session set needs_indexing = 0 where number = ? and facts = ?"


class SqliteSearchIndex(SearchIndex):
    batch_characters = (
        100_000  # a batch blocks writers for 7 ms, 25 when segments are merged; smaller ones build slower
    )

    def _tenant(self) -> dict[str, Any]:
        return {"space": self.space, "owner": self.owner}

    def count_stale(self, reader: apsw.Connection) -> int:
        return int(reader.execute(COUNT_STALE, self._tenant()).get)

    def stale_sessions(self, reader: apsw.Connection, first: int) -> Iterator[StaleSession]:
        for row in reader.execute(SELECT_STALE, {**self._tenant(), "first": first}):
            yield StaleSession(*row)

    def branches(self, reader: apsw.Connection, session_number: int) -> list[IndexedBranch]:
        rows: list[Any] = reader.execute(SELECT_BRANCHES, (session_number,)).fetchall()
        return [IndexedBranch(*row) for row in rows]

    def new_entries(
        self, reader: apsw.Connection, branch: int, first: int, last: int
    ) -> Iterator[tuple[Any, ...]]:
        return reader.execute(SELECT_NEW, (branch << 32 | first, branch << 32 | last))

    def last_answer(self, reader: apsw.Connection, branch: int, seq: int) -> bytes | None:
        row = reader.execute(SELECT_ANSWER, (branch << 32, branch << 32 | seq)).fetchone()
        return None if row is None else row[0]

    def parent(self, reader: apsw.Connection, branch: int) -> tuple[int | None, int] | None:
        query = "select parent, parent_seq from branch where id = ?"
        row: tuple[Any, ...] | None = reader.execute(query, (branch,)).fetchone()
        return None if row is None else (row[0], row[1])

    def document(self, columns: Mapping[Column, str], session: StaleSession) -> tuple[str, ...]:
        tenant = " ".join(tenant_words(self.space, session.owner))
        return (columns["text"], columns["tool"], columns["model"], f"{columns['marker']} {tenant}")

    def write_rows(self, writer: apsw.Connection, rows: list[IndexRow], titles: list[IndexedSession]) -> int:
        new_rows: list[IndexRow] = []
        for row in rows:
            writer.execute(INSERT_ENTRY, (row.session_number, row.key))
            if writer.changes():
                new_rows.append(row)
        count = len(new_rows)
        for indexed in titles:
            row = indexed.title_row
            writer.execute("delete from search where rowid = ?", (row.key,))
            writer.execute("delete from search_entry where id = ?", (row.key,))
            if indexed.session.title is not None:
                writer.execute(INSERT_TITLE, (row.key, row.session_number, indexed.session.started_at))
                new_rows.append(row)
        # The words last, and by key: FTS5 ends a segment before a statement that may write many rows, and before a row that
        # comes before the last one. A search looks into every segment.
        for row in sorted(new_rows, key=attrgetter("key")):
            writer.execute(INSERT_WORDS, (row.key, *row.document))
        return count

    def tidy(self, writer: apsw.Connection, *, is_alone: bool) -> bool:
        return merge_segments(writer, MERGED_PAGES if is_alone else FEW_PAGES)

    def save_progress(self, writer: apsw.Connection, session: StaleSession) -> bool:
        writer.execute(SET_PROGRESS, asdict(session))
        is_set = writer.changes() > 0
        if is_set:
            writer.execute(CLEAR_STALE, (session.number, session.facts))
        return is_set


@lru_cache(maxsize=1_024)
def tenant_words(space: str, owner: str | None) -> tuple[str, ...]:
    """Return the tenant as words of the index: a search then skips the hits of other tenants."""
    words = ("space" + sha256(space.encode()).hexdigest()[:16],)
    return words if owner is None else (*words, "owner" + sha256(owner.encode()).hexdigest()[:16])


# -- purging ---------------------------------------------------------------------------------------

# What a fork inherits is listed under another session from now on, so its heirs are indexed again. The count
# decreases each time, so that a batch read before this purge cannot mark a session as done.
RESET_HEIRS = """
with recursive descendant (id) as (
    select value from json_each(?)
    union
    select branch.id from descendant join branch on branch.parent = descendant.id
)
insert into search_progress (session_number, facts)
select distinct session.number, -1 from descendant join branch using (id) join session on session.number = branch.session_number
where true
on conflict (session_number) do update set facts = min(facts, 0) - 1
returning session_number
"""


def remove_from_index(writer: apsw.Connection, branches: list[int], sessions: list[int]) -> None:
    """Remove every word of the branches and of the sessions' titles. The bytes stay until `merge_segments`."""
    heirs = writer.execute(RESET_HEIRS, (str(branches),)).fetchall()
    writer.executemany("update session set needs_indexing = 1 where number = ?", heirs)
    for branch in branches:
        span = (branch << 32, (branch + 1) << 32)
        writer.execute(
            "delete from search where rowid in (select id from search_entry where id >= ? and id < ?)", span
        )
        writer.execute("delete from search_entry where id >= ? and id < ?", span)
    writer.execute(
        "delete from search_progress where session_number in (select value from json_each(?))",
        (str(sessions),),
    )


def merge_segments(writer: apsw.Connection, pages: int) -> bool:
    """Merge a part of the index, of `pages` pages; return whether more is left.

    Segments of a size are merged. A negative number begins to merge all into one, and the next parts continue: FTS5 keeps the
    words of deleted rows until then.
    """
    before = writer.total_changes()
    writer.execute("insert into search (search, rank) values ('merge', ?)", (pages,))
    return writer.total_changes() - before >= 2
