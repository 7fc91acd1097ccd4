"""The connections to one PostgreSQL server: a pool, transactions with an identity, and what to do when one breaks.

Knows who may see what space, and what may be done twice: a read is asked again, a write whose answer was lost is
settled by whoever knows its key. Does not know what is read or written. Nothing is kept in a server connection
between two transactions, so a transaction pooler may stand in between.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from msgspec import Struct
from psycopg import sql
from psycopg.errors import (
    DeadlockDetected,
    DiskFull,
    DivisionByZero,
    ForeignKeyViolation,
    InsufficientPrivilege,
    InvalidSqlStatementName,
    LockNotAvailable,
    ReadOnlySqlTransaction,
    SerializationFailure,
    UndefinedTable,
    UniqueViolation,
)
from psycopg.pq import TransactionStatus

from ...errors import (
    MigrationNeeded,
    MissingPermission,
    ServerUnreachable,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReadOnly,
    UnknownCommit,
)
from . import schema as postgres_schema
from .pool import Pool
from .statement import Connection as Connection
from .statement import Rows, Statement, Step, run_pipeline, run_statement
from .url import Address, first_line

R = TypeVar("R")
Row = tuple[Any, ...]

log = logging.getLogger("bough.postgres")
log.addHandler(logging.NullHandler())  # a library is silent until its user asks for its log

SERVER_TIMEOUT_SECONDS = 30.0
"""How long a server may be away before those who wait for it are told."""
READ_COMMITTED = "begin isolation level read committed"
SNAPSHOT = "begin isolation level repeatable read read only"
MAX_TRIES = 10
WITHIN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)

# The identity of a statement that stands alone. PostgreSQL makes of this condition a one-time filter, evaluated
# before anything it filters is read, so the policies find the setting in place: identity and work in one round
# trip, without begin and commit (measured 1.3 to 1.5 times dearer). Every part of a statement that reads a table
# on its own account must have it; where it were missing the policies would let nothing through.
SET_SPACE = "(select set_config('bough.space', %(space)s, true)) is not null"
# And of a transaction. It waits for no lock longer than for a server: a client that puts in an input and does not
# commit would hold whoever puts one into the same session, and with them one connection after the other.
IDENTITY = f"select set_config('bough.space', {{}}, true), set_config('lock_timeout', '{SERVER_TIMEOUT_SECONDS:.0f}s', true)"
SET_LOCK_TIMEOUT = f"(select set_config('lock_timeout', '{SERVER_TIMEOUT_SECONDS:.0f}s', true)) is not null"


class ConnectionLost(Exception):
    """The connection broke: what was under way may have happened, or not."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class EngineSql(Struct, frozen=True):
    """What an engine adds to the statement of a change: SQL with %(name)s for each value."""

    condition: str = ""
    """Evaluated before the session is read; raising refuses the change."""
    effect: str = ""
    """An expression, evaluated once if the change was written."""
    values: Mapping[str, Any] = {}


NO_ENGINE_SQL = EngineSql()


