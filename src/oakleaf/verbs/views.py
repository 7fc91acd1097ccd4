"""What results say of sessions: the shapes that JSON, OpenAPI and MCP share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from oakleaf.core.usage import Totals
from oakleaf.errors import plural
from oakleaf.ext import earlier_data, read_store, store_of
from oakleaf.session import Session
from oakleaf.stores.base import SessionRow, Status
from oakleaf.verbs.call_text import earlier_text
from oakleaf.verbs.screen import Screen

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


def row_view(row: SessionRow, heading: str) -> SessionView:
    data: dict[str, Any] = msgspec.to_builtins(row)
    return msgspec.convert({"id": data.pop("session_id"), "heading": heading, **data}, SessionView)


def session_view(session: Session) -> SessionView:
    row = session.row
    return row_view(row, read_store(store_of(session)).heading(row))


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
    calls = session.left_behind(COUNTED + 1)
    return [EarlierView(text=earlier_text(call), **earlier_data(call)) for call in calls]


def left_behind_lines(calls: Sequence[EarlierView], screen: Screen) -> Iterator[str]:
    """Yield which unsafe calls are not on a path any more; nothing if there are none."""
    if not calls:
        return
    count = f"{COUNTED} calls and more" if len(calls) > COUNTED else plural(len(calls), "call")
    yield f"left behind, and not undone: {count} of unsafe tools. The same call waits for approval here."
    yield from (f"  {screen.fit(call.text, 2)}" for call in calls[:SHOWN])
    yield from ["  …"] * (len(calls) > SHOWN)
