"""A reader for the public: inputs and final answers of one owner, and nothing else.

The connection can only read, and only through two views bound to that space and owner; SQLite's own authorizer refuses
everything else, so even raw SQL run on it cannot reach a table, another owner's session, an internal entry, evidence,
reasoning, settings or state. On PostgreSQL row level security does this.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct

from oakleaf.core.codec import check_text
from oakleaf.errors import NotAStore, NotFound, StoreError
from oakleaf.stores.sqlite import file
from oakleaf.stores.sqlite.encryption import register_key
from oakleaf.stores.sqlite.readonly import ReadOnlyConnection, open_readonly

# SQLite passes to its authorizer the view, or common table expression, through which a column is read. A query can
# give an expression of its own any name, so the names that open the tables are drawn at random for each
# connection: `public_…` only read through them.
VIEWS = """
create temp view {token}_session as
select id as session_id, title, agent, status, turns, started_at, updated_at, number, branch, seq
from main.session
where space = {space} and owner = {owner} and trashed_at is null and coalesce(relation, '') not in ('replay', 'task');

create temp view {token}_message as
with recursive {token}_line (session_id, branch, last) as (
    select session_id, branch, seq from {token}_session
    union all
    select {token}_line.session_id, branch.parent, min({token}_line.last, branch.parent_seq)
    from {token}_line join main.branch on branch.id = {token}_line.branch
    where branch.parent is not null
)
select {token}_line.session_id, entry.id & 4294967295 as seq, entry.role, entry.at,
       coalesce((select group_concat(part.value ->> 'text', '')
                 from json_each(cast(entry.body as text), '$.parts') as part
                 where part.value ->> 'type' = 'text'), '') as text
from {token}_line
join main.entry on entry.id between {token}_line.branch << 32 and ({token}_line.branch << 32) + {token}_line.last
where entry.internal = 0 and entry.kind is null;

create temp view public_session as
select session_id, title, agent, status, turns, started_at, updated_at from {token}_session;
create temp view public_message as select session_id, seq, role, at, text from {token}_message;
"""
_HARMLESS = frozenset([apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE, apsw.SQLITE_TRANSACTION])
_FUNCTIONS = frozenset(
    ["coalesce", "count", "group_concat", "length", "like", "lower", "max", "min", "substr", "upper", "->>"]
)


class PublicSession(Struct, frozen=True):
    session_id: str
    title: str | None
    agent: str | None
    status: str
    turns: int
    started_at: int
    updated_at: int


class PublicMessage(Struct, frozen=True):
    seq: int
    role: str
    at: int
    text: str


class PublicReader:
    """Opens a SQLite store for reading the public part of an owner's sessions."""

    def __init__(self, path: str, *, owner: str, space: str = "default", key: str | None = None) -> None:
        if not Path(path).is_file():
            raise NotAStore(path, "there is no such file")
        if key is not None:
            register_key(path, key)
        self.path = file.real_path(path)
        self._tenant = {"space": _literal(space, "space"), "owner": _literal(owner, "owner")}
        self._readonly = self._open()

    def _open(self) -> ReadOnlyConnection:
        try:
            readonly = open_readonly(self.path)
            file.check_format(readonly.connection, self.path)
            token = f"v{secrets.token_hex(16)}"
            readonly.connection.execute(VIEWS.format(token=token, **self._tenant))
            readonly.connection.authorizer = _authorizer(token)
            # A query plan would reveal the random names.
            readonly.connection.exec_trace = lambda cursor, *_: not cursor.is_explain
        except apsw.Error as error:
            raise file.explain(self.path, error) from None
        return readonly

    def close(self) -> None:
        self._readonly.connection.close()

    def sessions(self) -> list[PublicSession]:
        """Return the owner's sessions, the latest active first."""
        query = "select * from public_session order by updated_at desc"
        return [PublicSession(*row) for row in self.query(query)]

    def transcript(self, session_id: str) -> list[PublicMessage]:
        """Return the inputs and final answers of a session's path; `NotFound` unless the session is public."""
        if not list(self.query("select 1 from public_session where session_id = ?", (session_id,))):
            raise NotFound(session_id)
        query = "select seq, role, at, text from public_message where session_id = ? order by seq"
        return [PublicMessage(*row) for row in self.query(query, (session_id,))]

    def query(self, sql: str, bindings: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Run any query over public_session and public_message; SQLite itself refuses everything else."""
        if self._readonly.is_stale:
            self.close()
            self._readonly = self._open()
        try:
            yield from self._readonly.connection.execute(sql, bindings)
            self._readonly.check()
        except (apsw.AuthError, apsw.ExecTraceAbort):
            raise StoreError("a public reader reads public_session and public_message only") from None
        except apsw.Error as error:
            self._readonly.check()  # a torn read looks like damage
            raise file.explain(self.path, error) from None

    def __enter__(self) -> PublicReader:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(apsw.ConnectionClosedError):
            self.close()


def _literal(value: str, where: str) -> str:
    return "'" + check_text(value, where).replace("'", "''") + "'"


def _authorizer(token: str) -> Callable[[int, str | None, str | None, str | None, str | None], int]:
    open_names = (f"{token}_session", f"{token}_message", f"{token}_line")
    readable = frozenset([*open_names, "public_session", "public_message"])

    def authorize(operation: int, one: str | None, two: str | None, _: str | None, via: str | None) -> int:
        if operation in _HARMLESS or (operation == apsw.SQLITE_FUNCTION and two in _FUNCTIONS):
            return apsw.SQLITE_OK
        is_open = operation == apsw.SQLITE_READ and (one in readable or via in open_names)
        return apsw.SQLITE_OK if is_open else apsw.SQLITE_DENY

    return authorize
