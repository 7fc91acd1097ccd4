"""Taking in, in PostgreSQL: whole sessions written in one transaction, byte for byte, under numbers of this store.

A session that is there already, with the same content, is left alone; one whose id holds other content is
refused, and with it everything that came along. What a session stands on is hung on its parent where the
parent is here and holds the same; else it comes along as branches without an owner, as after a purge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import astuple, replace
from psycopg.errors import UniqueViolation

from ...core.tree import Branch, Leaf
from ...core.usage import Call
from ...errors import IdConflict, NotFound, ServerUnreachable
from ..base import Fact, SessionDetail, SessionRow, StoreBackend, StoredEntry
from ..message_limits import limits_as_facts
from ..rows import call_row, entry_row
from ..transfer import (
    BlobReferences,
    BlobStream,
    ImportResult,
    SessionExport,
    SessionExports,
    match_parent_branches,
    refuse_different,
    renumber_fact,
)
from .commit import TIE_BLOB, insert_branch
from .connections import Connection, ConnectionLost, Connections
from .create import SHARE_LOCK
from .export_sessions import Snapshot
from .rows import (
    CALL_NAMES,
    CALL_TYPES,
    ENTRY_NAMES,
    ENTRY_TYPES,
    FACT_COLUMNS,
    SESSION_NAMES,
    detail_row,
    json_text,
    session_row,
)
from .statement import run_statement

ROWS_AT_ONCE, BYTES_AT_ONCE = 500, 8 << 20


def _insert_rows(table: str, columns: Iterable[tuple[str, str]]) -> str:
    """Many rows by one statement, an array for each column: planning it, policies and all, takes longer than a row.

    Not COPY, which PostgreSQL refuses where row security binds.
    """
    names, types = zip(*columns, strict=True)
    arrays = (f"%{'b' if kind == 'bytea' else 's'}::{kind}[]" for kind in types)
    return f"insert into bough.{table} ({', '.join(names)}) select * from unnest({', '.join(arrays)})"


_OF_SESSION = (("session_no", "bigint"), ("space", "text"), ("owner", "text"))
INSERT_ENTRIES = _insert_rows(
    "entry",
    [("branch", "bigint"), ("space", "text"), ("owner", "text"), *zip(ENTRY_NAMES, ENTRY_TYPES, strict=True)],
)
INSERT_CALLS = _insert_rows(
    "usage", [*_OF_SESSION, ("n", "bigint"), *zip(CALL_NAMES, CALL_TYPES, strict=True)]
)
FACT_TYPES = ("bigint", "text", "text", "bigint", "bigint", "bigint", "text", "bigint")
INSERT_FACTS = _insert_rows(
    "journal", [*_OF_SESSION, *zip(FACT_COLUMNS.split(", "), FACT_TYPES, strict=True)]
)
INSERT_SESSION = f"""
insert into bough.session ({", ".join(SESSION_NAMES[1:])})
values ({", ".join("%s::text::jsonb" if name == "tags" else "%s" for name in SESSION_NAMES[1:])}) returning no
"""
INSERT_DETAIL = """
insert into bough.session_detail (no, space, spec, policy, workspace, state) values (%s, %s, %s, %s, %s, %s)
"""
INSERT_QUEUED = "insert into bough.inbox (no, n, space, owner, body, at) values (%s, %s, %s, %s, %s, %s)"
INSERT_BLOB = """
insert into bough.blob (space, hash, mime, size, at, bytes) values (%s, %s, %s, %s, %s, %s)
"""


class PostgresDumping(StoreBackend):
    """The two verbs by which whole sessions leave and enter."""

    _connections: Connections

    @contextmanager
    def export_sessions(self, *session_ids: str, children: bool = False) -> Iterator[SessionExports]:
        with self._connections.snapshot() as reader:
            yield Snapshot(reader, self.space, self.owner, self.url).dumps(session_ids, children=children)

    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        """What comes is read once, so it cannot be written twice: if the connection breaks, it is looked for."""
        outcome: list[ImportResult] = []

        def work(writer: Connection) -> ImportResult:
            run_statement(writer, SHARE_LOCK, {"space": self.space})
            outcome.append(TakingIn(writer, self.space, self.owner, self.url).all_of(exports, at))
            return outcome[0]

        try:
            return self._connections.transaction(work, tries=1)
        except ConnectionLost as lost:
            if outcome and all(self._has(name) for name in outcome[0].added):
                return outcome[0]
            raise ServerUnreachable(self.url, f"{lost.reason}; nothing was taken in") from None

    def _has(self, session_id: str) -> bool:
        try:
            self.session(session_id)
        except NotFound:
            return False
        return True


class TakingIn:
    def __init__(self, writer: Connection, space: str, owner: str | None, where: str) -> None:
        self.writer, self.space, self.owner = writer, space, owner
        self.here = Snapshot(writer, space, owner, where)
        self.naming = BlobReferences()
        self.added: list[str] = []
        self.known: list[str] = []
        self.entries = 0

    def all_of(self, dumps: SessionExports, at: int) -> ImportResult:
        for dump in dumps.sessions:
            mine = dump.row.owner if self.owner is None else self.owner
            self._take(replace(dump, row=replace(dump.row, space=self.space, owner=mine)))
        brought = sum(self._put(blob, at) for blob in dumps.blobs(self.naming.mimes))
        self._many(TIE_BLOB, ((b, seq, self.space, digest) for b, seq, digest in self.naming.places))
        missing = sum(not self._holds(digest) for digest in self.naming.mimes)
        return ImportResult(tuple(self.added), tuple(self.known), self.entries, brought, missing)

    def _many(self, query: Any, rows: Iterable[tuple[Any, ...]]) -> None:
        for some in _portions(rows):
            with self.writer.cursor() as cursor:
                cursor.executemany(query, some)

    def _at_once(self, query: Any, rows: Iterable[tuple[Any, ...]]) -> None:
        for some in _portions(rows):
            self.writer.execute(query, [_array(column) for column in zip(*some, strict=True)])

    def _take(self, dump: SessionExport) -> None:
        name = dump.row.session_id
        query = "select 1 from bough.session where id = %s"
        if self.writer.execute(query, (name,)).fetchone() is None:
            try:
                self._write(dump)
            except UniqueViolation:
                raise IdConflict(name) from None
            self.added.append(name)
            return
        refuse_different(dump, self.naming, self.here.dump)
        self.known.append(name)

    # -- one session -------------------------------------------------------------------------------

    def _write(self, dump: SessionExport) -> None:
        numbers, owner = self._footing(dump), dump.row.owner
        is_hung = bool(numbers)
        if not is_hung:
            self._write_below(dump, numbers)
        no = self._write_row(dump.row, dump.detail)
        for branch in dump.branches:
            if branch.session_id is not None:
                self._write_branch(no, branch, numbers)
        leaf = Leaf(numbers[dump.row.leaf.branch], dump.row.leaf.seq)
        query = "update bough.session set branch = %s, seq = %s where no = %s"
        self.writer.execute(query, (*astuple(leaf), no))
        hung = {branch.branch for branch in dump.branches if is_hung and branch.session_id is None}
        self._write_entries(self.naming.entries(dump.entries, numbers), numbers, hung, owner)
        self._write_calls(no, owner, dump.calls, numbers)
        facts = (self._fact_row(no, owner, renumber_fact(fact, numbers)) for fact in dump.facts)
        self._at_once(INSERT_FACTS, facts)
        queued = self.naming.inbox(dump.inbox)
        self._many(INSERT_QUEUED, ((no, one.number, self.space, owner, one.body, one.at) for one in queued))

    def _footing(self, dump: SessionExport) -> dict[int, int]:
        """The branches of its parent it may hang on; empty if there are none."""
        parent = dump.row.parent_session
        if parent is None or dump.branches[0].session_id is not None:
            return {}
        return match_parent_branches(dump, self.here.branches(parent), self.here.hash_of) or {}

    def _write_below(self, dump: SessionExport, numbers: dict[int, int]) -> None:
        """What it stands on, as if its owner had been purged: under a number that no session has or will have."""
        foreign = [branch for branch in dump.branches if branch.session_id is None]
        if foreign:
            found = self.writer.execute("select nextval('bough.session_no')").fetchone()
            assert found is not None
            for branch in foreign:
                self._write_branch(found[0], branch, numbers)
            self._write_calls(found[0], dump.row.owner, dump.inherited_calls, numbers)
            given = (replace(one, branch=numbers[one.branch]) for one in dump.inherited_limits)
            self._at_once(
                INSERT_FACTS,
                (self._fact_row(found[0], dump.row.owner, fact) for fact in limits_as_facts(given)),
            )

    def _write_branch(self, no: int, branch: Branch, numbers: dict[int, int]) -> None:
        under = None if branch.parent is None else Leaf(numbers[branch.parent], branch.parent_seq)
        numbers[branch.branch] = insert_branch(self.writer, self.space, no, under)

    def _write_row(self, row: SessionRow, detail: SessionDetail) -> int:
        given = session_row(row, branch=0, seq=0)
        found = self.writer.execute(INSERT_SESSION, list(given.values())).fetchone()
        assert found is not None
        self.writer.execute(INSERT_DETAIL, (found[0], self.space, *detail_row(detail)))
        return int(found[0])

    def _write_entries(
        self, entries: Iterable[StoredEntry], numbers: Mapping[int, int], hung: set[int], owner: str | None
    ) -> None:
        def rows() -> Iterator[tuple[Any, ...]]:
            for stored in entries:
                if stored.branch not in hung:
                    self.entries += 1
                    yield (numbers[stored.branch], self.space, owner, *entry_row(stored.entry))

        self._at_once(INSERT_ENTRIES, rows())

    def _write_calls(
        self, no: int, owner: str | None, calls: Iterable[Call], numbers: Mapping[int, int]
    ) -> None:
        rows = (
            (no, self.space, owner, n, *call_row(call, numbers[call.branch]))
            for n, call in enumerate(calls, 1)
        )
        self._at_once(INSERT_CALLS, rows)

    def _fact_row(self, no: int, owner: str | None, fact: Fact) -> tuple[Any, ...]:
        place, rest = _parted(fact.data)
        data = json_text(rest, "journal data")
        return (no, self.space, owner, fact.number, fact.kind, fact.key, *place, data, fact.at)

    # -- blobs -------------------------------------------------------------------------------------

    def _holds(self, digest: str) -> bool:
        query = "select 1 from bough.blob where space = %s and hash = %s"
        return self.writer.execute(query, (self.space, digest)).fetchone() is not None

    def _put(self, blob: BlobStream, at: int) -> int:
        if self._holds(blob.hash):
            return 0
        given = (self.space, blob.hash, blob.mime, blob.size, at, b"".join(blob.pieces))
        self.writer.execute(INSERT_BLOB, given)
        return 1


def _array(column: tuple[Any, ...]) -> list[Any]:
    """Bytes go untyped on our connections, and the elements of an array cannot: views of them do not."""
    return [memoryview(value) if isinstance(value, bytes) else value for value in column]


def _portions(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """So many at once as pay, and no more bytes than anybody minds: one row may hold a gigabyte."""
    portion: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        portion.append(row)
        size += sum([len(value) for value in row if isinstance(value, bytes | str)])
        if len(portion) == ROWS_AT_ONCE or size > BYTES_AT_ONCE:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


_COLUMNS = ("branch", "first", "last")


def _parted(data: dict[str, Any]) -> tuple[list[int | None], dict[str, Any]]:
    """What of a fact has columns of its own, and the rest: read together again they are the same, order and all."""
    rest = dict(data)
    place: list[int | None] = []
    for name in _COLUMNS:
        first = next(iter(rest), None)
        is_whole = first == name and type(rest[name]) is int and abs(rest[name]) < 2**63
        place.append(rest.pop(name) if is_whole else None)
    return place, rest
