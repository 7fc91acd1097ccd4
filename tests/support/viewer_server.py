"""Fixtures for the viewer: the sample store served by a real `oakleaf serve`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import sample_store
from support.browser import ServerProcess, run_in_thread


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("viewer") / "agent.db"
    return run_in_thread(lambda: sample_store.fill(path))


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[ServerProcess]:
    with ServerProcess(store, "--set", f"tools={sample_store.__file__}") as process:
        yield process
