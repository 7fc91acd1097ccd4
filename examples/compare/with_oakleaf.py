"""The agent on Oakleaf: a session in a SQLite file, resumed by the same lines."""

from __future__ import annotations

import sys
from pathlib import Path

from bank import QUESTION, payments, refund

import oakleaf
from oakleaf import Happened, NeverHappened, ScriptedModel, ToolCall, ToolContext, assistant

FOLDER = Path(sys.argv[1])


def was_paid(order: int, ctx: ToolContext) -> Happened | NeverHappened:
    """Look into the bank's book. Without this function the model is told that the outcome is unknown."""
    is_paid = any(ctx.key in line for line in payments(FOLDER))
    return Happened(f"order {order} is refunded") if is_paid else NeverHappened()


@oakleaf.tool(effect="unsafe", verify=was_paid)
def refund_order(order: int, ctx: ToolContext) -> str:
    """Give the money back."""
    return refund(FOLDER, order, ctx.key)


def answer(request: oakleaf.Request) -> oakleaf.Message:
    if request.messages[-1].role == "tool":
        return assistant("Order 41 is refunded.")
    return assistant(ToolCall("call_1", "refund_order", {"order": 41}))


with oakleaf.open(FOLDER / "agent.db") as store:
    session = store.latest_or_start("case-41")
    model = ScriptedModel(answer)
    if session.row.turns:
        result = session.resume_sync(model=model, tools=[refund_order])
    else:
        result = session.send_sync(QUESTION, model=model, tools=[refund_order])
    print(result.text)
