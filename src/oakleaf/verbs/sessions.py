"""List sessions and spaces: ls, spaces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from oakleaf.core.usage import Totals, add, format_cost
from oakleaf.errors import InvalidArgument, InvalidReference, NotFound, plural
from oakleaf.ext import read_store
from oakleaf.store import Store
from oakleaf.stores.base import SessionQuery
from oakleaf.stores.filters import SessionSearch, parse_sessions
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import AllSpaces, Help, Words
from oakleaf.verbs.screen import Line, Screen, Table, clip, safe
from oakleaf.verbs.views import (
    SHORT_ID,
    SessionView,
    heading_text,
    in_space,
    next_page,
    page_errors,
    row_view,
    status_text,
)

_HEAD = ("SESSION", "ACTIVE", "STATUS", "TURNS", "COST", "MODEL", "TITLE")
_NONE = "no sessions match"
_NAMED = 5
"""How many other spaces an empty list names."""


class SessionList(Struct, frozen=True, kw_only=True):
    sessions: list[SessionView]
    next: str | None
    """The `page` that goes on; null on the last page, and in a list of all spaces."""
    space: str | UnsetType | None = UNSET
    """The space of the sessions; null: all spaces. A client is not told."""
    is_cut: bool = False
    """Whether there are more sessions than a list of all spaces has."""
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
    all_spaces: AllSpaces = False

    def run(self, caller: Caller) -> SessionList:
        store = caller.store
        search = parse_sessions(self.query, read_store(store).now())
        if self.all_spaces:
            return self._find_everywhere(caller, search)
        found = self.find(store, self._with_parent(caller, search))
        if found.sessions:
            return found
        explanation = _explanation(store, search, is_last=found.next is None)
        return replace(found, explanation=explanation + _elsewhere(caller.other_spaces()))

    def _find_everywhere(self, caller: Caller, search: SessionSearch) -> SessionList:
        """Return the sessions of all spaces that were active last. The spaces have no common order to page through."""
        if self.page is not None or search.query.parent_session is not None:
            raise InvalidArgument("all_spaces", True, "neither a page nor parent: beside it")
        lists = [self.find(one, search) for one in caller.stores(all_spaces=True)]
        views = sorted((view for one in lists for view in one.sessions), key=_activity, reverse=True)
        is_cut = len(views) > self.limit or any(one.next is not None for one in lists)
        explanation = None if views else f"{_NONE} in any space"
        return SessionList(
            sessions=views[: self.limit], next=None, space=None, is_cut=is_cut, explanation=explanation
        )

    def find(self, store: Store, search: SessionSearch) -> SessionList:
        """Return a page of the sessions that a query names."""
        with page_errors(self.page):
            query = replace(search.query, limit=self.limit, before=self.page)
        page = read_store(store).find_sessions(replace(search, query=query))
        names = store.headings(page.sessions)
        views = [
            row_view(row, names[row.session_id], active_at=page.active_at[row.session_id]) for row in page
        ]
        return SessionList(sessions=views, next=page.next, space=read_store(store).space)

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
            head: tuple[str, ...] = _HEAD
            rows: list[tuple[str, ...]] = [_row(view, screen) for view in result.sessions]
            if result.space is None:
                head = ("SPACE", *head)
                rows = [(safe(view.space or ""), *_row(view, screen)) for view in result.sessions]
            hidden = ("MODEL", "TURNS", "COST", "ACTIVE", "STATUS")
            yield Table(head, rows, drop_first=hidden, right=("TURNS", "COST"))

    def notes(self, result: SessionList, screen: Screen) -> Iterator[str]:
        if result.explanation is not None:
            yield result.explanation
        elif isinstance(result.space, str):
            yield from in_space(result.space)
        if result.is_cut:
            yield f"there are more than {self.limit:,}; a larger --limit shows them"
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


def _activity(view: SessionView) -> int:
    return view.active_at or 0


def _elsewhere(spaces: list[str]) -> str:
    """Return which other spaces have sessions, in words."""
    if not spaces:
        return ""
    more = f" and {len(spaces) - _NAMED:,} more" if len(spaces) > _NAMED else ""
    names = ", ".join(map(safe, spaces[:_NAMED]))
    return f"; there are sessions in {names}{more}: oakleaf --space NAME ls, or oakleaf spaces"


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


# -- spaces ------------------------------------------------------------------------------------------------


class SpaceView(Struct, frozen=True, kw_only=True):
    """What a space has."""

    space: str
    sessions: int
    """With tasks and replays."""
    trashed: int
    active_at: int | None
    """When one of them was active last."""
    totals: Totals
    """Of all calls without those of replays, also of the trash."""


class SpaceList(Struct, frozen=True):
    spaces: list[SpaceView]


class Spaces(Verb, frozen=True):
    """List the spaces of the store: sessions, last activity and cost of each.

    For the operator of the store: on PostgreSQL a role to which row level security does not apply. --all-spaces of ls,
    usage and doctor shows the sessions of all of them.
    """

    section = "Look"
    callers = frozenset({"operator"})

    def run(self, caller: Caller) -> SpaceList:
        return SpaceList([_space_view(store) for store in caller.stores(all_spaces=True)])

    def lines(self, result: SpaceList, screen: Screen) -> Iterator[Line]:
        rows = [_space_row(view, screen) for view in result.spaces]
        if rows:
            yield Table(
                ("SPACE", "SESSIONS", "ACTIVE", "CALLS", "COST"), rows, right=("SESSIONS", "CALLS", "COST")
            )

    def notes(self, result: SpaceList, screen: Screen) -> Iterator[str]:
        yield plural(len(result.spaces), "space")


def _space_view(store: Store) -> SpaceView:
    reader = read_store(store)
    sessions, trashed = (
        sum(reader.count_all(SessionQuery(trashed=is_trash), "status").values()) for is_trash in (False, True)
    )
    newest = store.sessions(limit=1)
    return SpaceView(
        space=reader.space,
        sessions=sessions,
        trashed=trashed,
        active_at=next(iter(newest.active_at.values()), None),
        totals=reduce(add, store.usage().live.values(), Totals()),
    )


def _space_row(view: SpaceView, screen: Screen) -> tuple[str, ...]:
    return (
        safe(view.space),
        f"{view.sessions:,}",
        "" if view.active_at is None else screen.time(view.active_at),
        f"{view.totals.calls:,}",
        format_cost(view.totals),
    )
