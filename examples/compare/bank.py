"""The bank of all three agents: a file with one line for each refund. The first process dies inside the refund."""

from __future__ import annotations

import os
import signal
from pathlib import Path

QUESTION = "Order 41 is lost. Refund it."


def refund(folder: Path, order: int, key: str = "") -> str:
    """Pay the money back; then die, if this process is to die: the payment was made, and its result is lost."""
    with (folder / "payments").open("a") as book:
        book.write(f"order {order} {key}\n")
    if os.environ.get("DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"order {order} is refunded"


def payments(folder: Path) -> list[str]:
    book = folder / "payments"
    return book.read_text().splitlines() if book.exists() else []
