"""The bank and its tool. The bank is a file with one line for each payment, and pays a second time if asked a second time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import oakleaf
from oakleaf import Happened, NeverHappened, ToolContext

BOOK = Path(os.environ.get("BANK", "payments"))
SECONDS = float(os.environ.get("BANK_SECONDS", "0"))


def was_paid(order: int, ctx: ToolContext) -> Happened | NeverHappened:
    """Look into the bank's book, after a process has died inside a refund."""
    is_paid = BOOK.exists() and ctx.key in BOOK.read_text()
    return Happened(f"order {order} is refunded") if is_paid else NeverHappened()


@oakleaf.tool(effect="unsafe", approval=True, verify=was_paid)
def refund(order: int, ctx: ToolContext) -> str:
    """Give the money back."""
    time.sleep(SECONDS)
    with BOOK.open("a") as book:
        book.write(f"order {order} {ctx.key}\n")
    time.sleep(SECONDS)
    return f"order {order} is refunded"
