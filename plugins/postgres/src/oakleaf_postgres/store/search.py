"""Search in PostgreSQL: the index proposes, the entries decide.

A candidate holds every word of the search. Whether they are adjacent, and whether an excluded one is among them, is
decided by comparing the entry itself, as in memory. So all stores find the same, and neither the limits of a tsvector
nor anything a user types can change it.

The newest entries are walked first: what is common fills a page from them. What is rare is found by the index of words, which
would read every entry with a common word to find the latest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oakleaf.core.search import Term
from oakleaf.core.tree import Leaf, Range
from oakleaf.stores.sql.database_search import Candidate, DatabaseSearch
from oakleaf.stores.sql.database_store import path_ranges
from oakleaf_postgres.store.search_index import ANY_WORD, LETTERS, MAX_WORD_CHARACTERS, space_word

BATCH_CANDIDATES = 500
FIRST_WALK, LONGEST_WALK = 500, 20_000
"""Rows that are walked at first, and at most: about 2 µs each, where the index reads 5 µs for each match."""
SELECT_CANDIDATES = """
select found.id, found.at, session.number, session.id, session.title, session.relation, session.branch, session.seq, entry.turn,
       entry.kind, entry.role, entry.model, entry.finish, entry.body, coalesce({conditions}, false), {walk}
from {matches} as found
-- Fenced, so that each is a probe for each candidate; joined, PostgreSQL may read all entries of all tenants instead.
left join lateral (select * from oakleaf.session where session.number = {session_number} offset 0) as session on true
left join lateral (
    select * from oakleaf.entry where entry.branch = found.id >> 32 and entry.seq = found.id & 4294967295 offset 0
) as entry on true
order by found.id desc, {walk_order}
"""
WALK = "oakleaf.match_newest(%(words)s::tsquery, %(first)s::bigint, %(last)s::bigint, %(walk)s::integer, %(limit)s::integer)"
MATCH = "oakleaf.match_words(%(words)s::tsquery, %(first)s::bigint, %(last)s::bigint, %(limit)s::integer)"
SELECT_LINE = """
with recursive line (id, parent, parent_seq) as (
    select id, parent, parent_seq from oakleaf.branch where id = %s
    union all
    select under.* from line cross join lateral (
        -- Fenced, so that it is a probe for each step; joined, PostgreSQL may read the whole table for each.
        select id, parent, parent_seq from oakleaf.branch
        where branch.id = line.parent and branch.id < line.id offset 0 -- ends a forged cycle
    ) as under
)
select id, parent, parent_seq from line
"""


class PostgresSearch(DatabaseSearch):
    index_is_exact = False
    parameter = "%({})s"
    indexed_at = "found.at"
    is_own = """exists (
        select 1 from oakleaf.branch where branch.id = found.id >> 32 and branch.session_number = session.number
    )"""
    has_tag = "session.tags ->> %(tag)s::text = coalesce(%(tag_value)s, session.tags ->> %(tag)s::text)"

    def candidates(self, first: int, end: int, session_number: int | None) -> Iterator[Candidate]:
        conditions, bindings = self._conditions()
        listed_under = "found.session_number" if session_number is None else "%(number)s"
        parts = {"conditions": conditions, "session_number": listed_under}
        words = search_expression(self.search.terms, self.space)
        bindings |= {"words": words, "number": session_number, "first": first}
        walk: Any = SELECT_CANDIDATES.format(
            matches=WALK, walk="found.is_match, found.walked", walk_order="found.is_match desc", **parts
        )
        needed, length, walked_rows = self.search.limit + 1, FIRST_WALK, 0
        while first < end:
            values = {**bindings, "last": end, "walk": length, "limit": needed}
            *rows, last = self.reader.execute(walk, values, binary=True).fetchall() or [()]
            for *row, matches_session, _, _ in rows:
                if matches_session:
                    yield Candidate(*row)
            if not last:
                return
            key, walked = last[0], last[-1]
            if len(rows) == needed:  # there may be more before the end of this walk
                end = rows[-1][0]
                continue
            if walked < length:
                return
            end, walked_rows = key, walked_rows + walked
            if not rows or walked_rows >= LONGEST_WALK:
                break
            length = min(max(length, needed * length // len(rows)), LONGEST_WALK - walked_rows or 1)
        yield from self._rare_candidates(parts, bindings, first, end)

    def _rare_candidates(
        self, parts: dict[str, str], bindings: dict[str, Any], first: int, end: int
    ) -> Iterator[Candidate]:
        query: Any = SELECT_CANDIDATES.format(matches=MATCH, walk="null", walk_order="found.id", **parts)
        while first < end:
            values = {**bindings, "last": end, "limit": BATCH_CANDIDATES}
            rows = self.reader.execute(query, values, binary=True).fetchall()
            for *row, matches_session, _ in rows:
                if matches_session:
                    yield Candidate(*row)
            if len(rows) < BATCH_CANDIDATES:
                return
            end = rows[-1][0]

    def lineage(self, leaf: Leaf) -> list[Range]:
        return path_ranges(self.reader.execute(SELECT_LINE, (leaf.branch,)), leaf, self.index.url)


def search_expression(terms: Sequence[Term], space: str) -> str:
    """Return a candidate's condition, in the language of tsquery: the tenant and each word, in any order."""
    words = {
        _quote(term, word, is_last=n == len(term.words))
        for term in terms
        if not term.is_excluded
        for n, word in enumerate(term.words, 1)
    }
    required = f" & ('{ANY_WORD}' | ({' & '.join(sorted(words))}))" if words else ""
    return f"'{space_word(space)}'{required}"


def _quote(term: Term, word: str, *, is_last: bool) -> str:
    quoted = (LETTERS[term.column] + word[:MAX_WORD_CHARACTERS]).replace("\\", "\\\\").replace("'", "''")
    is_cut = len(word) >= MAX_WORD_CHARACTERS
    return f"'{quoted}'{':*' if (term.is_prefix and is_last) or is_cut else ''}"
