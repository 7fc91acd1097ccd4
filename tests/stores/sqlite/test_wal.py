"""The write-ahead log is SQLite's own: the store holds every commit, and the log is checkpointed."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw

import oakleaf
from oakleaf import user

CHECKPOINT_FRAMES = 1_000
"""SQLite's own default."""


def size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def texts(path: Path, session_id: str) -> list[str]:
    with oakleaf.open(path) as store:
        session = store.session(session_id)
        assert session.verify() == []
        return [entry.message.text for entry in session.path() if entry.message is not None]


class TestLog:
    def test_a_copy_of_a_store_in_use_holds_every_commit(self, tmp_path: Path) -> None:
        """As a crash leaves it."""
        path, copy = tmp_path / "a.db", tmp_path / "copy.db"
        with oakleaf.open(path) as store:
            session = store.start()
            numbers = []
            for number in range(40):
                numbers.append(f"{number} " + "x" * 900)
                session.append([user(numbers[-1])])
                if number % 13 == 0:
                    for ending in ("", "-wal"):
                        shutil.copy(f"{path}{ending}", f"{copy}{ending}")
                    assert texts(copy, session.session_id) == numbers

    def test_a_log_of_short_commits_does_not_grow(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        with oakleaf.open(path) as store:
            session = store.start()
            for _ in range(CHECKPOINT_FRAMES):
                session.append([user("x" * 2_000)])
            assert size(path) < 2 * CHECKPOINT_FRAMES * 2_072
        assert len(texts(path, session.session_id)) == CHECKPOINT_FRAMES

    def test_a_log_of_long_commits_is_checkpointed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        with oakleaf.open(path) as store:
            session = store.start()
            for number in range(CHECKPOINT_FRAMES // 8):
                session.append([user(f"{number} " + "x" * 100_000)])
            assert size(path) < 3 * CHECKPOINT_FRAMES * 8_216
            assert path.stat().st_size > CHECKPOINT_FRAMES * 8_192, "most of it is in the file already"
        assert len(texts(path, session.session_id)) == CHECKPOINT_FRAMES // 8

    def test_a_reader_that_holds_the_log_does_not_fail_a_commit(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        with oakleaf.open(path) as store:
            session = store.start()
            reader = apsw.Connection(str(path))
            reader.execute("begin").fetchall()
            assert reader.execute("select count(*) from session").get == 1
            for number in range(CHECKPOINT_FRAMES // 8):
                session.append([user(f"{number} " + "x" * 100_000)])
            assert reader.execute("select count(*) from entry").get == 0, "its own moment"
            reader.close()
        assert len(texts(path, session.session_id)) == CHECKPOINT_FRAMES // 8
