"""Reading a SQLite store where nothing can be made: a read-only folder, a full disk, a file of somebody else.

SQLite shares the write-ahead log through files beside the store, and makes them even to read. Where it cannot,
and no log holds anything, the file alone is the whole store and is read as one that stands still (`immutable`).
SQLite then takes no lock, and whoever may write takes no notice of us: that it did stand still is looked at
afterwards. Knows files; does not know what is read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import apsw
from msgspec import Struct

from ...errors import StoreError
from . import file

Stamp = tuple[int, ...]
TRIES, PAUSE_SECONDS = 20, 0.01
_NOTHING_BESIDE = (
    apsw.CantOpenError,
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
)

_COPY_IT = (
    "{} cannot be read where it lies: its write-ahead log holds commits, and SQLite can make no files beside it ({}). "
    "Copy it, together with its -wal, to where there is room and the right to write, and open the copy"
)


class ReadOnlyConnection(Struct, frozen=True):
    """A connection that only reads."""

    path: str
    connection: apsw.Connection
    stamp: Stamp | None = None
    """What the file was when it was opened as one that stands still; None: SQLite minds who writes."""

    @property
    def is_stale(self) -> bool:
        return self.stamp is not None and _stamp(self.path) != self.stamp

    def check(self) -> None:
        """After reading: whether what was read belongs together."""
        if self.is_stale:
            raise StoreError(f"{self.path} was written while it was read; read it again")


def open_readonly(
    path: str, begin: Callable[[apsw.Connection], object] = lambda _: None
) -> ReadOnlyConnection:
    """Open a store for reading, and begin; makes nothing where nothing may be made."""
    for _ in range(TRIES):
        stamp = _stamp(path)
        try:
            return _sight(path, stamp, begin)
        except StoreError:
            if _stamp(path) == stamp and not os.path.exists(f"{path}-shm"):
                raise
        # Whoever may write has just begun with the log, or is about to be done with it.
        time.sleep(PAUSE_SECONDS)
    return _sight(path, _stamp(path), begin)


def _sight(path: str, stamp: Stamp, begin: Callable[[apsw.Connection], object]) -> ReadOnlyConnection:
    has_log = stamp[-1] > 0
    if has_log or file.may_write(path):
        try:
            connection = file.connect(path, synchronous="full", read_only=True)
            begin(connection)
            return ReadOnlyConnection(path, connection)
        except _NOTHING_BESIDE as error:
            if has_log:
                raise StoreError(_COPY_IT.format(path, error)) from None
    still = file.connect_immutable(path)
    begin(still)
    return ReadOnlyConnection(path, still, stamp)


def _begin(connection: apsw.Connection) -> None:
    """The snapshot, which SQLite takes with the first read."""
    connection.execute("begin")
    connection.execute("select 1 from sqlite_schema limit 1").fetchall()


def check_readable(path: str, refused: StoreError) -> None:
    """Whether a store that cannot be written can be read; else why it could not be written says it."""
    if not os.access(path, os.R_OK):
        raise refused
    with readonly_snapshot(path) as reader:
        if file.check_format(reader, path) < file.FORMAT:
            raise refused  # it is yet to be made, or to be migrated


@contextlib.contextmanager
def readonly_snapshot(path: str) -> Iterator[apsw.Connection]:
    """A connection for one read, within one snapshot."""
    try:
        sight = open_readonly(path, _begin)
        with contextlib.closing(sight.connection) as reader:
            try:
                yield reader
                reader.execute("commit")
            except Exception:
                sight.check()  # a read that is torn looks like damage
                raise
            sight.check()
    except apsw.Error as error:
        raise file.explain(path, error) from None


def _stamp(path: str) -> Stamp:
    """The last figure is the length of the log: while it is 0, the file is the whole store."""
    try:
        main = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    try:
        log = os.stat(f"{path}-wal").st_size
    except OSError:
        log = 0
    return (main.st_ino, main.st_size, main.st_mtime_ns, log)
