"""The demo's shop: a tool that looks and a tool that pays. The bank's book is a file, a refund a line in it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import oakleaf
from oakleaf import Happened, NeverHappened, ToolContext

BOOK = Path(__file__).with_name("bank.txt")


def book() -> list[str]:
    return BOOK.read_text().splitlines() if BOOK.exists() else []


def was_refunded(order: int, ctx: ToolContext) -> Happened | NeverHappened:
    """After a crash: ask the bank about the payment with the key."""
    paid = any(line.startswith(ctx.key) for line in book())
    return Happened({"order": order, "refunded": True}) if paid else NeverHappened()


def would_refund(order: int) -> dict[str, object]:
    """A dry run's text instead of paying."""
    return {"order": order, "would refund": 25}


@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, object]:
    """Look an order up."""
    return {"order": order, "status": "lost by the carrier", "paid": 25}


@oakleaf.tool(effect="unsafe", verify=was_refunded, dry_run=would_refund)
def refund(order: int, ctx: ToolContext) -> dict[str, object]:
    """Give the money back."""
    with BOOK.open("a") as bank:
        bank.write(f"{ctx.key} order {order}: 25\n")
    if os.environ.get("DIE_INSIDE_REFUND"):
        os.kill(os.getpid(), signal.SIGKILL)  # the money is on its way, and nobody was told
    return {"order": order, "refunded": True}
