"""Processes, seen from outside, and waiting for what they do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition holds, and fail after some seconds instead of hanging."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition did not hold within {seconds} s"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended may be a zombie until its parent notices."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def dies(pid: int, seconds: float = 30) -> bool:
    """Whether it ends soon: one that is killed runs on until its kernel gets to it."""
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.005)
    return not is_alive(pid)


def run_to_end_or_death(
    target: Callable[[str, int, int], None], place: Path, kill_at: int = 0, after: float | None = None
) -> list[str]:
    """Run it in a process, which dies at a point of its own or after some seconds; return the lines it reported."""
    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=target, args=(str(place), writing, kill_at))
    process.start()
    os.close(writing)
    if after is not None:
        process.join(after)
        process.kill()
    with os.fdopen(reading) as reports:
        lines = reports.read().splitlines()
    process.join()
    has_died = after is not None or any(line.startswith("killed") for line in lines)
    assert process.exitcode in ((0, -9) if has_died else (0,)), process.exitcode
    return lines


def effect_keys(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the keys under which each effect was reported; check that it had one, and an unsafe one once."""
    keys: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("effect"):
            _, name, key = line.split()
            keys.setdefault(name, []).append(key)
    for name, own in keys.items():
        assert len(set(own)) == 1, f"{name} ran under several keys"
        assert not name.startswith("unsafe") or len(own) == 1, f"{name} took effect {len(own)} times"
    return keys


def end_workers(workers: Sequence[BaseProcess]) -> None:
    """Ask them all to end, also those that are paused, and kill what is left after half a minute."""
    for process in workers:
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGCONT)
            process.terminate()
    for process in workers:
        process.join(30)
        process.kill()
