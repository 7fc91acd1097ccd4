"""What whoever drives a session holds in the file: the lease, what an answer in flight has said, what is queued.

Knows who may and who is too late. Does not know entries, branches or paths.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import apsw

from ...core.tree import Leaf
from ...errors import Fenced, SessionRunning, SessionTrashed
from ..base import QueuedInput, SessionRow, StoreBackend
from .connections import SqliteConnections


class SqliteDriving(StoreBackend):
    """The verbs of a runner, and of who speaks to one that is busy."""

    _connections: SqliteConnections

    @abstractmethod
    def _row(self, connection: apsw.Connection, session_id: str) -> SessionRow: ...

    @abstractmethod
    def _no(self, connection: apsw.Connection, session_id: str) -> int: ...

    def lease(self, session_id: str, holder: str, until: int, at: int) -> int:
        def work(writer: apsw.Connection) -> int:
            row = self._row(writer, session_id)
            if row.trashed_at is not None:
                raise SessionTrashed(session_id)
            is_held = row.holder is not None and (row.lease_until or 0) > at
            if is_held and row.holder != holder:
                raise SessionRunning(session_id, row.holder, row.updated_at)
            fence = row.fence if row.holder == holder else row.fence + 1
            writer.execute(
                "update session set holder = ?, lease_until = ?, fence = ? where id = ?",
                (holder, until, fence, session_id),
            )
            return fence

        return self._connections.write(work)

    def release(self, session_id: str, fence: int) -> None:
        def work(writer: apsw.Connection) -> None:
            self._row(writer, session_id)
            writer.execute(
                "update session set holder = null, lease_until = null where id = ? and fence = ?",
                (session_id, fence),
            )

        self._connections.write(work)

    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        def work(writer: apsw.Connection) -> None:
            row = self._row(writer, session_id)
            if row.fence != fence:
                raise Fenced(session_id, fence, row.fence)
            bindings = (self._no(writer, session_id), leaf.branch, leaf.seq, fence, text, at)
            writer.execute("insert or replace into draft values (?, ?, ?, ?, ?, ?)", bindings)

        self._connections.write(work)

    def draft(self, session_id: str) -> str | None:
        with self._connections.reading() as reader:
            found: tuple[Any, ...] | None = reader.execute(
                "select text from draft join session using (no, branch, seq) where no = ?",
                (self._no(reader, session_id),),
            ).fetchone()
        return None if found is None else found[0]

    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        def work(writer: apsw.Connection) -> int:
            if self._row(writer, session_id).trashed_at is not None:
                raise SessionTrashed(session_id)
            no = self._no(writer, session_id)
            n = int(writer.execute("select coalesce(max(n), 0) + 1 from inbox where no = ?", (no,)).get)
            writer.execute("insert into inbox values (?, ?, ?, ?)", (no, n, body, at))
            return n

        return self._connections.write(work)

    def inbox(self, session_id: str) -> list[QueuedInput]:
        with self._connections.reading() as reader:
            query = "select n, body, at from inbox where no = ? order by n"
            return [QueuedInput(*row) for row in reader.execute(query, (self._no(reader, session_id),))]
