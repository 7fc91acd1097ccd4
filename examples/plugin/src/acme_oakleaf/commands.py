"""`headlines`, a verb: a command, a route with its description, and a tool over MCP, declared once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Struct

from oakleaf.verbs import Caller, Count, Help, Screen, Verb


class Headline(Struct):
    session: str
    words: str


class Headed(Struct):
    """What `headlines` returns on every surface."""

    headlines: list[Headline]


class Headlines(Verb, frozen=True):
    """Print the first words of the latest sessions."""

    section = "Look"
    effect = "read"
    callers = frozenset({"operator", "service", "agent"})
    examples = ("oakleaf headlines --limit 3",)

    limit: Annotated[Count, Help("How many sessions.")] = 10
    order: Annotated[Literal["active", "created"], Help("By which time they are the latest.")] = "active"

    def run(self, caller: Caller) -> Headed:
        rows = caller.store.sessions(limit=self.limit, order=self.order).sessions
        return Headed([Headline(*named) for named in caller.store.headings(rows).items()])

    def lines(self, result: Headed, screen: Screen) -> Iterator[str]:
        for one in result.headlines:
            yield f"{one.session}  {screen.fit(one.words, len(one.session) + 2)}"
