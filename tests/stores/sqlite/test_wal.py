"""The write-ahead log lies ready before it is written, and nothing of that is ever read."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import apsw

import oakleaf
from oakleaf import user
from oakleaf.stores.sqlite.wal import CHECKPOINT_FRAMES, MIN_EXTENSION


def size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def texts(path: Path, session_id: str) -> list[str]:
    with oakleaf.open(path) as store:
        session = store.session(session_id)
        assert session.verify() == []
        return [entry.message.text for entry in session.path() if entry.message is not None]


class TestLayingOut:
    def test_a_commit_overwrites_and_does_not_lengthen_the_log(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        with oakleaf.open(path) as store:
            session = store.start()
            lengths = []
            for number in range(100):
                session.append([user(f"{number} " + "x" * 2_000)])
                lengths.append(size(path))
        grown = sum(after > before for before, after in pairwise(lengths))
        assert lengths[0] >= MIN_EXTENSION
        assert grown < 10, "one in ten commits at most pays for its length"

    def test_a_copy_of_a_store_in_use_holds_every_commit(self, tmp_path: Path) -> None:
        """As a crash leaves it: the zeros behind the last frame are no frames."""
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

    def test_who_does_not_sync_lays_nothing_out(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        with oakleaf.open(path, synchronous="normal") as store:
            store.start().append([user("hello")])
            assert size(path) < MIN_EXTENSION

    def test_a_log_cut_to_nothing_is_laid_out_anew(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        with oakleaf.open(path) as store:
            session = store.start()
            session.append([user("one")])
            other = apsw.Connection(str(path))
            other.execute("pragma wal_checkpoint(truncate)").fetchall()
            other.close()
            assert size(path) == 0
            for number in range(3):
                session.append([user(str(number))])
            assert size(path) >= MIN_EXTENSION
            assert len(session.path()) == 4

    def test_a_log_that_cannot_be_laid_out_is_written_all_the_same(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            connections = store.backend._connections  # type: ignore[attr-defined]
            connections._wal._path = str(tmp_path / "elsewhere" / "gone")
            session = store.start()
            session.append([user("hello")])
            assert len(session.path()) == 1


class TestFolding:
    def test_a_log_of_short_commits_is_folded_again_and_again(self, tmp_path: Path) -> None:
        """By our hook until it has its full length, then by SQLite; after it was cut to nothing as at first."""
        path = tmp_path / "a.db"
        full = CHECKPOINT_FRAMES * 2_072
        with oakleaf.open(path) as store:
            session = store.start()
            for _ in range(2):
                for _ in range(CHECKPOINT_FRAMES // 2):
                    session.append([user("x" * 2_000)])
                assert full <= size(path) < 2 * full
                assert store.backend._connections._truncate_log()  # type: ignore[attr-defined]
                assert size(path) == 0
            session.append([user("one more")])
            session.append([user("and one")])
            assert size(path) >= MIN_EXTENSION
        assert len(texts(path, session.session_id)) == CHECKPOINT_FRAMES + 2

    def test_a_long_log_is_folded_into_the_store_and_begun_anew(self, tmp_path: Path) -> None:
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
