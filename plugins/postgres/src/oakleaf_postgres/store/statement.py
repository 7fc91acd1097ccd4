"""Run the statements of the hot path past psycopg's cursors, which parse such a long text anew each time (0.4 ms).

Knows how a statement is named, prepared, sent and answered: alone, within a transaction, or with others in one round
trip. Does not know what it means. Values are sent and received as text, bytes as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.errors import InvalidSqlStatementName
from psycopg.generators import execute, fetch_many

Connection = psycopg.Connection[Any]
Rows = list[list[bytes | None]]
BEGIN = b"begin isolation level read committed"  # whatever the server's default: each statement has its own snapshot
PLACEHOLDER = re.compile(r"%\((\w+)\)s")


class Statement(Struct, frozen=True):
    """A text with $1, $2, … in it, and the name it is prepared under: the same in every process."""

    name: bytes
    text: bytes
    value_names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Statement:
        """Build it from a text with %(name)s for each value."""
        names = tuple(dict.fromkeys(PLACEHOLDER.findall(text)))
        numbers = {name: n for n, name in enumerate(names, 1)}
        numbered = PLACEHOLDER.sub(lambda match: f"${numbers[match[1]]}", text).encode()
        return cls(b"oakleaf_" + sha256(numbered).hexdigest()[:32].encode(), numbered, names)

    def encode(self, values: Mapping[str, Any]) -> tuple[list[bytes | None], list[bool]]:
        """Return the values as they are sent, and which of them are binary; values without a place are ignored."""
        # One pass without a call for each of some seventy values. PostgreSQL reads 1 and 0 as booleans, too.
        ordered = [values[name] for name in self.value_names]
        encoded = [
            value
            if value is None or type(value) is bytes
            else value.encode()
            if type(value) is str
            else b"%d" % value
            for value in ordered
        ]
        return encoded, [type(value) is bytes for value in ordered]


Step = tuple[Statement, Mapping[str, Any]]

_PREPARED: WeakKeyDictionary[Connection, set[bytes]] = WeakKeyDictionary()


def run_statement(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> Rows:
    """Run it in the transaction that is open, or as one of its own."""
    try:
        return _run(connection, statement, values)
    except InvalidSqlStatementName:
        # psycopg deallocates all statements after a rollback of its own. An open transaction has failed by this.
        _PREPARED.pop(connection, None)
        if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            raise
        return _run(connection, statement, values)


def _run(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> Rows:
    _prepare(connection, statement)
    _send(connection, statement, values)
    return _result(connection)


def _send(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> None:
    encoded, formats = statement.encode(values)
    if connection.prepare_threshold is None:
        connection.pgconn.send_query_params(statement.text, encoded, None, formats)
    else:
        connection.pgconn.send_query_prepared(statement.name, encoded, formats)


def _prepare(connection: Connection, statement: Statement) -> None:
    if connection.prepare_threshold is None:
        return
    names = _PREPARED.setdefault(connection, set())
    if statement.name not in names:
        connection.pgconn.send_prepare(statement.name, statement.text)
        _result(connection)
        names.add(statement.name)


def _result(connection: Connection) -> Rows:
    # Mostly everything is sent at once; then there is no need to wait until the socket may be written (10 µs).
    is_sent = not connection.pgconn.flush()
    return _rows(connection.wait((fetch_many if is_sent else execute)(connection.pgconn))[-1])


def _rows(result: Any) -> Rows:
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(result)
    return [
        [result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)
    ]


def shares_statements(connection: Connection) -> bool:
    """Whether a pooler is in between that leaves prepared statements to whoever has their server connection next.

    There one client's name may be another's statement. A pooler has a process number of its own, and one that supports
    prepared statements gives them names of its own.
    """
    if _fetch_one(connection, "select pg_catalog.pg_backend_pid()") == (connection.info.backend_pid,):
        return False
    name = f"oakleaf_{token_hex(16)}"
    with connection.transaction():
        connection.pgconn.prepare(name.encode(), b"select 1")
        query = f"select pg_catalog.count(*) from pg_prepared_statements where name = '{name}'"
        is_shared = _fetch_one(connection, query) == (1,)
        if is_shared:
            connection.execute(f"deallocate {name}", prepare=False)
    return is_shared


def _fetch_one(connection: Connection, query: str) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = connection.execute(query, prepare=False).fetchone()
    return row


def run_pipeline(connection: Connection, steps: Sequence[Step]) -> Rows:
    """Run them as one transaction in one round trip; return the last one's rows. The first that fails ends it."""
    try:
        return _run_pipeline(connection, steps)
    except InvalidSqlStatementName:
        _PREPARED.pop(connection, None)
        return _run_pipeline(connection, steps)


def _run_pipeline(connection: Connection, steps: Sequence[Step]) -> Rows:
    for statement, _ in steps:
        _prepare(connection, statement)
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    try:
        pgconn.send_query_params(BEGIN, None)
        for statement, values in steps:
            _send(connection, statement, values)
        pgconn.send_query_params(b"commit", None)
        pgconn.pipeline_sync()
        results = [connection.wait(execute(pgconn))[-1] for _ in range(len(steps) + 2)]
        connection.wait(fetch_many(pgconn))
        pgconn.exit_pipeline_mode()
        if pgconn.transaction_status != pq.TransactionStatus.IDLE:
            pgconn.exec_(b"rollback")
    except BaseException:
        connection.close()  # nothing can continue half a pipeline
        raise
    return [_rows(result) for result in results][-2]
