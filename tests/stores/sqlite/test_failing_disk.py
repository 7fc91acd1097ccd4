"""A disk that fails: every error is one of ours, and a store works again when the cause is gone.

The disk is SQLite's own, with one step of it that fails: a read, a write, a sync, an opening.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import oakleaf
from oakleaf import user
from oakleaf.errors import OakleafError, StoreError


class FailingDisk(apsw.VFS):
    """The system's files, of which a step may fail."""

    def __init__(self) -> None:
        self.steps_left: int | None = None
        self.stays_broken = False
        self.readonly_files = 0
        self.error: type[apsw.Error] = apsw.IOError
        self.failures = 0
        self.base = apsw.vfs_names()[0]
        super().__init__("failing", self.base, makedefault=True)

    def step(self) -> None:
        if self.steps_left is None:
            return
        self.steps_left -= 1
        if self.steps_left == -1 or (self.steps_left < 0 and self.stays_broken):
            self.failures += 1
            raise self.error("the disk failed")

    def xOpen(self, name: Any, flags: list[int]) -> FailingFile:
        if flags[0] & self.readonly_files:
            # What SQLite does by itself when the system refuses to open a file for writing, for whatever reason.
            flags[0] &= ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            flags[0] |= apsw.SQLITE_OPEN_READONLY
        self.step()
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(disk.base, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.step()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.step()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.step()
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self._disk.step()
        super().xTruncate(size)


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    disk = FailingDisk()
    yield disk
    disk.unregister()


def use(store: oakleaf.Store, folder: Path) -> list[OakleafError]:
    """Do what a store is for; return the errors, all of which must be ours."""
    errors: list[OakleafError] = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except OakleafError as error:
            errors.append(error)

    attempt(lambda: store.start(session_id="ses_used", seeds=[user("word")]))
    attempt(lambda: store.session("ses_used").append([user("again")]))
    attempt(lambda: store.session("ses_used").path())
    attempt(lambda: list(store.all_sessions()))
    attempt(lambda: store.search("word"))
    attempt(lambda: store.backend.backup(folder / "copy.db"))  # type: ignore[attr-defined]
    attempt(lambda: store.delete("ses_used"))
    attempt(lambda: store.purge("ses_used"))
    return errors


def assert_works(store: oakleaf.Store, folder: Path) -> None:
    store.start(session_id="ses_after", seeds=[user("word")]).append([user("again")])
    assert len(store.session("ses_after").path()) == 2
    assert list(store.verify()) == []
    assert [hit.session_id for hit in store.search("again").hits]
    store.backend.backup(folder / "copy.db")  # type: ignore[attr-defined]


@pytest.mark.parametrize("stays_broken", [False, True])
@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError, apsw.ReadOnlyError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_survives_the_failure_of_any_step(
    disk: FailingDisk, tmp_path: Path, error: type[apsw.Error], stays_broken: bool
) -> None:
    for step in range(0, 300, 23):
        folder = tmp_path / str(step)
        folder.mkdir()
        path = folder / "a.db"
        if step % 2:
            oakleaf.open(path).close()
        disk.steps_left, disk.stays_broken, disk.error, disk.failures = step, stays_broken, error, 0
        try:
            store = oakleaf.open(path)
        except StoreError:
            disk.steps_left = None
            store = oakleaf.open(path)
        use(store, folder)
        assert disk.failures, "no step failed"
        disk.steps_left = None
        assert_works(store, folder)
        store.close()


@pytest.mark.parametrize("kind", [apsw.SQLITE_OPEN_MAIN_DB, apsw.SQLITE_OPEN_WAL])
def test_a_file_opened_read_only_in_silence_is_opened_again(
    disk: FailingDisk, tmp_path: Path, kind: int
) -> None:
    with oakleaf.open(tmp_path / "a.db") as other:
        other.start()
        disk.readonly_files = kind
        store = oakleaf.open(tmp_path / "a.db")
        with pytest.raises(StoreError):
            store.start()
        disk.readonly_files = 0
        assert_works(store, tmp_path)
        store.close()


def test_a_process_without_free_descriptors_recovers(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    store = oakleaf.open(tmp_path / "a.db")
    fill: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 16, hard))
        with contextlib.suppress(OSError):  # no more
            while True:
                fill.append(os.dup(0))
        with pytest.raises(StoreError, match="too many files are open; close what is not used, or raise"):
            oakleaf.open(tmp_path / "b.db")
        assert use(store, tmp_path)
    finally:
        for descriptor in fill:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_works(store, tmp_path)
    store.close()


def test_a_store_whose_folder_was_away_for_a_while_goes_on(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    store = oakleaf.open(home / "a.db")
    store.start()
    home.rename(away)
    assert use(store, tmp_path)
    away.rename(home)
    assert_works(store, tmp_path)
    store.close()
