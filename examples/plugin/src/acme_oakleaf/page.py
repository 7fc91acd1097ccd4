"""A page of the viewer: a wall with the latest sessions."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

from msgspec import Meta, Struct

from oakleaf import Store
from oakleaf.core.pages import Page


class Wall(Struct):
    """What hangs on the wall."""

    headings: list[str]


def wall(store: Store, limit: Annotated[int, Meta(ge=1, le=100)] = 20) -> Wall:
    """List what the latest sessions are called."""
    return Wall(list(store.headings(store.sessions(limit=limit, order="active").sessions).values()))


page = Page(
    title="Wall",
    folder=files("acme_oakleaf").joinpath("viewer"),
    module="wall.js",
    styles=("wall.css",),
    routes={"": wall},
)
