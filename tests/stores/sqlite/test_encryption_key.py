"""A key without a SQLite that can encrypt. What one that can does: tests/encrypted."""

from __future__ import annotations

from pathlib import Path

import pytest

import oakleaf
from oakleaf import errors
from support.terminal import oakleaf as command


def test_the_error_names_the_package_and_no_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(errors.EncryptionUnavailable, match="pip install apsw-sqlite3mc"):
        oakleaf.open(tmp_path / "agent.db", key="a key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extra
def test_nothing_is_written_in_the_open_instead(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key\n")
    with oakleaf.open(tmp_path / "plain.db") as store:
        store.start()
    words = ("copy", "--all", "--to", "safe.db", "--to-key-file", "key")
    result = command(*words, home=tmp_path, store="plain.db")
    assert result.code == 1
    assert "apsw-sqlite3mc" in result.err
    assert not (tmp_path / "safe.db").exists()
