"""The open turn of a session as the work of a task: run under a policy, left as failed, or given up.

A worker that has claimed the task drives the turn with these verbs. Does not know tasks, queues or claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from oakleaf.agent.call_status import read_call_status
from oakleaf.agent.cancellation import is_cancel_requested
from oakleaf.agent.events import StopRun
from oakleaf.agent.loop import build_loop
from oakleaf.agent.policy import RunPolicy
from oakleaf.agent.tools.tool import Tool
from oakleaf.agent.writer import Writer
from oakleaf.core.facts import CancelRequested, Signal, StoredFact, TurnLeft
from oakleaf.errors import OakleafError, TaskTrashed
from oakleaf.log.lease import require_free
from oakleaf.log.log import Log
from oakleaf.stores.base import SessionRow, StoreBackend


class Wait(Struct, frozen=True):
    """A turn in wait for a person."""

    signals: int
    """How many signals the session has had."""
    is_cancelled: bool
    """Whether a signal cancels the turn: then the turn is run again, and closes."""


class OpenTurn:
    """The open turn of a session, and the inputs queued behind the turn."""

    def __init__(self, log: Log, row: SessionRow) -> None:
        """`row` is the session's row, read with the leaf of the log."""
        self._log, self.session_id = log, log.session_id
        self.facts_read = row.facts
        """How many facts of the journal were looked at for requests to cancel."""

    @property
    def is_open(self) -> bool:
        return bool(self._log.cursor.turn)

    @property
    def leaf_seq(self) -> int:
        return self._log.leaf.seq

    def refresh(self) -> SessionRow:
        """Go to the session's leaf, and return the row."""
        return self._log.refresh()

    def require_free(self) -> None:
        """Raise SessionRunning if a run holds the session."""
        require_free(self._log.refresh(), self._log.runtime)

    def has_work(self) -> bool:
        """Return whether the turn is open, or an input is queued."""
        return self.is_open or bool(self._log.store.inbox(self.session_id, 1))

    async def run(self, policy: RunPolicy) -> bool:
        """Run the turn and the queued inputs. Return whether the run stopped in favour of another process.

        The turn keeps waiting if the task that a call of it started is in the trash.
        """
        loop = build_loop(Writer(self._log, policy), policy)
        with suppress(TaskTrashed, StopRun):
            await loop.run(None)
        return loop.runner.has_stopped

    def wait(self, tools: Mapping[str, Tool]) -> Wait | None:
        """Return the wait of the turn. None: no person is asked.

        The signals are counted before the waiting calls are read: a signal that comes in between is not counted.
        """
        facts = self._log.store.journal(self.session_id)
        signals = sum(isinstance(stored.fact, Signal) for stored in facts)
        if is_cancel_requested(reversed(facts), self._log.cursor.turn):
            return Wait(signals, is_cancelled=True)
        calls = read_call_status(self._log)
        is_waiting = any(calls.is_waiting(call, tools) for call in self._log.cursor.open_calls)
        return Wait(signals, is_cancelled=False) if is_waiting else None

    def is_cancel_requested(self, store: StoreBackend) -> bool:
        """Return whether a new fact requests to cancel the turn. Reads from `store`, beside the run."""
        facts: list[StoredFact] = store.journal(self.session_id, self.facts_read)
        self.facts_read += len(facts)
        return any(isinstance(stored.fact, CancelRequested) for stored in facts) and is_cancel_requested(
            reversed(facts), self._log.cursor.turn
        )

    def fail(self, error: OakleafError) -> None:
        """Leave the turn as failed; a repeated call records nothing more."""
        row = self._log.refresh()
        if (row.status, row.error) != ("failed", str(error)):
            left = TurnLeft(self._log.cursor.turn, "failed", str(error))
            self._log.record(left, row={"status": "failed", "error": str(error)})

    def give_up(self, error: OakleafError) -> None:
        """Leave the turn as failed for good: a runner still at work writes nothing more."""
        row = self._log.refresh()
        require_free(row, self._log.runtime)
        failed = {"status": "failed", "error": str(error)}
        free = {"holder": None, "lease_until": None, "fence": row.fence + 1}
        left = TurnLeft(self._log.cursor.turn, "failed", str(error))
        self._log.record(left, row=failed | free, fence=row.fence)
