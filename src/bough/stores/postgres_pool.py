"""Connections kept for whoever asks next: never more than there may be, and the one used last is lent first.

Its server process has the plans and pages at hand; two used in turns cost each other theirs. Has no thread of its own
and prints nothing: whoever finds none idle opens one and, while the server is away, tries until the patience ends.
Does not know what is said on a connection.
"""

from __future__ import annotations

import time
from threading import Condition

import psycopg
from msgspec import Struct
from psycopg.pq import TransactionStatus

from ..errors import NoServer, StoreClosed
from .postgres_url import Address

IDLE_SECONDS = 600.0
LIFETIME_SECONDS = 3_600.0
"""A server process grows with what it has seen, and one behind a name that moved is the wrong one."""
PAUSE_SECONDS = 0.1
STATEMENTS = 400
"""Prepared statements kept per connection; a change has dozens of shapes."""
IDLE = int(TransactionStatus.IDLE)


class Kept(Struct, eq=False):
    """A connection of the pool's, and since when it is there and unused."""

    connection: psycopg.Connection
    born: float
    since: float = 0.0


class Pool:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Kept] = []
        self._open = 0
        self._is_closed = False
        self._changed = Condition()

    def take(self, patience: float) -> Kept:
        deadline = time.monotonic() + patience
        with self._changed:
            while not self._idle and self._open >= self._address.connections and not self._is_closed:
                if not self._changed.wait(deadline - time.monotonic()):
                    why = f"all {self._open} connections of this process were in use for {patience:.0f} s"
                    raise NoServer(self._address.where, f"{why} (more with ?connections=N)")
            if self._is_closed:
                raise StoreClosed(self._address.where)
            if self._idle:
                return self._idle.pop()
            self._open += 1
        try:
            return self._opened(deadline)
        except BaseException:
            self._one_less()
            raise

    def _opened(self, deadline: float) -> Kept:
        while True:
            try:
                return _kept(self._address.connect())
            except NoServer:
                if time.monotonic() > deadline or self._is_closed:
                    raise
                time.sleep(PAUSE_SECONDS)

    def keep(self, connection: psycopg.Connection) -> None:
        """One that somebody else has opened: the pool's from now on."""
        with self._changed:
            self._open += 1
        self.give_back(_kept(connection))

    def give_back(self, kept: Kept) -> None:
        """Closed if it broke, is in the middle of something or has been there for long."""
        now = kept.since = time.monotonic()
        is_over = kept.connection.pgconn.transaction_status != IDLE or now - kept.born > LIFETIME_SECONDS
        with self._changed:
            if not is_over and not self._is_closed:
                self._idle.append(kept)
                self._changed.notify()
                is_spare = now - self._idle[0].since > IDLE_SECONDS
                if not is_spare:
                    return
                kept = self._idle.pop(0)  # one at a time: who gives back does not wait for many to close
        kept.connection.close()
        self._one_less()

    def drop_idle(self) -> None:
        """One broke, so the others may have: opened anew they are sound, and that takes but milliseconds."""
        with self._changed:
            dropped, self._idle = self._idle, []
            self._open -= len(dropped)
            self._changed.notify_all()
        for kept in dropped:
            kept.connection.close()

    def close(self) -> None:
        """What is lent is closed when it comes back."""
        self._is_closed = True
        self.drop_idle()

    def _one_less(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()


def _kept(connection: psycopg.Connection) -> Kept:
    connection.prepared_max = STATEMENTS
    return Kept(connection, time.monotonic())
