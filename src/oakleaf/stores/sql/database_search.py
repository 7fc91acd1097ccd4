"""Answering a search on a database: candidates from its index, hits from the entries themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from oakleaf.core.search import TITLE, Search, index_columns, matches
from oakleaf.core.search_text import tool_names
from oakleaf.core.tree import Leaf, Range, reachable_seqs
from oakleaf.errors import StoreDamaged
from oakleaf.stores.search import HitLocation, SearchHit, SearchPage, entry_hit, ranges_contain, title_hit
from oakleaf.stores.sql.search_index import SearchIndex, decode_or_none, entry_columns
from oakleaf.stores.sql.session_query import conditions_of
from oakleaf.stores.transfer import SessionExporter

LAST_KEY = (1 << 63) - 1


class Candidate(Struct, frozen=True):
    """An entry or title proposed by the index, and the session of the listing."""

    key: int
    at: int
    session_number: int
    session_id: str
    title: str | None
    relation: str | None
    branch: int
    seq: int
    turn: int | None
    kind: str | None
    role: str | None
    model: str | None
    finish: str | None
    body: bytes | None


class DatabaseSearch(ABC):
    """A search within a snapshot. `index_is_exact`: the proposals of the index match without a comparison."""

    index_is_exact: bool
    parameter: str
    """How a statement names a value: `:{}`."""
    indexed_at: str
    """The column with the time of an indexed entry or title."""
    has_tag: str
    """The condition that a session has the tag `tag`, with the value `tag_value` unless that is null."""
    is_own: str
    """The condition that the session wrote the entry: what a purged session left is listed under an heir."""

    def __init__(self, exporter: SessionExporter, reader: Any, search: Search, index: SearchIndex) -> None:
        self.exporter, self.reader, self.search, self.index = exporter, reader, search, index
        self.space, self.owner = index.space, index.owner

    @abstractmethod
    def candidates(self, first: int, end: int, session_number: int | None) -> Iterator[Candidate]:
        """Yield the proposals of the index for keys from `first` to before `end`, the last key first."""

    @abstractmethod
    def lineage(self, leaf: Leaf) -> list[Range]: ...

    def page(self) -> SearchPage:
        limit = self.search.limit
        end = LAST_KEY if self.search.before is None else int(self.search.before)
        number, spans = None, [(0, end)]
        if self.search.session_id is not None:
            number, _ = self.exporter.find(self.search.session_id)
            spans = [(first, min(last, end)) for first, last in self._spans(self.search.session_id, number)]
        hits: list[SearchHit] = []
        for hit in self._hits(spans, number):
            hits.append(hit)
            if len(hits) > limit:
                break
        page = hits[:limit]
        more = str(page[-1].branch << 32 | page[-1].seq) if len(hits) > limit else None
        return SearchPage(page, more, self.index.count_stale(self.reader))

    def _spans(self, session_id: str, number: int) -> list[tuple[int, int]]:
        """Return all own and inherited entries of a session as ranges of keys, the latest branch first."""
        branches = self.exporter.branch_tree(session_id, number)
        own = [branch for branch in branches if branch.session_id == session_id]
        others = {branch.branch: branch for branch in branches if branch.session_id != session_id}
        fork_points = [
            Leaf(b.parent, b.parent_seq) for b in own if b.parent is not None and b.parent in others
        ]
        spans = [(branch.branch << 32, (branch.branch + 1) << 32) for branch in own]
        spans += [
            ((branch << 32) + 1, (branch << 32) + seq + 1)
            for branch, seq in reachable_seqs(others, fork_points).items()
        ]
        return sorted(spans, reverse=True)

    def _conditions(self) -> tuple[str, dict[str, Any]]:
        """Return conditions on session and time, and the bindings. The tenant is a condition, and a word of the index too."""
        search = self.search
        comparisons: list[tuple[str, str, Any]] = [
            ("session.space =", "space", self.space),
            ("session.owner =", "owner", self.owner),
            ("session.agent =", "agent", search.agent),
            (f"{self.indexed_at} >=", "since", search.since),
            (f"{self.indexed_at} <", "until", search.until),
        ]
        conditions, bindings = conditions_of(comparisons, self.parameter)
        conditions.append(f"session.trashed_at is {'not' if search.trashed else ''} null")
        if search.replays is not None:
            is_replay = f"coalesce(session.relation, '') = 'replay' and {self.is_own}"
            conditions.append(f"({is_replay})" if search.replays else f"not ({is_replay})")
        if search.tag is not None:
            conditions.append(self.has_tag)
            bindings["tag"], bindings["tag_value"] = search.tag
        return " and ".join(conditions), bindings

    def _hits(self, spans: list[tuple[int, int]], session_number: int | None) -> Iterator[SearchHit]:
        paths: dict[int, list[Range]] = {}
        for first, end in spans:
            for candidate in self.candidates(first, end, session_number) if first < end else ():
                number = candidate.session_number
                if number not in paths:
                    paths[number] = self.lineage(Leaf(candidate.branch, candidate.seq))
                leaf = Leaf(candidate.key >> 32, candidate.key & 0xFFFFFFFF)
                location = HitLocation(
                    *(candidate.session_id, candidate.title, candidate.relation, leaf.branch, leaf.seq),
                    *(candidate.turn or 0, candidate.at, ranges_contain(paths[number], leaf)),
                )
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
        leaf = Leaf(location.branch, location.seq)
        payload = None if candidate.body is None else decode_or_none(kind, candidate.body)
        if payload is None:
            if self.index_is_exact:  # it could be decoded when it was indexed
                why = f"entry {leaf} cannot be decoded; session.verify() reports details"
                raise StoreDamaged(location.session_id, why)
            return None
        names = self.index.call_names(self.reader, leaf) if role == "tool" else {}
        if not self.index_is_exact:
            columns = entry_columns(payload, kind, role, candidate.model, candidate.finish, names)
            if not matches(terms, columns):
                return None
        return entry_hit(location, terms, payload, tool_names(payload, names))
