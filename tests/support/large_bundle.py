"""Run by test_bundle in a separate process: creates a large session, or moves it and prints the memory it used."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from oakleaf import Attachment, assistant, user
from oakleaf.log.runtime import real_runtime
from oakleaf.store import Store
from oakleaf.stores.sqlite.store import SqliteStore


def make(folder: Path, megabytes: int) -> None:
    """Create entries of 16 kB, and a blob of a tenth of the total size."""
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
    started_at = time.perf_counter()
    result = store.session("ses_heavy").export(folder / "s.oakleaf", blobs=True)
    exported_at = time.perf_counter()
    target = open_store(folder / "b.db")
    target.import_bundle(folder / "s.oakleaf")
    imported_at = time.perf_counter()
    peak = memory_in_use("VmHWM") - before
    target.session("ses_heavy").export(folder / "t.oakleaf", blobs=True)
    print(peak, result.bytes, round(exported_at - started_at, 2), round(imported_at - exported_at, 2))
    store.close()
    target.close()


def open_store(path: Path) -> Store:
    return Store(SqliteStore(path, synchronous="normal"), real_runtime())


def memory_in_use(name: str) -> int:
    """Return bytes as counted by the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        move(Path(sys.argv[2]))
