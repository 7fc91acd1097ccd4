"""Group commit: writers that come at the same moment share one transaction and one sync.

Each writer leaves a ticket and asks for the lead. Who gets it carries out every ticket that lies there; the
others sleep until theirs is done, or until the lead is free and they have waited longest. Each is woken by
itself: were they to sleep on the lock, it would pass through all of their hands before the next one could
lead. A writer that finds the lead free and nobody waiting takes the direct way, with nothing between it and
the disk.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from ...errors import StoreError

T = TypeVar("T")
R = TypeVar("R")


class Ticket(Generic[T, R]):
    __slots__ = ("_asleep", "asked", "error", "is_done", "outcome")

    def __init__(self, asked: T) -> None:
        self.asked = asked
        self.outcome: R | None = None
        self.error: BaseException | None = None
        self.is_done = False
        self._asleep = Lock()
        self._asleep.acquire()

    def wait(self) -> None:
        self._asleep.acquire()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._asleep.release()

    def done(self, outcome: R) -> None:
        self.outcome, self.is_done = outcome, True
        self.wake()

    def failed(self, error: BaseException) -> None:
        self.error, self.is_done = error, True
        self.wake()


class Lead(Generic[T, R]):
    """The right to write, one at a time. Who lets go of it wakes the one that has waited longest."""

    def __init__(self, waiting: deque[Ticket[T, R]]) -> None:
        self._waiting = waiting
        self._lock = Lock()

    def acquire(self, *, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()
        # A ticket left before the release is seen here; one left after it finds the lead free.
        if self._waiting:
            self.pass_on()

    def pass_on(self) -> None:
        with contextlib.suppress(IndexError):  # nobody waits, or somebody has just taken it up
            self._waiting[0].wake()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Group(Generic[T, R]):
    def __init__(
        self,
        carry_out: Callable[[Sequence[Ticket[T, R]]], None],
        most: int = 256,
        alone: Callable[[T], R] | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._alone = alone
        self._most = most
        self._waiting: deque[Ticket[T, R]] = deque()
        self.lead = Lead(self._waiting)

    def submit(self, asked: T) -> R:
        if self._alone is not None and self.lead.acquire(blocking=False):
            try:
                if not self._waiting:
                    return self._alone(asked)
            finally:
                self.lead.release()
        return self.wait_for(Ticket(asked))

    def wait_for(self, ticket: Ticket[T, R]) -> R:
        """Leave it with the others; back when it is done, by whomever."""
        self._waiting.append(ticket)
        try:
            self._see_done(ticket)
        except BaseException:  # Ctrl-C: what nobody has begun is not begun, and the next one leads
            with contextlib.suppress(ValueError):
                self._waiting.remove(ticket)
            self.lead.pass_on()
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.outcome  # type: ignore[return-value]  # a ticket without error has its outcome

    def _see_done(self, ticket: Ticket[T, R]) -> None:
        while not ticket.is_done:
            if not self.lead.acquire(blocking=False):
                ticket.wait()
                continue
            try:
                if not ticket.is_done:
                    self._carry_out_with(ticket)
            finally:
                self.lead.release()

    def _carry_out_with(self, own: Ticket[T, R]) -> None:
        batch: list[Ticket[T, R]] = []
        with contextlib.suppress(IndexError):  # one that leaves meanwhile makes the queue shorter than it was
            while len(batch) < self._most:
                batch.append(self._waiting.popleft())
        try:
            self._carry_out(batch)
        except Exception as error:  # noqa: BLE001 - handed on to everybody it concerns
            for ticket in batch:
                if not ticket.is_done:
                    ticket.failed(error)
        except BaseException as error:  # Ctrl-C: the leader goes, and nobody may wait for it
            for ticket in batch:
                if not ticket.is_done:
                    ticket.failed(
                        error if ticket is own else StoreError("the writer ahead was interrupted; try again")
                    )
            raise
