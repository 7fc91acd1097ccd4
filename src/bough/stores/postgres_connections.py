"""The connections to one PostgreSQL server: a pool, transactions with an identity, and what to do when one breaks.

Knows who may see what space, and what may be done twice: a read is asked again, a write whose answer was lost is
settled by whoever knows its key. Does not know what is read or written. Nothing is kept in a server connection
between two transactions, so a transaction pooler may stand in between.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import psycopg
from msgspec import Struct
from psycopg import pq, sql
from psycopg.errors import (
    DeadlockDetected,
    DiskFull,
    ForeignKeyViolation,
    InsufficientPrivilege,
    InvalidSqlStatementName,
    LockNotAvailable,
    ReadOnlySqlTransaction,
    SerializationFailure,
    UndefinedTable,
    UniqueViolation,
)
from psycopg.generators import execute, fetch_many
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ..errors import NoRights, NoSchema, NoServer, ReadOnly, StoreClosed, StoreError, StoreFull, Unsettled
from . import postgres_schema
from .postgres_url import Address, first_line

R = TypeVar("R")
Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]

PATIENCE_SECONDS = 30.0
"""How long a server may be away before those who wait for it are told."""
NAMED = re.compile(r"%\((\w+)\)s")
STATEMENTS = 400
"""Prepared statements kept per connection; a change has dozens of shapes."""
TEXT, BINARY = int(pq.Format.TEXT), int(pq.Format.BINARY)
READ_COMMITTED = "begin isolation level read committed"
SNAPSHOT = "begin isolation level repeatable read read only"
TRIES = 10

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


class Statement(Struct, frozen=True):
    """The text with $1, $2, … in it, and the name it is prepared under: the same in every process."""

    name: bytes
    text: bytes
    names: tuple[str, ...] = ()
    """Of its values, if they have any."""

    @classmethod
    def named(cls, text: str) -> Statement:
        """From a text with %(name)s for each value."""
        names = tuple(dict.fromkeys(NAMED.findall(text)))
        numbered = NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", text)
        return cls(_name_of(numbered), numbered.encode(), names)

    @classmethod
    def of(cls, text: str) -> Statement:
        """From a text with %s for each value."""
        first, *rest = text.split("%s")
        numbered = first + "".join(f"${n}{piece}" for n, piece in enumerate(rest, 1))
        return cls(_name_of(numbered), numbered.encode())


class Said(Struct, frozen=True):
    """What somebody else, an engine, has to say in the statement of a change: SQL with %s for each value."""

    before: str = ""
    """A condition, evaluated before the session is looked at; raising refuses the change."""
    before_values: tuple[Any, ...] = ()
    behind: str = ""
    """An expression, evaluated once if the change was written."""
    behind_values: tuple[Any, ...] = ()


NOTHING = Said()


def _name_of(text: str) -> bytes:
    return b"bough_" + sha256(text.encode()).hexdigest()[:32].encode()


class Connections:
    def __init__(self, address: Address, space: str) -> None:
        self._address, self.where = address, address.where
        self._is_closed = False
        with address.connect() as connection:
            postgres_schema.check(connection, self.where)
        self._identity = _identity(space)
        self._open()

    def of_space(self, space: str) -> Connections:
        """The same pool for another tenant: an engine that works for thousands has not a connection for each."""
        other = copy(self)
        other._identity = _identity(space)
        return other

    def _open(self) -> None:
        self._pid = os.getpid()
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            self._address.url,
            kwargs=self._address.settings,
            min_size=1,
            max_size=self._address.connections,
            configure=_configure,
            timeout=PATIENCE_SECONDS,
            num_workers=2,
            open=True,
        )

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
        pool = self._pool
        try:
            connection = pool.getconn()
        except PoolTimeout as error:
            raise NoServer(self.where, first_line(error)) from None
        except PoolClosed:
            raise StoreClosed(self.where) from None
        try:
            yield connection
        except psycopg.Error as error:
            if connection.closed or error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
                raise Lost(first_line(error)) from error
            raise
        finally:
            pool.putconn(connection)

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

    def run(self, statement: Statement, values: Sequence[Any]) -> list[list[bytes | None]]:
        """A statement of the hot path, past psycopg's cursors, which read such a long one anew each time (0.4 ms).

        Values go and come as text, bytes as they are. `Lost` if the connection broke.
        """
        try:
            with self._lent() as connection:
                return run_on(connection, statement, values, is_prepared=self._address.is_prepared)
        except UniqueViolation:
            raise
        except psycopg.Error as error:
            raise explain(self.where, error) from error

    def said(self) -> Said:
        """What must stand in the statement that is handed to `run_said`."""
        return NOTHING

    def run_said(self, statement: Statement, values: Sequence[Any]) -> list[list[bytes | None]]:
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
        """The others in the pool may have broken too: each is tried before the next one is lent."""
        if time.monotonic() > deadline:
            raise Unsettled(self.where, lost.why) from None
        with contextlib.suppress(PoolClosed):
            self._pool.check()

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
            if not connection.closed:
                connection.pgconn.exec_(b"rollback")  # psycopg's own lets go of every prepared statement
            raise
        connection.commit()


_INHERITED: list[Any] = []


def _identity(space: str) -> str:
    return sql.SQL(IDENTITY).format(sql.Literal(space)).as_string(None)


def _kept(outcome: list[R], value: R) -> R:
    outcome.append(value)
    return value


_PREPARED: WeakKeyDictionary[Connection, set[bytes]] = WeakKeyDictionary()


def run_on(
    connection: Connection, statement: Statement, values: Sequence[Any], *, is_prepared: bool = True
) -> list[list[bytes | None]]:
    """Within whatever transaction there is, or as one."""
    # One pass without a call for each of some seventy values. A truth goes as 1 or 0, which PostgreSQL reads, too.
    given = [
        value
        if value is None or type(value) is bytes
        else value.encode()
        if type(value) is str
        else b"%d" % value
        for value in values
    ]
    formats = [BINARY if type(value) is bytes else TEXT for value in values]
    if not is_prepared or connection.prepare_threshold is None:
        connection.pgconn.send_query_params(statement.text, given, None, formats)
        return _answer(connection)
    try:
        return _execute(connection, statement, given, formats)
    except InvalidSqlStatementName:
        # psycopg deallocates all statements after a rollback of its own. Within a transaction this one has failed.
        _PREPARED.pop(connection, None)
        if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            raise
        return _execute(connection, statement, given, formats)


def _execute(
    connection: Connection, statement: Statement, given: list[bytes | None], formats: list[int]
) -> list[list[bytes | None]]:
    known = _PREPARED.setdefault(connection, set())
    if statement.name not in known:
        connection.pgconn.send_prepare(statement.name, statement.text)
        _answer(connection)
        known.add(statement.name)
    connection.pgconn.send_query_prepared(statement.name, given, formats)
    return _answer(connection)


def _answer(connection: Connection) -> list[list[bytes | None]]:
    # What was sent is mostly out at once; then there is no need to wait until it may be written (10 µs).
    is_sent = not connection.pgconn.flush()
    result = connection.wait((fetch_many if is_sent else execute)(connection.pgconn))[-1]
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(result)
    return [
        [result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)
    ]


def _configure(connection: Connection) -> None:
    connection.prepared_max = STATEMENTS


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
        case UndefinedTable():
            return NoSchema(where, 0, postgres_schema.VERSION)
    return StoreError(f"{where} refused: {first_line(error)}; nothing of this change was kept")
