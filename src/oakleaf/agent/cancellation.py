"""Requests to cancel a turn of another handle, thread or process.

A request is a fact in the journal, so it reaches the runner wherever it is and survives it: a runner polls for it, and
one that takes the turn later reads it first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oakleaf.core.facts import CancelRequested, Enqueued, StoredFact, TurnEnded, TurnLeft, TurnStarted
from oakleaf.log.log import Log
from oakleaf.stores.base import SessionRow
from oakleaf.stores.tasks import TASK_HOLDER


def is_cancel_requested(facts: Iterable[StoredFact], turn: int) -> bool:
    """Return whether the newest request cancels the turn, with no start or enqueuing since.

    The facts come newest first, and are read only as far as that needs.
    """
    for stored in facts:
        match stored.fact:
            case CancelRequested(turn=requested) if requested == turn:
                return True
            case Enqueued() | TurnStarted():
                return False
    return False


def is_run_by_task(log: Log, row: SessionRow) -> bool:
    """Whether a worker's task runs the open turn, or will: enqueued since the start, or left waiting with a
    queue.

    Tasks are not imported with their session.
    """
    if (row.holder or "").startswith(TASK_HOLDER):
        return True
    for stored in log.facts_backwards(row.imported_facts):
        match stored.fact:
            case Enqueued() | TurnLeft(queue=str()):
                return True
            case TurnStarted() | TurnEnded():
                return False
            case TurnLeft(status=status) if status != "waiting":
                return False
    return False


def cancel_check(log: Log, after: int, cancel: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls `cancel` on a new request about the open turn. Each call reads the facts
    that are new in the journal, at first those after number `after`; the newest request among them counts."""

    def check() -> None:
        nonlocal after
        facts = log.store.journal(log.session_id, after)
        after += len(facts)
        requests = [fact for stored in facts if isinstance(fact := stored.fact, CancelRequested)]
        if requests and requests[-1].turn == log.cursor.turn:
            cancel()

    return check
