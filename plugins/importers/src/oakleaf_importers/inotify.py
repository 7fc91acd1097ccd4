"""Be woken when something below a folder changes: by inotify on Linux, elsewhere after a pause.

It says only that something may have changed; who watches looks for what. So a lost event, a full queue or a folder that could
not be watched costs time, and nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
import time
from collections.abc import Iterable
from pathlib import Path

POLL_SECONDS = 1.0
"""How long to wait where there is no inotify."""
RESCAN_SECONDS = 30.0
"""How long to wait at most with it: folders on a network send no events."""
_IN_ALL_EVENTS, _IN_ACCESS, _IN_CLOSE_NOWRITE, _IN_OPEN = 0xFFF, 0x1, 0x10, 0x20
_MASK = _IN_ALL_EVENTS & ~(_IN_ACCESS | _IN_CLOSE_NOWRITE | _IN_OPEN)
"""Every event but those of reading."""
_BUFFER = 1 << 16


class ChangeSignal:
    """Waits for a change below some folders. Close it after use."""

    def __init__(self, *, use_inotify: bool = True) -> None:
        self._fd: int | None = None
        self._watched: set[int] = set()
        """The kernel's numbers of the folders that are or were watched; one that was replaced has another."""
        if use_inotify and sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self._fd = fd if fd >= 0 else None

    @property
    def is_immediate(self) -> bool:
        """Whether changes are reported at once."""
        return self._fd is not None

    def watch(self, folders: Iterable[Path]) -> bool:
        """Watch the folders from now on; return whether a new folder may hold earlier changes."""
        before = len(self._watched)
        for folder in folders:
            if self._fd is None:
                break
            number = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _MASK)
            if number >= 0:
                self._watched.add(number)
            elif ctypes.get_errno() in (errno.ENOSPC, errno.ENOMEM):  # the limit of the user: poll instead
                self.close()
        return len(self._watched) > before

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most the given time."""
        if self._fd is None:
            time.sleep(min(seconds, POLL_SECONDS))
        elif select.select([self._fd], [], [], min(seconds, RESCAN_SECONDS))[0]:
            self._drain()

    def _drain(self) -> None:
        """Forget the events so far."""
        assert self._fd is not None
        try:
            while os.read(self._fd, _BUFFER):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
