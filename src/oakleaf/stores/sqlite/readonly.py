"""Reading a SQLite store where no file can be created: a read-only folder, a full disk, another user's file.

SQLite shares the write-ahead log through files next to the store, and creates them even to read. Where it cannot, and
the log is empty, the file alone is the whole store and is read as `immutable`. SQLite then takes no lock, and a process
that may write does not notice the reader: whether the file changed is checked afterwards. Knows nothing of the content.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import apsw
from msgspec import Struct

from oakleaf.errors import StoreError
from oakleaf.stores.sqlite import file

Stamp = tuple[int, ...]
MAX_TRIES, PAUSE_SECONDS = 20, 0.01
TICK_NS = 20_000_000
"""Two writes within one tick of the kernel's clock leave the same time on a file."""
_CANNOT_CREATE_FILES = (
    apsw.CantOpenError,
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
)

_COPY_REQUIRED = (
    "{} cannot be read in place: its write-ahead log holds commits, and SQLite cannot create files next to it ({}). "
    "Copy it, together with its -wal, to a writable folder with enough space, and open the copy"
)


class ReadOnlyConnection(Struct, frozen=True):
    """A read-only connection."""

    path: str
    connection: apsw.Connection
    stamp: Stamp | None = None
    """The state of the file when opened as immutable; None: SQLite's locks protect the read."""

    @property
    def is_stale(self) -> bool:
        return self.stamp is not None and _stamp(self.path) != self.stamp

    def check(self) -> None:
        """Raise if the file was written during the read. Call after reading."""
        if self.is_stale:
            raise _written(self.path)


def open_readonly(
    path: str, begin: Callable[[apsw.Connection], object] = lambda _: None
) -> ReadOnlyConnection:
    """Open a store for reading and run `begin`; creates no file where none can be created."""
    for _ in range(MAX_TRIES):
        stamp = _stamp(path)
        try:
            return _open(path, stamp, begin)
        except (StoreError, apsw.Error):  # a torn read looks like damage of any kind
            if _is_settled(stamp) and _stamp(path) == stamp and not os.path.exists(f"{path}-shm"):
                raise
        # Another process has just created the log, or is about to delete it.
        time.sleep(PAUSE_SECONDS)
    return _open(path, _stamp(path), begin)


def _open(path: str, stamp: Stamp, begin: Callable[[apsw.Connection], object]) -> ReadOnlyConnection:
    has_log = stamp[-1] > 0
    if has_log or file.may_write(path):
        try:
            connection = file.connect(path, synchronous="full", read_only=True)
            begin(connection)
            return ReadOnlyConnection(path, connection)
        except _CANNOT_CREATE_FILES as error:
            if has_log:
                raise StoreError(_COPY_REQUIRED.format(path, error)) from None
    if not _is_settled(stamp):
        raise _written(path)
    immutable = file.connect_immutable(path)
    begin(immutable)
    return ReadOnlyConnection(path, immutable, stamp)


def _begin(connection: apsw.Connection) -> None:
    """Take the snapshot by a first read."""
    connection.execute("begin")
    connection.execute("select 1 from sqlite_schema limit 1").fetchall()


def check_readable(path: str, error: StoreError) -> None:
    """Raise `error`, the reason why a store cannot be written, unless the store can be read."""
    if not os.access(path, os.R_OK):
        raise error
    with readonly_snapshot(path) as reader:
        if file.check_format(reader, path) < file.FORMAT:
            raise error  # the store has yet to be created or migrated


@contextlib.contextmanager
def readonly_snapshot(path: str) -> Iterator[apsw.Connection]:
    """Open a connection for a single read within a snapshot."""
    try:
        readonly = open_readonly(path, _begin)
        with contextlib.closing(readonly.connection) as reader:
            try:
                yield reader
                reader.execute("commit")
            except Exception:
                readonly.check()  # a torn read looks like damage of any kind; it is raised again if the file held still
                raise
            readonly.check()
    except apsw.Error as error:
        raise file.explain(path, error) from None


def _written(path: str) -> StoreError:
    return StoreError(f"{path} was written during the read; read it again")


def _is_settled(stamp: Stamp) -> bool:
    """Whether a later write is sure to change the stamp."""
    return not 0 <= time.time_ns() - stamp[2] < TICK_NS


def _stamp(path: str) -> Stamp:
    """Return the identity of a version of the file; the last number is the log's length: 0 if the file is the whole store."""
    try:
        main = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    try:
        log = os.stat(f"{path}-wal").st_size
    except OSError:
        log = 0
    return (main.st_ino, main.st_size, main.st_mtime_ns, log)
