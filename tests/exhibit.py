"""The gallery behind a real `bough serve`, and a page to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gallery
from browser import Process, aside


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gallery") / "agent.db"
    return aside(lambda: gallery.fill(place))


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Process]:
    with Process(store, "--tools", gallery.__file__) as process:
        yield process
