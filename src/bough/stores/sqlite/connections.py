"""The connections to one SQLite file: one that writes, behind a lock, and a pool of readers.

Knows transactions, threads, processes and fork(); does not know what is read or written. All writing goes
through `write`, where writers that come together share a transaction; each read sees one snapshot. A file that
cannot be written is read all the same (`sqlite_still`). After fork() the child opens connections of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import apsw

from ...errors import StoreClosed, StoreFull, StoreReadOnly
from . import file
from .group_commit import Group, Ticket
from .readonly import check_readable, open_readonly, readonly_snapshot
from .wal import Wal

R = TypeVar("R")
Work = Callable[[apsw.Connection], Any]


class Connections:
    _queue: file.Queue
    _writer: apsw.Connection
    _wal: Wal

    def __init__(self, path: str, synchronous: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._group: Group[Work, Any] = Group(self._carry_out, alone=self._transact)
        self._readers: list[apsw.Connection] = []
        self._lent: set[apsw.Connection] = set()
        self._is_closed = self._can_write = False
        try:
            self._open_writer()
        except (StoreReadOnly, StoreFull) as refused:
            check_readable(self._path, refused)
        _OPEN.add(self)

    def _open_writer(self) -> None:
        """When the store is opened; if it could not be written then, before each write: it may have been seen to."""
        file.prepare(self._path, synchronous=self._synchronous)
        self._queue = file.Queue(self._path)
        try:
            self._writer = file.connect(self._path, synchronous=self._synchronous)
            self._wal = Wal(self._path, self._writer, is_synced=self._synchronous == "full")
        except apsw.Error as error:
            self._queue.close()
            raise file.explain(self._path, error) from None
        self._can_write = True

    def close(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            return
        with self._group.lead:
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
        """Wait until nobody writes or reads, and let nobody begin to write."""
        self._group.lead.acquire()
        for _ in range(5_000):
            if not self._lent:
                break
            time.sleep(0.001)

    def unpause(self) -> None:
        self._group.lead.release()

    def write(self, work: Callable[[apsw.Connection], R]) -> R:
        """Do this in a transaction, perhaps with others; durable on return."""
        self._check_open()
        outcome: R = self._group.submit(work)
        return outcome

    def _carry_out(self, tickets: Sequence[Ticket[Work, Any]]) -> None:
        """Everybody's work in one transaction. A refusal concerns only who is refused."""
        try:
            outcomes = self._transact(lambda writer: [_attempt(writer, ticket.asked) for ticket in tickets])
        except _HalfDone:
            outcomes = [self._by_itself(ticket.asked) for ticket in tickets]
        for ticket, outcome in zip(tickets, outcomes, strict=True):
            if isinstance(outcome, Exception):
                ticket.failed(outcome)
            else:
                ticket.done(outcome)

    def _by_itself(self, work: Work) -> Any:
        try:
            return self._transact(work)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is one writer's and not its neighbours'
            return error

    def _transact(self, work: Work) -> Any:
        if not self._can_write:
            self._open_writer()
        writer = self._writer
        try:
            with self._queue:
                if writer.in_transaction:  # an interrupt came in the middle of a rollback
                    writer.execute("rollback")
                writer.execute("begin immediate")
                try:
                    self._wal.lay_out()
                    outcome = work(writer)
                    writer.execute("commit")
                except BaseException:
                    if writer.in_transaction:
                        writer.execute("rollback")
                    raise
        except apsw.Error as error:
            raise file.explain(self._path, error) from None
        return outcome

    def reading(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """A connection within one snapshot."""
        self._check_open()
        return self._pooled() if self._can_write else self._looking()

    @contextlib.contextmanager
    def _looking(self) -> Iterator[apsw.Connection]:
        with readonly_snapshot(self._path) as reader:
            self._lent.add(reader)
            try:
                yield reader
            finally:
                self._lent.discard(reader)

    @contextlib.contextmanager
    def _pooled(self) -> Iterator[apsw.Connection]:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = file.connect(self._path, synchronous=self._synchronous)
            reader.execute("pragma query_only = on")
        self._lent.add(reader)
        try:
            reader.execute("begin")
            yield reader
            reader.execute("commit")
        except apsw.Error as error:
            raise file.explain(self._path, error) from None
        finally:
            self._lent.discard(reader)
            if reader.in_transaction:
                with contextlib.suppress(apsw.Error):
                    reader.execute("rollback")
            if self._is_closed or reader.in_transaction:
                reader.close(True)  # it is of no more use; the next one to read opens another
            else:
                self._readers.append(reader)

    def scrub(self) -> bool:
        """Write the file anew and empty the write-ahead log, so that no deleted byte is left.

        `secure_delete` zeroes a cell where it lies, but balancing leaves copies in the free part of other
        pages; only a vacuum gets them. False if a reader of another process held the log open.
        """
        with self._group.lead, self._queue:
            try:
                self._writer.execute("vacuum")
                state = self._writer.execute("pragma wal_checkpoint(truncate)").fetchone()
            except (apsw.BusyError, apsw.LockedError):
                return False
            except apsw.Error as error:
                raise file.explain(self._path, error) from None
        return state is not None and state[0] == 0

    def backup(self, to: str) -> None:
        self._check_open()
        sight = open_readonly(self._path)
        try:
            with contextlib.closing(sight.connection) as source:
                file.backup(source, to, sight.check)
        except apsw.FullError:
            raise StoreFull(to) from None


class _HalfDone(Exception):
    """One of a group failed in the middle of its work."""


def _attempt(writer: apsw.Connection, work: Work) -> Any:
    """A refusal as a value, so that the others' work stands. Who refuses has written nothing yet: a savepoint
    for each would undo what is not there, and cost each two statements."""
    before = writer.total_changes()
    try:
        return work(writer)
    except apsw.Error:
        raise  # the file itself: nobody's work can stand
    except Exception as error:  # whatever it is, it is one writer's and not its neighbours'
        if writer.total_changes() != before:
            raise _HalfDone from error
        return error


# SQLite keeps the locks of a process in tables of its own, which fork() copies: a child would believe it held
# the locks of its parent, even on a connection it opens itself, and lose commits when the parent checkpoints.
# So nothing may be under way when a process forks, and the child closes what it inherited. POSIX locks are
# not inherited, so that closing takes nothing from the parent.

_OPEN: WeakSet[Connections] = WeakSet()
_resting: list[Connections] = []


def _before_fork() -> None:
    _resting[:] = sorted(_OPEN, key=id)
    for connections in _resting:
        connections.pause()


def _after_fork_in_parent() -> None:
    while _resting:
        _resting.pop().unpause()


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
