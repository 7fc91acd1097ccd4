"""A statement of the hot path, past psycopg's cursors, which read such a long one anew each time (0.4 ms).

Knows how it is named, prepared, sent and answered: alone, within a transaction, or with others in one round trip. Does
not know what it says. Values go and come as text, bytes as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.errors import InvalidSqlStatementName
from psycopg.generators import execute, fetch_many

Connection = psycopg.Connection[Any]
Rows = list[list[bytes | None]]
BEGIN = b"begin isolation level read committed"  # whatever the server's default is: each statement sees anew
NAMED = re.compile(r"%\((\w+)\)s")


class Statement(Struct, frozen=True):
    """The text with $1, $2, … in it, and the name it is prepared under: the same in every process."""

    name: bytes
    text: bytes
    names: tuple[str, ...] = ()
    """Of its values, if they have any."""

    @classmethod
    def from_named(cls, text: str) -> Statement:
        """From a text with %(name)s for each value."""
        names = tuple(dict.fromkeys(NAMED.findall(text)))
        numbered = NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", text)
        return cls(_name_of(numbered), numbered.encode(), names)

    @classmethod
    def from_positional(cls, text: str) -> Statement:
        """From a text with %s for each value."""
        first, *rest = text.split("%s")
        numbered = first + "".join(f"${n}{piece}" for n, piece in enumerate(rest, 1))
        return cls(_name_of(numbered), numbered.encode())


def _name_of(text: str) -> bytes:
    return b"bough_" + sha256(text.encode()).hexdigest()[:32].encode()


Step = tuple[Statement, Sequence[Any]]

_PREPARED: WeakKeyDictionary[Connection, set[bytes]] = WeakKeyDictionary()


def run_statement(
    connection: Connection, statement: Statement, values: Sequence[Any], *, is_prepared: bool = True
) -> Rows:
    """Within whatever transaction there is, or as one."""
    given, formats = _sendable(values)
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


def _sendable(values: Sequence[Any]) -> tuple[list[bytes | None], list[bool]]:
    """The values as they go, and which of them are binary."""
    # One pass without a call for each of some seventy values. A truth goes as 1 or 0, which PostgreSQL reads, too.
    given = [
        value
        if value is None or type(value) is bytes
        else value.encode()
        if type(value) is str
        else b"%d" % value
        for value in values
    ]
    return given, [type(value) is bytes for value in values]


def _execute(
    connection: Connection, statement: Statement, given: list[bytes | None], formats: list[bool]
) -> Rows:
    _prepare(connection, statement)
    connection.pgconn.send_query_prepared(statement.name, given, formats)
    return _answer(connection)


def _prepare(connection: Connection, statement: Statement) -> None:
    known = _PREPARED.setdefault(connection, set())
    if statement.name not in known:
        connection.pgconn.send_prepare(statement.name, statement.text)
        _answer(connection)
        known.add(statement.name)


def _answer(connection: Connection) -> Rows:
    # What was sent is mostly out at once; then there is no need to wait until it may be written (10 µs).
    is_sent = not connection.pgconn.flush()
    return _rows(connection.wait((fetch_many if is_sent else execute)(connection.pgconn))[-1])


def _rows(result: Any) -> Rows:
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(result)
    return [
        [result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)
    ]


def run_pipeline(connection: Connection, steps: Sequence[Step], *, is_prepared: bool = True) -> Rows:
    """As one transaction and one round trip: a pipeline. What the last one tells; the first that fails ends it."""
    is_prepared = is_prepared and connection.prepare_threshold is not None
    try:
        return _pipe(connection, steps, is_prepared=is_prepared)
    except InvalidSqlStatementName:
        _PREPARED.pop(connection, None)
        return _pipe(connection, steps, is_prepared=is_prepared)


def _pipe(connection: Connection, steps: Sequence[Step], *, is_prepared: bool) -> Rows:
    for statement, _ in steps if is_prepared else ():
        _prepare(connection, statement)
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    try:
        pgconn.send_query_params(BEGIN, None)
        for statement, values in steps:
            given, formats = _sendable(values)
            if is_prepared:
                pgconn.send_query_prepared(statement.name, given, formats)
            else:
                pgconn.send_query_params(statement.text, given, None, formats)
        pgconn.send_query_params(b"commit", None)
        pgconn.pipeline_sync()
        told = [connection.wait(execute(pgconn))[-1] for _ in range(len(steps) + 2)]
        connection.wait(fetch_many(pgconn))
        pgconn.exit_pipeline_mode()
        if pgconn.transaction_status != pq.TransactionStatus.IDLE:
            pgconn.exec_(b"rollback")
    except BaseException:
        connection.close()  # half a pipeline is nobody's to go on with
        raise
    return [_rows(result) for result in told][-2]
