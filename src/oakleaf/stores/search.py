"""The results of a search: entries and titles, each with a snippet of its text and the matches within."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from oakleaf.core.entries import Payload, kind_of
from oakleaf.core.messages import Message
from oakleaf.core.search import TITLE, Term, excerpt
from oakleaf.core.search_text import searchable_text
from oakleaf.core.tree import Leaf, Range

IndexProgress = Callable[[int, int], None]
"""Called after each batch with the number of entries indexed so far and of sessions left."""


class SearchHit(Struct, frozen=True, kw_only=True):
    """A matching entry or title."""

    session_id: str
    """The owner of the entry; entries shared by forks are listed once."""
    branch: int
    seq: int
    """0 for the session's title."""
    turn: int
    """The seq of the turn's input; 0 for a title, a seed or an entry between turns."""
    role: str | None
    kind: str
    tool: str | None
    """The tools called by the entry, or behind the result."""
    at: int
    title: str | None
    relation: str | None
    """The session's relation to its parent: `replay`, `fork`, `task`, `import`, or None."""
    snippet: str
    marks: tuple[tuple[int, int], ...]
    """Start and end of each match in the snippet."""
    on_path: bool
    """Whether the match is on the session's current path, not on an abandoned branch."""

    @property
    def reference(self) -> str:
        """The argument for `oakleaf show`: the session, with the entry's seq on the current path, else with the branch."""
        if not self.seq:
            return self.session_id
        return f"{self.session_id}@{self.seq if self.on_path else Leaf(self.branch, self.seq)}"

    def highlight(self, before: str = "[", after: str = "]") -> str:
        """Return the snippet with text around each match. For HTML, escape the parts between the matches yourself."""
        pieces, end = [], 0
        for begin, stop in self.marks:
            pieces += [self.snippet[end:begin], before, self.snippet[begin:stop], after]
            end = stop
        return "".join([*pieces, self.snippet[end:]])


class SearchPage(Struct, frozen=True):
    """Some hits of a search: iterates over the hits. A page without hits is false."""

    hits: list[SearchHit]
    """The latest branch first, and within a branch the latest entry first; independent of clocks."""
    next: str | None = None
    """The `before` of the next page; None on the last page."""
    unindexed_sessions: int = 0
    """Sessions with text not indexed yet: hits may be missing."""

    def __iter__(self) -> Iterator[SearchHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


class HitLocation(Struct, frozen=True):
    """Where a match is."""

    session_id: str
    title: str | None
    relation: str | None
    branch: int
    seq: int
    turn: int
    at: int
    on_path: bool


def title_hit(place: HitLocation, terms: Sequence[Term]) -> SearchHit:
    return _hit(place, terms, place.title or "", None, TITLE, ())


def entry_hit(place: HitLocation, terms: Sequence[Term], payload: Payload, tools: Sequence[str]) -> SearchHit:
    role = payload.role if isinstance(payload, Message) else None
    return _hit(place, terms, searchable_text(payload), role, kind_of(payload), tools)


def _hit(
    place: HitLocation, terms: Sequence[Term], text: str, role: str | None, kind: str, tools: Sequence[str]
) -> SearchHit:
    snippet, marks = excerpt(text, terms)
    return SearchHit(
        **asdict(place),
        role=role,
        kind=kind,
        tool=", ".join(tools) or None,
        snippet=snippet,
        marks=marks,
    )


def ranges_contain(ranges: Sequence[Range], leaf: Leaf) -> bool:
    """Whether a position is within the ranges; a title is on every path."""
    return leaf.seq == 0 or any(
        part.branch == leaf.branch and part.first <= leaf.seq <= part.last for part in ranges
    )
