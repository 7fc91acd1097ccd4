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
from collections.abc import Callable, Iterator, Sequence
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

from ...errors import NoRights, NoSchema, NoServer, ReadOnly, StoreClosed, StoreError, StoreFull, Unsettled
from . import schema as postgres_schema
from .pool import Pool
from .statement import Connection as Connection
from .statement import Rows, Statement, Step, run_in_turn, run_on
from .url import Address, first_line

R = TypeVar("R")
Row = tuple[Any, ...]

log = logging.getLogger("bough.postgres")
log.addHandler(logging.NullHandler())  # a library is silent until its user asks for its log

PATIENCE_SECONDS = 30.0
"""How long a server may be away before those who wait for it are told."""
READ_COMMITTED = "begin isolation level read committed"
SNAPSHOT = "begin isolation level repeatable read read only"
TRIES = 10
WITHIN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)

# The identity of a statement that stands alone. PostgreSQL makes of this condition a one-time filter, evaluated
# before anything it filters is read, so the policies find the setting in place: identity and work in one round
# trip, without begin and commit (measured 1.3 to 1.5 times dearer). Every part of a statement that reads a table
# on its own account must have it; where it were missing the policies would let nothing through.
GATE = "(select set_config('bough.space', %s, true)) is not null"
# And of a transaction. It waits for no lock longer than for a server: a client that puts in an input and does not
# commit would hold whoever puts one into the same session, and with them one connection after the other.
IDENTITY = f"select set_config('bough.space', {{}}, true), set_config('lock_timeout', '{PATIENCE_SECONDS:.0f}s', true)"
PATIENT = f"(select set_config('lock_timeout', '{PATIENCE_SECONDS:.0f}s', true)) is not null"
NAMED_GATE = "(select set_config('bough.space', %(space)s, true)) is not null"


