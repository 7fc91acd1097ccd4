"""Connections kept for whoever asks next: never more than there may be, and the one used last is lent first.

Its server process has the plans and pages at hand; two used in turns cost each other theirs. Has no thread of its own
and prints nothing: whoever finds none idle opens one and, while the server is away, tries until the patience ends.
Does not know what is said on a connection.

An interrupt may come between any two steps. So locks are plain ones, which `with` takes and lets go of in one step
each (a `Condition` does not: interrupted there, it stays locked for ever), and how many are open is no count that
somebody must not forget to lower: it is how many places are still held.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from threading import Lock
from weakref import ref

import psycopg
from msgspec import Struct
from psycopg.pq import TransactionStatus

from ...errors import BoughError, ServerUnreachable, StoreClosed, StoreError
from .url import Address

IDLE_SECONDS = 600.0
LIFETIME_SECONDS = 3_600.0
"""A server process grows with what it has seen, and one behind a name that moved is the wrong one."""
PAUSE_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""After which whoever waits looks without being called: who was called before may have been interrupted."""
STATEMENTS = 400
"""Prepared statements kept per connection; a change has dozens of shapes."""
IDLE = int(TransactionStatus.IDLE)


class Place:
    """The right to one connection. Nobody's any more, however that came, it is free."""

    __slots__ = ("__weakref__",)


class PooledConnection(Struct, eq=False):
    """A connection of the pool's, its place, and since when it is there and unused."""

    connection: psycopg.Connection
    place: Place
    born: float
    since: float = 0.0


class Pool:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[PooledConnection] = []
        self._places: list[ref[Place]] = []
        self._bells: deque[Lock] = deque()
        self._is_closed = False
        self._lock = Lock()

    @contextlib.contextmanager
    def connection(self, patience: float) -> Iterator[psycopg.Connection]:
        """One of them, given back at the end."""
        kept = self.take(patience)
        try:
            yield kept.connection
        except (psycopg.Error, BoughError):
            raise
        except BaseException:
            # An interrupt, or what a signal's handler raises: nobody knows what the server has heard and prepared.
            kept.connection.close()
            raise
        finally:
            self.give_back(kept)

    def take(self, patience: float) -> PooledConnection:
        deadline = time.monotonic() + patience
        while True:
            bell = Lock()
            bell.acquire()
            found = self._free(bell)
            if isinstance(found, PooledConnection):
                return found
            if isinstance(found, Place):
                return self._opened(found, deadline)
            self._wait(bell, min(LOOK_SECONDS, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{self._address.safe_url}: all {self._address.connections} connections of this process were in use "
                    f"for {patience:.0f} s; do less at once, or have more with ?connections=N"
                )

    def _free(self, bell: Lock) -> PooledConnection | Place | None:
        """An idle one, or a place for another; while there is neither, None, and the bell is rung when there is."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed(self._address.safe_url)
            if self._idle:
                return self._idle.pop()
            self._let_go()
            if len(self._places) < self._address.connections:
                return self._placed()
            self._bells.append(bell)
            return None

    def _wait(self, bell: Lock, seconds: float) -> None:
        try:
            bell.acquire(timeout=max(0.0, seconds))
        finally:
            with self._lock:
                if bell in self._bells:
                    self._bells.remove(bell)

    def _placed(self) -> Place:
        place = Place()
        self._places.append(ref(place))
        return place

    def _let_go(self, *gone: Place) -> None:
        """Of these, and of those that nobody has any more; one who waits looks again."""
        self._places = [held for held in self._places if (place := held()) is not None and place not in gone]
        if gone:
            self._ring()

    def _ring(self) -> None:
        if self._bells:
            self._bells.popleft().release()

    def _opened(self, place: Place, deadline: float) -> PooledConnection:
        try:
            while True:
                try:
                    return _kept(self._address.connect(), place)
                except ServerUnreachable:
                    if time.monotonic() > deadline or self._is_closed:
                        raise
                    time.sleep(PAUSE_SECONDS)
        except BaseException:
            with self._lock:
                self._let_go(place)
            raise

    def add(self, connection: psycopg.Connection) -> None:
        """One that somebody else has opened: the pool's from now on."""
        with self._lock:
            place = self._placed()
        self.give_back(_kept(connection, place))

    def give_back(self, kept: PooledConnection) -> None:
        """Closed if it broke, is in the middle of something or has been there for long."""
        now = kept.since = time.monotonic()
        is_over = kept.connection.pgconn.transaction_status != IDLE or now - kept.born > LIFETIME_SECONDS
        with self._lock:
            if not is_over and not self._is_closed:
                self._idle.append(kept)
                self._ring()
                is_spare = now - self._idle[0].since > IDLE_SECONDS
                if not is_spare:
                    return
                kept = self._idle.pop(0)  # one at a time: who gives back does not wait for many to close
        self._close([kept])

    def drop_idle(self) -> None:
        """One broke, so the others may have: opened anew they are sound, and that takes but milliseconds."""
        with self._lock:
            dropped, self._idle = self._idle, []
        self._close(dropped)

    def close(self) -> None:
        """What is lent is closed when it comes back."""
        self._is_closed = True
        self.drop_idle()
        with self._lock:
            while self._bells:
                self._ring()

    def _close(self, over: list[PooledConnection]) -> None:
        for kept in over:
            kept.connection.close()
            with self._lock:
                self._let_go(kept.place)


def _kept(connection: psycopg.Connection, place: Place) -> PooledConnection:
    connection.prepared_max = STATEMENTS
    return PooledConnection(connection, place, time.monotonic())
