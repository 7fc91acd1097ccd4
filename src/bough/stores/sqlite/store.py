"""The embedded store: one SQLite file, any number of threads and processes.

Knows what is read and which work is a transaction. Leaves to `sqlite_connections` who may write when, to
`sqlite_write` what one change does, and to `sqlite_purge` what may be forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from ...core.drafts import Blob
from ...core.entries import Entry
from ...core.tree import Branch, Leaf, Range, contains_leaf, lineage, window
from ...core.usage import Call
from ...errors import IdTaken, InvalidPosition, NotFound, StoreDamaged
from ..base import (
    Change,
    CommitResult,
    Fact,
    NewSession,
    PathSnapshot,
    SessionDetail,
    SessionPage,
    SessionQuery,
    SessionRow,
    StoredEntry,
)
from ..purge_types import PurgeResult, UnreferencedBlobs
from ..rows import (
    CALL_COLUMNS,
    ENTRY_COLUMNS,
    FACT_COLUMNS,
    SESSION_COLUMNS,
    call_from,
    entries_from,
    fact_from,
    session_from,
    stored_from,
)
from .commit import Heads, apply, insert_blobs, insert_session
from .connections import Connections
from .counts import SqliteCounting
from .encryption import register_key
from .export_sessions import SELECT_BRANCHES, SELECT_DETAIL, SELECT_SESSION
from .import_sessions import SqliteDumping
from .lease import SqliteDriving
from .purge import below, purge
from .search import SqliteSearching
from .session_query import conditions

SELECT_LATEST = f"""
select {SESSION_COLUMNS} from session
where space = :space and conversation_id = :conversation and (:owner is null or owner = :owner)
  and (relation is null or relation = 'import') and trashed_at is null
order by no desc limit 1
"""
SELECT_LINE = """
with recursive line (id, session_no, parent, parent_seq) as (
    select id, session_no, parent, parent_seq from branch where id = ?
    union all
    select branch.id, branch.session_no, branch.parent, branch.parent_seq
    from line join branch on branch.id = line.parent and branch.id < line.id -- a forged ring ends here
)
select id, parent, parent_seq from line
"""
SELECT_BRANCH = "select parent, parent_seq from branch where id = ?"
SELECT_OWN = """
select 1 from branch join session on session.no = branch.session_no where branch.id = ? and session.id = ?
"""
SELECT_ENTRIES = f"select {ENTRY_COLUMNS} from entry where id between ? and ? order by id"
SELECT_PUBLIC = f"""
select {ENTRY_COLUMNS} from entry indexed by entry_public
where internal = 0 and id between ? and ? order by id
"""
SELECT_STORED = f"""
select {", ".join(f"entry.{name.strip()}" for name in ENTRY_COLUMNS.split(","))}, entry.role,
       (select group_concat(blob.hash, ' ') from blob_use join blob on blob.no = blob_no
        where blob_use.entry = entry.id)
