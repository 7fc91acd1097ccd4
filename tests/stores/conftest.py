"""What a store promises is tested on every store that is installed."""

from __future__ import annotations

import pytest

from oakleaf.store import Store


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store
