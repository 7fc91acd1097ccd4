"""Let an engine add statements to a store's transactions, before and after its writes.

Does not know any engine, and needs none installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from oakleaf_postgres.store.connections import MAX_TRIES, ConnectionLost, PostgresConnections, Row
from oakleaf_postgres.store.statement import Connection, Rows, Statement, run_statement

R = TypeVar("R")


def fetch_row(connection: Connection, query: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Return the row of a query that always has one."""
    row: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    assert row is not None
    return row


class EngineConnections(PostgresConnections):
    """A store's connections whose write transactions an engine extends; reads use the store's own."""

    def __init__(self, base: PostgresConnections) -> None:
        self._base = base
        self.address, self.url, self._identity = base.address, base.url, base._identity

    def before_write(self, connection: Connection) -> None:
        """Run before the write; raising refuses it."""

    def after_write(self, connection: Connection) -> None:
        """Run after a write, in the same transaction, if it wrote something."""

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._base._connection() as connection:
            yield connection

    def recover(self, error: ConnectionLost, deadline: float) -> None:
        self._base.recover(error, deadline)

    def query(self, query: str, bindings: Any = ()) -> list[Row]:
        return self._base.query(query, bindings)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self._base.snapshot() as connection:
            yield connection

    def read_snapshot(self, work: Callable[[Connection], R]) -> R:
        return self._base.read_snapshot(work)

    def close(self) -> None:
        """Do nothing: the connections belong to the store."""

    def query_once(self, query: str, bindings: Any = ()) -> list[Row]:
        return self.transaction(
            lambda connection: connection.execute(query, bindings, binary=True).fetchall()
        )

    def run_statement(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        return self.transaction(lambda connection: run_statement(connection, statement, values))

    def transaction(self, work: Callable[[Connection], R], tries: int = MAX_TRIES) -> R:
        def extended(connection: Connection) -> R:
            self.before_write(connection)
            result = work(connection)
            if result:  # not if the leaf had moved or the key is missing: nothing was written
                self.after_write(connection)
            return result

        return super().transaction(extended, tries)
