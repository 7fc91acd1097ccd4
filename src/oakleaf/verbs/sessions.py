"""List sessions: ls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from oakleaf.core.usage import Totals, format_cost
from oakleaf.errors import InvalidReference, NotFound
from oakleaf.ext import read_store
from oakleaf.store import Store
from oakleaf.stores.filters import SessionSearch, parse_sessions
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Help, Words
from oakleaf.verbs.screen import Line, Screen, Table, clip
from oakleaf.verbs.views import (
    SHORT_ID,
    SessionView,
    heading_text,
    next_page,
    page_errors,
    row_view,
    status_text,
)

_HEAD = ("SESSION", "ACTIVE", "STATUS", "TURNS", "COST", "MODEL", "TITLE")
_NONE = "no sessions match"


class SessionList(Struct, frozen=True, kw_only=True):
    sessions: list[SessionView]
    next: str | None
    """The `page` that goes on; null on the last page."""
    explanation: str | None = None
    """Why the list is empty."""


class Ls(Verb, frozen=True):
    """List sessions, last active first. A session without a title is listed by its first input.

    The query has words of the heading, and filters: status: agent: owner: model: conversation: tag:NAME=VALUE
    relation:fork (task, replay, import) parent:REFERENCE title: after:7d before:2026-11-01 (when a session started).
    is:trashed lists the trash, is:all includes tasks and replays. A session whose process was killed is listed as
    interrupted; oakleaf resume continues it.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    http = "GET /api/sessions"
    examples = (
        "oakleaf ls status:interrupted",
        "oakleaf ls agent:support tag:team=blue after:7d refund",
        "oakleaf ls parent:ses_3f --json",
    )

    query: Annotated[Words, Help("Filters, and words of the heading.", metavar="QUERY…")] = ""
    limit: Annotated[int, Help("List at most N.", short="n"), Meta(ge=1, le=100_000)] = 30
    page: Annotated[str | None, Help("Go on after a page before, as its last line says.", metavar="NEXT")] = (
        None
    )

    def run(self, caller: Caller) -> SessionList:
        store = caller.store
        search = parse_sessions(self.query, read_store(store).now())
        found = self.find(store, self._with_parent(caller, search))
        if found.sessions:
            return found
        return replace(found, explanation=_explanation(store, search, is_last=found.next is None))

    def find(self, store: Store, search: SessionSearch) -> SessionList:
        """Return a page of the sessions that a query names."""
        with page_errors(self.page):
            query = replace(search.query, limit=self.limit, before=self.page)
        page = read_store(store).find_sessions(replace(search, query=query))
        names = store.headings(page.sessions)
        views = [
            row_view(row, names[row.session_id], active_at=page.active_at[row.session_id]) for row in page
        ]
        return SessionList(sessions=views, next=page.next)

    def _with_parent(self, caller: Caller, search: SessionSearch) -> SessionSearch:
        """Return the search with the whole id of the parent. A purged parent may still have forks: its id stays."""
        reference = search.query.parent_session
        if reference is None:
            return search
        try:
            parent = caller.session(reference).session_id
        except (NotFound, InvalidReference):
            if not caller.store.sessions(parent_session=reference, limit=1):
                raise
            return search
        return replace(search, query=replace(search.query, parent_session=parent))

    def lines(self, result: SessionList, screen: Screen) -> Iterator[Line]:
        if result.sessions:
            rows = [_row(view, screen) for view in result.sessions]
            hidden = ("MODEL", "TURNS", "COST", "ACTIVE", "STATUS")
            yield Table(_HEAD, rows, drop_first=hidden, right=("TURNS", "COST"))

    def notes(self, result: SessionList, screen: Screen) -> Iterator[str]:
        if result.explanation is not None:
            yield result.explanation
        yield from next_page(self, result.next)


def _row(view: SessionView, screen: Screen) -> tuple[str, ...]:
    model = view.model or ""
    return (
        view.id[:SHORT_ID],
        screen.time(view.active_at or view.updated_at),
        status_text(view.status),
        str(view.turns),
        format_cost(view.totals or Totals()),
        model if screen.width is None else clip(model, 24),
        heading_text(view),
    )


def _explanation(store: Store, search: SessionSearch, *, is_last: bool) -> str:
    """Return why a list is empty, and in which space."""
    space = read_store(store).space
    where = "" if space == "default" else f" in the space {space}"
    if not is_last:
        return f"{_NONE}{where} among those looked at so far"
    if not store.sessions(trashed=search.query.trashed, limit=1):
        return _nothing_there(store, where, is_trash=search.query.trashed)
    is_complete = search.query.include_children or search.query.trashed
    return (
        f"{_NONE}{where}" if is_complete else f"{_NONE}{where}; oakleaf ls is:all includes tasks and replays"
    )


def _nothing_there(store: Store, where: str, *, is_trash: bool) -> str:
    if is_trash:
        return f"the trash{where} is empty"
    if store.sessions(trashed=True, limit=1):
        return f"all sessions{where} are in the trash; oakleaf ls is:trashed lists them, oakleaf restore takes one out"
    return f"there are no sessions{where} yet; oakleaf chat starts one"
