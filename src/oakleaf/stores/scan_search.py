"""Search without an index: read every entry, with the same words as the indexes of other stores, so it finds the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from oakleaf.core.drafts import NewEntry
from oakleaf.core.messages import Message
from oakleaf.core.search import TITLE, Search, index_columns, matches
from oakleaf.core.search_text import is_error, searchable_text, tool_names
from oakleaf.core.tree import Leaf, Range, lineage, reachable_seqs
from oakleaf.stores.search import HitLocation, SearchHit, SearchPage, entry_hit, ranges_contain, title_hit

if TYPE_CHECKING:
    from oakleaf.stores.base import StoreBackend
    from oakleaf.stores.values import SessionRow


def scan_search(store: StoreBackend, rows: Iterable[SessionRow], search: Search) -> SearchPage:
    """Return a page of matches among the sessions: all of the store, or the session named by the search."""
    before = None if search.before is None else int(search.before)
    trees = [SessionTree(store, row) for row in rows]
    places = (
        _all_places(trees) if search.session_id is None else [(trees[0], leaf) for leaf in trees[0].places()]
    )
    hits: list[SearchHit] = []
    for tree, leaf in sorted(places, key=lambda place: place[1], reverse=True):
        if (before is None or _packed(leaf) < before) and _selects(search, tree, leaf):
            hits += tree.hits(leaf, search)
        if len(hits) > search.limit:
            return SearchPage(hits[:-1], str(_packed(Leaf(hits[-2].branch, hits[-2].seq))))
    return SearchPage(hits)


def _packed(leaf: Leaf) -> int:
    return leaf.branch << 32 | leaf.seq


def _all_places(trees: Sequence[SessionTree]) -> Iterator[tuple[SessionTree, Leaf]]:
    """Yield every title and entry once: under the owner or, for a purged session, under the oldest heir."""
    listed: set[Leaf] = set()
    for tree in sorted(trees, key=lambda tree: tree.first_branch):
        for leaf in tree.places():
            if tree.branches[leaf.branch].session_id in (None, tree.row.session_id) and leaf not in listed:
                listed.add(leaf)
                yield tree, leaf


def _selects(search: Search, tree: SessionTree, leaf: Leaf) -> bool:
    row = tree.row
    name, value = search.tag or (None, None)
    has_tag = name is None or (name in row.tags and value in (None, row.tags[name]))
    is_replay = row.relation == "replay" and tree.branches[leaf.branch].session_id == row.session_id
    return (
        has_tag
        and search.agent in (None, row.agent)
        and search.trashed == (row.trashed_at is not None)
        and search.replays in (None, is_replay)
    )


class SessionTree:
    """A session with all own and inherited entries."""

    def __init__(self, store: StoreBackend, row: SessionRow) -> None:
        self.store, self.row = store, row
        self.branches = {branch.branch: branch for branch in store.branches(row.session_id)}
        own = [branch for branch in self.branches.values() if branch.session_id == row.session_id]
        self.first_branch = min((branch.branch for branch in own), default=0)
        self.last_seqs = reachable_seqs(self.branches, [Leaf(branch.branch, branch.tail) for branch in own])

    def places(self) -> Iterator[Leaf]:
        if self.row.title is not None:
            yield Leaf(self.first_branch, 0)
        for branch, last in self.last_seqs.items():
            for seq in range(self.branches[branch].parent_seq + 1, last + 1):
                yield Leaf(branch, seq)

    @cached_property
    def entries(self) -> dict[Leaf, NewEntry]:
        parts = (Range(branch, 1, last) for branch, last in self.last_seqs.items())
        stored = (one for part in parts for one in self.store.entries(self.row.session_id, part))
        return {Leaf(one.branch, one.entry.seq): one.entry for one in stored}

    def hits(self, leaf: Leaf, search: Search) -> Iterator[SearchHit]:
        """Yield the match at a place, if any."""
        row = self.row
        entry = None if leaf.seq == 0 else self.entries[leaf].to_entry(leaf.branch)
        at = row.started_at if entry is None else entry.at
        if (search.since is not None and at < search.since) or (
            search.until is not None and at >= search.until
        ):
            return
        is_on_path = ranges_contain(lineage(self.branches, row.leaf), leaf)
        turn = 0 if entry is None else entry.turn
        location = HitLocation(
            row.session_id, row.title, row.relation, leaf.branch, leaf.seq, turn, at, is_on_path
        )
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
        for part in reversed(lineage(self.branches, Leaf(leaf.branch, leaf.seq - 1))):
            for seq in range(part.last, part.first - 1, -1):
                before = self.entries[Leaf(part.branch, seq)]
                if before.role == "assistant":
                    answer = before.to_entry(part.branch).payload
                    return (
                        {call.id: call.name for call in answer.calls} if isinstance(answer, Message) else {}
                    )
        return {}
