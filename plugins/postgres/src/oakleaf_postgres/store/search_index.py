"""The search index in PostgreSQL: words in a tsvector, and the statements below the steps of `stores.search_index`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from msgspec.structs import asdict

from oakleaf.core.search import COLUMNS, Column
from oakleaf.core.search_text import tokenize_indexed
from oakleaf.stores.sql.search_index import (
    BATCH_ROWS,
    IndexedBranch,
    IndexedSession,
    IndexRow,
    SearchIndex,
    StaleSession,
)
from oakleaf_postgres.store.connections import Connection

MAX_WORD_CHARACTERS = 400
"""Characters of a word that are indexed; PostgreSQL takes 2,046 bytes. Candidates are compared in full."""
MAX_ENTRY_BYTES = 900_000
"""Bytes of an entry's words; a tsvector holds 1 MB of them."""
ANY_WORD = "w"
"""The only word of an entry with more: it is a candidate for every search."""
LETTERS: dict[Column, str] = {"text": "t", "tool": "o", "model": "m", "marker": "k"}

COUNT_STALE = "select count(*) from oakleaf.session where session.space = %s and session.needs_indexing"
SELECT_STALE = """
select session.number, session.facts, session.title, session.owner, session.started_at, progress.facts, progress.title
from oakleaf.session left join lateral (
    select facts, title from oakleaf.search_progress where search_progress.session_number = session.number offset 0
) as progress on true
where session.space = %s and session.number >= %s and session.needs_indexing order by session.number limit %s
"""
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from oakleaf.branch where session_number = %(number)s
    union
    select parent.id from line join oakleaf.branch on branch.id = line.id
    join oakleaf.branch as parent on parent.id = branch.parent
    where not exists (select 1 from oakleaf.session where session.number = parent.session_number)
)
select branch.id, branch.session_number = %(number)s, branch.parent, branch.parent_seq,
       (select max(search.id) & 4294967295 from oakleaf.search
        where search.space = branch.space and search.id >= branch.id << 32 and search.id < (branch.id + 1) << 32)
from line join oakleaf.branch on branch.id = line.id order by branch.id
"""
SELECT_NEW = """
select seq, kind, role, model, finish, body from oakleaf.entry
where branch = %s and seq between %s and %s order by seq limit %s
"""
SELECT_ANSWER = """
select body from oakleaf.entry where branch = %s and seq <= %s and role = 'assistant' order by seq desc limit 1
"""
INSERT_ENTRY = """
insert into oakleaf.search (id, space, session_number, at, words)
select %s::bigint, entry.space, session.number, entry.at, array_to_tsvector(%s::text[])
from oakleaf.entry join oakleaf.session on session.number = %s where entry.branch = %s and entry.seq = %s
on conflict (space, id) do nothing
"""
INSERT_TITLE = """
insert into oakleaf.search (id, space, session_number, at, words)
values (%s, %s, %s, %s, array_to_tsvector(%s::text[]))
"""
SET_PROGRESS = """
insert into oakleaf.search_progress (session_number, space, facts, title)
select number, space, %(facts)s::bigint, %(title)s::text from oakleaf.session
where number = %(number)s and (select facts from oakleaf.search_progress where session_number = %(number)s) is not distinct from %(indexed_facts)s::bigint
on conflict (session_number) do update set facts = excluded.facts, title = excluded.title
where search_progress.facts is not distinct from %(indexed_facts)s::bigint -- else a purge came between
"""
# Without waiting: a session that somebody writes to right now stays flagged, and the next search looks again.
CLEAR_STALE = """
update oakleaf.session set needs_indexing = false where number in (
    select number from oakleaf.session where number = %s and facts = %s for no key update skip locked)
