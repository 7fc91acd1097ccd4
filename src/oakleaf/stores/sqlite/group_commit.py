"""Group commit: concurrent writers share one transaction and one sync.

Each writer queues a ticket and takes the lead if the lead is free. The leader runs all queued tickets. Every other writer
sleeps until its ticket is done, or until the lead is free and its ticket is the oldest. Each is woken on its own: writers
asleep on the lead's lock would all have to pass the lock before the next leader.

Safe against an interrupt between any two steps. The lead is a plain lock that only `with` statements take: the interpreter
lets no interrupt in between taking such a lock and entering the block, nor between leaving the block and releasing it, as
it does around `acquire()` and around an `__enter__` written in Python. A wake-up may be lost to an interrupt, so a writer
looks again after a while; a writer whose leader vanished with the ticket fails.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from oakleaf.errors import StoreError

RECHECK_SECONDS = 0.5
INTERRUPTED = "the writer ahead was interrupted, perhaps after it had written this; look, then try again"


class Ticket:
    """The work of a writer, and the outcome."""

    __slots__ = ("_asleep", "error", "is_done", "result", "work")

    def __init__(self, work: Any) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self._asleep = Lock()
        self._asleep.acquire()

    def sleep(self) -> None:
        self._asleep.acquire(timeout=RECHECK_SECONDS)

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._asleep.release()

    def succeed(self, result: Any) -> None:
        self.result, self.is_done = result, True
        self.wake()

    def fail(self, error: BaseException) -> None:
        self.error, self.is_done = error, True
        self.wake()


class Group:
    def __init__(self, run_batch: Callable[[Sequence[Ticket]], None]) -> None:
        self._run_batch = run_batch
        self._waiting: deque[Ticket] = deque()
        self.lead = Lock()
        """The right to write, for one thread at a time; call `wake_next` after releasing it."""

    def wake_next(self) -> None:
        """Wake the thread with the longest wait. A ticket queued before the release of the lead is seen here; a later
        ticket finds the lead free."""
        with contextlib.suppress(IndexError):  # nobody waits
            self._waiting[0].wake()

    def submit(self, work: Any) -> Any:
        """Return the result of the work, run by the calling thread or another."""
        ticket = Ticket(work)
        try:
            self._waiting.append(ticket)
            while not ticket.is_done:
                if self.lead.locked():
                    ticket.sleep()
                    continue
                with self.lead:
                    if not ticket.is_done:
                        self._lead(ticket)
        except BaseException:  # Ctrl-C: work that has not begun is withdrawn
            with contextlib.suppress(ValueError):
                self._waiting.remove(ticket)
            raise
        finally:
            self.wake_next()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def _lead(self, own: Ticket) -> None:
        batch: list[Ticket] = []
        with contextlib.suppress(IndexError):  # all are taken
            while True:
                batch.append(self._waiting.popleft())
        if own not in batch:
            own.fail(StoreError(INTERRUPTED))  # an earlier leader took it and was interrupted twice
        try:
            self._run_batch(batch)
        except BaseException as error:  # also Ctrl-C: this thread stops, so none may wait for it
            for ticket in batch:
                if ticket is not own and not ticket.is_done:
                    ticket.fail(error if isinstance(error, Exception) else StoreError(INTERRUPTED))
            raise
