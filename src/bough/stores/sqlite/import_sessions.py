"""Taking in, in SQLite: whole sessions written in one transaction, byte for byte, under numbers of this file.

A session that is there already, with the same content, is left alone; one whose id holds other content is
refused, and with it everything that came along. What a session stands on is hung on its parent where the
parent is here and holds the same; else it comes along as branches without an owner, as after a purge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import apsw
from msgspec.structs import astuple, replace

from ...core.codec import to_json
from ...core.tree import Branch, Leaf
from ...core.usage import Call
from ..base import Fact, SessionDetail, SessionRow, StoreBackend, StoredEntry
from ..message_limits import limits_as_facts
from ..rows import CALL_COLUMNS, FACT_COLUMNS, SESSION_COLUMNS, call_row, entry_row
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
from .connections import Connections
from .export_sessions import Snapshot

ENTRY_GIVEN = "id, turn, step, kind, role, internal, model, finish, entry_id, at, evidence, body"


def _insert(table: str, columns: str) -> str:
    names = [name.strip() for name in columns.split(",")]
    return f"insert into {table} ({', '.join(names)}) values ({', '.join('?' * len(names))})"


INSERT_SESSION = _insert("session", SESSION_COLUMNS.partition(",")[2])
INSERT_DETAIL = "insert into session_detail (no, spec, policy, workspace, state) values (?, ?, ?, ?, ?)"
INSERT_BRANCH = "insert into branch (session_no, parent, parent_seq) values (?, ?, ?)"
INSERT_ENTRY = _insert("entry", ENTRY_GIVEN)
INSERT_CALL = _insert("usage", f"{CALL_COLUMNS}, id")
INSERT_FACT = _insert("journal", FACT_COLUMNS)
INSERT_QUEUED = "insert into inbox (no, n, body, at) values (?, ?, ?, ?)"
INSERT_BLOB = """
insert into blob (space, hash, mime, size, at, bytes) values (?, ?, ?, ?, ?, zeroblob(?)) returning no
"""
TIE_BLOB = "insert or ignore into blob_use select ?, no from blob where space = ? and hash = ?"
RESERVE_NUMBER = "update sqlite_sequence set seq = seq + 1 where name = 'session' returning seq"
FIRST_NUMBER = "insert into sqlite_sequence (name, seq) values ('session', 1) returning seq"


class SqliteDumping(StoreBackend):
    """The two verbs by which whole sessions leave and enter."""

    _connections: Connections

    @contextmanager
    def export_sessions(self, *session_ids: str, children: bool = False) -> Iterator[SessionExports]:
        with self._connections.reading() as reader:
            yield Snapshot(reader, self.space, self.owner, self.url).dumps(session_ids, children=children)

    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        def work(writer: apsw.Connection) -> ImportResult:
            return TakingIn(writer, self.space, self.owner, self.url).all_of(exports, at)

        return self._connections.write(work)


class TakingIn:
    def __init__(self, writer: apsw.Connection, space: str, owner: str | None, where: str) -> None:
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
        self.writer.executemany(
            TIE_BLOB, ((b << 32 | seq, self.space, digest) for b, seq, digest in self.naming.places)
        )
        missing = sum(not self._holds(digest) for digest in self.naming.mimes)
        return ImportResult(tuple(self.added), tuple(self.known), self.entries, brought, missing)

    def _take(self, dump: SessionExport) -> None:
        name = dump.row.session_id
        if self.writer.execute("select 1 from session where id = ?", (name,)).fetchone() is None:
            self._write(dump)
            self.added.append(name)
            return
        refuse_different(dump, self.naming, self.here.dump)
        self.known.append(name)

    # -- one session -------------------------------------------------------------------------------

    def _write(self, dump: SessionExport) -> None:
        numbers = self._footing(dump)
        is_hung = bool(numbers)
        if not is_hung:
            self._write_below(dump, numbers)
        no = self._write_row(dump.row, dump.detail)
        for branch in dump.branches:
            if branch.session_id is not None:
                self._write_branch(no, branch, numbers)
        leaf = Leaf(numbers[dump.row.leaf.branch], dump.row.leaf.seq)
        self.writer.execute("update session set branch = ?, seq = ? where no = ?", (*astuple(leaf), no))
        hung = {branch.branch for branch in dump.branches if is_hung and branch.session_id is None}
        self.writer.executemany(INSERT_ENTRY, self._entry_rows(dump.entries, numbers, hung))
        self._write_calls(no, dump.calls, numbers)
        self.writer.executemany(
            INSERT_FACT, (fact_row(no, renumber_fact(fact, numbers)) for fact in dump.facts)
        )
        queued = ((no, one.number, one.body, one.at) for one in self.naming.inbox(dump.inbox))
        self.writer.executemany(INSERT_QUEUED, queued)

    def _footing(self, dump: SessionExport) -> dict[int, int]:
        """The branches of its parent it may hang on; empty if there are none."""
        parent = dump.row.parent_session
        if parent is None or dump.branches[0].session_id is not None:
            return {}
        bindings = (parent, self.space, self.owner)
        found = self.writer.execute(
            "select no from session where id = ? and space = ? and (?3 is null or owner = ?3)", bindings
        ).fetchone()
        if found is None:
            return {}
        return match_parent_branches(dump, self.here.branches(found[0]), self.here.hash_of) or {}

    def _write_below(self, dump: SessionExport, numbers: dict[int, int]) -> None:
        """What it stands on, as if its owner had been purged: under a number that no session has or will have."""
        foreign = [branch for branch in dump.branches if branch.session_id is None]
        if foreign:
            gone = self._reserved()
            for branch in foreign:
                self._write_branch(gone, branch, numbers)
            self._write_calls(gone, dump.inherited_calls, numbers)
            given = (replace(one, branch=numbers[one.branch]) for one in dump.inherited_limits)
            self.writer.executemany(INSERT_FACT, (fact_row(gone, fact) for fact in limits_as_facts(given)))

    def _reserved(self) -> int:
        found: Any = self.writer.execute(RESERVE_NUMBER).get
        if found is None:  # no session was ever made here
            found = self.writer.execute(FIRST_NUMBER).get
        return int(found)

    def _write_branch(self, no: int, branch: Branch, numbers: dict[int, int]) -> None:
        parent = None if branch.parent is None else numbers[branch.parent]
        self.writer.execute(INSERT_BRANCH, (no, parent, branch.parent_seq))
        numbers[branch.branch] = self.writer.last_insert_rowid()

    def _write_row(self, row: SessionRow, detail: SessionDetail) -> int:
        given = {
            **{name: getattr(row, name) for name in row.__struct_fields__},
            **{name: getattr(row.totals, name) for name in row.totals.__struct_fields__},
            "id": row.session_id,
            "branch": 0,
            "seq": 0,
            "tool_names": to_json(row.tool_names, "tool names").decode() if row.tool_names else None,
            "tags": to_json(row.tags, "tags").decode() if row.tags else None,
        }
        columns = [name.strip() for name in SESSION_COLUMNS.split(",")][1:]
        self.writer.execute(INSERT_SESSION, [given[name] for name in columns])
        no = self.writer.last_insert_rowid()
        wide = (detail.spec, detail.policy, detail.workspace, detail.state)
        self.writer.execute(INSERT_DETAIL, (no, *(None if text is None else text.decode() for text in wide)))
        return no

    def _entry_rows(
        self, entries: Iterable[StoredEntry], numbers: Mapping[int, int], hung: set[int]
    ) -> Iterator[tuple[Any, ...]]:
        for stored in self.naming.entries(entries, numbers):
            if stored.branch not in hung:
                self.entries += 1
                seq, *rest = entry_row(stored.entry)
                yield (numbers[stored.branch] << 32 | seq, *rest)

    def _write_calls(self, no: int, calls: Iterable[Call], numbers: Mapping[int, int]) -> None:
        rows = ((*call_row(call, numbers[call.branch]), no << 32 | n) for n, call in enumerate(calls, 1))
        self.writer.executemany(INSERT_CALL, rows)

    # -- blobs -------------------------------------------------------------------------------------

    def _holds(self, digest: str) -> bool:
        query = "select 1 from blob where space = ? and hash = ?"
        return self.writer.execute(query, (self.space, digest)).fetchone() is not None

    def _put(self, blob: BlobStream, at: int) -> int:
        if self._holds(blob.hash):
            return 0
        given = (self.space, blob.hash, blob.mime, blob.size, at, blob.size)
        no: Any = self.writer.execute(INSERT_BLOB, given).get
        if blob.size:
            with self.writer.blob_open("main", "blob", "bytes", no, True) as held:
                for piece in blob.pieces:
                    held.write(piece)
        return 1


def fact_row(no: int, fact: Fact) -> tuple[Any, ...]:
    place, rest = _parted(fact.data)
    data = to_json(rest, "journal data").decode() if rest else None
    return (no << 32 | fact.number, fact.kind, fact.key, *place, data, fact.at)


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
