"""The connections to one SQLite file: one writer behind a lock, and a pool of readers.

Knows transactions, threads, processes and fork(); does not know what is read or written. All writing goes through
`write`, where concurrent writers share a transaction; each read sees one snapshot. A file that cannot be written can
still be read (`readonly`). After fork() the child opens connections of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any, TypeVar
from weakref import WeakSet

import apsw

from oakleaf.errors import OakleafError, StoreClosed, StoreFull, StoreReadOnly
from oakleaf.stores.sqlite import file
from oakleaf.stores.sqlite.group_commit import Group, Ticket
from oakleaf.stores.sqlite.locks import SUFFIX, Queue
from oakleaf.stores.sqlite.readonly import check_readable, open_readonly, readonly_snapshot

R = TypeVar("R")
PAUSE_SECONDS = 5.0
"""How long fork() waits for a thread that reads or writes."""
Work = Callable[[apsw.Cursor], Any]
FILE_FAILURES = (
    apsw.IOError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.CorruptError,
    apsw.NotADBError,
)
"""After such a failure a connection may keep a wrong read of a file, or a file opened read-only, for good."""


class SqliteConnections:
    _queue: Queue
    _writer: apsw.Connection
    _cursor: apsw.Cursor
    """The writer's cursor for the statements of every change: making one costs nearly as much as a statement."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._group = Group(self._run_batch)
        self._readers: list[apsw.Connection] = []
        self._in_use: dict[object, int] = {}
        """The snapshots that are open or being opened, with the thread of each."""
        self._is_closed = self._can_write = self._has_failed = self._is_paused = self._has_lead = False
        _OPEN.add(self)
        try:
            self._ready_writer()
        except (StoreReadOnly, StoreFull) as error:
            check_readable(self._path, error)

    def _ready_writer(self) -> None:
        """Open the writer, unless a working writer is open. Called before each write: the file may be writable by now."""
        if self._can_write and not self._has_failed:
            return
        if self._is_closed:
            raise StoreClosed(self._path)
        if not self._can_write:
            file.prepare(self._path, synchronous=self._synchronous)
            self._queue = file.open_queue(self._path)
        try:
            if self._can_write:
                self._replace_connections()
            else:
                self._connect_writer()
        except apsw.Error as error:
            if not self._can_write:
                self._queue.close()
            raise file.explain(self._path, error) from None
        self._can_write, self._has_failed = True, False

    def _connect_writer(self) -> None:
        writer = file.connect(self._path, synchronous=self._synchronous)
        if writer.readonly(
            "main"
        ):  # what SQLite tries in silence when the system refuses to open it for writing
            writer.close()
            raise apsw.ReadOnlyError(self._path)
        self._writer, self._cursor = writer, writer.cursor()

    def close(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            return
        with self._group.lead:  # a waiting writer then finds the store closed
            self._is_closed = True
            for connection in self._readers:
                connection.close()
            if self._can_write:
                self._writer.close()
                self._queue.close()

    def read_snapshot(self, work: Callable[[apsw.Connection], R]) -> R:
        with self.reading() as connection:
            return work(connection)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed(self._path)
        if self._pid != os.getpid():
            if self._can_write:
                self._queue.close()
            self._open()

    def pause(self) -> None:
        """Let no thread begin to read, wait until none reads or writes, and block writers."""
        self._is_paused = True
        until = time.monotonic() + PAUSE_SECONDS
        me = get_ident()
        while set(self._in_use.copy().values()) - {me} and time.monotonic() < until:
            time.sleep(0.001)
        self._has_lead = self._group.lead.acquire(timeout=PAUSE_SECONDS)

    def unpause(self) -> None:
        self._is_paused = False
        if self._has_lead:
            self._has_lead = False
            self._group.lead.release()
            self._group.wake_next()

    def _enter(self, snapshot: object) -> None:
        """Register a snapshot before any part of the snapshot is opened; wait while the process forks.

        Registered first: either the thread sees the pause, or the pause sees the snapshot. A thread that reads already
        may read more: the pause waits for the thread.
        """
        me = get_ident()
        self._in_use[snapshot] = me
        while self._is_paused and not _is_reading(me, snapshot):
            del self._in_use[snapshot]
            time.sleep(0.001)
            self._in_use[snapshot] = me

    def write(self, work: Callable[[apsw.Connection], R]) -> R:
        """Run work in a transaction, perhaps together with other writers; durable on return."""
        return self.write_by_cursor(lambda cursor: work(cursor.connection))

    def write_by_cursor(self, work: Callable[[apsw.Cursor], R]) -> R:
        """As `write`, with the cursor of the writer. The cursor must not be used after the work has returned."""
        self._check_open()
        result: R = self._group.submit(work)
        return result

    def _run_batch(self, tickets: Sequence[Ticket]) -> None:
        """Run the work of all tickets in a single transaction, each once. An error of a ticket does not affect other tickets."""
        if len(tickets) == 1:
            tickets[0].succeed(self._transact(tickets[0].work))
            return
        results = self._transact(lambda cursor: [self._attempt(cursor, ticket.work) for ticket in tickets])
        for ticket, result in zip(tickets, results, strict=True):
            if isinstance(result, Exception):
                ticket.fail(result)
            else:
                ticket.succeed(result)

    def _attempt(self, cursor: apsw.Cursor, work: Work) -> Any:
        """Run a writer's work, or undo the work and return the error. No work is run again: the work may have used up a source."""
        cursor.execute("savepoint work")
        try:
            result = work(cursor)
        except Exception as error:
            _drop_cursors(error)
            if not cursor.connection.in_transaction:  # SQLite has undone everything: the file itself failed
                raise
            cursor.execute("rollback to work")
            result = file.explain(self._path, error) if isinstance(error, apsw.Error) else error
        cursor.execute("release work")
        return result

    def _transact(self, work: Work) -> Any:
        self._ready_writer()
        writer, cursor = self._writer, self._cursor
        try:
            self._lock_queue()
            if writer.in_transaction:  # an interrupt came during a rollback
                cursor.execute("rollback")
            cursor.execute("begin immediate")
            try:
                result = work(cursor)
                cursor.execute("commit")
            except (
                BaseException
            ) as error:  # also Ctrl-C: the next writer needs a connection without a transaction
                _drop_cursors(error)
                if writer.in_transaction:
                    cursor.execute("rollback")
                raise
        except apsw.Error as error:
            self._has_failed = isinstance(error, FILE_FAILURES)
            raise file.explain(self._path, error) from None
        finally:
            self._queue.unlock()
        return result

    def _lock_queue(self) -> None:
        try:
            self._queue.lock()
        except OSError as error:
            raise file.refusal(f"{self._path}{SUFFIX}", error) from None

    def reading(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """Open a snapshot and return the connection."""
        self._check_open()
        return self._pooled() if self._can_write else self._readonly()

    @contextlib.contextmanager
    def _readonly(self) -> Iterator[apsw.Connection]:
        snapshot = object()
        try:
            self._enter(snapshot)
            with readonly_snapshot(self._path) as reader:
                yield reader
        finally:
            self._in_use.pop(snapshot, None)

    @contextlib.contextmanager
    def _pooled(self) -> Iterator[apsw.Connection]:
        snapshot, reader = object(), None
        try:
            self._enter(snapshot)
            reader = self._idle_reader()
            reader.execute("begin")
            yield reader
            reader.execute("commit")
        except BaseException as error:  # also Ctrl-C: the pool must not lend a reader with an open snapshot
            _drop_cursors(error)
            if reader is not None:
                self._recover(reader, is_known=isinstance(error, OakleafError))
            if isinstance(error, apsw.Error):
                raise file.explain(self._path, error) from None
            raise
        else:
            self._recover(reader, is_known=True)
        finally:
            self._in_use.pop(snapshot, None)

    def _recover(self, reader: apsw.Connection, *, is_known: bool) -> None:
        """Return a reader to the pool, or close the reader: after an interrupt or an error of SQLite the state is unknown."""
        if self._is_closed or not is_known:
            reader.close(True)
            return
        if reader.in_transaction:
            reader.execute("rollback")
        self._readers.append(reader)

    def _idle_reader(self) -> apsw.Connection:
        with contextlib.suppress(IndexError):
            return self._readers.pop()
        reader = file.connect(self._path, synchronous=self._synchronous)
        reader.execute("pragma query_only = on")
        return reader

    def scrub(self) -> bool:
        """Rewrite the file and empty the write-ahead log, to remove all deleted bytes.

        `secure_delete` zeroes a cell in place, but balancing leaves copies in the free part of other pages; only a
        vacuum removes them. Returns False if a reader of another process held the log open; then, and after an error,
        the table `purged` stays, and the next scrub does it all.
        """
        try:
            with self._group.lead:
                self._ready_writer()
                try:
                    self._lock_queue()
                    return self._vacuum()
                finally:
                    self._queue.unlock()
        except (apsw.BusyError, apsw.LockedError):
            return False
        except apsw.Error as error:
            self._has_failed = isinstance(error, FILE_FAILURES)
            raise file.explain(self._path, error) from None
        finally:
            self._group.wake_next()

    def _vacuum(self) -> bool:
        try:
            self._writer.execute("vacuum")
        except apsw.SQLError:  # a cursor that something keeps has a statement in progress
            self._replace_connections()
            self._writer.execute("vacuum")
        if not self._truncate_log():
            return False
        self._writer.execute("drop table if exists purged")
        return self._truncate_log()

    def _truncate_log(self) -> bool:
        state = self._writer.execute("pragma wal_checkpoint(truncate)").fetchone()
        return state is not None and state[0] == 0

    def _replace_connections(self) -> None:
        """Close the writer and the idle readers with all statements, and open another writer."""
        old = self._writer
        self._connect_writer()
        old.close(True)
        with contextlib.suppress(IndexError):
            while True:  # one by one: another thread may take one meanwhile
                self._readers.pop().close(True)

    def backup(self, to: str, progress: Callable[[int, int], None]) -> None:
        self._check_open()
        try:
            readonly = open_readonly(self._path)
            with contextlib.closing(readonly.connection) as source:
                file.backup(source, to, readonly.check, progress)
        except apsw.Error as error:
            raise file.explain(self._path, error) from None


def _drop_cursors(error: BaseException | None) -> None:
    """Clear the local variables in an error's traceback, now and in the present thread.

    A cursor among them would keep its statement, and with it a snapshot, for as long as the error is kept.
    """
    while error is not None:
        step = error.__traceback__
        while step is not None:
            with contextlib.suppress(RuntimeError):  # a frame that is still executing
                step.tb_frame.clear()
            step = step.tb_next
        error = error.__context__


# SQLite keeps the locks of a process in tables of its own, which fork() copies: a child would believe it held
# the locks of its parent, even on a connection it opens itself, and lose commits when the parent checkpoints.
# So no transaction may be open when a process forks, and the child closes what it inherited. POSIX locks are
# not inherited, so that closing takes nothing from the parent.

_OPEN: WeakSet[SqliteConnections] = WeakSet()
_paused: list[SqliteConnections] = []


def _before_fork() -> None:
    _paused[:] = sorted(_OPEN, key=id)
    for connections in _paused:
        connections.pause()


def _is_reading(thread: int, snapshot: object) -> bool:
    """Whether the thread has another snapshot open, in any store."""
    return any(
        (thread == owner and other is not snapshot)
        for connections in list(_OPEN)
        for other, owner in connections._in_use.copy().items()
    )


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().unpause()


def _after_fork_in_child() -> None:
    for connection in list(file.OPENED):
        connection.close(True)
    file.OPENED.clear()
    _OPEN.clear()
    _after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
