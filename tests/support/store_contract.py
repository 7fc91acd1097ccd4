"""The conformance tests for a PostgreSQL store; a test class names the server with its fixture `url`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bough.stores.base import StoreBackend
from bough.stores.conformance import StoreConformance
from bough.stores.postgres.store import PostgresStore


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
