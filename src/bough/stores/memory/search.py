"""Searching, in memory: every entry is looked at. The same words, so the same hits as any other store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from threading import RLock

from msgspec import Struct

from ...core.drafts import NewEntry
from ...core.entries import Entry
from ...core.messages import Message
from ...core.search import TITLE, Search, index_columns, matches
from ...core.search_text import is_error, searchable_text, tool_names
from ...core.tree import Branch, Leaf, lineage, reachable_seqs
from ...errors import NotFound
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
from .session_data import SessionData


class MemorySearching(StoreBackend):
    """The two verbs of searching."""

    _lock: RLock
    _sessions: dict[str, SessionData]
    _branches: dict[int, Branch]
    _entries: dict[tuple[int, int], NewEntry]

    def index(self, progress: IndexProgress | None = None) -> int:
        """Nothing to do: a search looks at everything."""
        return 0

    def search(self, search: Search) -> SearchPage:
        with self._lock:
            return Scene(self._sessions, self._branches, self._entries, self.space, self.owner).find(search)


class Scene(Struct, frozen=True):
    """All there is to look through, and for whom."""

    sessions: Mapping[str, SessionData]
    branches: Mapping[int, Branch]
    entries: Mapping[tuple[int, int], NewEntry]
    space: str
    owner: str | None

    def find(self, search: Search) -> SearchPage:
        below = None if search.before is None else int(search.before)
        found: list[SearchHit] = []
        for kept, place in sorted(self._places(search.session_id), key=lambda pair: pair[1], reverse=True):
            packed = place.branch << 32 | place.seq
            if (below is None or packed < below) and self._is_meant(kept, search):
                found += self._hit(kept, place, search)
        page = found[: search.limit]
        more = str(page[-1].branch << 32 | page[-1].seq) if len(found) > search.limit else None
        return SearchPage(page, more)

    def _is_meant(self, kept: SessionData, search: Search) -> bool:
        row = kept.row
        if row.space != self.space or self.owner not in (None, row.owner):
            return False
        if search.tag is not None and (
            search.tag[0] not in row.tags or search.tag[1] not in (None, row.tags[search.tag[0]])
        ):
            return False
        return search.agent in (None, row.agent) and search.trashed == (row.trashed_at is not None)

    def _places(self, session_id: str | None) -> Iterator[tuple[SessionData, Leaf]]:
        """Every title and entry, with the session it is found under: the one named, or the one that owns it."""
        if session_id is not None:
            kept = self.sessions.get(session_id)
            if kept is None or kept.row.space != self.space or self.owner not in (None, kept.row.owner):
                raise NotFound(session_id)
            yield from self._below(kept, self._own(kept))
            return
        seen: set[Leaf] = set()
        living = sorted(self.sessions.values(), key=lambda kept: kept.no)
        # First what each owns, then, oldest first, what it stands on and nobody owns any more.
        for kept in living:
            for pair in self._below(kept, self._own(kept)):
                owner = self.branches[pair[1].branch].session_id
                if pair[1] not in seen and (owner == kept.row.session_id or owner not in self.sessions):
                    seen.add(pair[1])
                    yield pair

    def _own(self, kept: SessionData) -> list[Branch]:
        return [b for b in self.branches.values() if b.session_id == kept.row.session_id]

    def _below(self, kept: SessionData, own: Iterable[Branch]) -> Iterator[tuple[SessionData, Leaf]]:
        mine = {branch.branch for branch in own}
        others = {number: branch for number, branch in self.branches.items() if number not in mine}
        feet = [Leaf(self.branches[n].parent or 0, self.branches[n].parent_seq) for n in mine]
        ends = reachable_seqs(others, feet)
        if kept.row.title is not None:
            yield kept, Leaf(min(mine), 0)
        for branch, seq in self.entries:
            if branch in mine or seq <= ends.get(branch, 0):
                yield kept, Leaf(branch, seq)

    def _hit(self, kept: SessionData, leaf: Leaf, search: Search) -> Iterator[SearchHit]:
        row = kept.row
        entry = None if leaf.seq == 0 else self.entries[leaf.branch, leaf.seq].to_entry(leaf.branch)
        at = row.started_at if entry is None else entry.at
        if at < (search.since if search.since is not None else at) or at >= (
            search.until if search.until is not None else at + 1
        ):
            return
        is_on_path = ranges_contain(lineage(self.branches, row.leaf), leaf)
        place = HitLocation(row.session_id, row.title, leaf, at, is_on_path)
        if entry is None:
            if matches(search.terms, index_columns(row.title or "", kind=TITLE)):
                yield title_hit(place, search.terms)
            return
        tools = tool_names(entry.payload, self._asked(leaf))
        held = index_columns(
            searchable_text(entry.payload),
            kind=entry.kind,
            role=entry.role,
            tools=tools,
            model=entry.model,
            error=is_error(entry.payload, entry.finish),
        )
        if matches(search.terms, held):
            yield entry_hit(place, search.terms, entry.payload, tools)

    def _asked(self, leaf: Leaf) -> dict[str, str]:
        """Names by id of the calls of the last answer before a place."""
        for part in reversed(lineage(self.branches, Leaf(leaf.branch, leaf.seq - 1))):
            for seq in range(part.last, part.first - 1, -1):
                entry: Entry = self.entries[part.branch, seq].to_entry(part.branch)
                if isinstance(entry.payload, Message) and entry.role == "assistant":
                    return {call.id: call.name for call in entry.payload.calls}
        return {}
