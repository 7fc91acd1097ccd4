"""The store on a server: PostgreSQL, any number of machines, tenants kept apart by the database itself.

Knows what is read, and which work is one statement and which a transaction. Leaves to `postgres_connections` what
happens when a connection breaks, to `postgres_write` what one change does, and to `postgres_purge` what may be
forgotten. The schema is made by `postgres_schema.migrate`, by another role than the one that works here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from typing import Any

from psycopg.errors import UniqueViolation

from ...core.drafts import Blob
from ...core.tree import Leaf
from ...errors import Fenced, IdTaken, NotFound, SessionRunning, SessionTrashed
from ..base import Change, CommitResult, NewSession, QueuedInput, SessionRow
from ..purge_types import PurgeResult, UnreferencedBlobs
from ..rows import session_from
from . import create as creating
from .commit import (
    commit_locked,
    committed,
    find_committed,
    fits_statement,
    insert_blobs,
    lock_head,
    shape_of,
    statement,
    values_of,
)
from .connections import SET_LOCK_TIMEOUT, SET_SPACE, ConnectionLost, Connections
from .counts import PostgresCounting
from .export_sessions import MINE, SELECT_SESSION
from .import_sessions import PostgresDumping
from .purge import below, purge
from .read import PostgresReading
from .rows import SESSION_COLUMNS
from .search import PostgresSearching
from .statement import Connection, Statement
from .url import Address

SELECT_LATEST = f"""
select {SESSION_COLUMNS} from bough.session
where {SET_SPACE} and space = %(space)s and conversation_id = %(conversation)s
  and (%(owner)s::text is null or owner = %(owner)s)
  and (relation is null or relation = 'import') and trashed_at is null
order by no desc limit 1
"""
SELECT_INBOX = f"""
select n, body, at from bough.session left join bough.inbox on inbox.no = session.no where {MINE} order by n
"""
SELECT_QUEUED_KEY = f"""
select 1 from bough.session join bough.inbox on inbox.no = session.no where {MINE} and inbox.key = %(key)s
"""
SELECT_DRAFT = f"""
select draft.text from bough.session
left join bough.draft on draft.no = session.no and (draft.branch, draft.seq) = (session.branch, session.seq)
where {MINE}
"""
SELECT_BLOB = f"""
select hash, mime, bytes from bough.blob where {SET_SPACE} and space = %(space)s and hash = %(hash)s
"""
SELECT_LOOSE = f"""
select count(*), coalesce(sum(size), 0)::bigint from bough.blob
where {SET_SPACE} and space = %(space)s and at < %(before)s
  and not exists (select 1 from bough.blob_use where blob_no = blob.no)
"""
DELETE_LOOSE = """
delete from bough.blob where space = %s and at < %s
  and not exists (select 1 from bough.blob_use where blob_no = blob.no)
"""
SAVE_DRAFT = """
insert into bough.draft (no, space, branch, seq, fence, text, at) values (%s, %s, %s, %s, %s, %s, %s)
on conflict (no) do update set (branch, seq, fence, text, at) =
    row(excluded.branch, excluded.seq, excluded.fence, excluded.text, excluded.at)
"""
# If one of these changes nothing, what prevented it is read afterwards.
LEASE = f"""
update bough.session set holder = %(holder)s, lease_until = %(until)s,
    fence = fence + (holder is distinct from %(holder)s)::integer
where {SET_SPACE} and {SET_LOCK_TIMEOUT}{{condition}} and id = %(id)s
  and (%(owner)s::text is null or owner = %(owner)s) and trashed_at is null
  and (holder is null or holder = %(holder)s or coalesce(lease_until, 0) <= %(at)s)
returning fence
"""
RELEASE = f"""
update bough.session set holder = null, lease_until = null
where {SET_SPACE} and {SET_LOCK_TIMEOUT}{{condition}} and id = %(id)s
  and (%(owner)s::text is null or owner = %(owner)s) and fence = %(fence)s
