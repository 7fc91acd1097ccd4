"""The SQLite file itself: creating, opening, migrating and backing it up.

Knows pragmas, file modes and formats. Does not know sessions.

Format: `application_id` identifies an Oakleaf store; `user_version` is major * 1000 + minor. A newer major is refused; a
newer minor only adds, so it is opened and unknown kinds of entry are kept as they are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from weakref import WeakSet

import apsw

from oakleaf.errors import (
    NewerFormat,
    NotAStore,
    PrereleaseFormat,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from oakleaf.stores.sqlite.encryption import has_key, unlock
from oakleaf.stores.sqlite.locks import SUFFIX, Queue

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

APPLICATION_ID = 0x4F414B4C  # "OAKL"
PRERELEASE_IDS = (0x426F7567, 0x424F5547)  # "Boug", "BOUG": files of the product under its former name
FORMAT = 1_000
BUSY_MS = 60_000
UNREADABLE = "it is not a SQLite file, or an encrypted one (key=…, oakleaf --key-file FILE)"
LOCKED = "the key is not the one it was encrypted with, or it is not encrypted at all"

CHECK_DISK = "check the disk, and the limit of a file's size (ulimit -f)"
TOO_MANY_FILES = "close what is not used, or raise the limit (ulimit -n)"
LOGS = ("-wal", "-shm", "-journal")
"""The endings that SQLite adds to a store's name for further files."""

OPENED: WeakSet[apsw.Connection] = WeakSet()
"""Every connection of this process. A connection must not cross fork(): see `connections`."""

Migration = Callable[[apsw.Connection], None]


MIGRATIONS: Mapping[int, Migration] = {}
"""The step to each format after the first; forward only. `schema.sql` is always the newest format whole."""


def real_path(path: str | os.PathLike[str]) -> str:
    """Return the single name of a file, valid as long as the file is open.

    The process may change its folder, and SQLite puts the log beside what a link points to.
    """
    name = os.fspath(path)
    try:
        return os.path.realpath(name)
    except OSError as error:  # the present folder was deleted
        raise refusal(name, error) from None
    except ValueError as error:
        raise NotAStore(name, f"no file can be created there ({error})") from None


def connect(path: str, *, synchronous: str, read_only: bool = False) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    # With its mutex: an error's traceback may keep a cursor, and whichever thread drops the error then ends the
    # statement, perhaps while another one is writing. Without the mutex that has damaged files.
    connection = apsw.Connection(path, flags=flags | apsw.SQLITE_OPEN_FULLMUTEX, statementcachesize=200)
    OPENED.add(connection)
    unlock(connection, path)
    connection.set_busy_timeout(BUSY_MS)
    # A statement keeps its plan whatever is bound to it. Without this SQLite prepares some of them anew for
    # each binding: measured 20-50 µs instead of 2.5 for the query every append begins with.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute("pragma foreign_keys = on")
    # Deleted bytes are overwritten with zeros: a purge leaves nothing behind. No cost to appends was measured.
    connection.execute("pragma secure_delete = on")
    return connection


def connect_immutable(path: str) -> apsw.Connection:
    """Open the file alone, as unchanging: take no lock and create no file next to the store."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
    connection = apsw.Connection(f"{Path(path).absolute().as_uri()}?immutable=1", flags=flags)
    unlock(connection, path)
    return connection


def prepare(path: str, *, synchronous: str, migrations: Mapping[int, Migration] = MIGRATIONS) -> None:
    """Make sure `path` is a store of the current format; safe when several processes start at once."""
    try:
        _check_place_settled(Path(path))
    except apsw.Error as error:
        raise explain(path, error) from None
    except OSError as error:
        raise refusal(path, error) from None
    queue = open_queue(path)
    try:
        queue.lock()
        with contextlib.closing(connect(path, synchronous=synchronous)) as connection:
            version = check_format(connection, path)
            if version == 0:
                # A commit writes whole pages: with 2 kB 7.5 bytes for each that is kept, with 4 kB 13, with 8 kB 22. Space
                # is 1.26 times the JSON of 800 messages instead of 1.40, and loading a whole session takes a tenth more.
                connection.execute("pragma page_size = 2048")
                connection.execute("pragma journal_mode = wal")
                _apply(connection, path, {FORMAT: _make})
            elif version < FORMAT:
                backup(connection, f"{path}.format-{version}.{int(time.time())}.bak")
                _apply(connection, path, migrations)
    except apsw.Error as error:
        raise explain(path, error) from None
    except OSError as error:
        raise refusal(path, error) from None
    finally:
        queue.close()  # which unlocks it


def _check_place_settled(where: Path) -> None:
    """Check the place; look again if another process was writing the file's pages meanwhile."""
    for pause in (0.01, 0.05, 0.25):
        with contextlib.suppress(apsw.CorruptError):
            return _check_place(where)
        time.sleep(pause)
    return _check_place(where)


