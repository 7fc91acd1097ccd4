"""Answering a search on a database: candidates from its index, hits from the entries themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from ..core.search import TITLE, Search, index_columns, matches
from ..core.search_text import tool_names
from ..core.tree import Branch, Leaf, Range, reachable_seqs
from ..errors import NotFound, StoreDamaged
from .search import HitLocation, SearchHit, SearchPage, entry_hit, ranges_contain, title_hit
from .search_index import SearchIndex, decode_or_none, entry_columns

LAST_KEY = (1 << 63) - 1


class Candidate(Struct, frozen=True):
    """An entry or title that the index proposes, and the session it is listed under."""

    key: int
    at: int
    session_number: int
    session_id: str
    title: str | None
    branch: int
    seq: int
    turn: int | None
    kind: str | None
    role: str | None
    model: str | None
    finish: str | None
    body: bytes | None


class DatabaseSearch(ABC):
    """One search within one snapshot. `index_is_exact`: what the index proposes matches and need not be compared."""

    index_is_exact: bool

    def __init__(self, reader: Any, search: Search, index: SearchIndex) -> None:
        self.reader, self.search, self.index = reader, search, index
        self.space, self.owner = index.space, index.owner

    @abstractmethod
    def session_number(self, session_id: str) -> int | None: ...

    @abstractmethod
    def branch_tree(self, session_number: int) -> Iterable[tuple[int, bool, int | None, int]]:
        """Return number, whether it is its own, parent and parent_seq of its branches and their ancestors."""

    @abstractmethod
    def candidates(self, first: int, end: int, session_number: int | None) -> Iterator[Candidate]:
        """Yield what the index proposes for keys from `first` to before `end`, the last key first."""

    @abstractmethod
    def lineage(self, leaf: Leaf) -> list[Range]: ...

    def page(self) -> SearchPage:
        limit = self.search.limit
        end = LAST_KEY if self.search.before is None else int(self.search.before)
        number, spans = None, [(0, end)]
        if self.search.session_id is not None:
            number = self.session_number(self.search.session_id)
            if number is None:
                raise NotFound(self.search.session_id)
            spans = [(first, min(last, end)) for first, last in self._spans(number)]
        hits: list[SearchHit] = []
        for hit in self._hits(spans, number):
            hits.append(hit)
            if len(hits) > limit:
                break
        page = hits[:limit]
        more = str(page[-1].branch << 32 | page[-1].seq) if len(hits) > limit else None
        return SearchPage(page, more, self.index.count_stale(self.reader))

    def _spans(self, session_number: int) -> list[tuple[int, int]]:
        """Return all that a session owns or inherits as ranges of keys, the latest branch first."""
        rows = list(self.branch_tree(session_number))
        others = {
            number: Branch(number, None, parent, seq) for number, is_own, parent, seq in rows if not is_own
        }
        fork_points = [
            Leaf(parent, seq)
            for _, is_own, parent, seq in rows
            if is_own and parent is not None and parent in others
        ]
        spans = [(number << 32, (number + 1) << 32) for number, is_own, *_ in rows if is_own]
        spans += [
            ((number << 32) + 1, (number << 32) + seq + 1)
            for number, seq in reachable_seqs(others, fork_points).items()
        ]
        return sorted(spans, reverse=True)

    def _hits(self, spans: list[tuple[int, int]], session_number: int | None) -> Iterator[SearchHit]:
        paths: dict[int, list[Range]] = {}
        for first, end in spans:
            for candidate in self.candidates(first, end, session_number) if first < end else ():
                number = candidate.session_number
                if number not in paths:
                    paths[number] = self.lineage(Leaf(candidate.branch, candidate.seq))
                leaf = Leaf(candidate.key >> 32, candidate.key & 0xFFFFFFFF)
                is_on_path = ranges_contain(paths[number], leaf)
                turn, at = candidate.turn or 0, candidate.at
                location = HitLocation(candidate.session_id, candidate.title, leaf, turn, at, is_on_path)
                hit = self._title_hit(location) if leaf.seq == 0 else self._entry_hit(location, candidate)
                if hit is not None:
                    yield hit

    def _title_hit(self, location: HitLocation) -> SearchHit | None:
        terms = self.search.terms
        if not self.index_is_exact and not matches(terms, index_columns(location.title or "", kind=TITLE)):
            return None
        return title_hit(location, terms)

    def _entry_hit(self, location: HitLocation, candidate: Candidate) -> SearchHit | None:
        kind, role, terms = candidate.kind, candidate.role, self.search.terms
        payload = None if candidate.body is None else decode_or_none(kind, candidate.body)
        if payload is None:
            if self.index_is_exact:  # it could be decoded when it was indexed
                why = f"entry {location.leaf} cannot be decoded; session.verify() reports details"
                raise StoreDamaged(location.session_id, why)
            return None
        names = self.index.call_names(self.reader, location.leaf) if role == "tool" else {}
        if not self.index_is_exact:
            columns = entry_columns(payload, kind, role, candidate.model, candidate.finish, names)
            if not matches(terms, columns):
                return None
        return entry_hit(location, terms, payload, tool_names(payload, names))
