"""The conformance tests for a PostgreSQL store; a test class names the server with its fixture `url`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oakleaf.stores.base import StoreBackend
from oakleaf.testing.stores import StoreConformance
from oakleaf_postgres.store.store import PostgresStore


class PostgresConformance(StoreConformance):
    @pytest.fixture(autouse=True)
    def _open_stores(self, url: str) -> Iterator[None]:
        self.url: str = url
        self.stores: list[StoreBackend] = []
        yield
        for store in self.stores:
            store.close()

    def open_store(self, space: str = "default", owner: str | None = None) -> StoreBackend:
        store = PostgresStore(self.url, space=space, owner=owner)
        self.stores.append(store)
        return store
