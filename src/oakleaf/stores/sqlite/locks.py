"""The file `<store>-oakleaf`, with the locks of the processes that use a store. The first line says so; no byte is read.

Byte 0 is the queue of the writers. A process that runs a session holds a lock on another byte for as long as it lives: the
kernel releases the lock when the process ends, however it ends, and shows it to every process of the machine, also to those
in other containers, which see neither its pid nor whether that is alive.

Byte locks that belong to an open file (OFD) exist on Linux only. The locks of other systems are lost when any descriptor of
the file is closed: there the queue locks the whole file with `flock`, and nobody shows that a process lives. On Windows there
is no such file, and SQLite's own busy timeout makes writers wait, less evenly.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

IS_LINUX = sys.platform == "linux" and fcntl is not None
SUFFIX = "-oakleaf"
FIRST_LINE = "Oakleaf: locks of the processes that use {}; safe to delete when none runs.\n"
FLOCK = struct.Struct("@hhqqi4x")
"""C's `struct flock` of Linux: type, whence, start, length, pid."""
_LIFE_LOCKS: WeakValueDictionary[str, LifeLock] = WeakValueDictionary()


def open_lock_file(path: str) -> int:
    """Open the file beside a store; create an absent file, for everybody who may open the store."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    descriptor = os.open(f"{path}{SUFFIX}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, mode)
    if not os.fstat(descriptor).st_size:
        with contextlib.suppress(OSError):  # a full disk has no room for the line; locks need none
            os.fchmod(descriptor, mode)  # whatever the umask took, as SQLite does for its own files
            os.pwrite(descriptor, os.fsencode(FIRST_LINE.format(os.path.basename(path))), 0)
    return descriptor


def _byte(kind: int, number: int) -> bytes:
    return FLOCK.pack(kind, os.SEEK_SET, number, 1, 0)


def _has_byte_locks(descriptor: int) -> bool:
    if not IS_LINUX:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _byte(fcntl.F_WRLCK, 0))
    except OSError:  # some sandboxes have no byte locks
        return False
    return True


class Queue:
    """A queue for the writers of several processes.

    SQLite's busy handler sleeps and tries again, so some writers wait long (measured with 8 processes: worst 440 ms,
    99 ms with the queue). The lock saves time and is not needed for safety: `begin immediate` still decides.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        self.lock: Callable[[], object] = bool
        self.unlock: Callable[[], object] = bool
        """Call in a `finally`, whether `lock` returned or was interrupted. No Python code of ours is run: an interrupt at
        the first step would leave every other process waiting."""
        if fcntl is not None:
            self._fd = open_lock_file(path)
            if _has_byte_locks(self._fd):
                self.lock = partial(fcntl.fcntl, self._fd, fcntl.F_OFD_SETLKW, _byte(fcntl.F_WRLCK, 0))
                self.unlock = partial(fcntl.fcntl, self._fd, fcntl.F_OFD_SETLK, _byte(fcntl.F_UNLCK, 0))
            else:
                self.lock = partial(fcntl.flock, self._fd, fcntl.LOCK_EX)
                self.unlock = partial(fcntl.flock, self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.lock = self.unlock = bool


def life_lock(path: str) -> LifeLock:
    """Return the process's single lock beside a store, however often the store is opened."""
    place = os.path.abspath(path)
    lock = _LIFE_LOCKS.get(place)
    return lock if lock is not None else _LIFE_LOCKS.setdefault(place, LifeLock(path))


class LifeLock:
    """A lock held until the process ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._token: str | None = None

    def token(self) -> str | None:
        """Take the lock, unless held; return the token by which other processes ask for the lock. None without locks."""
        if self._token is None and IS_LINUX:
            with contextlib.suppress(OSError):
                fd = self._open()
                start = 1 + int.from_bytes(os.urandom(7))
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _byte(fcntl.F_WRLCK, start))
                self._token = f"{os.fstat(fd).st_ino}.{start}"
        return self._token

    def is_free(self, token: str) -> bool | None:
        """Whether the process behind a token has ended; None if unknown."""
        inode, _, start = token.partition(".")
        if not IS_LINUX or not (inode.isdecimal() and start.isdecimal()):
            return None
        with contextlib.suppress(OSError, struct.error):
            fd = self._open()
            if os.fstat(fd).st_ino != int(inode):  # the file was replaced: its locks are out of sight
                return None
            lock = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _byte(fcntl.F_WRLCK, int(start)))
            return bool(FLOCK.unpack(lock)[0] == fcntl.F_UNLCK) and token != self._token
        return None

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = open_lock_file(self._path)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._token = -1, None

    def __del__(self) -> None:
        self.close()


def _close_all() -> None:
    """Close all locks after a fork: the child must not keep the lock of the parent."""
    for lock in list(_LIFE_LOCKS.values()):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
