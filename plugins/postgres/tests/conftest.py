"""The tests of this plugin run on PostgreSQL."""

from __future__ import annotations

import pytest

from oakleaf.store import Store
from oakleaf_postgres.store.store import PostgresStore
from support.runtime import deterministic_runtime


@pytest.fixture
def store(postgres_store: PostgresStore) -> Store:
    return Store(postgres_store, deterministic_runtime())
