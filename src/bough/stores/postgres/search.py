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

from ...core.search import Term
from ...core.tree import Branch, Leaf, Range, lineage
from ...errors import StoreDamaged
from ..database_search import Candidate, DatabaseSearch
from .search_index import ANY_WORD, LETTERS, MAX_WORD_CHARACTERS, space_word

BATCH_CANDIDATES = 500
FIRST_WALK, LONGEST_WALK = 500, 20_000
"""Rows that are walked at first, and at most: about 2 µs each, where the index reads 5 µs for each match."""
SELECT_CANDIDATES = """
select found.id, found.at, session.number, session.id, session.title, session.branch, session.seq, entry.turn,
       entry.kind, entry.role, entry.model, entry.finish, entry.body, coalesce({conditions}, false), {walk}
from {matches} as found
-- Fenced, so that each is a probe for each candidate; joined, PostgreSQL may read all entries of all tenants instead.
left join lateral (select * from bough.session where session.number = {session_number} offset 0) as session on true
left join lateral (
    select * from bough.entry where entry.branch = found.id >> 32 and entry.seq = found.id & 4294967295 offset 0
) as entry on true
order by found.id desc, {walk_order}
"""
WALK = "bough.match_newest(%(words)s::tsquery, %(first)s::bigint, %(last)s::bigint, %(walk)s::integer, %(limit)s::integer)"
MATCH = "bough.match_words(%(words)s::tsquery, %(first)s::bigint, %(last)s::bigint, %(limit)s::integer)"
SELECT_NUMBER = """
select number from bough.session where id = %(id)s and (%(owner)s::text is null or owner = %(owner)s)
"""
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from bough.branch where session_number = %(number)s
    union
    select branch.parent from line join bough.branch on branch.id = line.id where branch.parent is not null
)
select branch.id, branch.session_number = %(number)s, branch.parent, branch.parent_seq
from line join bough.branch using (id)
"""
SELECT_LINE = """
with recursive line (id, parent, parent_seq) as (
    select id, parent, parent_seq from bough.branch where id = %s
    union all
    select under.* from line cross join lateral (
        -- Fenced, so that it is a probe for each step; joined, PostgreSQL may read the whole table for each.
        select id, parent, parent_seq from bough.branch
        where branch.id = line.parent and branch.id < line.id offset 0 -- ends a forged cycle
    ) as under
)
select id, parent, parent_seq from line
"""


class PostgresSearch(DatabaseSearch):
    index_is_exact = False

    def session_number(self, session_id: str) -> int | None:
        row = self.reader.execute(SELECT_NUMBER, {"id": session_id, "owner": self.owner}).fetchone()
        return None if row is None else int(row[0])

    def branch_tree(self, session_number: int) -> list[tuple[int, bool, int | None, int]]:
        rows: list[Any] = self.reader.execute(SELECT_BRANCHES, {"number": session_number}).fetchall()
        return rows

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

    def _conditions(self) -> tuple[str, dict[str, Any]]:
        search = self.search
        optional: list[tuple[str, str, Any]] = [
            ("session.owner = %(owner)s", "owner", self.owner),
            ("session.agent = %(agent)s", "agent", search.agent),
            ("found.at >= %(since)s", "since", search.since),
            ("found.at < %(until)s", "until", search.until),
        ]
        texts = [text for text, _, value in optional if value is not None]
        bindings = {name: value for _, name, value in optional if value is not None}
        texts.append(
            f"session.trashed_at is {'not' if search.trashed else ''} null and session.number is not null"
        )
        if search.tag is not None:
            texts.append(
                "session.tags ->> %(tag)s::text = coalesce(%(tag_value)s, session.tags ->> %(tag)s::text)"
            )
            bindings |= {"tag": search.tag[0], "tag_value": search.tag[1]}
        return " and ".join(texts), bindings

    def lineage(self, leaf: Leaf) -> list[Range]:
        rows = self.reader.execute(SELECT_LINE, (leaf.branch,)).fetchall()
        try:
            return lineage({branch: Branch(branch, None, parent, seq) for branch, parent, seq in rows}, leaf)
        except KeyError as error:
            raise StoreDamaged(self.index.url, f"branch {error} is missing on the path to {leaf}") from None


def search_expression(terms: Sequence[Term], space: str) -> str:
    """Return what a candidate must hold, in the language of tsquery: the tenant and each word, in any order."""
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
