"""Group commit: concurrent writers share one transaction and one sync.

Each writer queues a ticket and tries to take the lead. The leader runs every queued ticket; the others sleep until
theirs is done, or until the lead is free and they have waited longest. Each is woken on its own: if they slept on the
lock, it would pass through all of them before the next one could lead. A writer that finds the lead free, no ticket
queued and no companion writes directly.

Writers that came together once come together again: those that shared a transaction, or queued during one, are companions
in the next. A writer that finds fewer tickets than companions sleeps until the last of them comes. That one leads at once
and finds all others asleep, so none of its statements loses the interpreter to a thread that encodes, and one sync serves
all. No writer waits longer for the next companion than the last transaction took, and one that is alone never waits.

Safe against an interrupt between any two steps. The lead is a plain lock that only `with` statements take: the interpreter
lets no interrupt in between taking such a lock and entering the block, nor between leaving the block and releasing it, as
it does around `acquire()` and around an `__enter__` written in Python. A wake-up may be lost to an interrupt, so a writer
looks again after a while; one whose leader vanished with its ticket fails.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from time import perf_counter
from typing import Generic, TypeVar

from oakleaf.errors import StoreError

T = TypeVar("T")
R = TypeVar("R")
RECHECK_SECONDS = 0.5
MAX_PAUSE_SECONDS = 0.005
"""The longest wait for a companion, however slow the disk is."""
INTERRUPTED = "the writer ahead was interrupted, perhaps after it had written this; look, then try again"


class Ticket(Generic[T, R]):
    __slots__ = ("_asleep", "error", "is_done", "result", "work")

    def __init__(self, work: T) -> None:
        self.work = work
        self.result: R | None = None
        self.error: BaseException | None = None
        self.is_done = False
        self._asleep = Lock()
        self._asleep.acquire()

    def wait(self, seconds: float = RECHECK_SECONDS) -> None:
        self._asleep.acquire(timeout=seconds)

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._asleep.release()

    def succeed(self, result: R) -> None:
        self.result, self.is_done = result, True
        self.wake()

    def fail(self, error: BaseException) -> None:
        self.error, self.is_done = error, True
        self.wake()


class Group(Generic[T, R]):
    def __init__(
        self,
        run_batch: Callable[[Sequence[Ticket[T, R]]], None],
        max_batch: int = 256,
        run_alone: Callable[[T], R] | None = None,
    ) -> None:
        self._run_batch = run_batch
        self._run_alone = run_alone
        self._max_batch = max_batch
        self._waiting: deque[Ticket[T, R]] = deque()
        self._companions = 1
        """How many writers the next transaction is expected to have."""
        self._pause = 0.0
        """How long to wait for one of them: as long as the last transaction took."""
        self.lead = Lock()
        """The right to write, for one thread at a time; call `wake_next` after releasing it."""

    def wake_next(self) -> None:
        """Wake the thread that has waited longest. A ticket queued before the lead was released is seen here; one
        queued after that finds the lead free."""
        if self._waiting:
            with contextlib.suppress(IndexError):  # it was emptied just now
                self._waiting[0].wake()

    def submit(self, work: T) -> R:
        if self._run_alone is not None and self._is_alone() and not self.lead.locked():
            try:
                with self.lead:
                    if not self._waiting:
                        began = perf_counter()
                        result = self._run_alone(work)
                        if self._waiting:
                            self._expect(1, began)
                        return result
            finally:
                self.wake_next()
        return self.wait_for(Ticket(work))

    def _is_alone(self) -> bool:
        return self._companions == 1 and not self._waiting

    def wait_for(self, ticket: Ticket[T, R]) -> R:
        """Queue a ticket and return its result once this thread or another has run it."""
        try:
            self._waiting.append(ticket)
            self._run_until_done(ticket)
        except BaseException:  # Ctrl-C: work that has not begun is withdrawn, and the next thread leads
            with contextlib.suppress(ValueError):
                self._waiting.remove(ticket)
            self.wake_next()
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]  # a ticket without an error has a result

    def _run_until_done(self, ticket: Ticket[T, R]) -> None:
        queued = 0
        while not ticket.is_done:
            if self.lead.locked():
                ticket.wait()
                continue
            # The first time, or another one has come meanwhile.
            if queued < len(self._waiting) < self._companions:
                queued = len(self._waiting)
                ticket.wait(self._pause if self._is_oldest(ticket) else RECHECK_SECONDS)
                continue
            try:
                with self.lead:
                    if not ticket.is_done:
                        self._lead(ticket)
            finally:
                self.wake_next()

    def _is_oldest(self, ticket: Ticket[T, R]) -> bool:
        with contextlib.suppress(IndexError):  # it was emptied just now
            return self._waiting[0] is ticket
        return False

    def _lead(self, own: Ticket[T, R]) -> None:
        batch: list[Ticket[T, R]] = []
        with contextlib.suppress(IndexError):  # another thread may withdraw its ticket meanwhile
            while len(batch) < self._max_batch:
                batch.append(self._waiting.popleft())
        if own not in batch and own not in self._waiting:
            own.fail(StoreError(INTERRUPTED))  # an earlier leader took it and was interrupted twice
        began = perf_counter()
        try:
            self._run_batch(batch)
            self._expect(len(batch), began)
        except Exception as error:  # noqa: BLE001 - passed on to every waiting writer
            for ticket in batch:
                if not ticket.is_done:
                    ticket.fail(error)
        except BaseException as error:  # Ctrl-C: the leader stops, so no thread may wait for it
            for ticket in batch:
                if not ticket.is_done:
                    ticket.fail(error if ticket is own else StoreError(INTERRUPTED))
            raise

    def _expect(self, writers: int, began: float) -> None:
        self._companions = min(writers + len(self._waiting), self._max_batch)
        self._pause = min(perf_counter() - began, MAX_PAUSE_SECONDS)
