"""A bounded pool of connections that lends the one used last.

Its server process has the plans and pages at hand; two used alternately cool each other's down. The pool has no thread
and prints nothing: a caller that finds none idle opens one and, while the server is away, retries until its timeout.
Does not know what is run on a connection.

Safe against an interrupt between any two steps. So it waits on a `SimpleQueue`, whose steps are atomic (a `Condition`
interrupted at the wrong moment stays locked for ever), and counts the open connections by weak references, so one that
an interrupt made unreachable is not counted for ever.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any
from weakref import WeakSet

import psycopg
from msgspec import Struct
from psycopg.pq import TransactionStatus

from oakleaf.errors import OakleafError, ServerUnreachable, StoreClosed, StoreError
from oakleaf_postgres.store.url import Address

IDLE_SECONDS = 600.0
LIFETIME_SECONDS = 3_600.0
"""A server process grows with every plan it caches, and behind a host name that moved it is the wrong one."""
RETRY_SECONDS = 0.1
RECHECK_SECONDS = 1.0
"""A waiter looks again after this time without a signal: the one that was signalled may have been interrupted."""
MAX_PREPARED = 400
"""Prepared statements per connection; a change has dozens of shapes."""
IDLE = int(TransactionStatus.IDLE)


class PooledConnection(Struct, eq=False, weakref=True):
    """The right to one connection, and the connection once it is open."""

    connection: Any = None
    opened_at: float = 0.0
    idle_since: float = 0.0

    def set_connection(self, connection: psycopg.Connection) -> None:
        connection.prepared_max = MAX_PREPARED
        self.connection, self.opened_at = connection, time.monotonic()


class Pool:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[PooledConnection] = []
        self._all: WeakSet[PooledConnection] = WeakSet()
        self._signals: SimpleQueue[None] = SimpleQueue()
        """Holds an item after a connection was returned or closed; a waiter that succeeds signals the next one."""
        self._is_closed = False
        self._lock = Lock()

    @contextlib.contextmanager
    def connection(self, timeout: float) -> Iterator[psycopg.Connection]:
        """Lend a connection for the block."""
        pooled = self._acquire(timeout)
        try:
            yield pooled.connection
        except psycopg.errors.ReadOnlySqlTransaction:
            # After a failover the server may be a standby: a new connection finds the primary.
            pooled.connection.close()
            self.drop_idle()
            raise
        except (psycopg.Error, OakleafError):
            raise
        except BaseException:
            # An interrupt, or an exception of a signal handler: what the server has received and prepared is unknown.
            pooled.connection.close()
            raise
        finally:
            self._release(pooled)

    def _acquire(self, timeout: float) -> PooledConnection:
        deadline = time.monotonic() + timeout
        while (pooled := self._reserve()) is None:
            with contextlib.suppress(Empty):
                self._signals.get(timeout=max(0.0, min(RECHECK_SECONDS, deadline - time.monotonic())))
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{self._address.safe_url}: all {self._address.connections} connections of this process were in "
                    f"use for {timeout:.0f} s; run fewer things at once, or allow more with ?connections=N"
                )
        self._signal()
        if pooled.connection is None:
            self._open(pooled, deadline)
        return pooled

    def _reserve(self) -> PooledConnection | None:
        """Return an idle connection, or the right to open one; None if there is neither."""
        with self._lock:
            if self._is_closed:
                self._signal()  # the next waiter learns it, too
                raise StoreClosed(self._address.safe_url)
            if self._idle:
                return self._idle.pop()
            if len(self._all) >= self._address.connections:
                return None
            pooled = PooledConnection()
            self._all.add(pooled)
            return pooled

    def _signal(self) -> None:
        if self._signals.empty():
            self._signals.put(None)

    def _open(self, pooled: PooledConnection, deadline: float) -> None:
        try:
            while True:
                try:
                    pooled.set_connection(self._address.connect())
                    return
                except ServerUnreachable:
                    if time.monotonic() > deadline or self._is_closed:
                        raise
                    time.sleep(RETRY_SECONDS)
        except BaseException:  # also Ctrl-C: a place of the pool that is not given back is lost for good
            self._forget(pooled)
            raise

    def add(self, connection: psycopg.Connection) -> None:
        """Take over a connection that was opened elsewhere."""
        pooled = PooledConnection()
        pooled.set_connection(connection)
        with self._lock:
            self._all.add(pooled)
        self._release(pooled)

    def _release(self, pooled: PooledConnection) -> None:
        """Return it, or close it if it broke, has an open transaction or is old."""
        now = pooled.idle_since = time.monotonic()
        is_usable = pooled.connection.pgconn.transaction_status == IDLE
        with self._lock:
            if is_usable and now - pooled.opened_at <= LIFETIME_SECONDS and not self._is_closed:
                self._idle.append(pooled)
                if now - self._idle[0].idle_since <= IDLE_SECONDS:
                    self._signal()
                    return
                pooled = self._idle.pop(0)  # one at a time: a caller does not wait for many to close
        self._close([pooled])

    def drop_idle(self) -> None:
        """Close the idle ones: if one broke the others may have too, and opening them again takes milliseconds."""
        with self._lock:
            dropped, self._idle = self._idle, []
        self._close(dropped)

    def close(self) -> None:
        """Close the idle ones now and the lent ones when they return."""
        self._is_closed = True
        self.drop_idle()
        self._signal()

    def _close(self, dropped: list[PooledConnection]) -> None:
        for pooled in dropped:
            pooled.connection.close()
            self._forget(pooled)

    def _forget(self, pooled: PooledConnection) -> None:
        with self._lock:
            self._all.discard(pooled)
        self._signal()
