"""The connections to one PostgreSQL server: a pool, transactions bound to a space, and recovery when one breaks.

Knows what may be repeated: a read is run again, a write whose answer was lost is settled by the caller, who knows its
key. Does not know what is read or written. No state stays in a server connection between two transactions, so a
transaction pooler may be in between.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from msgspec.structs import replace
from psycopg import sql
from psycopg.errors import (
    DeadlockDetected,
    Diagnostic,
    ForeignKeyViolation,
    LockNotAvailable,
    SerializationFailure,
    UndefinedTable,
    UniqueViolation,
)
from psycopg.pq import PipelineStatus, TransactionStatus

from oakleaf.errors import MigrationNeeded, ServerUnreachable, StoreError, UnknownCommit
from oakleaf_postgres.store import schema as postgres_schema
from oakleaf_postgres.store.guard import SqlGuard
from oakleaf_postgres.store.pool import Connection as Connection
from oakleaf_postgres.store.pool import ConnectionLost as ConnectionLost
from oakleaf_postgres.store.pool import Pool
from oakleaf_postgres.store.rows import caller_clock
from oakleaf_postgres.store.statement import Rows, Statement, run_statement, shares_statements
from oakleaf_postgres.store.url import Address, first_line

R = TypeVar("R")
Row = tuple[Any, ...]

log = logging.getLogger("oakleaf.postgres")
log.addHandler(logging.NullHandler())  # a library is silent until its user asks for its log
logging.getLogger("psycopg").addHandler(
    logging.NullHandler()
)  # of connections that broke, which is handled here

SERVER_TIMEOUT_SECONDS = 30.0
"""How long a caller waits for a server that is away."""
LOCK_SECONDS = 25
"""How long a statement waits for a lock: the server says so before its silence is taken for its end."""
IDLE_SECONDS = 20
"""How long a transaction that writes may do nothing: a process that is paused within one holds its locks no longer, and whoever
waits for them gets them."""
RECOVERY_SECONDS = 0.02
"""Pause before the next try: a pooler whose server is away refuses at once, and would be asked all the time."""
READ_COMMITTED = (
    f"begin isolation level read committed; set local idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
)
SNAPSHOT = "begin isolation level repeatable read read only"
MAX_TRIES = 10
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
CONFLICTS = (DeadlockDetected, SerializationFailure)
"""How the server ends one of two that write the same rows; the second one if its isolation is not read committed."""
REPEATABLE = (*CONFLICTS, ForeignKeyViolation)

# Binds a single statement to a space. PostgreSQL makes this condition a one-time filter, evaluated before anything it
# filters is read, so the policies find the setting in place: one round trip, without begin and commit (measured 1.3 to
# 1.5 times as expensive). Every part of a statement that reads a table by itself needs it; without it the policies
# let nothing through.
SET_SPACE = "(select pg_catalog.set_config('oakleaf.space', %(space)s, true)) is not null"
# What every write needs. Its waits for locks are limited: a client that enqueues an input and does not commit would block
# every other writer of that session, and with them one connection after the other. And the warning that no standby has
# it (`STANDBY_WAIT`) must come, whatever messages the role wants.
SET_FOR_WRITE = f"""pg_catalog.set_config('lock_timeout', '{LOCK_SECONDS}s', true)
    || pg_catalog.set_config('client_min_messages', 'warning', true)"""
SET_LOCK_TIMEOUT = f"(select {SET_FOR_WRITE}) is not null"
# Binds a transaction. Nobody else can create in its search path: what the statements of a transaction call is PostgreSQL's.
IDENTITY = f"""select pg_catalog.set_config('oakleaf.space', {{}}, true),
    pg_catalog.set_config('search_path', '{postgres_schema.SAFE_PATH}', true), {SET_FOR_WRITE}"""

STANDBY_WAIT = "SyncRepWaitForLSN"
"""Where the server reports that a wait for the synchronous standby was cancelled: the change is committed here, and may be
lost with this server. The message itself is in the server's language."""


