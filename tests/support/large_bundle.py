"""Run by test_bundle in a process of its own: makes a heavy session, or moves one and tells the memory it took."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bough import Attachment, assistant, user
from bough.log.runtime import real_runtime
from bough.store import Store
from bough.stores.sqlite.store import SqliteStore


def make(folder: Path, megabytes: int) -> None:
    """Entries of 16 kB, and a blob a tenth of it all."""
    store = open_store(folder / "a.db")
    session = store.start("a", session_id="ses_heavy")
    text = "lorem ipsum " * 1_300
    for _ in range(megabytes * 1_000_000 // len(text) // 50):
        session.append([message for _ in range(25) for message in (user(text), assistant(text))])
    session.append([user(Attachment(bytes(range(256)) * (megabytes * 400), "image/png"))])
    store.close()


def move(folder: Path) -> None:
    before = memory_in_use("VmRSS")
    store = open_store(folder / "a.db")
    began = time.perf_counter()
    done = store.session("ses_heavy").export(folder / "s.bough", blobs=True)
    written = time.perf_counter()
    there = open_store(folder / "b.db")
    there.import_bundle(folder / "s.bough")
    taken = time.perf_counter()
    peak = memory_in_use("VmHWM") - before
    there.session("ses_heavy").export(folder / "t.bough", blobs=True)
    print(peak, done.bytes, round(written - began, 2), round(taken - written, 2))
    store.close()
    there.close()


def open_store(place: Path) -> Store:
    return Store(SqliteStore(place, synchronous="normal"), real_runtime())


def memory_in_use(name: str) -> int:
    """Bytes, as the kernel counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        move(Path(sys.argv[2]))
