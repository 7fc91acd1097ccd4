"""Searching, in SQLite: a search as an FTS5 expression and a few conditions, and hits out of what it finds.

Knows how the index is asked. Every word that reaches FTS5 is letters and digits within quotes, so nothing
anybody types is syntax. Snippets are cut from the entries themselves: the index holds no text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apsw

from ...core.search import Search, Term
from ...core.search_text import tool_names
from ...core.tree import Branch, Leaf, Range, reachable_seqs
from ...errors import IndexBehind, NotFound, StoreDamaged, StoreFull, StoreReadOnly
from ..base import StoreBackend
from ..search_types import (
    HitLocation,
    IndexProgress,
    SearchHit,
    SearchPage,
    entry_hit,
    ranges_contain,
    title_hit,
)
from .connections import Connections
from .search_index import Tenant, asked, behind, catch_up, left, readable, scope

MOST = (1 << 63) - 1
SELECT_FOUND = """
select search.rowid, session.no, session.id, session.title, session.branch, session.seq, search_entry.at
from search
cross join search_entry on search_entry.id = search.rowid
cross join session on session.no = {whose}
where search match ? and search.rowid >= ? and search.rowid < ? and {conditions}
order by search.rowid desc limit ?
"""
SELECT_OWN = "select no from session where id = ? and space = ? and (?3 is null or owner = ?3)"
SELECT_BRANCHES = """
with recursive line (id) as (
    select id from branch where session_no = ?1
    union
    select branch.parent from line join branch on branch.id = line.id where branch.parent is not null
)
select branch.id, branch.session_no = ?1, branch.parent, branch.parent_seq from line join branch using (id)
"""
Line = Callable[[apsw.Connection, Leaf], list[Range]]


class SqliteSearching(StoreBackend):
    """The two verbs of searching."""

    _connections: Connections

    @abstractmethod
    def _line(self, connection: apsw.Connection, leaf: Leaf) -> list[Range]: ...

    def index(self, progress: IndexProgress | None = None) -> int:
        try:
            return catch_up(self._connections, (self.space, self.owner), progress)
        except (StoreReadOnly, StoreFull) as error:
            unread = left(self._connections, (self.space, self.owner))
            raise IndexBehind(self.url, unread, str(error)) from error

    def search(self, search: Search) -> SearchPage:
        with self._connections.reading() as reader:
            return find(reader, search, self.space, self.owner, self._line)


def find(reader: apsw.Connection, search: Search, space: str, owner: str | None, line: Line) -> SearchPage:
    below = MOST if search.before is None else int(search.before)
    spans, no = [(0, below)], None
    if search.session_id is not None:
        no = _own(reader, search.session_id, space, owner)
        spans = [(first, min(last, below)) for first, last in _spans(reader, no)]
    rows: list[tuple[Any, ...]] = []
    for first, last in spans:
        if first < last and len(rows) <= search.limit:
            most = search.limit + 1 - len(rows)
            rows += _found(reader, search, (space, owner), no, (first, last, most))
    shown = rows[: search.limit]
    more = str(shown[-1][0]) if len(rows) > search.limit else None
    unread = behind(reader, (space, owner))
    return SearchPage(list(_hits(reader, search, shown, line)), more, unread)


def _own(reader: apsw.Connection, session_id: str, space: str, owner: str | None) -> int:
    found = reader.execute(SELECT_OWN, (session_id, space, owner)).fetchone()
    if found is None:
        raise NotFound(session_id)
    return int(found[0])


def _spans(reader: apsw.Connection, no: int) -> list[tuple[int, int]]:
    """All that a session stands on, as ranges of places, the latest branch first."""
    found: list[tuple[Any, ...]] = reader.execute(SELECT_BRANCHES, (no,)).fetchall()
    others = {id_: Branch(id_, None, parent, seq) for id_, is_own, parent, seq in found if not is_own}
    feet = [Leaf(parent, seq) for _, is_own, parent, seq in found if is_own and parent in others]
    spans = [(id_ << 32, (id_ + 1) << 32) for id_, is_own, *_ in found if is_own]
    spans += [((id_ << 32) + 1, (id_ << 32) + seq + 1) for id_, seq in reachable_seqs(others, feet).items()]
    return sorted(spans, reverse=True)


def _found(
    reader: apsw.Connection,
    search: Search,
    tenant: Tenant,
    no: int | None,
    within: tuple[int, int, int],
) -> list[tuple[Any, ...]]:
    """Rows of one range, at most so many. The tenant is a condition although it is also a word of the index."""
    first, last, most = within
    conditions, bindings = _conditions(search, *tenant)
    # What a fork shares may be found under another owner's session; who may read the fork may read it all.
    words = scope(tenant[0], tenant[1] if no is None else None)
    query = SELECT_FOUND.format(whose="search_entry.session_no" if no is None else no, conditions=conditions)
    given = (expression(search.terms, words), first, last, *bindings, most)
    rows: list[tuple[Any, ...]] = reader.execute(query, given).fetchall()
    return rows


def _conditions(search: Search, space: str, owner: str | None) -> tuple[str, list[Any]]:
    wanted: list[tuple[str, Any]] = [
        ("session.space = ?", space),
        ("session.owner = ?", owner),
        ("session.agent = ?", search.agent),
        ("search_entry.at >= ?", search.since),
        ("search_entry.at < ?", search.until),
    ]
    kept = [(text, value) for text, value in wanted if value is not None]
    texts, bindings = [text for text, _ in kept], [value for _, value in kept]
    texts.append(f"session.trashed_at is {'not' if search.trashed else ''} null")
    if search.tag is not None:
        texts.append(
            "exists (select 1 from json_each(session.tags) where key = ? and value = coalesce(?, value))"
        )
        bindings += search.tag
    return " and ".join(texts), bindings


def expression(terms: Sequence[Term], scope: Sequence[str]) -> str:
    """The terms in the language of FTS5. The tenant is always asked for, so there is always a first one."""
    held = [Term("mark", (word,)) for word in scope] + [term for term in terms if not term.is_excluded]
    left = [term for term in terms if term.is_excluded]
    said = " AND ".join(map(_said, held))
    return f"({said}) NOT ({' OR '.join(map(_said, left))})" if left else said


def _said(term: Term) -> str:
    return f'{term.column} : "{" ".join(term.words)}"{" *" if term.is_prefix else ""}'


def _hits(
    reader: apsw.Connection, search: Search, rows: Sequence[tuple[Any, ...]], line: Line
) -> Iterator[SearchHit]:
    paths: dict[int, list[Range]] = {}
    for packed, no, session_id, title, branch, seq, at in rows:
        if no not in paths:
            paths[no] = line(reader, Leaf(branch, seq))
        leaf = Leaf(packed >> 32, packed & 0xFFFFFFFF)
        place = HitLocation(session_id, title, leaf, at, ranges_contain(paths[no], leaf))
        if leaf.seq == 0:
            yield title_hit(place, search.terms)
            continue
        found = reader.execute("select kind, role, body from entry where id = ?", (packed,)).fetchone()
        kind, role, body = found or (None, None, b"")
        payload = readable(kind, body)
        if payload is None:  # it was whole when it was indexed
            raise StoreDamaged(session_id, f"entry {leaf} cannot be read; session.verify() tells more")
        names = asked(reader, leaf) if role == "tool" else {}
        yield entry_hit(place, search.terms, payload, tool_names(payload, names))
