"""A desk with tools for orders, and models that call them."""

from __future__ import annotations

from typing import Any

import oakleaf
from oakleaf import Session, ToolCall, ToolContext, assistant
from oakleaf.wire import PROVIDERS, find_provider


class Desk:
    """Tools with a memory of what they did."""

    def __init__(self) -> None:
        self.did: list[tuple[str, Any]] = []
        self.keys: list[str] = []

    def tools(self, **how: Any) -> list[oakleaf.Tool]:
        @oakleaf.tool(effect="read")
        def look(order: int, ctx: ToolContext) -> dict[str, int]:
            """Look an order up."""
            self.did.append(("look", order))
            self.keys.append(ctx.key)
            ctx.update(seen=order)
            return {"order": order}

        @oakleaf.tool(effect="unsafe", **how)
        def refund(order: int) -> str:
            """Give the money back."""
            self.did.append(("refund", order))
            return "refunded"

        @oakleaf.tool(effect="idempotent")
        async def tag(order: int, ctx: ToolContext) -> str:
            """Tag an order."""
            self.did.append(("tag", order))
            self.keys.append(ctx.key)
            return "tagged"

        return [look, refund, tag]


def ask(*calls: tuple[str, int]) -> Any:
    """Return an answer that calls these tools, each for an order."""
    return assistant(
        "Let me see.", *(ToolCall(f"c{n}", name, {"order": order}) for n, (name, order) in enumerate(calls))
    )


def is_valid(session: Session) -> bool:
    """Whether the session verifies and every provider would accept its request."""
    assert session.verify() == []
    requests = {name: session.request(name) for name in PROVIDERS}
    return all(find_provider(name).violations(request) == [] for name, request in requests.items())
