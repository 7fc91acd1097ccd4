"""A support agent with an unsafe refund, killed with kill -9 inside the refund.

No key, no network: the model is scripted and the bank is a file. The processes, the SIGKILL and the SQLite file are real,
and so is the result: one refund, not two.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import oakleaf
from oakleaf import (
    Happened,
    NeverHappened,
    ScriptedModel,
    ToolCall,
    ToolContext,
    assistant,
    draw_tree,
    system,
)


class Bank:
    """Record payments by their key, as a real bank does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pay(self, key: str) -> None:
        with self.path.open("a") as book:
            book.write(f"{key}\n")

    def payments(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


def tools(bank: Bank, *, dies: bool) -> list[oakleaf.Tool]:
    def was_refunded(order: int, ctx: ToolContext) -> Happened | NeverHappened:
        """Ask the bank whether the payment happened."""
        return Happened({"order": order, "refunded": True}) if ctx.key in bank.payments() else NeverHappened()

    @oakleaf.tool(effect="read")
    def look_up(order: int) -> dict[str, object]:
        """Look up an order."""
        return {"order": order, "status": "lost", "paid": 25}

    @oakleaf.tool(effect="unsafe", verify=was_refunded)
    def refund(order: int, ctx: ToolContext) -> dict[str, object]:
        """Give the money back."""
        bank.pay(ctx.key)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)  # the payment was made, and its result is lost
        return {"order": order, "refunded": True}

    return [look_up, refund]


def model() -> ScriptedModel:
    """Return the scripted answers in order, by the number of answers so far."""
    lines = [
        assistant("Let me look.", ToolCall("c1", "look_up", {"order": 41})),
        assistant("It is lost. I refund it.", ToolCall("c2", "refund", {"order": 41})),
        assistant("Your order was lost. I have refunded it."),
    ]

    return ScriptedModel(
        lambda request: lines[sum(message.role == "assistant" for message in request.messages)]
    )


def first_process(folder: Path) -> None:
    with oakleaf.open(folder / "agent.db") as store:
        session = store.start("support", [system("You help customers.")], session_id="ses_support")
        session.send_sync("Where is order 41?", model=model(), tools=tools(Bank(folder / "bank"), dies=True))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = subprocess.run([sys.executable, __file__, name], check=False)
        print(f"the first process was killed by {signal.Signals(-process.returncode).name} inside refund()")
        bank = Bank(folder / "bank")
        with oakleaf.open(folder / "agent.db") as store:
            session = store.session("ses_support")
            print(draw_tree(session, width=90))
            print(
                f"waiting for: {[call.call.name for call in session.open_tool_calls]}; payments: {len(bank.payments())}"
            )
            session.resume_sync(model=model(), tools=tools(bank, dies=False))
            print("\na second process asked the bank and continued:")
            print(draw_tree(session, width=90))
            print(f"payments: {len(bank.payments())}; problems found by verify: {len(session.verify())}")
            assert len(bank.payments()) == 1


if __name__ == "__main__":
    first_process(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
