"""The connections to one SQLite file: one that writes, behind a lock, and a pool of readers.

Knows transactions, threads, processes and fork(); does not know what is read or written. All writing goes
through `write`, where writers that come together share a transaction; each read sees one snapshot. After
fork() the child opens connections of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import apsw

from ..errors import StoreClosed, StoreFull
from . import sqlite_file as file
from .group import Group, Ticket

R = TypeVar("R")
Work = Callable[[apsw.Connection], Any]


class Connections:
    def __init__(self, path: str, synchronous: str) -> None:
        self._path, self._synchronous = path, synchronous
        file.prepare(path, synchronous=synchronous)
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._group: Group[Work, Any] = Group(self._carry_out)
        self._queue = file.Queue(self._path)
        self._writer = file.connect(self._path, synchronous=self._synchronous)
        self._readers: list[apsw.Connection] = []
        self._is_closed = False

    def close(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            return
        with self._group.lock:
            self._is_closed = True
            for connection in (self._writer, *self._readers):
                connection.close()
            self._queue.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed(self._path)
        if self._pid != os.getpid():
            # A connection must not cross fork(). The parent's are kept, not closed: closing them here
            # could drop its locks.
            self._inherited = (self._writer, self._readers, self._queue, self._group)
            self._open()

    def write(self, work: Callable[[apsw.Connection], R]) -> R:
        """Do this in a transaction, perhaps with others; durable on return."""
        self._check_open()
        return cast(R, self._group.submit(work))

    def _carry_out(self, tickets: Sequence[Ticket[Work, Any]]) -> None:
        """Everybody's work in one transaction. A refusal concerns only who is refused."""
        writer = self._writer
        do = _alone if len(tickets) == 1 else _guarded
        try:
            with self._queue:
                if writer.in_transaction:  # an interrupt came in the middle of a rollback
                    writer.execute("rollback")
                writer.execute("begin immediate")
                try:
                    outcomes = [do(writer, ticket.asked) for ticket in tickets]
                    writer.execute("commit")
                except BaseException:
                    if writer.in_transaction:
                        writer.execute("rollback")
                    raise
        except apsw.Error as error:
            raise file.explain(self._path, error) from None
        for ticket, outcome in zip(tickets, outcomes, strict=True):
            if isinstance(outcome, Exception):
                ticket.failed(outcome)
            else:
                ticket.done(outcome)

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """A connection within one snapshot."""
        self._check_open()
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = file.connect(self._path, synchronous=self._synchronous)
            reader.execute("pragma query_only = on")
        try:
            reader.execute("begin")
            yield reader
        except apsw.Error as error:
            raise file.explain(self._path, error) from None
        finally:
            if reader.in_transaction:
                reader.execute("commit")
            if self._is_closed:
                reader.close()
            else:
                self._readers.append(reader)

    def scrub(self) -> bool:
        """Write the file anew and empty the write-ahead log, so that no deleted byte is left.

        `secure_delete` zeroes a cell where it lies, but balancing leaves copies in the free part of other
        pages; only a vacuum gets them. False if a reader of another process held the log open.
        """
        with self._group.lock, self._queue:
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
        try:
            with contextlib.closing(file.connect(self._path, synchronous="off", read_only=True)) as source:
                file.backup(source, to)
        except apsw.FullError:
            raise StoreFull(to) from None


def _alone(writer: apsw.Connection, work: Work) -> Any:
    return work(writer)


def _guarded(writer: apsw.Connection, work: Work) -> Any:
    """In a group a refusal is undone to where it began, so that the others' work stands."""
    writer.execute("savepoint one")
    try:
        outcome = work(writer)
    except apsw.Error:
        raise  # the file itself: nobody's work can stand
    except Exception as error:  # noqa: BLE001 - whatever it is, it is one writer's and not its neighbours'
        writer.execute("rollback to one")
        outcome = error
    writer.execute("release one")
    return outcome
