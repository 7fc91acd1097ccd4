"""Requests to cancel a turn that another handle, thread or process runs.

A request is a fact in the journal, so it reaches the runner wherever it is and survives it: a runner polls for it, and
one that takes the turn later reads it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oakleaf.log.log import Log
from oakleaf.stores.base import Fact, SessionRow

CANCEL_REQUESTED = "cancel_requested"


def is_cancel_requested(facts: Iterable[Fact], turn: int) -> bool:
    """Return whether cancelling this turn was requested, and it was not started or enqueued again since.

    The facts come newest first, and are read only as far as that needs.
    """
    for fact in facts:
        if fact.kind == CANCEL_REQUESTED and fact.data.get("turn") == turn:
            return True
        if fact.kind in ("enqueued", "turn_started"):
            return False
    return False


def is_run_by_task(log: Log, row: SessionRow) -> bool:
    """Whether a worker's task runs the open turn, or will: it was enqueued since it started, or it waits as one.

    Tasks are not imported with their session.
    """
    if (row.holder or "").startswith("absurd:"):
        return True
    for fact in log.facts_backwards(row.imported_facts):
        if fact.kind == "enqueued" or (fact.kind == "waiting" and "queue" in fact.data):
            return True
        if fact.kind in ("turn_started", "turn_ended"):
            return False
    return False


def cancel_check(log: Log, after: int, cancel: Callable[[], object]) -> Callable[[], None]:
    """Return a function that reads the facts that are new in the journal, at first those after number `after`, and calls
    `cancel` if the newest request among them is about the open turn."""

    def check() -> None:
        nonlocal after
        facts = log.store.journal(log.session_id, after)
        after += len(facts)
        requests = [fact for fact in facts if fact.kind == CANCEL_REQUESTED]
        if requests and requests[-1].data.get("turn") == log.cursor.turn:
            cancel()

    return check
