"""A backup is whole and durable when it is acknowledged, whatever had its name before."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import system, user
from oakleaf.errors import NotAStore, StoreError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def back_up(store: oakleaf.Store, to: Any, **options: Any) -> None:
    store.backend.backup(to, **options)  # type: ignore[attr-defined]


def test_a_backup_is_whole_while_others_write(place: Path) -> None:
    with oakleaf.open(place) as store:
        session = store.start("a", [system("s")])
        back_up(store, place.parent / "copy.db")
        session.append([user("after the backup")])
    with oakleaf.open(place.parent / "copy.db") as copy:
        assert list(copy.verify()) == []
        assert len(copy.session(session.session_id).path()) == 1
    assert (place.parent / "copy.db").stat().st_mode & 0o777 == 0o600


def test_a_backup_that_cannot_be_renamed_leaves_nothing(place: Path) -> None:
    folder = place.parent / "taken"
    folder.mkdir()
    with oakleaf.open(place) as store, pytest.raises(NotAStore, match="it is a directory"):
        back_up(store, folder)
    assert list(place.parent.glob("*.part*")) == []


def test_a_backup_over_a_store_with_a_left_log_is_whole(place: Path) -> None:
    """The earlier backup was opened and written by a process that was killed: its log holds pages of another file."""
    copy = place.with_name("copy.db")
    with oakleaf.open(place) as store:
        session = store.start(seeds=[user("first")])
        back_up(store, copy)
        with oakleaf.open(copy) as earlier:
            for _ in range(20):
                earlier.start(seeds=[user("only in the copy " * 50)])
            for suffix in ("", "-wal"):
                shutil.copy(f"{copy}{suffix}", f"{copy}.killed{suffix}")
        for suffix in ("", "-wal"):
            os.replace(f"{copy}.killed{suffix}", f"{copy}{suffix}")
        session.append([user("second")])
        back_up(store, copy)
    assert not Path(f"{copy}-wal").exists()
    with oakleaf.open(copy) as restored:
        assert list(restored.verify()) == []
        assert [row.session_id for row in restored.all_sessions()] == [session.session_id]
        assert len(restored.session(session.session_id).path()) == 2


def test_a_log_without_a_file_does_not_join_the_backup(place: Path) -> None:
    copy = place.with_name("copy.db")
    with oakleaf.open(place) as store:
        store.start(seeds=[user("first")])
        shutil.copy(f"{place}-wal", f"{copy}-wal")
        store.start(seeds=[user("second")])
        back_up(store, copy)
        assert not Path(f"{copy}-wal").exists()
    with oakleaf.open(copy) as restored:
        assert len(list(restored.all_sessions())) == 2


def test_a_backup_and_the_folder_are_synced_before_the_return(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        steps.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        real_sync(descriptor)

    def replace(source: str, to: str) -> None:
        steps.append("rename")
        real_replace(source, to)

    with oakleaf.open(place) as store:
        store.start()
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", replace)
        back_up(store, place.with_name("copy.db"))
    assert steps == ["sync copy.db.part", "rename", f"sync {place.parent.name}"]


@pytest.mark.attack
def test_a_backup_onto_a_store_that_is_open_is_refused(place: Path) -> None:
    other = place.with_name("other.db")
    with oakleaf.open(place) as store, oakleaf.open(other) as live:
        store.start()
        live.start()
        for target in (other, place):
            with pytest.raises(StoreError, match=r"is a store that is open; close it, or name another file"):
                back_up(store, target)
        assert len(list(live.all_sessions())) == len(list(store.all_sessions())) == 1
        assert list(place.parent.glob("*.part*")) == []


def test_of_two_backups_to_one_name_at_once_one_is_refused(place: Path) -> None:
    copy = place.with_name("copy.db")
    with oakleaf.open(place) as store:
        store.start()
        refused: list[BaseException] = []

        def second() -> None:
            try:
                back_up(store, copy)
            except StoreError as error:
                refused.append(error)

        def at_progress(done: int, total: int) -> None:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

        back_up(store, copy, progress=at_progress)
    assert refused
    assert "another backup to" in str(refused[0])
    with oakleaf.open(copy) as restored:
        assert list(restored.verify()) == []


def test_the_part_of_a_killed_backup_is_overwritten(place: Path) -> None:
    copy = place.with_name("copy.db")
    Path(f"{copy}.part").write_bytes(b"left " * 10_000)
    Path(f"{copy}.part-journal").write_bytes(b"left")
    with oakleaf.open(place) as store:
        store.start()
        back_up(store, copy)
    with oakleaf.open(copy) as restored:
        assert list(restored.verify()) == []
    assert list(place.parent.glob("*.part*")) == []


def test_a_backup_to_an_absent_folder_is_refused_in_words(place: Path) -> None:
    with oakleaf.open(place) as store, pytest.raises(NotAStore, match=r"the folder .*nowhere does not exist"):
        back_up(store, place.parent / "nowhere" / "copy.db")


def test_an_error_of_the_callers_progress_is_the_callers(place: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise BrokenPipeError

    with oakleaf.open(place) as store:
        store.start()
        with pytest.raises(BrokenPipeError):
            back_up(store, place.with_name("copy.db"), progress=fail)
    assert list(place.parent.glob("copy*")) == []
