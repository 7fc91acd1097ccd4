"""Draw a session's tree: tree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from msgspec import Struct

from oakleaf.core.tree import Branch
from oakleaf.errors import InvalidArgument, shorten
from oakleaf.ext import read
from oakleaf.stores.base import SessionQuery
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Count, Help, Ref
from oakleaf.verbs.screen import Line, Screen, Table, columns, fit_line, safe, style
from oakleaf.verbs.views import LeafPosition, SessionView, next_page, row_view, status_text

MAX_TEXT = 200
"""Characters of a line's text."""


class TreeRow(Struct, frozen=True, kw_only=True):
    """A line of the drawing: an entry, or the heading of a branch."""

    text: str
    position: LeafPosition | None
    """The entry; null for the heading of a branch."""
    is_leaf: bool = False
    label: str | None = None


class Drawn(Struct, frozen=True, kw_only=True):
    session: str
    leaf: LeafPosition
    branches: list[Branch]
    tree: list[TreeRow]
    next: str | None
    """The `page` that goes on; null on the last page."""
    related: list[SessionView]
    """The session's forks, tasks and replays; on the last page."""


class Tree(Verb, frozen=True):
    """Draw a session's tree of branches.

    Other branches are drawn next to the path, under their number; ⚑ marks a label. The session's forks and tasks are
    listed below.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    examples = ("oakleaf tree latest",)

    session: Ref = "latest"
    limit: Annotated[Count | None, Help("Draw at most N lines.", remote=True)] = None
    page: Annotated[str | None, Help("Go on after a page before.", remote=True)] = None

    def run(self, caller: Caller) -> Drawn:
        session = caller.position(self.session).session_at()
        reader, first = read(session), self._first
        end = None if (limit := self.limit or caller.most) is None else first + limit
        found = list(islice(reader.tree_lines(), first, None if end is None else end + 1))
        is_last = end is None or len(found) <= end - first
        children = SessionQuery(parent_session=session.session_id)
        related = list(islice(reader.store.all_sessions(children), caller.most)) if is_last else []
        names = reader.store.headings(related)
        return Drawn(
            session=session.session_id,
            leaf=LeafPosition(session.leaf.branch, session.leaf.seq),
            branches=session.branches(),
            tree=[
                TreeRow(
                    text=shorten(line.text, MAX_TEXT),
                    position=None if line.leaf is None else LeafPosition(line.leaf.branch, line.leaf.seq),
                    is_leaf=line.is_leaf,
                    label=line.label,
                )
                for line in found[: None if end is None else end - first]
            ],
            next=None if is_last else str(end),
            related=[row_view(reader.store.current(row), names[row.session_id]) for row in related],
        )

    @property
    def _first(self) -> int:
        page = self.page or "0"
        if not (page.isascii() and page.isdecimal() and len(page) < 10):
            raise InvalidArgument("page", self.page, "the `next` of the page before")
        return int(page)

    def lines(self, result: Drawn, screen: Screen) -> Iterator[Line]:
        yield from (_line(row, screen) for row in result.tree)
        if result.related:
            rows: list[tuple[str, ...]] = [
                (f"{one.relation} at {one.parent_seq}", one.id, status_text(one.status), safe(one.heading))
                for one in result.related
            ]
            yield ""
            yield Table(("RELATION", "SESSION", "STATUS", "TITLE"), rows, drop_first=("STATUS",))

    def notes(self, result: Drawn, screen: Screen) -> Iterator[str]:
        yield from next_page(self, result.next)


def _line(row: TreeRow, screen: Screen) -> str:
    """Return a line whose label and mark are never cut."""
    label = f"  ⚑ {safe(row.label)}" if row.label else ""
    mark = "   ◀ leaf" if row.is_leaf and row.position else ""
    text = row.text
    if screen.width is not None:
        text = fit_line(text, max(screen.width - columns(label + mark), screen.width // 2))
    text = style(text, "bold") if row.is_leaf else text if row.position else style(text, "dim")
    return f"{text}{style(label, 'yellow')}{style(mark, 'green')}"
