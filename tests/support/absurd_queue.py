"""A queue of the Absurd engine: its database, a store, workers in this process, and what became of its tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import oakleaf
from oakleaf import Session
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.worker import Worker
from support.postgres import Database

numbers = count(1)


class AbsurdQueue:
    """One of its own for each test."""

    def __init__(self, database: Database) -> None:
        self.database, self.name = database, f"q{next(numbers)}"
        absurd_schema.install(database.owner_url, self.name)
        self.store = oakleaf.open(database.url)

    def close(self) -> None:
        self.store.close()

    def send(self, text: str, **options: Any) -> Session:
        """Start a session of agent `a` and send it an input."""
        session = self.store.start("a")
        absurd.send(session, text, queue=self.name, **options)
        return session

    @contextmanager
    def working(self, *agents: Agent, url: str = "", **how: Any) -> Iterator[Worker]:
        worker = Worker(url or self.database.url, agents, queue=self.name, **{"lease": 5, **how})
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()

    def task(self) -> Any:
        """Return the state of its only task, the attempts and what came of it."""
        (row,) = self.database.run(f"select state, attempts, completed_payload from absurd.t_{self.name}")
        return row

    def is_done(self) -> bool:
        query = f"select 1 from absurd.t_{self.name} where state not in ('completed', 'failed', 'cancelled')"
        return not self.database.run(query)

    def checkpoints(self) -> list[Any]:
        query = (
            f"select state from absurd.c_{self.name} "
            "where checkpoint_name like 'agent-loop%' order by updated_at"
        )
        return [state for (state,) in self.database.run(query)]
