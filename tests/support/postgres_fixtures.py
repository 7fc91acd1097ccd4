"""Fixtures of a real PostgreSQL: a server for each test process, databases that are emptied, stores that are reused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from oakleaf_postgres.store.store import PostgresStore
from support.postgres import EMPTY, Database, DatabaseHost, database_host


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
