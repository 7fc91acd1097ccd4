"""What an engine adds to a store's transactions: a condition of every write, and an effect of one change.

Does not know any engine, and needs none installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from msgspec import Struct

from oakleaf.errors import OakleafError
from oakleaf.stores.base import Effect
from oakleaf_postgres.store.statement import Connection


class SqlGuard(Struct, frozen=True):
    """A condition for every write of a view of a store."""

    condition: str
    """SQL with %(name)s for each value, evaluated before a write reads any row. Raises to refuse the write."""
    values: Mapping[str, Any]
    check: Callable[[], None]
    """Raise if the condition is known to fail: no statement is sent."""
    refusal: Callable[[psycopg.Error], OakleafError | None]
    """Return the meaning of an error that the condition raised; None for other errors."""


class SqlEffect(Effect, frozen=True):
    """An expression, evaluated once, in the transaction of the change."""

    expression: str
    values: Mapping[str, Any]

    def run(self, connection: Connection) -> None:
        """Evaluate the expression by a separate statement, in the connection's transaction."""
        connection.execute(f"select {self.expression}", self.values)
