"""The sample store that the tests of the commands read."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli_store import write_store


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "s.db")
