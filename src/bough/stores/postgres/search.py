"""Searching, in PostgreSQL: the index proposes, the entries decide.

What the index proposes holds every word that is looked for; whether it holds them in a row, and none that is left
out, is told by the entry itself with the same comparison as in memory. So all stores find the same, and neither
the limits of a tsvector nor anything anybody types can change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from ...core.search import TITLE, Search, Term, index_columns, matches
from ...core.search_text import tool_names
from ...core.tree import Branch, Leaf, Range, lineage, reachable_seqs
from ...errors import IndexBehind, NotFound, StoreDamaged, StoreFull, StoreReadOnly
from ..base import StoreBackend
from ..search import (
    HitLocation,
    IndexProgress,
    SearchHit,
    SearchPage,
    entry_hit,
    ranges_contain,
    title_hit,
)
from .connections import Connection, Connections, Row
from .search_index import LETTERS, LONGEST, WIDE, asked, behind, catch_up, held_of, readable, space_word

MOST = (1 << 63) - 1
PROPOSED_AT_ONCE = 500
SELECT_PROPOSED = """
select found.place, found.at, session.no, session.id, session.title, session.branch, session.seq,
       entry.kind, entry.role, entry.model, entry.finish, entry.body, coalesce({conditions}, false)
from bough.found(%(looked_for)s::tsquery, %(first)s::bigint, %(last)s::bigint, %(most)s::integer) as found
left join bough.session on session.no = {whose}
left join bough.entry on entry.branch = found.place >> 32 and entry.seq = found.place & 4294967295
order by found.place desc
"""
SELECT_OWN = """
select no from bough.session where id = %(id)s and (%(owner)s::text is null or owner = %(owner)s)
"""
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from bough.branch where session_no = %(no)s
    union
    select branch.parent from line join bough.branch on branch.id = line.id where branch.parent is not null
)
select branch.id, branch.session_no = %(no)s, branch.parent, branch.parent_seq
from line join bough.branch using (id)
"""
SELECT_LINE = """
with recursive line (id, parent, parent_seq) as (
    select id, parent, parent_seq from bough.branch where id = %s
    union all
    select under.* from line cross join lateral (
        -- Fenced, so that it is a probe for each step; joined, PostgreSQL may read the whole table for each.
        select id, parent, parent_seq from bough.branch
        where branch.id = line.parent and branch.id < line.id offset 0 -- a forged ring ends here
    ) as under
)
select id, parent, parent_seq from line
"""


class PostgresSearching(StoreBackend):
    """The two verbs of searching."""

    _connections: Connections

    def index(self, progress: IndexProgress | None = None) -> int:
        try:
            return catch_up(self._connections, self.space, progress)
        except (StoreReadOnly, StoreFull) as error:
            left = self._connections.read_snapshot(lambda reader: behind(reader, self.space))
            raise IndexBehind(self.url, left, str(error)) from error

    def search(self, search: Search) -> SearchPage:
        return self._connections.read_snapshot(
            lambda reader: Searching(reader, search, self.space, self.owner, self.url).page()
        )


