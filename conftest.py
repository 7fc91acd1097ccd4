"""Fixtures for every kind of store, with a deterministic clock and deterministic ids."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings

from oakleaf import Session, system
from oakleaf.store import Store
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf_postgres.store.store import PostgresStore
from support.cli_store import write_store
from support.postgres import EMPTY, Database, DatabaseHost, database_host
from support.runtime import deterministic_runtime

# Containers often disable bytecode files; then every process the tests start spends most of its time compiling.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["OAKLEAF_CONFIG"] = os.devnull  # not that of whoever runs the tests
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # started in the background; every process would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
# The short form draws the same examples every time, so that a commit passes or fails; the long form draws new ones.
settings.register_profile("oakleaf", deadline=None, max_examples=2_000 if SOAK else 25, derandomize=not SOAK)
settings.load_profile("oakleaf")


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the number of cores: tests spend a quarter of their time waiting for processes and disks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection_finish() -> None:
    """Keep the objects of five thousand collected tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[DatabaseHost]:
    """Start one server per test process, on first use."""
    with database_host() as host:
        yield host


@pytest.fixture(scope="session")
def migrated_database(postgres: DatabaseHost) -> Database:
    return Database(postgres)


@pytest.fixture(scope="session")
def owner_connection(migrated_database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A connection that is reused: opening one costs ten times as much as emptying the tables does."""
    with psycopg.connect(migrated_database.owner_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def database(migrated_database: Database, owner_connection: psycopg.Connection[Any]) -> Database:
    """A migrated database without rows."""
    owner_connection.execute(EMPTY)
    return migrated_database


class ReusedPostgresStore(PostgresStore):
    """A PostgreSQL store that records whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


class PostgresStoreCache:
    """Reuse connections and their prepared statements between tests, which halves the time of a test."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = ReusedPostgresStore(url)

    def open(self) -> PostgresStore:
        """Return the same store, or a new one if the last test closed it."""
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
            backend: StoreBackend = MemoryStore()
        case "sqlite":
            backend = SqliteStore(tmp_path / "agent.db", synchronous="normal")
        case _:
            yield Store(request.getfixturevalue("postgres_store"), deterministic_runtime())
            return
    with Store(backend, deterministic_runtime()) as sessions:
        yield sessions


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("support", [system("You help.")])


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """The file of the sample store that the commands read."""
    return write_store(tmp_path / "s.db")
