"""Requests to cancel a turn that another handle, thread or process runs.

A request is a fact in the journal, so it reaches the runner wherever it is and survives it: a runner polls for it, and
one that takes the turn later reads it first.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..log.log import Log
from ..stores.base import Fact

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


class CancelPoll:
    """Reads the facts that are new in a session's journal, to find a request to cancel its open turn."""

    def __init__(self, log: Log, after: int) -> None:
        self._log, self._after = log, after

    def is_requested(self) -> bool:
        facts = self._log.store.journal(self._log.session_id, self._after)
        self._after += len(facts)
        requests = [fact for fact in facts if fact.kind == CANCEL_REQUESTED]
        return bool(requests) and requests[-1].data.get("turn") == self._log.cursor.turn
