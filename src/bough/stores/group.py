"""Group commit: writers that come at the same moment share one transaction and one sync.

Each writer leaves a ticket and asks for the lock. Who gets it carries out every ticket that lies there;
the others find theirs done when the lock reaches them. A writer that finds the lock free and nobody waiting
takes the direct way, with nothing between it and the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from ..errors import StoreError

T = TypeVar("T")
R = TypeVar("R")


class Ticket(Generic[T, R]):
    __slots__ = ("asked", "error", "is_done", "outcome")

    def __init__(self, asked: T) -> None:
        self.asked = asked
        self.outcome: R | None = None
        self.error: BaseException | None = None
        self.is_done = False

    def done(self, outcome: R) -> None:
        self.outcome, self.is_done = outcome, True

    def failed(self, error: BaseException) -> None:
        self.error, self.is_done = error, True


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
        self.lock = Lock()

    def submit(self, asked: T) -> R:
        if self._alone is not None and self.lock.acquire(blocking=False):
            try:
                if not self._waiting:
                    return self._alone(asked)
            finally:
                self.lock.release()
        ticket: Ticket[T, R] = Ticket(asked)
        self._waiting.append(ticket)
        while not ticket.is_done:
            with self.lock:
                if not ticket.is_done:
                    self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error
        return ticket.outcome  # type: ignore[return-value]  # a ticket without error has its outcome

    def _lead(self, own: Ticket[T, R]) -> None:
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
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
