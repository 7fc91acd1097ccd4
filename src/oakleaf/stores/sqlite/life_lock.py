"""A lock that lasts as long as this process, on one byte of a file beside the store.

The kernel releases it when the process ends, however it ends, and shows it to every process of the machine: to those in
other containers, too, which see neither its pid nor whether that is alive. Linux only: the locks of other systems are
lost when any descriptor of the file is closed.
"""

from __future__ import annotations

import contextlib
import os
import struct
from weakref import WeakValueDictionary

try:
    import fcntl

    SET_LOCK, GET_LOCK = fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK
except (ImportError, AttributeError):
    fcntl = None  # type: ignore[assignment]

FLOCK = struct.Struct("@hhqqi4x")
"""C's `struct flock`: type, whence, start, length, pid."""
_LOCKS: WeakValueDictionary[str, LifeLock] = WeakValueDictionary()


def life_lock(path: str) -> LifeLock:
    """Return the lock of this process beside that store: one, however often it is opened."""
    place = os.path.abspath(path)
    lock = _LOCKS.get(place)
    return lock if lock is not None else _LOCKS.setdefault(place, LifeLock(path))


class LifeLock:
    def __init__(self, path: str) -> None:
        self._path = f"{path}-runners"
        self._fd = -1
        self._token: str | None = None

    def token(self) -> str | None:
        """Take the lock, unless this process has it; return the token by which others ask for it. None if there are no locks."""
        if self._token is None and fcntl is not None:
            with contextlib.suppress(OSError):
                fd = self._open()
                start = int.from_bytes(os.urandom(7))
                fcntl.fcntl(fd, SET_LOCK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0))
                self._token = f"{os.fstat(fd).st_ino}.{start}"
        return self._token

    def is_free(self, token: str) -> bool | None:
        """Whether the process that took the lock has ended; None if that cannot be known."""
        inode, _, start = token.partition(".")
        if fcntl is None or not (inode.isdecimal() and start.isdecimal()):
            return None
        with contextlib.suppress(OSError, struct.error):
            fd = self._open()
            if os.fstat(fd).st_ino != int(inode):  # the file was replaced: its locks are out of sight
                return None
            lock = fcntl.fcntl(fd, GET_LOCK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, int(start), 1, 0))
            return bool(FLOCK.unpack(lock)[0] == fcntl.F_UNLCK) and token != self._token
        return None

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._token = -1, None

    def __del__(self) -> None:
        self.close()


def _close_all() -> None:
    """After a fork: the child must not keep the lock of its parent."""
    for lock in list(_LOCKS.values()):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