from branch join entry on entry.id between branch.id << 32 and (branch.id << 32) + 4294967295
where branch.session_no = ? order by entry.id
"""
SELECT_LOOSE = """
select count(*), coalesce(sum(size), 0) from blob
where space = ? and at < ? and no not in (select blob_no from blob_use)
"""
SELECT_LINE_SESSIONS = """
with recursive line (id) as (
    select id from branch where session_no = :no
    union
    select branch.parent from line join branch on branch.id = line.id where branch.parent is not null
)
select distinct session_no from line join branch on branch.id = line.id where session_no <> :no order by 1
"""


class SqliteStore(SqliteSearching, SqliteDumping, SqliteCounting, SqliteDriving):
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        space: str = "default",
        owner: str | None = None,
        synchronous: str = "full",
        key: str | None = None,
    ) -> None:
        self.url = str(Path(path))
        if key is not None:
            register_key(self.url, key)
        self.space, self.owner = space, owner
        self._connections = Connections(self.url, synchronous)
        self._heads = Heads(space, owner)

    def close(self) -> None:
        self._connections.close()

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, change: Change) -> CommitResult:
        return self._connections.write(lambda writer: apply(writer, change, self._heads))

    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        return self._connections.write(lambda writer: self._create(writer, new))

    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        def work(writer: apsw.Connection) -> tuple[SessionRow, bool]:
            bindings = {"space": self.space, "owner": self.owner, "conversation": new.row.conversation_id}
            found = writer.execute(SELECT_LATEST, bindings).fetchone()
            return (session_from(found), False) if found else self._create(writer, new)

        return self._connections.write(work)

    def _create(self, writer: apsw.Connection, new: NewSession) -> tuple[SessionRow, bool]:
        taken = writer.execute(
            "select space, owner from session where id = ?", (new.row.session_id,)
        ).fetchone()
        if taken is None:
            insert_session(writer, new)
            return self._row(writer, new.row.session_id), True
        if taken != (self.space, new.row.owner):
            raise IdTaken(new.row.session_id)
        row = self._row(writer, new.row.session_id)
        seeds = self._entries(writer, self._line(writer, row.leaf), 1, row.seed_count, public=False)
        if [seed.entry_id for seed in seeds] != [
            seed.entry_id for seed in new.seeds
        ] or new.fork_point is not None:
            raise IdTaken(new.row.session_id)
        return row, False

    def trash(self, session_id: str, at: int) -> list[str]:
        def work(writer: apsw.Connection) -> list[str]:
            row = self._row(writer, session_id)
            ids = [*below(writer, session_id), session_id]
            if row.trashed_at is None:
                writer.executemany(
                    "update session set trashed_at = ? where id = ? and trashed_at is null",
                    [(at, name) for name in ids],
                )
            return ids

        return self._connections.write(work)

    def restore(self, session_id: str) -> list[str]:
        def work(writer: apsw.Connection) -> list[str]:
            row = self._row(writer, session_id)
            ids = [*below(writer, session_id), session_id]
            writer.executemany(
                "update session set trashed_at = null where id = ? and trashed_at = ?",
                [(name, row.trashed_at) for name in ids],
            )
            return ids

        return self._connections.write(work)

    def purge(self, session_id: str, *, with_forks: bool = False) -> PurgeResult:
        def work(writer: apsw.Connection) -> PurgeResult:
            return purge(writer, self._row(writer, session_id), with_forks=with_forks)

        purged = self._connections.write(work)
        return PurgeResult(
            purged.sessions, purged.entries, purged.kept_entries, purged.blobs, self._connections.scrub()
        )

    def put_blob(self, blob: Blob, at: int) -> None:
        self._connections.write(lambda writer: insert_blobs(writer, self.space, (blob,), at))

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        with self._connections.reading() as reader:
            count, size = reader.execute(SELECT_LOOSE, (self.space, before)).get
        return UnreferencedBlobs(count, size)

    def delete_unreferenced_blobs(self, before: int) -> int:
        def work(writer: apsw.Connection) -> int:
            writer.execute(
                "delete from blob where space = ? and at < ? and no not in (select blob_no from blob_use)",
                (self.space, before),
            )
            return writer.changes()

        return self._connections.write(work)

    # -- reading -----------------------------------------------------------------------------------

    def _raw(self, connection: apsw.Connection, session_id: str) -> tuple[Any, ...]:
        bindings = {"id": session_id, "space": self.space, "owner": self.owner}
        try:
            row: tuple[Any, ...] | None = connection.execute(SELECT_SESSION, bindings).fetchone()
        except UnicodeEncodeError:  # half a character names no session
            row = None
        if row is None:
            raise NotFound(session_id)
        return row

    def _row(self, connection: apsw.Connection, session_id: str) -> SessionRow:
        return session_from(self._raw(connection, session_id))

    def _no(self, connection: apsw.Connection, session_id: str) -> int:
        return int(self._raw(connection, session_id)[0])

    def _line(self, connection: apsw.Connection, leaf: Leaf) -> list[Range]:
        root = connection.execute(SELECT_BRANCH, (leaf.branch,)).fetchone()
        if (
            root is not None and root[0] is None
        ):  # never forked nor rewound, as most: a walk costs thrice as much
            return lineage({leaf.branch: Branch(leaf.branch, None, *root)}, leaf)
        found: list[tuple[Any, ...]] = connection.execute(SELECT_LINE, (leaf.branch,)).fetchall()
        try:
            return lineage({no: Branch(no, None, parent, seq) for no, parent, seq in found}, leaf)
        except KeyError as error:
            why = f"branch {error} is missing on the way to {leaf}; session.verify() tells more"
            raise StoreDamaged(self.url, why) from None

    def _refuse_stray(self, connection: apsw.Connection, row: SessionRow, leaf: Leaf) -> None:
        """Another session's branch, and another tenant's, is in the same table: only what it stands on is its own."""
        if leaf == row.leaf or connection.execute(SELECT_OWN, (leaf.branch, row.session_id)).fetchone():
            return
        branches = self._branches(connection, self._no(connection, row.session_id))
        if not contains_leaf(branches, row.session_id, leaf):
            raise InvalidPosition(str(leaf), 0, row.leaf.seq)

    def _branches(self, connection: apsw.Connection, no: int) -> list[Branch]:
        return [Branch(*row) for row in connection.execute(SELECT_BRANCHES, {"no": no})]

    def _entries(
        self, connection: apsw.Connection, ranges: Sequence[Range], first: int, last: int, *, public: bool
    ) -> list[Entry]:
        query = SELECT_PUBLIC if public else SELECT_ENTRIES
        found: list[Entry] = []
        for part in window(ranges, first, last):
            base = part.branch << 32
            rows = connection.execute(query, (base | part.first, base | part.last)).fetchall()
            try:
                found += entries_from(rows)
            except (msgspec.DecodeError, TypeError) as error:
                why = f"an entry of branch {part.branch} cannot be read ({error}); session.verify() names it"
                raise StoreDamaged(self.url, why) from None
        return found

    def session(self, session_id: str) -> SessionRow:
        with self._connections.reading() as reader:
            return self._row(reader, session_id)

    def detail(self, session_id: str) -> SessionDetail:
        with self._connections.reading() as reader:
            return self._detail(reader, session_id)

    def _detail(self, reader: apsw.Connection, session_id: str) -> SessionDetail:
        no = self._no(reader, session_id)
        found: tuple[Any, ...] | None = reader.execute(SELECT_DETAIL, (no,)).fetchone()
        assert found is not None  # made together with the session
        return SessionDetail(*(None if text is None else text.encode() for text in found))

    def sessions(self, query: SessionQuery) -> SessionPage:
        where, bindings = conditions(query, self.space, self.owner)
        with self._connections.reading() as reader:
            rows = reader.execute(
                f"select {SESSION_COLUMNS} from session where {where} order by no desc limit ?",
                (*bindings, query.limit + 1),
            ).fetchall()
        more = len(rows) > query.limit
        rows = rows[: query.limit]
        return SessionPage([session_from(row) for row in rows], str(rows[-1][0]) if more else None)

    def path(
        self,
        session_id: str,
        *,
        leaf: Leaf | None = None,
        first: int = 1,
        last: int | None = None,
        newest: int | None = None,
        public: bool = False,
        detail: bool = False,
    ) -> PathSnapshot:
        with self._connections.reading() as reader:
            row = self._row(reader, session_id)
            end = row.leaf if leaf is None else leaf
            self._refuse_stray(reader, row, end)
            ranges = self._line(reader, end)
            first = first if newest is None else max(first, end.seq - newest + 1)
            entries = self._entries(reader, ranges, first, end.seq if last is None else last, public=public)
            wide = self._detail(reader, session_id) if detail else None
        return PathSnapshot(row, tuple(ranges), entries, wide)

    def entries(self, session_id: str) -> list[StoredEntry]:
        with self._connections.reading() as reader:
            no = self._no(reader, session_id)
            found = reader.execute(SELECT_STORED, (no,)).fetchall()
        return [stored_from(row) for row in found]

    def branches(self, session_id: str) -> list[Branch]:
        with self._connections.reading() as reader:
            return self._branches(reader, self._no(reader, session_id))

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]:
        with self._connections.reading() as reader:
            base = self._no(reader, session_id) << 32
            found = reader.execute(
                f"select {FACT_COLUMNS} from journal where id > ? and id < ? order by id limit ?",
                (base + after, base + (1 << 32), -1 if limit is None else limit),
            ).fetchall()
        return [fact_from(row) for row in found]

    def calls(self, session_id: str) -> list[Call]:
        with self._connections.reading() as reader:
            return self._calls(reader, self._no(reader, session_id))

    def inherited_calls(self, session_id: str) -> list[Call]:
        with self._connections.reading() as reader:
            others: list[tuple[Any, ...]] = reader.execute(
                SELECT_LINE_SESSIONS, {"no": self._no(reader, session_id)}
            ).fetchall()
            return [call for (no,) in others for call in self._calls(reader, no)]

    def _calls(self, reader: apsw.Connection, no: int) -> list[Call]:
        query = f"select {CALL_COLUMNS} from usage where id > ? and id < ? order by id"
        return [call_from(row) for row in reader.execute(query, (no << 32, (no + 1) << 32))]

    def blob(self, digest: str) -> Blob | None:
        with self._connections.reading() as reader:
            query = "select hash, mime, bytes from blob where space = ? and hash = ?"
            found = reader.execute(query, (self.space, digest)).fetchone()
        return None if found is None else Blob(*found)

    def backup(self, to: str | os.PathLike[str]) -> None:
        """A whole copy at `to`, taken while others go on."""
        self._connections.backup(str(to))
