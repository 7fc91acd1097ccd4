"""A connection that does not wait for a silent server without an end.

The kernel notices a machine that is gone. It does not notice a server that hangs, nor a proxy that swallows what is sent: for
these the client has a limit of its own, which begins anew with each byte. Does not know what is run.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg import generators


class LimitedConnection(psycopg.Connection[Any]):
    silence: float | None = None
    """Seconds without an answer after which the connection is closed; None: no limit."""

    def wait(self, gen: Generator[Any, Any, Any], *how: Any, **named: Any) -> Any:
        return super().wait(gen if self.silence is None else self._limited(gen, self.silence), *how, **named)

    def _limited(self, gen: Generator[Any, Any, Any], silence: float) -> Generator[Any, Any, Any]:
        """Run the generator; psycopg sends a falsy value every tenth of a second of silence."""
        since, ready = time.monotonic(), None
        try:
            while True:
                ready = yield gen.send(ready)
                if ready:
                    since = time.monotonic()
                elif time.monotonic() - since > silence:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server did not answer for {silence:g} s")
        except StopIteration as end:
            return end.value

    def run_plain(self, statement: bytes) -> None:
        """Run a statement without psycopg's own bookkeeping: psycopg's rollback drops every prepared statement."""
        self.pgconn.send_query(statement)
        self.wait(generators.execute(self.pgconn))

    def prepare_plain(self, name: bytes, statement: bytes) -> None:
        self.pgconn.send_prepare(name, statement)
        self.wait(generators.execute(self.pgconn))
