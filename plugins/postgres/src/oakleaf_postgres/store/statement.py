"""Statements of the hot path: long texts with many values, which are parsed once and not for each execution.

psycopg's ordinary cursor parses a text of more than 4,096 characters or 50 values anew each time (0.4 ms); its
`RawCursor` sends the text as it is. Does not know what a statement means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import psycopg
from msgspec import Struct

from oakleaf_postgres.store.pool import Connection as Connection

Rows = list[tuple[Any, ...]]
PLACEHOLDER = re.compile(r"%\((\w+)\)s")


class Statement(Struct, frozen=True):
    """A text with $1, $2, … inside, and the names of the values."""

    text: bytes
    value_names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Statement:
        """Build the statement from a text with %(name)s for each value."""
        names = tuple(dict.fromkeys(PLACEHOLDER.findall(text)))
        numbers = {name: n for n, name in enumerate(names, 1)}
        return cls(PLACEHOLDER.sub(lambda match: f"${numbers[match[1]]}", text).encode(), names)


def run_statement(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> Rows:
    """Run the statement in the open transaction, or as a separate transaction. Values without a place are ignored."""
    ordered = [values[name] for name in statement.value_names]
    cursor = psycopg.RawCursor(connection)
    cursor.execute(statement.text, ordered, prepare=True)
    return cursor.fetchall() if cursor.description else []


def shares_statements(connection: Connection) -> bool:
    """Whether a pooler in between leaves prepared statements to the next user of the server connection.

    There one client's name may be another's statement. A pooler has a process number of its own, and one that supports
    prepared statements gives them names of its own.
    """
    if fetch_row(connection, "select pg_catalog.pg_backend_pid()", prepare=False) == (
        connection.info.backend_pid,
    ):
        return False
    name = f"oakleaf_{token_hex(16)}"
    with connection.transaction():
        connection.prepare_plain(name.encode(), b"select 1")
        query = f"select pg_catalog.count(*) from pg_prepared_statements where name = '{name}'"
        is_shared = fetch_row(connection, query, prepare=False) == (1,)
        if is_shared:
            connection.execute(f"deallocate {name}", prepare=False)
    return is_shared


def fetch_row(
    connection: psycopg.Connection[Any],
    query: str,
    values: Sequence[Any] = (),
    *,
    prepare: bool | None = None,
) -> tuple[Any, ...]:
    """Return the row of a query with exactly one row."""
    row: tuple[Any, ...] | None = connection.execute(query, values, prepare=prepare).fetchone()
    assert row is not None
    return row
