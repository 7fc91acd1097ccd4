"""A short recorded session with tools, for the tests of what is made of recordings."""

from __future__ import annotations

import oakleaf
from oakleaf import ScriptedModel, Session, ToolCall, assistant
from oakleaf.store import Store


@oakleaf.tool(effect="read")
def lookup(order: int, note: str | None = None) -> str:
    """Look up an order."""
    return f"order {order} is lost"


@oakleaf.tool
def refund(order: int, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


def record_refund(store: Store, secret: str = "") -> Session:
    """Record two turns: a question with a lookup (entries 2 to 5 after the prompt) and a refund."""
    model = ScriptedModel(
        [
            assistant(ToolCall("c1", "lookup", {"order": 41, "note": None})),
            f"Order 41 is lost, I'm sorry. {secret}".strip(),
            assistant(ToolCall("c2", "refund", {"order": 41, "amount": 12.5})),
            "Refunded order 41.",
        ]
    )
    session = store.start("support", [oakleaf.system("You are kind.")])
    for text in ("Where is order 41?", "Then refund it, please"):
        session.send_sync(text, model=model, tools=[lookup, refund])
    return session
