"""The gallery behind a real `bough serve`, and a page to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import sample_store
from support.browser import Process, aside


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gallery") / "agent.db"
    return aside(lambda: sample_store.fill(place))


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Process]:
    with Process(store, "--tools", sample_store.__file__) as process:
        yield process
