"""Every store runs the whole contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakleaf.stores.base import StoreBackend
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf.testing.stores import StoreConformance


class TestMemory(StoreConformance):
    def open_store(self, space: str = "default", owner: str | None = None) -> StoreBackend:
        if not hasattr(self, "shared"):
            self.shared = MemoryStore()
        return self.shared.for_tenant(space, owner)


class TestSqlite(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path):
        self.place, self.stores = tmp_path / "agent.db", []
        yield
        for store in self.stores:
            store.close()

    def open_store(self, space: str = "default", owner: str | None = None) -> StoreBackend:
        store = SqliteStore(self.place, space=space, owner=owner)
        self.stores.append(store)
        return store
