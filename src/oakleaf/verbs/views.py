"""What results say of sessions: the shapes that JSON, OpenAPI and MCP share."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Totals
from oakleaf.errors import InvalidArgument, plural
from oakleaf.ext import EarlierCall, earlier_data, read_store, store_of
from oakleaf.session import Session
from oakleaf.stores.base import SessionRow, Status
from oakleaf.verbs.base import Verb
from oakleaf.verbs.call_text import earlier_text
from oakleaf.verbs.fields import fields
from oakleaf.verbs.screen import Screen, safe, style

COUNTED, SHOWN = 50, 5
"""How many calls that a path left behind are counted, and how many are shown."""


class LeafPosition(Struct, frozen=True):
    """A position in a session's tree."""

    branch: int
    seq: int


class SessionView(Struct, frozen=True, kw_only=True):
    """A session. Times are microseconds since 1970, UTC."""

    id: str
    heading: str
    title: str | None
    agent: str | None
    status: Status
    turns: int
    started_at: int
    updated_at: int
    facts: int
    active_at: int | UnsetType = UNSET
    """When the session's path last grew: a title or tag given later does not count. A list says it."""
    space: str | UnsetType = UNSET
    owner: str | UnsetType | None = UNSET
    conversation_id: str | UnsetType = UNSET
    relation: Literal["fork", "task", "replay", "import"] | UnsetType | None = UNSET
    parent_session: str | UnsetType | None = UNSET
    parent_seq: int | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    tool_names: list[str] | UnsetType = UNSET
    leaf: LeafPosition | UnsetType = UNSET
    totals: Totals | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET
    completed_at: int | UnsetType | None = UNSET
    trashed_at: int | UnsetType | None = UNSET
    error: str | UnsetType | None = UNSET


_to_view = converter(SessionView)


def row_view(row: SessionRow, heading: str, **more: int) -> SessionView:
    data: dict[str, Any] = msgspec.to_builtins(row)
    return _to_view({"id": data.pop("session_id"), "heading": heading, **data, **more})


def session_view(session: Session) -> SessionView:
    row = session.row
    return row_view(row, read_store(store_of(session)).heading(row))


SHORT_ID = 16
"""The length of an id in lists: enough for an imported session, whose id begins with the tool's name."""
_MARKS = {"fork": "⑂ fork of {}", "task": "↳ task of {}", "replay": "↻ replay of {}", "import": "⇣ imported"}
_COLOURS = {
    "running": "green",
    "waiting": "cyan",
    "failed": "red",
    "interrupted": "yellow",
    "cancelled": "yellow",
}


def status_text(status: Status) -> str:
    return style(status, *([_COLOURS[status]] if status in _COLOURS else []))


def heading_text(view: SessionView) -> str:
    """Return what a session is called, and how it was made if it is not one of its own."""
    relation = _MARKS[view.relation].format((view.parent_session or "")[:SHORT_ID]) if view.relation else ""
    if view.relation == "import" and view.tags and (tool := view.tags.get("imported_from")):
        relation = f"⇣ {tool}"
    name = "" if view.heading == view.id else view.heading
    return " ".join(filter(None, [safe(name), f"({safe(relation)})" if relation else ""]))


def in_space(space: str | None) -> Iterator[str]:
    """Yield the note that a result is of another space than that of most stores, or of all."""
    if space != "default":
        yield "of all spaces" if space is None else f"in the space {safe(space)}"


class NamedTotals(Struct, frozen=True):
    """Sums of model calls under a name, such as a day or a model."""

    name: str
    totals: Totals


class EarlierView(Struct, frozen=True, kw_only=True):
    """A call of an unsafe tool that is not on the path any more, and took effect, or may have. Nothing undoes it."""

    text: str
    """The call and its outcome, in one line."""
    session: str
    seq: int
    index: int
    entry: str
    name: str
    arguments: Any
    at: int
    content: list[dict[str, Any]]
    error: bool
    outcome: str


def left_behind(session: Session) -> list[EarlierView]:
    """Return the calls that the session's path left behind, the newest first, at most one more than COUNTED."""
    return [earlier_view(call) for call in session.left_behind(COUNTED + 1)]


def earlier_view(call: EarlierCall) -> EarlierView:
    return EarlierView(text=earlier_text(call), **earlier_data(call))


def left_behind_lines(calls: Sequence[EarlierView], screen: Screen) -> Iterator[str]:
    """Yield which unsafe calls are not on a path any more; nothing if there are none."""
    if not calls:
        return
    count = f"{COUNTED} calls and more" if len(calls) > COUNTED else plural(len(calls), "call")
    yield f"left behind, and not undone: {count} of unsafe tools. The same call waits for approval here."
    yield from (f"  {screen.fit(call.text, 2)}" for call in calls[:SHOWN])
    yield from ["  …"] * (len(calls) > SHOWN)


# -- pages ---------------------------------------------------------------------------------------------------


@contextmanager
def page_errors(page: str | None) -> Iterator[None]:
    """Call a wrong place to go on from by the name of the field, `page`."""
    try:
        yield
    except InvalidArgument as error:
        if error.name != "before":
            raise
        raise InvalidArgument("page", page, "the `next` of the page before") from None


def next_page(verb: Verb, following: str | None) -> Iterator[str]:
    """Yield the command for the next page, if there is one."""
    if following is not None:
        words = ["oakleaf", verb.name, "--page", following, *_typed(verb)]
        yield f"more: {shlex.join(words)}"


def _typed(verb: Verb) -> Iterator[str]:
    """Yield a verb's fields as they are typed, arguments last."""
    values = {field: getattr(verb, field.attribute) for field in fields(type(verb)).values()}
    given = {field: value for field, value in values.items() if value not in (field.default, None)}
    for field, value in given.items():
        if field.kind == "value" and field.name != "page":
            yield from (f"--{field.name}", str(value))
    for field, value in given.items():
        if field.kind in ("reference", "words"):
            yield value