class Connections:
    def __init__(self, address: Address, space: str) -> None:
        self._address, self.url = address, address.safe_url
        self._is_closed = False
        self._identity = _identity(space)
        connection = address.connect()  # without patience: who opens is told at once
        try:
            postgres_schema.check_schema(connection, self.url)
        except BaseException:
            connection.close()
            raise
        self._open()
        self._pool.add(connection)

    def for_space(self, space: str) -> Connections:
        """The same pool for another tenant: an engine that works for thousands has not a connection for each."""
        other = copy(self)
        other._identity = _identity(space)
        return other

    def _open(self) -> None:
        self._pid = os.getpid()
        self._pool = Pool(self._address)

    def close(self) -> None:
        if not self._is_closed and self._pid == os.getpid():
            self._is_closed = True
            self._pool.close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        if self._is_closed:
            raise StoreClosed(self.url)
        if self._pid != os.getpid():
            _INHERITED.append(self._pool)  # the parent's: not to be used, closed nor collected here
            self._open()
        with self._pool.connection(SERVER_TIMEOUT_SECONDS) as connection:
            try:
                yield connection
            except psycopg.Error as error:
                if connection.closed or error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
                    raise ConnectionLost(first_line(error)) from error
                raise

    # -- one statement -----------------------------------------------------------------------------

    def query(self, query: str, bindings: Any = ()) -> list[Row]:
        """All rows of one statement: one snapshot, one round trip. Asked again if the connection breaks."""
        return self.retry(lambda: self.query_once(query, bindings))

    def query_once(self, query: str, bindings: Any = ()) -> list[Row]:
        """The same without a second try; raises ConnectionLost if the connection breaks."""
        with self._statement_connection() as connection:
            return connection.execute(query, bindings, binary=True).fetchall()

    def run_statement(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        """Run a statement of the hot path; raises ConnectionLost if the connection breaks."""
        with self._statement_connection() as connection:
            return run_statement(connection, statement, values)

    def run_pipeline(self, steps: Sequence[Step]) -> Rows:
        """Run several as one transaction in one round trip; return the last one's rows.

        Each sees what was committed when it began, so one that waits for a lock can come before one that must see
        what the lock's holder wrote.
        """
        if len(steps) == 1:
            return self.run_statement(*steps[0])
        with self._statement_connection() as connection:
            return run_pipeline(connection, steps)

    @contextlib.contextmanager
    def _statement_connection(self) -> Iterator[Connection]:
        try:
            with self._connection() as connection:
                yield connection
        except UniqueViolation:
            raise
        except psycopg.Error as error:
            raise store_error(self.url, error) from error

    def engine_sql(self) -> EngineSql:
        """What must stand in the statement that is handed to `run_said`."""
        return NO_ENGINE_SQL

    def run_with_engine_sql(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        """`run` for a statement that says what `said` wants said."""
        return self.run_statement(statement, values)

    def retry(self, do: Callable[[], R]) -> R:
        """What may be done twice is, until the server has been away for too long."""
        deadline = self.deadline()
        while True:
            try:
                return do()
            except ConnectionLost as lost:
                if time.monotonic() > deadline:
                    raise ServerUnreachable(self.url, lost.reason) from None
                self.recover(lost, deadline)

    def deadline(self) -> float:
        """Until when whoever begins to wait now is to wait."""
        return time.monotonic() + SERVER_TIMEOUT_SECONDS

    def recover(self, lost: ConnectionLost, deadline: float) -> None:
        """The others in the pool may have broken too: the next one lent is a new one."""
        if time.monotonic() > deadline:
            raise UnknownCommit(self.url, lost.reason) from None
        self.log_loss(lost)
        self._pool.drop_idle()

    def log_loss(self, lost: ConnectionLost) -> None:
        log.warning(
            "%s: a connection broke (%s); a new one settles what was under way", self.url, lost.reason
        )

    # -- several statements ------------------------------------------------------------------------

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection within one snapshot, with the identity set."""
        try:
            with self._connection() as connection, self._begin(connection, SNAPSHOT):
                yield connection
        except psycopg.Error as error:
            raise store_error(self.url, error) from error
        except ConnectionLost as lost:
            raise ServerUnreachable(self.url, lost.reason) from lost

    def read_snapshot(self, work: Callable[[Connection], R]) -> R:
        """Several statements on one snapshot. Begun again if the connection breaks."""

        def do() -> R:
            with self._connection() as connection, self._begin(connection, SNAPSHOT):
                return work(connection)

        try:
            return self.retry(do)
        except psycopg.Error as error:
            raise store_error(self.url, error) from error

    def transaction(self, work: Callable[[Connection], R], tries: int = MAX_TRIES) -> R:
        """Do this in a transaction; durable on return, `Lost` if the connection broke.

        When somebody else came between, what was read is out of date and it is done again. `UniqueViolation` is
        the caller's to understand.
        """
        for tried in range(tries):
            try:
                with self._connection() as connection, self._begin(connection, READ_COMMITTED):
                    return work(connection)
            except UniqueViolation:
                raise
            except (
                DeadlockDetected,
                SerializationFailure,
                ForeignKeyViolation,
                InvalidSqlStatementName,
            ) as error:
                if tried == tries - 1:
                    raise store_error(self.url, error) from error
            except psycopg.Error as error:
                raise store_error(self.url, error) from error
        raise AssertionError  # the last try returned or raised

    def write(self, work: Callable[[Connection], R], happened: Callable[[R], bool] | None = None) -> R:
        """The same, and settled if the connection breaks.

        It is done again, unless `happened`, asked with what had come out before the commit, says that it is there.
        Without `happened` doing it twice must be the same as doing it once.
        """
        deadline = self.deadline()
        while True:
            outcome: list[R] = []
            try:
                return self.transaction(lambda connection: _kept(outcome, work(connection)))  # noqa: B023
            except ConnectionLost as lost:
                self.recover(lost, deadline)
                if outcome and happened is not None and happened(outcome[-1]):
                    return outcome[-1]
            except UniqueViolation as error:  # a number was taken in this moment: the next one
                if time.monotonic() > deadline:
                    raise store_error(self.url, error) from error

    @contextlib.contextmanager
    def _begin(self, connection: Connection, begin: str) -> Iterator[None]:
        opening: Any = f"{begin}; {self._identity}"
        connection.execute(opening, prepare=False)
        try:
            yield
        except BaseException:
            if connection.pgconn.transaction_status in WITHIN:  # else it broke, or a statement is under way
                connection.pgconn.exec_(b"rollback")  # psycopg's own lets go of every prepared statement
            raise
        connection.commit()


_INHERITED: list[Any] = []


def _identity(space: str) -> str:
    return sql.SQL(IDENTITY).format(sql.Literal(space)).as_string(None)


def _kept(outcome: list[R], value: R) -> R:
    outcome.append(value)
    return value


def store_error(where: str, error: psycopg.Error) -> StoreError:
    """PostgreSQL's error in our words."""
    match error:
        case DiskFull():
            return StoreFull(where)
        case ReadOnlySqlTransaction():
            return StoreReadOnly(where)
        case LockNotAvailable():
            return StoreError(
                f"{where}: somebody holds a lock for longer than {SERVER_TIMEOUT_SECONDS:.0f} s; "
                "nothing of this change was kept, hand it in again"
            )
        case InsufficientPrivilege():
            return MissingPermission(where, urlsplit(where).username or "of this login", first_line(error))
        case DivisionByZero():  # by how many rows were locked
            return StoreError(f"{where}: bough.lock lacks rows that migrate made; run: bough migrate")
        case UndefinedTable():
            return MigrationNeeded(where, 0, postgres_schema.VERSION)
    return StoreError(f"{where} refused: {first_line(error)}; nothing of this change was kept")
