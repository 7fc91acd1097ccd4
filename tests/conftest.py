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
from support.postgres import Cluster, Database, cluster
from support.runtime import counted_runtime

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
def postgres() -> Iterator[Cluster]:
    """One server for the tests of a process, started when the first one asks."""
    with cluster() as found:
        yield found


@pytest.fixture(scope="session")
def migrated(postgres: Cluster) -> Database:
    return Database(postgres)


@pytest.fixture
def database(migrated: Database) -> Database:
    """A database without a row."""
    migrated.empty()
    return migrated


class Lasting(PostgresStore):
    """Whether somebody has closed it is known."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Kept:
    """One test after the other on the same connections, which know their statements: half of what a test costs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = Lasting(url)

    def opened(self) -> PostgresStore:
        """The same store, unless the last test has closed it."""
        if self._store.is_closed:
            self._store = Lasting(self._url)
        return self._store

    def close(self) -> None:
        self._store.close()


@pytest.fixture(scope="session")
def kept(migrated: Database) -> Iterator[Kept]:
    found = Kept(migrated.url)
    yield found
    found.close()


@pytest.fixture
def postgres_store(database: Database, kept: Kept) -> PostgresStore:
    return kept.opened()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            opened: StoreBackend = MemoryStore()
        case "sqlite":
            opened = SqliteStore(tmp_path / "agent.db", synchronous="normal")
        case _:
            yield Store(request.getfixturevalue("postgres_store"), counted_runtime())
            return
    with Store(opened, counted_runtime()) as sessions:
        yield sessions