class Searching(Struct, frozen=True):
    reader: Connection
    search: Search
    space: str
    owner: str | None
    where: str

    def page(self) -> SearchPage:
        search = self.search
        last = MOST if search.before is None else int(search.before)
        spans, no = [(0, last)], None
        if search.session_id is not None:
            no = self._own(search.session_id)
            spans = [(begin, min(end, last)) for begin, end in self._spans(no)]
        hits: list[SearchHit] = []
        for hit in self._hits(spans, no):
            hits.append(hit)
            if len(hits) > search.limit:
                break
        shown = hits[: search.limit]
        more = str(shown[-1].branch << 32 | shown[-1].seq) if len(hits) > search.limit else None
        return SearchPage(shown, more, behind(self.reader, self.space))

    def _own(self, session_id: str) -> int:
        found = self.reader.execute(SELECT_OWN, {"id": session_id, "owner": self.owner}).fetchone()
        if found is None:
            raise NotFound(session_id)
        return int(found[0])

    def _spans(self, no: int) -> list[tuple[int, int]]:
        """All that a session stands on, as ranges of places, the latest branch first."""
        found = self.reader.execute(SELECT_BRANCHES, {"no": no}).fetchall()
        others = {id_: Branch(id_, None, parent, seq) for id_, is_own, parent, seq in found if not is_own}
        feet = [Leaf(parent, seq) for _, is_own, parent, seq in found if is_own and parent in others]
        spans = [(id_ << 32, (id_ + 1) << 32) for id_, is_own, *_ in found if is_own]
        spans += [
            ((id_ << 32) + 1, (id_ << 32) + seq + 1) for id_, seq in reachable_seqs(others, feet).items()
        ]
        return sorted(spans, reverse=True)

    def _hits(self, spans: Sequence[tuple[int, int]], no: int | None) -> Iterator[SearchHit]:
        paths: dict[int, list[Range]] = {}
        for first, last in spans:
            for place, at, found_no, session_id, title, branch, seq, *about, is_meant in self._proposed(
                first, last, no
            ):
                if not is_meant:
                    continue
                if found_no not in paths:
                    paths[found_no] = self._line(Leaf(branch, seq))
                leaf = Leaf(place >> 32, place & 0xFFFFFFFF)
                spot = HitLocation(session_id, title, leaf, at, ranges_contain(paths[found_no], leaf))
                yield from self._hit(spot, about)

    def _proposed(self, first: int, last: int, no: int | None) -> Iterator[Row]:
        conditions, bindings = self._conditions()
        query: Any = SELECT_PROPOSED.format(
            conditions=conditions, whose="found.session_no" if no is None else "%(no)s"
        )
        bindings |= {"looked_for": expression(self.search.terms, self.space), "no": no, "first": first}
        while first < last:
            rows = self.reader.execute(
                query, {**bindings, "last": last, "most": PROPOSED_AT_ONCE}, binary=True
            ).fetchall()
            yield from rows
            if len(rows) < PROPOSED_AT_ONCE:
                return
            last = rows[-1][0]

    def _conditions(self) -> tuple[str, dict[str, Any]]:
        search = self.search
        wanted: list[tuple[str, str, Any]] = [
            ("session.owner = %(owner)s", "owner", self.owner),
            ("session.agent = %(agent)s", "agent", search.agent),
            ("found.at >= %(since)s", "since", search.since),
            ("found.at < %(until)s", "until", search.until),
        ]
        kept = [(text, name, value) for text, name, value in wanted if value is not None]
        texts, bindings = [text for text, _, _ in kept], {name: value for _, name, value in kept}
        texts.append(
            f"session.trashed_at is {'not' if search.trashed else ''} null and session.no is not null"
        )
        if search.tag is not None:
            texts.append(
                "session.tags ->> %(tag)s::text = coalesce(%(tagged)s, session.tags ->> %(tag)s::text)"
            )
            bindings |= {"tag": search.tag[0], "tagged": search.tag[1]}
        return " and ".join(texts), bindings

    def _line(self, leaf: Leaf) -> list[Range]:
        found = self.reader.execute(SELECT_LINE, (leaf.branch,)).fetchall()
        try:
            return lineage({n: Branch(n, None, parent, seq) for n, parent, seq in found}, leaf)
        except KeyError as error:
            raise StoreDamaged(self.where, f"branch {error} is missing on the way to {leaf}") from None

    def _hit(self, place: HitLocation, about: Sequence[Any]) -> Iterator[SearchHit]:
        terms = self.search.terms
        if place.leaf.seq == 0:
            if matches(terms, index_columns(place.title or "", kind=TITLE)):
                yield title_hit(place, terms)
            return
        kind, role, model, finish, body = about
        payload = readable(kind, body) if body is not None else None
        if payload is not None:
            names = asked(self.reader, place.leaf) if role == "tool" else {}
            if matches(terms, held_of(payload, (kind, role, model, finish), names)):
                yield entry_hit(place, terms, payload, tool_names(payload, names))


def expression(terms: Sequence[Term], space: str) -> str:
    """What a proposal must hold, in the language of tsquery: the tenant and each word, wherever it stands."""
    words = {
        _said(term, word, is_last=n == len(term.words))
        for term in terms
        if not term.is_excluded
        for n, word in enumerate(term.words, 1)
    }
    wanted = f" & ('{WIDE}' | ({' & '.join(sorted(words))}))" if words else ""
    return f"'{space_word(space)}'{wanted}"


def _said(term: Term, word: str, *, is_last: bool) -> str:
    quoted = (LETTERS[term.column] + word[:LONGEST]).replace("\\", "\\\\").replace("'", "''")
    is_cut = len(word) >= LONGEST
    return f"'{quoted}'{':*' if (term.is_prefix and is_last) or is_cut else ''}"
