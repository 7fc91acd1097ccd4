"""The file beside a store on which its processes hold locks."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import oakleaf
from oakleaf import user
from oakleaf.stores.sqlite import locks
from oakleaf.stores.sqlite.locks import LifeLock, Queue

HOLDER = """
import sys
from oakleaf.stores.sqlite.locks import LifeLock, Queue

queue, life = Queue(sys.argv[1]), LifeLock(sys.argv[1])
queue.lock()
print(life.token(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    with oakleaf.open(tmp_path / "agent.db") as store:
        store.start(session_id="ses_one").append([user("kept")])
    return str(tmp_path / "agent.db")


@contextmanager
def holder(path: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds the queue and its own lock, with the token of the latter."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


class TestFile:
    def test_the_first_line_explains_the_file(self, path: str) -> None:
        assert sorted(os.listdir(os.path.dirname(path))) == ["agent.db", "agent.db-oakleaf"]
        line = "Oakleaf: locks of the processes that use agent.db; safe to delete when none runs.\n"
        assert Path(f"{path}-oakleaf").read_text() == line
        with oakleaf.open(path) as store:
            store.backend.life_token()
        assert Path(f"{path}-oakleaf").read_text() == line

    @pytest.mark.parametrize("mode", [0o600, 0o660])
    def test_who_may_open_the_store_may_open_it(self, path: str, mode: int) -> None:
        os.chmod(path, mode)
        os.remove(f"{path}-oakleaf")
        oakleaf.open(path).close()
        assert stat.S_IMODE(os.stat(f"{path}-oakleaf").st_mode) == mode

    def test_nothing_is_lost_with_it(self, path: str) -> None:
        """A person deletes it while processes write: `begin immediate` still lets one write at a time."""
        with oakleaf.open(path) as one:
            first = one.session("ses_one")
            os.remove(f"{path}-oakleaf")
            with oakleaf.open(path) as two:
                others = [first, two.start()]
                threads = [
                    threading.Thread(target=lambda s=session: [s.append([user(f"{n}")]) for n in range(40)])
                    for session in others
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert [session.leaf.seq for session in others] == [41, 40]

    def test_a_copy_tells_nothing_of_the_original(self, path: str, tmp_path: Path) -> None:
        with holder(path) as (_, token):
            (tmp_path / "copy").mkdir()
            for name in ("agent.db", "agent.db-oakleaf"):
                shutil.copy(tmp_path / name, tmp_path / "copy" / name)
            with closing(LifeLock(str(tmp_path / "copy" / "agent.db"))) as copy:
                assert copy.is_free(token) is None
            with oakleaf.open(tmp_path / "copy" / "agent.db") as store:
                store.session("ses_one").append([user("more")])


class TestLocks:
    @pytest.mark.skipif(sys.platform != "linux", reason="the locks of processes are Linux's")
    def test_a_killed_process_holds_none(self, path: str) -> None:
        with holder(path) as (process, token), closing(LifeLock(path)) as here:
            written = threading.Event()

            def write() -> None:
                with oakleaf.open(path) as store:
                    store.session("ses_one").append([user("later")])
                written.set()

            thread = threading.Thread(target=write)
            thread.start()
            assert not written.wait(0.3)
            assert here.is_free(token) is False
            os.kill(process.pid, signal.SIGKILL)
            assert written.wait(30)
            thread.join()
            process.wait()
            assert here.is_free(token) is True

    @pytest.mark.parametrize("has_byte_locks", [True, False])
    def test_one_writer_at_a_time_has_the_queue(
        self, path: str, has_byte_locks: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also by `flock`, which serves where a system has no byte locks."""
        monkeypatch.setattr(locks, "IS_LINUX", has_byte_locks and sys.platform == "linux")
        inside, most = list[int](), list[int]()

        def write() -> None:
            queue = Queue(path)
            for _ in range(200):
                queue.lock()
                inside.append(1)
                most.append(len(inside))
                inside.pop()
                queue.unlock()
            queue.close()

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1] * 800
