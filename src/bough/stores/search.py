"""What a search finds: a place in a session, a line of its text, and where in that line the words stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from ..core.entries import Payload, kind_of
from ..core.messages import Message
from ..core.search import TITLE, Term, excerpt
from ..core.search_text import searchable_text
from ..core.tree import Leaf, Range

IndexProgress = Callable[[int, int], None]
"""Told after each batch: how many entries were indexed so far, and how many sessions are left."""


class SearchHit(Struct, frozen=True, kw_only=True):
    """An entry, or a title, in which something was found."""

    session_id: str
    """Whose entry it is; what forks share is found once, as its owner's."""
    branch: int
    seq: int
    """0: the session's title."""
    role: str | None
    kind: str
    tool: str | None
    """The tools it calls, or whose result it is."""
    at: int
    title: str | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
    """Begin and end, in the snippet, of what was looked for."""
    on_path: bool
    """Whether it stands on the session's present path, or on a branch that was left."""

    def highlight(self, before: str = "[", after: str = "]") -> str:
        """The snippet with something around each mark. For HTML escape the pieces between the marks yourself."""
        pieces, end = [], 0
        for begin, stop in self.marks:
            pieces += [self.snippet[end:begin], before, self.snippet[begin:stop], after]
            end = stop
        return "".join([*pieces, self.snippet[end:]])


class SearchPage(Struct, frozen=True):
    """Some hits of a search, and where to read on."""

    hits: list[SearchHit]
    """The branch begun last first, and within a branch the latest entry first; no clock orders them."""
    next: str | None = None
    """Hand it in as `before` to read on; None: this was the last page."""
    unindexed_sessions: int = 0
    """Sessions with text that is not indexed yet, so that hits may be missing."""


class HitLocation(Struct, frozen=True):
    """Where something was found, and in what."""

    session_id: str
    title: str | None
    leaf: Leaf
    at: int
    is_on_path: bool


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
        session_id=place.session_id,
        branch=place.leaf.branch,
        seq=place.leaf.seq,
        role=role,
        kind=kind,
        tool=", ".join(tools) or None,
        at=place.at,
        title=place.title,
        snippet=snippet,
        marks=marks,
        on_path=place.is_on_path,
    )


def ranges_contain(ranges: Sequence[Range], place: Leaf) -> bool:
    """Whether the place lies in these ranges; a title lies on every path."""
    return place.seq == 0 or any(
        part.branch == place.branch and part.first <= place.seq <= part.last for part in ranges
    )
