"""The connections of one process to one address: a pool of psycopg, and another one after an interrupt.

psycopg's pool opens connections in threads of its own, lends them in turn and closes old and idle ones. An interrupt
(Ctrl-C, an exception of a signal handler) between two of its steps would cost it a connection, or leave one of its locks
held, for ever. So an interrupted pool is closed by a thread of its own, and the next caller opens another one. Does not
know what is run on a connection.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from threading import Lock, Thread
from typing import Any
from weakref import finalize

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from oakleaf.errors import OakleafError, StoreClosed, StoreError
from oakleaf_postgres.store.limited import LimitedConnection
from oakleaf_postgres.store.url import Address

LAST_TRY_SECONDS = 2
RETRY_SECONDS = 0.5
"""How often a caller asks for a connection, and the pool looks whether a server that was away is back."""
MAX_PREPARED = 400
"""Prepared statements per connection; a change has dozens of shapes."""

Connection = LimitedConnection


class ConnectionLost(Exception):
    """The connection broke, or the wait for the standby: the running work may have been committed for good,
    or not.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


NO_INTERRUPT = (psycopg.Error, OakleafError, ConnectionLost, GeneratorExit)
"""What the code between lending and returning raises by itself."""


class Pool:
    def __init__(self, address: Address) -> None:
        self._address, self._is_closed, self._lock = address, False, Lock()
        self._pools: list[ConnectionPool[Connection]] = []
        """The pool in use, if one is open."""
        self._process = os.getpid()
        # At exit, too: later the threads of a pool cannot end any more, and it would wait for them in vain.
        finalize(self, _close, self._pools, self._process)

    @contextlib.contextmanager
    def connection(self, timeout: float) -> Iterator[Connection]:
        """Lend a connection for the block. A transaction that is still open at its end is rolled back."""
        deadline = time.monotonic() + timeout
        while True:
            pool = self._open()
            try:
                connection = self._wait(pool)
                if connection is not None:
                    try:
                        yield connection
                    finally:
                        pool.putconn(connection)
                    return
            except psycopg.errors.ReadOnlySqlTransaction:
                # After a failover the server may be a standby: a new connection finds the primary.
                pool.drain()
                raise
            except NO_INTERRUPT:
                raise
            except BaseException:
                self._abandon(pool)
                raise
            if time.monotonic() > deadline:
                raise self._timeout_error(timeout)

    def _wait(self, pool: ConnectionPool[Connection]) -> Connection | None:
        """Return a connection; None if there was none for a while, or the pool was closed meanwhile."""
        with contextlib.suppress(PoolTimeout, PoolClosed):
            return pool.getconn(RETRY_SECONDS)
        return None

    def _timeout_error(self, timeout: float) -> StoreError:
        self._address.connect(
            seconds=LAST_TRY_SECONDS
        ).close()  # raises ServerUnreachable if that was the reason
        return StoreError(
            f"{self._address.safe_url}: all {self._address.connections} connections of this process were in "
            f"use for {timeout:.0f} s; run fewer things at once, or allow more with ?connections=N"
        )

    def _open(self) -> ConnectionPool[Connection]:
        if self._process != os.getpid():
            self._leave_to_parent()
        with self._lock:
            if self._is_closed:
                raise StoreClosed(self._address.safe_url)
            if not self._pools:
                self._pools.append(self._new_pool())
            return self._pools[0]

    def _new_pool(self) -> ConnectionPool[Connection]:
        pool = ConnectionPool(
            self._address.url,
            kwargs=self._address.connect_options,
            connection_class=Connection,
            min_size=0,
            max_size=self._address.connections,
            configure=self._configure,
            reconnect_timeout=RETRY_SECONDS,
            open=False,
        )
        try:
            pool.open()
        except BaseException:
            _close_beside(pool)
            raise
        return pool

    def _configure(self, connection: Connection) -> None:
        connection.prepared_max, connection.silence = MAX_PREPARED, self._address.silence

    def _leave_to_parent(self) -> None:
        """Leave the pool to the parent process after a fork: no use, close or collection here."""
        _INHERITED.append(self._pools)
        self._pools, self._process, self._lock = [], os.getpid(), Lock()
        finalize(self, _close, self._pools, self._process)

    def _abandon(self, pool: ConnectionPool[Connection]) -> None:
        """Let the next caller open another pool. Connections that are lent are closed when they return."""
        with self._lock:
            if pool in self._pools:
                self._pools.clear()
        _close_beside(pool)

    def drain(self) -> None:
        """Replace all connections: after one break others may be broken too, and opening takes milliseconds."""
        self._open().drain()

    def close(self) -> None:
        """Close the idle connections now and the lent connections on return."""
        self._is_closed = True
        _close(self._pools, self._process)


_INHERITED: list[Any] = []


def _close(pools: list[ConnectionPool[Connection]], process: int) -> None:
    while pools and process == os.getpid():
        pools.pop().close()


def _close_beside(pool: ConnectionPool[Connection]) -> None:
    """Close the connection in a thread: the close may wait for ever for a lock of the interrupted statement."""
    Thread(target=pool.close, daemon=True).start()