def _check_place(where: Path) -> None:
    """Refuse a file that is no store before creating any file next to it; create an absent file."""
    if where.is_dir():
        raise NotAStore(str(where), "it is a directory")
    if not where.parent.is_dir():
        raise NotAStore(str(where), f"the folder {where.parent} does not exist")
    if not where.exists():
        # Readable by its owner only, from the first moment; the WAL inherits the mode.
        os.close(os.open(where, os.O_CREAT | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))
        return
    if not where.is_file():
        raise NotAStore(str(where), "it is a device or pipe")
    if not may_write(where):
        raise StoreReadOnly(str(where))
    if 0 < (size := where.stat().st_size) < 512:
        raise NotAStore(str(where), "it is not a SQLite file")
    if size and not Path(f"{where}-wal").exists():
        # Not even a lock file may be created next to another program's file. Through SQLite and not open(): closing a
        # descriptor of our own would drop this process's locks on the file.
        with contextlib.closing(connect_immutable(str(where))) as peek:
            check_format(peek, str(where))


def may_write(path: str | Path) -> bool:
    return os.access(path, os.W_OK) and os.access(Path(path).parent, os.W_OK)


def check_format(connection: apsw.Connection, path: str) -> int:
    """Return the format of the file, 0 for a new file; raise if the file is no store, too old or too new.

    The two numbers are on the first page; the rest is read only if the numbers are not ours, because after a crash
    during a checkpoint the other pages may be torn until the log is read.
    """
    application = int(connection.execute("pragma application_id").get)
    version = int(connection.execute("pragma user_version").get)
    if application == APPLICATION_ID and version:
        if version // 1_000 > FORMAT // 1_000:
            raise NewerFormat(path, _version_text(version), _version_text(FORMAT))
        return version
    if application in PRERELEASE_IDS:
        raise PrereleaseFormat(path)
    if int(connection.execute("select count(*) from sqlite_schema").get):
        raise NotAStore(path, "it is a SQLite database of another program")
    return 0


def _make(connection: apsw.Connection) -> None:
    connection.execute(f"pragma application_id = {APPLICATION_ID}")
    from importlib.resources import files  # a tenth of the whole start, and only a new store needs it

    connection.execute(files("oakleaf.stores.sqlite").joinpath("schema.sql").read_text(encoding="utf-8"))


def _apply(connection: apsw.Connection, path: str, migrations: Mapping[int, Migration]) -> None:
    """Migrate in a transaction; read the format again inside, because another process may have been first."""
    connection.execute("begin immediate")
    try:
        version = check_format(connection, path)
        for to in sorted(step for step in migrations if step > version):
            migrations[to](connection)
            connection.execute(f"pragma user_version = {to}")
        connection.execute("commit")
    except BaseException:  # also Ctrl-C: the connection lives on and must not hold the write lock
        if connection.in_transaction:  # a full disk ends it
            connection.execute("rollback")
        raise


def _version_text(version: int) -> str:
    return f"{version // 1_000}.{version % 1_000}"


