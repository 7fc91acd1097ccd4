"""A store's writes as part of something larger: an engine's words in the same transaction.

Knows where in a transaction an engine has its say. Does not know any engine, and needs none installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from psycopg.errors import InFailedSqlTransaction

from ...stores.postgres.connections import MAX_TRIES, ConnectionLost, Connections, Row
from ...stores.postgres.statement import Connection, Rows, Statement, Step, run_statement

R = TypeVar("R")


class PreparedStatementLost(Exception):
    """The server had forgotten a prepared statement, which breaks a transaction; it is known again now."""


class EngineConnections(Connections):
    """A store's connections whose writes are part of something larger, done in the same transaction.

    Reads go the store's own way.
    """

    def __init__(self, base: Connections) -> None:
        self._base = base
        self._address, self.url, self._identity = base._address, base.url, base._identity

    def before_write(self, connection: Connection) -> None:
        """What stands before the work; raising refuses it."""

    def after_write(self, connection: Connection) -> None:
        """What commits with the work, if there was any."""

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._base._connection() as connection:
            yield connection

    def recover(self, lost: ConnectionLost, deadline: float) -> None:
        self._base.recover(lost, deadline)

    def query(self, query: str, bindings: Any = ()) -> list[Row]:
        return self._base.query(query, bindings)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self._base.snapshot() as connection:
            yield connection

    def read_snapshot(self, work: Callable[[Connection], R]) -> R:
        return self._base.read_snapshot(work)

    def close(self) -> None:
        """They are the store's."""

    def query_once(self, query: str, bindings: Any = ()) -> list[Row]:
        return self.transaction(
            lambda connection: connection.execute(query, bindings, binary=True).fetchall()
        )

    def run_statement(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        return self.run_pipeline([(statement, values)])

    def run_pipeline(self, steps: Sequence[Step]) -> Rows:
        def work(connection: Connection) -> Rows:
            try:
                return [run_statement(connection, *step) for step in steps][-1]
            except InFailedSqlTransaction as error:
                raise PreparedStatementLost from error

        try:
            return self.transaction(work)
        except PreparedStatementLost:
            return self.transaction(work)

    def transaction(self, work: Callable[[Connection], R], tries: int = MAX_TRIES) -> R:
        def joined(connection: Connection) -> R:
            self.before_write(connection)
            done = work(connection)
            if done:  # a statement that found the leaf moved, a key that is not there: nothing was written
                self.after_write(connection)
            return done

        return super().transaction(joined, tries)
