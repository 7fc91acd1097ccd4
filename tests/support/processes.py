"""Processes, seen from outside."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended may be a zombie until its parent notices."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