@contextlib.contextmanager
def noticing_loss(connection: Connection) -> Iterator[None]:
    """Raise ConnectionLost if the connection breaks in the block, or the server ends the connection or a
    standby wait.
    """
    unreplicated: list[str] = []

    def notice(diagnostic: Diagnostic) -> None:
        if diagnostic.source_function == STANDBY_WAIT:
            unreplicated.append(diagnostic.message_primary or STANDBY_WAIT)

    connection.add_notice_handler(notice)
    try:
        yield
    except psycopg.Error as error:
        if connection.closed or error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
            raise ConnectionLost(first_line(error)) from error
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:  # it broke while many were on their way
            connection.close()
            raise ConnectionLost(first_line(error)) from error
        raise
    finally:
        connection.remove_notice_handler(notice)
    if unreplicated:
        raise ConnectionLost(unreplicated[0])


class PostgresConnections:
    guard: SqlGuard | None = None
    """The condition of every write."""

    def __init__(self, address: Address, space: str) -> None:
        self.url, self._identity = address.safe_url, _identity(space)
        # Without the pool, which retries: opening a store fails at once, and says why.
        with address.connect() as connection, postgres_schema.plain_errors(address, connection):
            if address.is_prepared and shares_statements(connection):
                address, connection.prepare_threshold = replace(address, is_prepared=False), None
            postgres_schema.check_schema(connection, self.url)
        self.address, self.pool = address, Pool(address)

    def for_space(self, space: str) -> PostgresConnections:
        """Return the same pool for another tenant: an engine serves thousands of tenants with few connections."""
        other = copy(self)
        other._identity = _identity(space)
        return other

    def guarded(self, guard: SqlGuard) -> PostgresConnections:
        """Return the same pool for writes under a condition; reads need none."""
        other = copy(self)
        other.guard = guard
        return other

    def close(self) -> None:
        self.pool.close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self.pool.connection(SERVER_TIMEOUT_SECONDS) as connection, noticing_loss(connection):
            yield connection

    # -- one statement -----------------------------------------------------------------------------

    def query(self, query: str, bindings: Any = ()) -> list[Row]:
        """Return all rows of a statement: one snapshot, one round trip. Runs again if the connection breaks."""

        def read(connection: Connection) -> list[Row]:
            values = {**bindings, "clock": caller_clock()} if isinstance(bindings, dict) else bindings
            return connection.execute(query, values, binary=True).fetchall()

        return self.retry(lambda: self._run(read))

    def run_statement(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        """Run a write of the hot path under the guard's condition; raise ConnectionLost if the connection breaks."""
        self._check_guard()
        assert self.guard is None or set(self.guard.values).issubset(statement.value_names)
        return self._run(
            lambda connection: run_statement(connection, statement, {**values, "clock": caller_clock()})
        )

    def _run(
        self,
        work: Callable[[Connection], R],
        repeatable: tuple[type[psycopg.Error], ...] = CONFLICTS,
        tries: int = MAX_TRIES,
    ) -> R:
        """Run the work, and again after one of the given errors of the server: then nothing was written."""
        for attempt in range(1, tries + 1):
            try:
                with self._connection() as connection:
                    return work(connection)
            except UniqueViolation:
                raise
            except psycopg.Error as error:
                refusal = None if self.guard is None else self.guard.refusal(error)
                if refusal is not None:
                    raise refusal from None
                if not isinstance(error, repeatable) or attempt == tries:
                    raise store_error(self.url, error) from error
        raise AssertionError  # the last attempt returned or raised

    def _check_guard(self) -> None:
        if self.guard is not None:
            self.guard.check()

    def retry(self, work: Callable[[], R]) -> R:
        """Run repeatable work until success, or until the server has been away for too long."""
        deadline = self.deadline()
        while True:
            try:
                return work()
            except ConnectionLost as error:
                if time.monotonic() > deadline:
                    self.pool.drain()
                    raise ServerUnreachable(self.url, error.reason) from None
                self.recover(error, deadline)

    def deadline(self) -> float:
        """Return the deadline of a caller's wait from now."""
        return time.monotonic() + SERVER_TIMEOUT_SECONDS

    def recover(self, error: ConnectionLost, deadline: float) -> None:
        """Drop the other, possibly broken connections, too; raise UnknownCommit after the deadline."""
        self.pool.drain()
        if time.monotonic() > deadline:
            raise UnknownCommit(self.url, error.reason) from None
        log.warning("%s: a connection broke (%s); retrying on a new one", self.url, error.reason)
        time.sleep(RECOVERY_SECONDS)

    # -- several statements ------------------------------------------------------------------------

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Lend a connection within a snapshot, bound to the space."""
        try:
            with self._connection() as connection, self._begin(connection, SNAPSHOT):
                yield connection
        except psycopg.Error as error:
            raise store_error(self.url, error) from error
        except ConnectionLost as failure:
            raise ServerUnreachable(self.url, failure.reason) from failure

    def read_snapshot(self, work: Callable[[Connection], R]) -> R:
        """Run several statements on a snapshot; start again if the connection breaks."""
        return self.retry(lambda: self._run(self._within(SNAPSHOT, work)))

    def transaction(self, work: Callable[[Connection], R], tries: int = MAX_TRIES) -> R:
        """Run the work in a transaction, durable on return; raise ConnectionLost if the connection breaks.

        Runs again if another writer made what it had read out of date. The caller handles UniqueViolation.
        """
        self._check_guard()
        guard = self.guard

        def guarded(connection: Connection) -> R:
            if guard is not None:
                connection.execute(f"select {guard.condition}", guard.values)
            return work(connection)

        return self._run(self._within(READ_COMMITTED, guarded), REPEATABLE, tries)

    def _within(self, begin: str, work: Callable[[Connection], R]) -> Callable[[Connection], R]:
        def run(connection: Connection) -> R:
            with self._begin(connection, begin):
                return work(connection)

        return run

    def settle(self, look: Callable[[Connection], R]) -> R:
        """Look under a lock for the writes of a transaction with a lost answer; raise ConnectionLost, too.

        The server may still be at it, and hold the lock: it waits for a standby that is away. Then nobody knows yet.
        """
        try:
            return self.transaction(look)
        except StoreError as error:
            if isinstance(error.__cause__, LockNotAvailable):
                raise UnknownCommit(self.url, "the server has not ended it yet") from error
            raise

    def write(
        self, work: Callable[[Connection], R], was_committed: Callable[[Connection, R], bool] | None = None
    ) -> R:
        """The same, and settled if the connection breaks.

        It runs again unless `was_committed`, called with the result from before the commit, finds it written.
        Without `was_committed`, running it twice must have the effect of running it once.

        Either must lock a row: the commit of a transaction that locks waits for the synchronous standby, which then has
        what was found, too. One that only reads waits for nothing.
        """
        deadline = self.deadline()
        results: list[R] = []
        while True:
            try:
                if results and was_committed is not None:
                    last = results[-1]
                    if self.settle(lambda connection: was_committed(connection, last)):  # noqa: B023
                        return last
                results.clear()
                return self.transaction(lambda connection: _remember(results, work(connection)))
            except ConnectionLost as failure:
                self.recover(failure, deadline)
            except (
                UniqueViolation
            ) as error:  # another writer just took the number: the next try takes the next one
                results.clear()
                if time.monotonic() > deadline:
                    raise store_error(self.url, error) from error

    @contextlib.contextmanager
    def _begin(self, connection: Connection, begin: str) -> Iterator[None]:
        opening: Any = f"{begin}; {self._identity}"
        connection.execute(opening, prepare=False)
        try:
            yield
        except BaseException:  # also Ctrl-C: the pool must not lend a connection with an open transaction
            if connection.pgconn.transaction_status in OPEN:  # else it broke, or a statement is still running
                connection.run_plain(b"rollback")
            raise
        connection.commit()


def _identity(space: str) -> str:
    return sql.SQL(IDENTITY).format(sql.Literal(space)).as_string(None)


def _remember(results: list[R], result: R) -> R:
    results.append(result)
    return result


def store_error(url: str, error: psycopg.Error) -> StoreError:
    """Translate an error of PostgreSQL."""
    match error:
        case LockNotAvailable():
            return StoreError(
                f"{url}: another client held a lock for more than {LOCK_SECONDS} s; "
                "nothing was written, try again"
            )
        case UndefinedTable():
            return MigrationNeeded(url, 0, postgres_schema.VERSION)
    role = urlsplit(url).username or "of this login"
    return postgres_schema.refusal(url, role, error, "written")
