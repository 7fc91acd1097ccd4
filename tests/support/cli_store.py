"""A small sample store for the tests of the commands."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import oakleaf
from oakleaf import ScriptedModel, Store, ToolCall, assistant, system


@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, object]:
    """Look an order up."""
    return {"order": order, "status": "lost"}


@oakleaf.tool
def refund(order: int) -> str:
    """Give the money back."""
    return f"refunded {order}"


def answers() -> ScriptedModel:
    """Answer two turns: one with two tool calls, one with text only."""
    lines = [
        assistant("Let me look.", ToolCall("c1", "look_up", {"order": 41})),
        assistant("I refund it.", ToolCall("c2", "refund", {"order": 41})),
        "Order 41 was lost; I have refunded it.",
        "You are welcome.",
        "Anything else?",
        "Good bye.",
    ]
    return ScriptedModel(
        lambda request: lines[sum(message.role == "assistant" for message in request.messages)]
    )


def write_store(path: Path) -> Path:
    """Write a store of three sessions: a support case of two turns, a fork of it, and an empty one."""
    path.touch(0o600)
    path.write_bytes(_store_bytes())
    return path


@cache
def _store_bytes() -> bytes:
    """Build the store once per test process; a closed store is one file that can be copied."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        _fill(path)
        return path.read_bytes()


def _fill(path: Path) -> None:
    with oakleaf.open(path) as store:
        fill(store)


def fill(store: Store) -> None:
    case = store.start(
        "support",
        [system("You help customers.")],
        session_id="ses_case",
        title="Order 41",
        tags={"team": "blue"},
    )
    case.send_sync("Where is order 41?", model=answers(), tools=[look_up, refund])
    case.send_sync("Thank you!", model=answers(), tools=[look_up, refund])
    case.fork(at=8, title="Another try")
    store.start("other", session_id="ses_other")