def backup(
    connection: apsw.Connection,
    to: str,
    check: Callable[[], None] = lambda: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Copy the whole store without blocking others, durable on return.

    Written under a temporary name, checked and synced, then renamed; or not at all, and the earlier file is kept.
    """
    to = real_path(to)
    part = f"{to}.part"
    descriptor = _create_part(part, to)
    try:
        _copy_pages(connection, part, to, progress)
        check()
        with _refusals(to):
            os.fsync(descriptor)
            _end_earlier(to, connection.filename)
            os.replace(part, to)
            _sync_folder(to)
    except BaseException:  # also Ctrl-C: a full disk needs the space
        _delete(part, f"{part}-journal")
        raise
    finally:
        os.close(descriptor)


def _create_part(part: str, to: str) -> int:
    """Create the temporary file, or take over a killed process's; return the file locked against other backups."""
    with _refusals(to):
        if os.path.isdir(to):
            raise NotAStore(to, "it is a directory")
        while True:
            descriptor = os.open(part, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(descriptor, 0)
                _delete(f"{part}-journal")
                if os.path.exists(part) and os.path.samestat(os.fstat(descriptor), os.stat(part)):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                raise StoreError(f"another backup to {to} is being written; wait for it") from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the backup that had the lock has just been renamed


def _copy_pages(
    connection: apsw.Connection, part: str, to: str, progress: Callable[[int, int], None]
) -> None:
    try:
        with contextlib.closing(apsw.Connection(part)) as target:
            copy = _unlocked(target, connection).backup("main", connection, "main")
            try:
                while not copy.done:
                    copy.step(1_000)
                    progress(copy.page_count - copy.remaining, copy.page_count)
            finally:
                copy.close(True)
    except apsw.Error as error:
        raise explain(connection.filename if isinstance(error, apsw.CorruptError) else to, error) from None


def _end_earlier(to: str, source: str) -> None:
    """Make sure that nobody has the replaced file open, and that no log of the replaced file stays beside the new one.

    SQLite would take such a log for the new file's. The earlier file is whole before the new one takes its name.
    """
    try:
        if os.path.exists(to):
            with contextlib.closing(apsw.Connection(to, flags=apsw.SQLITE_OPEN_READWRITE)) as earlier:
                unlock(earlier, to if has_key(to) else source)
                earlier.execute("pragma journal_mode = delete").fetchall()
    except (apsw.BusyError, apsw.LockedError):
        raise StoreError(f"{to} is a store that is open; close it, or name another file") from None
    except apsw.Error:
        pass  # not a store, or a damaged one
    if _delete(*(f"{to}{suffix}" for suffix in LOGS)):
        _sync_folder(to)


def _sync_folder(path: str) -> None:
    """Make the names in a file's folder durable."""
    if fcntl is not None:  # Windows cannot, and need not
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _delete(*names: str) -> bool:
    """Delete files that may exist; return whether any did."""
    count = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
            count += 1
    return count > 0


def _unlocked(target: apsw.Connection, source: apsw.Connection) -> apsw.Connection:
    """Give the copy the key and page size of the source; encrypted pages are copied unchanged."""
    unlock(target, source.filename)
    target.execute(f"pragma page_size = {source.execute('pragma page_size').get}")
    return target


def open_queue(path: str) -> Queue:
    with _refusals(f"{path}{SUFFIX}"):
        return Queue(path)


def refusal(path: str, error: OSError) -> StoreError:
    """Return in words why the system does not let a file be opened, created or written."""
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreReadOnly(path)
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFull(path)
        case errno.ENOENT | errno.ENOTDIR:
            return NotAStore(path, f"the folder {os.path.dirname(path) or '.'} does not exist")
        case errno.EMFILE | errno.ENFILE:
            return StoreError(f"{path} cannot be opened: too many files are open", TOO_MANY_FILES)
        case errno.EIO | errno.EFBIG:
            return StoreError(f"reading or writing {path} failed ({error.strerror})", CHECK_DISK)
    return NotAStore(path, f"no file can be created there ({error.strerror})")


@contextlib.contextmanager
def _refusals(path: str) -> Iterator[None]:
    """Raise a refusal by the system as an error in words."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from None


def _is_full(path: str) -> bool:
    """Whether the disk is full: for some files SQLite reports a full disk as an I/O error."""
    try:
        return shutil.disk_usage(Path(path).absolute().parent).free < 64 * 1024
    except OSError:
        return False


def explain(path: str, error: apsw.Error) -> StoreError:
    """Return SQLite's error as a `StoreError`."""
    match error:
        case apsw.NotADBError():
            return NotAStore(path, LOCKED if has_key(path) else UNREADABLE)
        case apsw.FullError():
            return StoreFull(path)
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreReadOnly(path)
        case apsw.CorruptError():
            return StoreDamaged(path, str(error))
        case apsw.IOError() | apsw.CantOpenError() if _is_full(path):
            return StoreFull(path)
        case apsw.IOError():
            return StoreError(
                f"reading or writing {path} failed (disk I/O error); nothing of this change was kept",
                CHECK_DISK,
            )
        case apsw.CantOpenError():
            return StoreError(
                f"{path} cannot be opened ({error})",
                "check the path, its permissions, and the limit of open files (ulimit -n)",
            )
        case apsw.BusyError() | apsw.LockedError():
            return StoreLocked(path, BUSY_MS // 1000)
    return StoreError(f"{path}: {error}")
