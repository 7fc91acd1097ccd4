"""Search in memory: looks at every entry, with the same words as the indexes of other stores, so it finds the same."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from oakleaf.core.entries import Entry
from oakleaf.core.messages import Message
from oakleaf.core.search import TITLE, Search, index_columns, matches
from oakleaf.core.search_text import is_error, searchable_text, tool_names
from oakleaf.core.tree import Leaf, lineage, reachable_seqs
from oakleaf.stores.memory.tables import SessionData, Tables
from oakleaf.stores.search import HitLocation, SearchHit, SearchPage, entry_hit, ranges_contain, title_hit


class MemorySearch(Struct, frozen=True):
    tables: Tables
    space: str
    owner: str | None

    def page(self, search: Search) -> SearchPage:
        before = None if search.before is None else int(search.before)
        hits: list[SearchHit] = []
        for data, leaf in sorted(self._places(search.session_id), key=lambda pair: pair[1], reverse=True):
            packed = leaf.branch << 32 | leaf.seq
            if (before is None or packed < before) and self._matches_session(data, search):
                hits += self._hit(data, leaf, search)
        page = hits[: search.limit]
        more = str(page[-1].branch << 32 | page[-1].seq) if len(hits) > search.limit else None
        return SearchPage(page, more)

    def _matches_session(self, data: SessionData, search: Search) -> bool:
        row = data.row
        if row.space != self.space or self.owner not in (None, row.owner):
            return False
        if search.tag is not None and (
            search.tag[0] not in row.tags or search.tag[1] not in (None, row.tags[search.tag[0]])
        ):
            return False
        return search.agent in (None, row.agent) and search.trashed == (row.trashed_at is not None)

    def _places(self, session_id: str | None) -> Iterator[tuple[SessionData, Leaf]]:
        """Yield every title and entry with the session it is listed under: the one searched, or its owner."""
        sessions = self.tables.sessions
        if session_id is not None:
            yield from self._session_places(self.tables.find(session_id, self.space, self.owner))
            return
        listed: set[Leaf] = set()
        # Each session lists what it owns; the oldest heir also lists what a purged session left behind.
        for data in sorted(sessions.values(), key=lambda data: data.number):
            for pair in self._session_places(data):
                owner = self.tables.branches[pair[1].branch].session_id
                if pair[1] not in listed and (owner == data.row.session_id or owner not in sessions):
                    listed.add(pair[1])
                    yield pair

    def _session_places(self, data: SessionData) -> Iterator[tuple[SessionData, Leaf]]:
        branches = self.tables.branches
        own = {n for n, branch in branches.items() if branch.session_id == data.row.session_id}
        others = {number: branch for number, branch in branches.items() if number not in own}
        fork_points = [Leaf(branches[n].parent or 0, branches[n].parent_seq) for n in own]
        last_seqs = reachable_seqs(others, fork_points)
        if data.row.title is not None:
            yield data, Leaf(min(own), 0)
        for branch, seq in self.tables.entries:
            if branch in own or seq <= last_seqs.get(branch, 0):
                yield data, Leaf(branch, seq)

    def _hit(self, data: SessionData, leaf: Leaf, search: Search) -> Iterator[SearchHit]:
        row = data.row
        entry = None if leaf.seq == 0 else self.tables.entries[leaf.branch, leaf.seq].to_entry(leaf.branch)
        at = row.started_at if entry is None else entry.at
        if (search.since is not None and at < search.since) or (
            search.until is not None and at >= search.until
        ):
            return
        is_on_path = ranges_contain(lineage(self.tables.branches, row.leaf), leaf)
        turn = 0 if entry is None else entry.turn
        location = HitLocation(row.session_id, row.title, leaf.branch, leaf.seq, turn, at, is_on_path)
        if entry is None:
            if matches(search.terms, index_columns(row.title or "", kind=TITLE)):
                yield title_hit(location, search.terms)
            return
        tools = tool_names(entry.payload, self._call_names(leaf))
        columns = index_columns(
            searchable_text(entry.payload),
            kind=entry.kind,
            role=entry.role,
            tools=tools,
            model=entry.model,
            error=is_error(entry.payload, entry.finish),
        )
        if matches(search.terms, columns):
            yield entry_hit(location, search.terms, entry.payload, tools)

    def _call_names(self, leaf: Leaf) -> dict[str, str]:
        """Return the names, by id, of the calls of the last answer before an entry."""
        for part in reversed(lineage(self.tables.branches, Leaf(leaf.branch, leaf.seq - 1))):
            for seq in range(part.last, part.first - 1, -1):
                entry: Entry = self.tables.entries[part.branch, seq].to_entry(part.branch)
                if isinstance(entry.payload, Message) and entry.role == "assistant":
                    return {call.id: call.name for call in entry.payload.calls}
        return {}
