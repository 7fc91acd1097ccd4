"""Every store, each with a clock that ticks and ids that count."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from bough.store import Store
from bough.stores.base import StoreBackend
from bough.stores.memory.store import MemoryStore
from bough.stores.postgres.store import PostgresStore
from bough.stores.sqlite.store import SqliteStore
from support.postgres import Database, DatabaseHost, database_host
from support.runtime import deterministic_runtime

# Containers often forbid it. Then every process the tests start compiles all it loads anew: most of its time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

SOAK = os.environ.get("BOUGH_SOAK") == "1"
settings.register_profile("bough", deadline=None, max_examples=2_000 if SOAK else 30)
settings.load_profile("bough")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a quarter of the time a test waits, for a process, a server or the disk."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection_finish() -> None:
    """What five thousand tests and their modules are made of is not looked at again at every collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[DatabaseHost]:
    """One server for the tests of a process, started when the first one asks."""
    with database_host() as host:
        yield host


@pytest.fixture(scope="session")
def migrated_database(postgres: DatabaseHost) -> Database:
    return Database(postgres)


@pytest.fixture
def database(migrated_database: Database) -> Database:
    """A database without a row."""
    migrated_database.empty()
    return migrated_database


class ReusedPostgresStore(PostgresStore):
    """Remembers whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


class PostgresStoreCache:
    """One test after the other on the same connections, which know their statements: half of what a test costs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = ReusedPostgresStore(url)

    def open(self) -> PostgresStore:
        """The same store, unless the last test has closed it."""
        if self._store.is_closed:
            self._store = ReusedPostgresStore(self._url)
        return self._store

    def close(self) -> None:
        self._store.close()


@pytest.fixture(scope="session")
def store_cache(migrated_database: Database) -> Iterator[PostgresStoreCache]:
    cache = PostgresStoreCache(migrated_database.url)
    yield cache
    cache.close()


@pytest.fixture
def postgres_store(database: Database, store_cache: PostgresStoreCache) -> PostgresStore:
    return store_cache.open()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            opened: StoreBackend = MemoryStore()
        case "sqlite":
            opened = SqliteStore(tmp_path / "agent.db", synchronous="normal")
        case _:
            yield Store(request.getfixturevalue("postgres_store"), deterministic_runtime())
            return
    with Store(opened, deterministic_runtime()) as sessions:
        yield sessions
