"""Processes, seen from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended may be a zombie until its parent notices."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def dies(pid: int, seconds: float = 10) -> bool:
    """Whether it ends soon: one that is killed runs on until its kernel gets to it."""
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.005)
    return not is_alive(pid)


def end_workers(workers: Sequence[BaseProcess]) -> None:
    """Ask them all to end, also those that are paused, and kill what is left after half a minute."""
    for process in workers:
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGCONT)
            process.terminate()
    for process in workers:
        process.join(30)
        process.kill()