class Lost(Exception):
    """The connection broke: what was under way may have happened, or not."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Said(Struct, frozen=True):
    """What somebody else, an engine, has to say in the statement of a change: SQL with %s for each value."""

    before: str = ""
    """A condition, evaluated before the session is looked at; raising refuses the change."""
    before_values: tuple[Any, ...] = ()
    behind: str = ""
    """An expression, evaluated once if the change was written."""
    behind_values: tuple[Any, ...] = ()


NOTHING = Said()


class Connections:
    def __init__(self, address: Address, space: str) -> None:
        self._address, self.where = address, address.where
        self._is_closed = False
        self._identity = _identity(space)
        connection = address.connect()  # without patience: who opens is told at once
        try:
            postgres_schema.check(connection, self.where)
        except BaseException:
            connection.close()
            raise
        self._open()
        self._pool.keep(connection)

    def of_space(self, space: str) -> Connections:
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
    def _lent(self) -> Iterator[Connection]:
        if self._is_closed:
            raise StoreClosed(self.where)
        if self._pid != os.getpid():
            _INHERITED.append(self._pool)  # the parent's: not to be used, closed nor collected here
            self._open()
        with self._pool.lent(PATIENCE_SECONDS) as connection:
            try:
                yield connection
            except psycopg.Error as error:
                if connection.closed or error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
                    raise Lost(first_line(error)) from error
                raise

    # -- one statement -----------------------------------------------------------------------------

    def rows(self, query: str, bindings: Any = ()) -> list[Row]:
        """All rows of one statement: one snapshot, one round trip. Asked again if the connection breaks."""
        return self.again(lambda: self.once(query, bindings))

    def once(self, query: str, bindings: Any = ()) -> list[Row]:
        """The same without asking again; `Lost` if it broke."""
        try:
            with self._lent() as connection:
                return connection.execute(query, bindings, binary=True).fetchall()
        except UniqueViolation:
            raise
        except psycopg.Error as error:
            raise explain(self.where, error) from error

    def run(self, statement: Statement, values: Sequence[Any]) -> Rows:
        """A statement of the hot path. `Lost` if the connection broke."""
        try:
            with self._lent() as connection:
                return run_on(connection, statement, values, is_prepared=self._address.is_prepared)
        except UniqueViolation:
            raise
        except psycopg.Error as error:
            raise explain(self.where, error) from error

    def run_in_turn(self, steps: Sequence[Step]) -> Rows:
        """Several of them as one transaction and one round trip; what the last one tells.

        Each sees what was committed when it began, so what waits for a lock can stand before what must see it.
        """
        try:
            with self._lent() as connection:
                return run_in_turn(connection, steps, is_prepared=self._address.is_prepared)
        except UniqueViolation:
            raise
        except psycopg.Error as error:
            raise explain(self.where, error) from error

    def said(self) -> Said:
        """What must stand in the statement that is handed to `run_said`."""
        return NOTHING

    def run_said(self, statement: Statement, values: Sequence[Any]) -> Rows:
        """`run` for a statement that says what `said` wants said."""
        return self.run(statement, values)

    def again(self, do: Callable[[], R]) -> R:
        """What may be done twice is, until the server has been away for too long."""
        deadline = self.deadline()
        while True:
            try:
                return do()
            except Lost as lost:
                if time.monotonic() > deadline:
                    raise NoServer(self.where, lost.why) from None
                self.recover(lost, deadline)

    def deadline(self) -> float:
        """Until when whoever begins to wait now is to wait."""
        return time.monotonic() + PATIENCE_SECONDS

    def recover(self, lost: Lost, deadline: float) -> None:
        """The others in the pool may have broken too: the next one lent is a new one."""
        if time.monotonic() > deadline:
            raise Unsettled(self.where, lost.why) from None
        self.tell(lost)
        self._pool.drop_idle()

    def tell(self, lost: Lost) -> None:
        log.warning("%s: a connection broke (%s); a new one settles what was under way", self.where, lost.why)

    # -- several statements ------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection within one snapshot, with the identity set."""
        try:
            with self._lent() as connection, self._within(connection, SNAPSHOT):
                yield connection
        except psycopg.Error as error:
            raise explain(self.where, error) from error
        except Lost as lost:
            raise NoServer(self.where, lost.why) from lost

    def read(self, work: Callable[[Connection], R]) -> R:
        """Several statements on one snapshot. Begun again if the connection breaks."""

        def do() -> R:
            with self._lent() as connection, self._within(connection, SNAPSHOT):
                return work(connection)

        try:
            return self.again(do)
        except psycopg.Error as error:
            raise explain(self.where, error) from error

    def once_in(self, work: Callable[[Connection], R], tries: int = TRIES) -> R:
        """Do this in a transaction; durable on return, `Lost` if the connection broke.

        When somebody else came between, what was read is out of date and it is done again. `UniqueViolation` is
        the caller's to understand.
        """
        for tried in range(tries):
            try:
                with self._lent() as connection, self._within(connection, READ_COMMITTED):
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
                    raise explain(self.where, error) from error
            except psycopg.Error as error:
                raise explain(self.where, error) from error
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
                return self.once_in(lambda connection: _kept(outcome, work(connection)))  # noqa: B023
            except Lost as lost:
                self.recover(lost, deadline)
                if outcome and happened is not None and happened(outcome[-1]):
                    return outcome[-1]
            except UniqueViolation as error:  # a number was taken in this moment: the next one
                if time.monotonic() > deadline:
                    raise explain(self.where, error) from error

    @contextlib.contextmanager
    def _within(self, connection: Connection, begin: str) -> Iterator[None]:
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


def explain(where: str, error: psycopg.Error) -> StoreError:
    """PostgreSQL's error in our words."""
    match error:
        case DiskFull():
            return StoreFull(where)
        case ReadOnlySqlTransaction():
            return ReadOnly(where)
        case LockNotAvailable():
            return StoreError(
                f"{where}: somebody holds a lock for longer than {PATIENCE_SECONDS:.0f} s; "
                "nothing of this change was kept, hand it in again"
            )
        case InsufficientPrivilege():
            return NoRights(where, urlsplit(where).username or "of this login", first_line(error))
        case DivisionByZero():  # by how many rows were locked
            return StoreError(f"{where}: bough.lock lacks rows that migrate made; run: bough migrate")
        case UndefinedTable():
            return NoSchema(where, 0, postgres_schema.VERSION)
    return StoreError(f"{where} refused: {first_line(error)}; nothing of this change was kept")
