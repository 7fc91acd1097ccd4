"""The state machine over PostgreSQL: the same operations as on the memory store leave the same rows.

Instead of a crash between statements, every connection of the store is cut: what comes next must not notice.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from oakleaf.store import Store
from oakleaf_postgres.store.store import PostgresStore
from support.postgres import APP, Database
from support.runtime import deterministic_runtime
from tests.stores.test_state_machine import SOAK, Machine

CUT = f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{APP}'"


class PostgresMachine(Machine):
    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.sqlite.close()
        self.database.empty()
        self.sqlite = PostgresStore(self.database.url)  # in the place of the store under test
        self.both = (self.both[0], Store(self.sqlite, deterministic_runtime()))

    crash = None

    @rule()
    def cut(self) -> None:
        self.database.run(CUT)


def test_postgres_driven_like_the_memory_store_holds_the_same(database: Database) -> None:
    PostgresMachine.database = database
    run_state_machine_as_test(
        PostgresMachine,
        settings=settings(
            max_examples=200 if SOAK else 6,
            stateful_step_count=60 if SOAK else 25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
