"""Both stores, each with a clock that ticks and ids that count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from bough.sessions import Sessions
from bough.stores.memory import MemoryStore
from bough.stores.sqlite import SqliteStore
from worlds import counted_world

settings.register_profile("bough", deadline=None)
settings.load_profile("bough")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    opened = (
        MemoryStore()
        if request.param == "memory"
        else SqliteStore(tmp_path / "agent.db", synchronous="normal")
    )
    with Sessions(opened, counted_world()) as sessions:
        yield sessions
