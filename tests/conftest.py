"""Every store, each with a clock that ticks and ids that count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from bough.sessions import Sessions
from bough.stores.memory import MemoryStore
from bough.stores.sqlite import SqliteStore
from bough.stores.store import Store
from postgres import Cluster, Database, cluster
from worlds import counted_world

settings.register_profile("bough", deadline=None)
settings.load_profile("bough")


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


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    match request.param:
        case "memory":
            opened: Store = MemoryStore()
        case "sqlite":
            opened = SqliteStore(tmp_path / "agent.db", synchronous="normal")
        case _:
            from bough.stores.postgres import PostgresStore

            opened = PostgresStore(request.getfixturevalue("database").url)
    with Sessions(opened, counted_world()) as sessions:
        yield sessions