returning no
"""
MAX_EXTENDABLE = 10_000
ENQUEUE = """
insert into bough.inbox (no, n, space, owner, key, body, at)
select %s, coalesce(max(n), 0) + 1, %s, %s, %s, %s, %s from bough.inbox where no = %s returning n
"""


@lru_cache(maxsize=8)
def _lease_statement(update: str, condition: str) -> Statement:
    return Statement.parse(update.format(condition=f" and {condition}" if condition else ""))


class PostgresStore(PostgresReading, PostgresSearching, PostgresDumping, PostgresCounting):
    has_tasks = True

    def __init__(self, url: str, *, space: str = "default", owner: str | None = None) -> None:
        address = Address.parse(url)
        self.url, self.space, self.owner = address.safe_url, space, owner
        self._connections = Connections(address, space)
        self._extendable: set[tuple[str, int] | None] = set()
        """Sessions and branches of theirs that this store has extended: a branch stays its session's own."""

    def close(self) -> None:
        self._connections.close()

    def with_connections(self, join: Callable[[Connections], Connections]) -> PostgresStore:
        """This store by way of an engine's connections: what they do in a transaction commits with our change."""
        joined = copy(self)
        joined._connections = join(self._connections)
        return joined

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, change: Change) -> CommitResult:
        try:
            return self._commit(change)
        except ConnectionLost as lost:
            return self._settle(change, lost)

    def _commit(self, change: Change) -> CommitResult:
        branch = None if change.after is None else (change.session_id, change.after.branch)
        is_known = branch in self._extendable
        done = self._run_statement(change, is_known=is_known) if fits_statement(change) else None
        if done is None:
            done = self._connections.transaction(
                lambda writer: commit_locked(writer, change, self.space, self.owner)
            )
        if change.move_to is not None:
            self._extendable.discard((change.session_id, done.leaf.branch))
        elif change.entries and not is_known:
            if len(self._extendable) >= MAX_EXTENDABLE:
                self._extendable.clear()
            self._extendable.add((change.session_id, done.leaf.branch))
        return done

    def _run_statement(self, change: Change, *, is_known: bool) -> CommitResult | None:
        """Write the change as one statement; None if that wrote nothing, whatever the reason."""
        engine = self._connections.engine_sql()
        shape = shape_of(change, self.owner, "extend" if is_known else "check")
        values = values_of(change, shape, self.space, self.owner, change.move_to)
        values.update(engine.values)
        try:
            rows = self._connections.run_with_engine_sql(
                statement(shape, engine.condition, engine.effect), values
            )
        except UniqueViolation:
            if shape.branch != "extend":
                raise
            return None  # the leaf was moved back by another process: its branch has entries after it
        return committed(rows)

    def _settle(self, change: Change, lost: ConnectionLost) -> CommitResult:
        """The answer was lost. If the key is there it happened; if not it is tried again, and the compare and swap
        decides should the server still have been at it."""
        deadline = self._connections.deadline()
        while True:
            self._connections.recover(lost, deadline)
            try:
                found = self._connections.transaction(
                    lambda writer: find_committed(writer, change, self.owner)
                )
                if found is not None:
                    return found
                done = self._commit(change)
                return CommitResult(done.leaf, done.facts + len(change.facts)) if done.is_repeat else done
            except ConnectionLost as again:
                lost = again

    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        try:
            return self._create(new)
        except ConnectionLost as lost:
            self._connections.recover(lost, self._connections.deadline())
            found = self._connections.query(
                creating.SELECT_FIRST_KEY, {"space": self.space, "id": new.row.session_id}
            )
            if found and found[0][0] == new.key:
                return self.session(new.row.session_id), True
            return self._connections.retry(lambda: self._create(new))

    def _create(self, new: NewSession) -> tuple[SessionRow, bool]:
        try:
            made = creating.insert(self._connections, new, self.space)
        except UniqueViolation:  # another space's, of which nothing is told, or made in this moment
            made = None
        return (made, True) if made is not None else (self._existing(new), False)

    def _existing(self, new: NewSession) -> SessionRow:
        """The session that has this id; it must be the same one."""
        try:
            row = self.session(new.row.session_id)
        except NotFound:
            raise IdTaken(new.row.session_id) from None
        seeds = self.path(row.session_id, last=row.seed_count).entries if row.seed_count else []
        creating.check_same(new, row, [seed.entry_id for seed in seeds])
        return row

    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """Under a lock of the conversation's own, which whoever asks for the same one waits for."""
        bindings = {"space": self.space, "owner": self.owner, "conversation": new.row.conversation_id}
        found = self._connections.query(SELECT_LATEST, bindings)
        if found:
            return session_from(found[0]), False
        name = f"{self.space}\0{new.row.conversation_id}".encode().hex()

        def work(writer: Connection) -> tuple[SessionRow, bool]:
            creating.lock(writer, creating.LOCK_CONVERSATION, name)
            there = writer.execute(SELECT_LATEST, bindings, binary=True).fetchone()
            if there is not None:
                return session_from(there), False
            made = creating.insert_within(writer, new, self.space)
            return (made, True) if made is not None else (self._existing(new), False)

        return self._connections.write(work)

    def trash(self, session_id: str, at: int) -> list[str]:
        def work(writer: Connection) -> list[str]:
            head = lock_head(writer, session_id, self.owner)
            ids = [*below(writer, session_id), session_id]
            if head.trashed_at is None:
                query = "update bough.session set trashed_at = %s where id = any(%s) and trashed_at is null"
                writer.execute(query, (at, ids))
            return ids

        return self._connections.write(work)

    def restore(self, session_id: str) -> list[str]:
        def work(writer: Connection) -> list[str]:
            head = lock_head(writer, session_id, self.owner)
            ids = [*below(writer, session_id), session_id]
            query = "update bough.session set trashed_at = null where id = any(%s) and trashed_at = %s"
            writer.execute(query, (ids, head.trashed_at))
            return ids

        # Done again after it was done, it finds nothing to restore; the ids are the same.
        return self._connections.write(work)

    def purge(self, session_id: str, *, with_forks: bool = False) -> PurgeResult:
        def work(writer: Connection) -> PurgeResult:
            creating.lock(writer, creating.LOCK, self.space)
            return purge(writer, lock_head(writer, session_id, self.owner), session_id, with_forks=with_forks)

        def happened(_: PurgeResult) -> bool:
            return not self._connections.query(SELECT_SESSION, self._named(session_id))

        return self._connections.write(work, happened)

    def lease(self, session_id: str, holder: str, until: int, at: int) -> int:
        fence = self._update_lease(LEASE, session_id, holder=holder, until=until, at=at)
        if fence is not None:
            return fence
        return self._connections.write(lambda writer: self._lease(writer, session_id, holder, until, at))

    def _lease(self, writer: Connection, session_id: str, holder: str, until: int, at: int) -> int:
        lock_head(writer, session_id, self.owner)
        row = self._row(writer, session_id)
        if row.trashed_at is not None:
            raise SessionTrashed(session_id)
        is_held = row.holder is not None and (row.lease_until or 0) > at
        if is_held and row.holder != holder:
            raise SessionRunning(session_id, row.holder, row.updated_at)
        fence = row.fence if row.holder == holder else row.fence + 1
        query = "update bough.session set holder = %s, lease_until = %s, fence = %s where id = %s"
        writer.execute(query, (holder, until, fence, session_id))
        return fence

    def release(self, session_id: str, fence: int) -> None:
        if self._update_lease(RELEASE, session_id, fence=fence) is None:
            # Another runner has it, which is as good; or the session is missing, or not ours to write.
            self._connections.write(lambda writer: lock_head(writer, session_id, self.owner))

    def _update_lease(self, update: str, session_id: str, **values: Any) -> int | None:
        """Change the lease with one statement, which may safely run twice. None: nothing was changed."""
        engine = self._connections.engine_sql()
        lease = _lease_statement(update, engine.condition)
        values |= {"id": session_id, "space": self.space, "owner": self.owner, **engine.values}
        rows = self._connections.retry(lambda: self._connections.run_with_engine_sql(lease, values))
        return int(rows[0][0] or 0) if rows else None

    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        def work(writer: Connection) -> None:
            head = lock_head(writer, session_id, self.owner)
            if head.fence != fence:
                raise Fenced(session_id, fence, head.fence)
            given = (head.no, self.space, leaf.branch, leaf.seq, fence, text.encode(), at)
            writer.execute(SAVE_DRAFT, given)

        self._connections.write(work)

    def draft(self, session_id: str) -> str | None:
        found = self._connections.query(SELECT_DRAFT, self._named(session_id))
        if not found:
            raise NotFound(session_id)
        text: bytes | None = found[0][0]
        return None if text is None else text.decode()

    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        key = secrets.token_hex(16)

        def work(writer: Connection) -> int:
            head = lock_head(writer, session_id, self.owner)
            if head.trashed_at is not None:
                raise SessionTrashed(session_id)
            given = (head.no, self.space, head.owner, key, body, at, head.no)
            found = writer.execute(ENQUEUE, given).fetchone()
            assert found is not None
            return int(found[0])

        def happened(_: int) -> bool:
            return bool(self._connections.query(SELECT_QUEUED_KEY, {**self._named(session_id), "key": key}))

        return self._connections.write(work, happened)

    def inbox(self, session_id: str) -> list[QueuedInput]:
        found = self._hanging(SELECT_INBOX, session_id)
        return [QueuedInput(*row) for row in found]

    def put_blob(self, blob: Blob, at: int) -> None:
        self._connections.write(lambda writer: insert_blobs(writer, self.space, (blob,), at))

    def blob(self, digest: str) -> Blob | None:
        found = self._connections.query(SELECT_BLOB, {"space": self.space, "hash": digest})
        return Blob(*found[0]) if found else None

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        return UnreferencedBlobs(
            *self._connections.query(SELECT_LOOSE, {"space": self.space, "before": before})[0]
        )

    def delete_unreferenced_blobs(self, before: int) -> int:
        def work(writer: Connection) -> int:
            return writer.execute(DELETE_LOOSE, (self.space, before)).rowcount

        return self._connections.write(work, lambda _: not self.unreferenced_blobs(before).blobs)
