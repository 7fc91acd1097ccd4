"""A store's writes as part of something larger: an engine's words in the same transaction.

Knows where in a transaction an engine has its say. Does not know any engine, and needs none installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from psycopg.errors import InFailedSqlTransaction

from ...stores.postgres.connections import TRIES, Connections, Lost, Row
from ...stores.postgres.statement import Connection, Rows, Statement, Step, run_on

R = TypeVar("R")


class Forgotten(Exception):
    """The server had forgotten a prepared statement, which breaks a transaction; it is known again now."""


class JoinedConnections(Connections):
    """A store's connections whose writes are part of something larger, done in the same transaction.

    Reads go the store's own way.
    """

    def __init__(self, base: Connections) -> None:
        self._base = base
        self._address, self.where, self._identity = base._address, base.where, base._identity

    def before(self, connection: Connection) -> None:
        """What stands before the work; raising refuses it."""

    def behind(self, connection: Connection) -> None:
        """What commits with the work, if there was any."""

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Connection]:
        with self._base._lent() as connection:
            yield connection

    def recover(self, lost: Lost, deadline: float) -> None:
        self._base.recover(lost, deadline)

    def rows(self, query: str, bindings: Any = ()) -> list[Row]:
        return self._base.rows(query, bindings)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._base.reading() as connection:
            yield connection

    def read(self, work: Callable[[Connection], R]) -> R:
        return self._base.read(work)

    def close(self) -> None:
        """They are the store's."""

    def once(self, query: str, bindings: Any = ()) -> list[Row]:
        return self.once_in(lambda connection: connection.execute(query, bindings, binary=True).fetchall())

    def run(self, statement: Statement, values: Sequence[Any]) -> Rows:
        return self.run_in_turn([(statement, values)])

    def run_in_turn(self, steps: Sequence[Step]) -> Rows:
        def work(connection: Connection) -> Rows:
            try:
                is_prepared = self._address.is_prepared
                return [run_on(connection, *step, is_prepared=is_prepared) for step in steps][-1]
            except InFailedSqlTransaction as error:
                raise Forgotten from error

        try:
            return self.once_in(work)
        except Forgotten:
            return self.once_in(work)

    def once_in(self, work: Callable[[Connection], R], tries: int = TRIES) -> R:
        def joined(connection: Connection) -> R:
            self.before(connection)
            done = work(connection)
            if done:  # a statement that found the leaf moved, a key that is not there: nothing was written
                self.behind(connection)
            return done

        return super().once_in(joined, tries)