"""


class PostgresSearchIndex(SearchIndex):
    batch_characters = 400_000

    def count_stale(self, reader: Connection) -> int:
        row = reader.execute(COUNT_STALE, (self.space,)).fetchone()
        return 0 if row is None else int(row[0])

    def stale_sessions(self, reader: Connection, first: int) -> list[StaleSession]:
        rows = reader.execute(SELECT_STALE, (self.space, first, BATCH_ROWS + 1)).fetchall()
        return [StaleSession(*row) for row in rows]

    def branches(self, reader: Connection, session_number: int) -> list[IndexedBranch]:
        rows = reader.execute(SELECT_BRANCHES, {"number": session_number}).fetchall()
        return [IndexedBranch(*row) for row in rows]

    def new_entries(
        self, reader: Connection, branch: int, first: int, last: int
    ) -> Iterator[tuple[Any, ...]]:
        """Read a batch at a time: the first 250 entries need no read of a gigabyte."""
        while True:
            rows = reader.execute(SELECT_NEW, (branch, first, last, BATCH_ROWS), binary=True).fetchall()
            yield from rows
            if len(rows) < BATCH_ROWS:
                return
            first = rows[-1][0] + 1

    def last_answer(self, reader: Connection, branch: int, seq: int) -> bytes | None:
        row = reader.execute(SELECT_ANSWER, (branch, seq), binary=True).fetchone()
        return None if row is None else row[0]

    def parent(self, reader: Connection, branch: int) -> tuple[int | None, int] | None:
        query = "select parent, parent_seq from oakleaf.branch where id = %s"
        return reader.execute(query, (branch,)).fetchone()

    def document(self, columns: Mapping[Column, str], session: StaleSession) -> list[str]:
        words = {
            LETTERS[column] + word[:MAX_WORD_CHARACTERS]
            for column in COLUMNS
            for word, *_ in tokenize_indexed(columns[column])
        }
        is_too_large = sum(len(word.encode()) for word in words) > MAX_ENTRY_BYTES
        return [space_word(self.space), *([ANY_WORD] if is_too_large else sorted(words))]

    def write_rows(self, writer: Connection, rows: list[IndexRow], titles: list[IndexedSession]) -> int:
        for indexed in titles:
            self._replace_title(writer, indexed)
        if not rows:
            return 0
        values = [(row.key, row.document, row.session_number, row.leaf.branch, row.leaf.seq) for row in rows]
        with writer.cursor() as cursor:
            cursor.executemany(INSERT_ENTRY, values)
            return cursor.rowcount

    def save_progress(self, writer: Connection, session: StaleSession) -> bool:
        is_set = writer.execute(SET_PROGRESS, asdict(session)).rowcount > 0
        if is_set:
            writer.execute(CLEAR_STALE, (session.number, session.facts))
        return is_set

    def _replace_title(self, writer: Connection, indexed: IndexedSession) -> None:
        row = indexed.title_row
        writer.execute("delete from oakleaf.search where space = %s and id = %s", (self.space, row.key))
        if indexed.session.title is not None:
            values = (row.key, self.space, row.session_number, indexed.session.started_at, row.document)
            writer.execute(INSERT_TITLE, values)


def space_word(space: str) -> str:
    """Return the tenant as a word of the index, so a search skips foreign hits."""
    return "s" + sha256(space.encode()).hexdigest()[:16]


# -- purging ---------------------------------------------------------------------------------------

# What a fork inherits is listed under another session from now on, so its heirs are indexed again. The count
# decreases each time, so that a batch read before this purge cannot mark a session as done.
RESET_HEIRS = """
with recursive descendant (id) as (
    select unnest(%s::bigint[])
    union
    select branch.id from descendant join oakleaf.branch on branch.parent = descendant.id
)
, heir as (
    update oakleaf.session set needs_indexing = true
    where number in (select branch.session_number from descendant join oakleaf.branch using (id)) returning number, space
)
insert into oakleaf.search_progress (session_number, space, facts) select number, space, -1 from heir
on conflict (session_number) do update set facts = least(search_progress.facts, 0) - 1
"""
DELETE_WORDS = """
delete from oakleaf.search where space = %(space)s and id = any(array(
    select words.id from unnest(%(branches)s::bigint[]) as purged (branch) cross join lateral (
        select id from oakleaf.search
        where search.space = %(space)s
          and search.id >= purged.branch << 32 and search.id < (purged.branch + 1) << 32 offset 0
    ) as words
))
"""


def remove_from_index(writer: Connection, space: str, branches: list[int], sessions: list[int]) -> None:
    """Remove every word of the branches and of the sessions' titles."""
    writer.execute(RESET_HEIRS, (branches,))
    writer.execute(DELETE_WORDS, {"space": space, "branches": branches})
    writer.execute(
        "delete from oakleaf.search_progress where session_number = any(%s::bigint[])", (sessions,)
    )
