"""Reading sessions through one SQLite connection, for one tenant and within one transaction.

Used on a pooled reader and, before a write decides something, on the writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import apsw
import msgspec

from oakleaf.core.codec import decode_message
from oakleaf.core.entries import Entry
from oakleaf.core.facts import Fact, StoredFact, kind_of
from oakleaf.core.messages import Message
from oakleaf.core.tree import Branch, Leaf, Range, contains_leaf, lineage, window
from oakleaf.core.usage import Call
from oakleaf.errors import InvalidPosition, NotFound, StoreDamaged
from oakleaf.stores.base import (
    LABEL,
    CallPlace,
    QueuedInput,
    SessionDetail,
    SessionRow,
    StoredEntry,
)
from oakleaf.stores.counts import StorageSize
from oakleaf.stores.sql.database_store import path_ranges
from oakleaf.stores.sql.rows import (
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
from oakleaf.stores.sql.session_rows import detail_from

BLOCK_SIZE = 256
"""Calls in a row of usage_block."""
SELECT_SESSION = f"""
select {SESSION_COLUMNS} from session where id = :id and space = :space and (:owner is null or owner = :owner)
"""
SELECT_DETAIL = "select spec, policy, workspace, state from session_detail where session_number = ?"
TREE = """
with recursive line (id) as (
    select id from branch where session_number = :number
    union
    select branch.parent from line join branch on branch.id = line.id where branch.parent is not null
)
"""
"""The branches of a session and their ancestors."""
SELECT_BRANCHES = f"""
{TREE}
select branch.id, session.id, branch.parent, branch.parent_seq,
       coalesce((select max(entry.id) & 4294967295 from entry
                 where entry.id between branch.id << 32 and (branch.id << 32) + 4294967295), branch.parent_seq)
from line join branch on branch.id = line.id left join session on session.number = branch.session_number
order by branch.id
"""
SELECT_LINE = """
with recursive line (id, parent, parent_seq) as (
    select id, parent, parent_seq from branch where id = ?
    union all
    select branch.id, branch.parent, branch.parent_seq
    from line join branch on branch.id = line.parent and branch.id < line.id -- ends a forged cycle
)
select id, parent, parent_seq from line
"""
SELECT_BRANCH = "select parent, parent_seq from branch where id = ?"
SELECT_OWN_BRANCH = """
select 1 from branch join session on session.number = branch.session_number where branch.id = ? and session.id = ?
"""
SELECT_ENTRIES = f"select {ENTRY_COLUMNS} from entry where id between ? and ? order by id"
SELECT_PUBLIC = f"""
select {ENTRY_COLUMNS} from entry indexed by entry_public
where internal = 0 and id between ? and ? order by id
"""
SELECT_INPUT = """
select body from entry where id between ? and ? and turn = id & 4294967295 and internal = 0 order by id limit 1
"""
SELECT_INPUTS = """
select id & 4294967295 from entry indexed by entry_input
where id between ? and ? and turn = id & 4294967295 order by id
"""
# The index is named because SQLite would walk all messages for a range of ids alone.
SELECT_CONTROL_ENTRIES = f"""
select {ENTRY_COLUMNS} from entry indexed by entry_non_message
where kind is not null and kind <> 'note' and id between ? and ? order by id
"""
SELECT_STORED = """
select entry.id, entry.turn, entry.step, entry.kind, entry.internal, entry.model, entry.finish, entry.entry_id, entry.at,
       entry.evidence, entry.body, entry.role,
       (select group_concat(blob.hash, ' ') from blob_use join blob on blob.number = blob_number
        where blob_use.entry = entry.id)
from branch join entry on entry.id between (branch.id << 32) + :first and (branch.id << 32) + :last
"""
SELECT_OWN_ENTRIES = f"{SELECT_STORED} where branch.session_number = :number order by entry.id"
SELECT_PART = f"""
{SELECT_STORED}
where branch.id = :branch and (branch.session_number = :number or branch.id in ({TREE} select id from line)) order by entry.id
"""
SELECT_ANCESTOR_SESSIONS = f"""
{TREE}
select distinct session_number from line join branch on branch.id = line.id where session_number <> :number order by 1
"""
SELECT_BRANCH_OWNER = f"""
{TREE}
select session_number from line join branch on branch.id = line.id where branch.id = :branch
"""
# One probe of the index for each branch of the session and of the tasks below it. `union` ends a forged ring of parents.
SELECT_TOOL_CALLS = """
with recursive family (number, id) as (
    select number, id from session where number = :number
    union
    select task.number, task.id from family
    join session as task on task.parent_session = family.id and task.relation = 'task' and task.space = :space
)
select family.id, tool_call.branch, tool_call.seq
from family join branch on branch.session_number = family.number
join tool_call on tool_call.branch = branch.id and tool_call.hash = :hash
order by tool_call.branch desc, tool_call.seq desc
"""
SELECT_OWN_TOOL_CALLS = """
select tool_call.branch, seq, hash from branch join tool_call on tool_call.branch = branch.id where session_number = ?
"""
SELECT_CALLS = f"select {CALL_COLUMNS} from usage where id > ? and id < ? order by id"
SELECT_BLOCKS = "select id << 8, first_seq, last_seq from usage_block where id >= ? and id < ? order by id"
CALLS_AT = "id >= ? and id < ? and branch = ? and coalesce(answer_seq, after_seq)"
SELECT_CALLS_BETWEEN = f"select {CALL_COLUMNS} from usage where {CALLS_AT} between ? and ? order by id"
# A branch grows at its end, so that a later call answers a later entry: found at once if it is one of the newest.
SELECT_LATEST_ANSWER_CALL = f"""
select {CALL_COLUMNS} from usage
where {CALLS_AT} <= ? and answer_seq is not null and purpose is null order by id desc limit 1
"""
SELECT_FACTS = f"select {FACT_COLUMNS} from journal where id > ? and id < ? order by id limit ?"
SELECT_FACTS_OF_KIND = f"""
select {FACT_COLUMNS} from journal where id > ? and id < ? and kind = ? order by id
"""
# The index is named because SQLite would walk all facts of the session for a range of ids alone.
SELECT_LABELS = f"""
select {FACT_COLUMNS} from journal indexed by journal_label where id > ? and id < ? and kind = '{LABEL}' order by id
"""
SELECT_INBOX = "select number, body, at, imported from inbox where session_number = ? order by number limit ?"
SELECT_ENTRY_SIZE = """
select count(*), coalesce(sum(length(entry.body)), 0)
from branch join entry on entry.id between branch.id << 32 and (branch.id << 32) + 4294967295
where branch.session_number = :number
"""
SELECT_BLOB_SIZE = """
select count(*), coalesce(sum(size), 0) from blob where number in (
    select blob_use.blob_number from branch
    join blob_use on blob_use.entry between branch.id << 32 and (branch.id << 32) + 4294967295
    where branch.session_number = :number)
"""


class SessionReader:
    def __init__(self, connection: apsw.Connection, space: str, owner: str | None, url: str) -> None:
        self.connection, self.space, self.owner, self.url = connection, space, owner, url

    def _session(self, session_id: str) -> tuple[Any, ...]:
        bindings = {"id": session_id, "space": self.space, "owner": self.owner}
        try:
            row: tuple[Any, ...] | None = self.connection.execute(SELECT_SESSION, bindings).fetchone()
        except UnicodeEncodeError:  # half a surrogate pair is no id
            row = None
        if row is None:
            raise NotFound(session_id)
        return row

    def find(self, session_id: str) -> tuple[int, SessionRow]:
        """Return the number and the row of a session; `NotFound` if the session is absent or another tenant's."""
        row = self._session(session_id)
        return int(row[0]), session_from(row)

    def row(self, session_id: str) -> SessionRow:
        return session_from(self._session(session_id))

    def number(self, session_id: str) -> int:
        return int(self._session(session_id)[0])

    def detail(self, number: int) -> SessionDetail:
        row: tuple[Any, ...] | None = self.connection.execute(SELECT_DETAIL, (number,)).fetchone()
        if row is None:  # it is inserted together with the session
            raise StoreDamaged(self.url, f"session {number} has lost its row in session_detail")
        return detail_from(row)

    def branches(self, number: int) -> list[Branch]:
        return [Branch(*row) for row in self.connection.execute(SELECT_BRANCHES, {"number": number})]

    def lineage(self, leaf: Leaf) -> list[Range]:
        """Return the ranges of the path to a leaf."""
        root = self.connection.execute(SELECT_BRANCH, (leaf.branch,)).fetchone()
        if root is not None and root[0] is None:
            # Never forked nor rewound, as most sessions: the recursive query costs three times as much.
            return lineage({leaf.branch: Branch(leaf.branch, None, *root)}, leaf)
        return path_ranges(self.connection.execute(SELECT_LINE, (leaf.branch,)), leaf, self.url)

    def refuse_foreign_leaf(self, row: SessionRow, leaf: Leaf) -> None:
        """`InvalidPosition` for a leaf on another session's branch, unless the session inherits the leaf."""
        if leaf == row.leaf:
            return
        if self.connection.execute(SELECT_OWN_BRANCH, (leaf.branch, row.session_id)).fetchone():
            return
        branches = self.branches(self.number(row.session_id))
        if not contains_leaf(branches, row.session_id, leaf):
            raise InvalidPosition(str(leaf), 0, row.leaf.seq)

    def entries(self, ranges: Sequence[Range], first: int, last: int, *, public: bool = False) -> list[Entry]:
        query = SELECT_PUBLIC if public else SELECT_ENTRIES
        entries: list[Entry] = []
        for part in window(ranges, first, last):
            base = part.branch << 32
            rows = self.connection.execute(query, (base | part.first, base | part.last)).fetchall()
            try:
                entries += entries_from(rows)
            except (msgspec.DecodeError, TypeError) as error:
                why = f"an entry of branch {part.branch} cannot be decoded ({error})"
                raise StoreDamaged(self.url, why) from None
        return entries

    def first_inputs(self, session_ids: Sequence[str]) -> dict[str, Message]:
        inputs: dict[str, Message] = {}
        for session_id in session_ids:
            with suppress(NotFound, StoreDamaged, msgspec.DecodeError):
                for part in self.lineage(self.row(session_id).leaf):
                    span = (part.branch << 32 | part.first, part.branch << 32 | part.last)
                    if (body := self.connection.execute(SELECT_INPUT, span).get) is not None:
                        inputs[session_id] = decode_message(body)
                        break
        return inputs

    def inputs(self, session_id: str, leaf: Leaf | None) -> list[int]:
        return [seq for (seq,) in self._along_path(SELECT_INPUTS, session_id, leaf)]

    def control_entries(self, session_id: str, leaf: Leaf | None) -> list[Entry]:
        return entries_from(self._along_path(SELECT_CONTROL_ENTRIES, session_id, leaf))

    def _along_path(self, query: str, session_id: str, leaf: Leaf | None) -> list[tuple[Any, ...]]:
        """Return the rows of a query of each range of the path."""
        row = self.row(session_id)
        end = row.leaf if leaf is None else leaf
        self.refuse_foreign_leaf(row, end)
        rows: list[tuple[Any, ...]] = []
        for part in self.lineage(end):
            span = (part.branch << 32 | part.first, part.branch << 32 | part.last)
            rows += self.connection.execute(query, span).fetchall()
        return rows

    def stored_entries(self, number: int, part: Range | None = None) -> list[StoredEntry]:
        part = part or Range(0, 0, 0xFFFFFFFF)
        bindings = {"number": number, "branch": part.branch, "first": part.first, "last": part.last}
        query = SELECT_PART if part.branch else SELECT_OWN_ENTRIES
        return list(map(stored_from, self.connection.execute(query, bindings)))

    def tool_calls(self, number: int) -> set[tuple[Leaf, int]]:
        rows: list[Any] = self.connection.execute(SELECT_OWN_TOOL_CALLS, (number,)).fetchall()
        return {(Leaf(branch, seq), call_hash) for branch, seq, call_hash in rows}

    def find_tool_calls(self, number: int, call_hash: int) -> list[CallPlace]:
        bindings = {"number": number, "space": self.space, "hash": call_hash}
        rows: list[Any] = self.connection.execute(SELECT_TOOL_CALLS, bindings).fetchall()
        return [CallPlace(session_id, Leaf(branch, seq)) for session_id, branch, seq in rows]

    def facts(self, number: int, after: int = 0, limit: int | None = None) -> Iterator[StoredFact]:
        span = ((number << 32) + after, (number + 1) << 32, -1 if limit is None else limit)
        return map(fact_from, self.connection.execute(SELECT_FACTS, span))

    def facts_of(self, number: int, type_: type[Fact]) -> list[StoredFact]:
        span, kind = (number << 32, (number + 1) << 32), kind_of(type_)
        query, bindings = (SELECT_LABELS, span) if kind == LABEL else (SELECT_FACTS_OF_KIND, (*span, kind))
        return list(map(fact_from, self.connection.execute(query, bindings)))

    def calls(self, number: int) -> Iterator[Call]:
        return map(call_from, self.connection.execute(SELECT_CALLS, (number << 32, (number + 1) << 32)))

    def inherited_calls(self, number: int) -> list[Call]:
        return [call for ancestor in self._ancestors(number) for call in self.calls(ancestor)]

    def _ancestors(self, number: int) -> list[int]:
        """Return the other sessions, also purged ones, that own inherited branches."""
        rows: list[Any] = self.connection.execute(SELECT_ANCESTOR_SESSIONS, {"number": number}).fetchall()
        return [ancestor for (ancestor,) in rows]

    def calls_between(self, number: int, branch: int, first: int, last: int) -> list[Call]:
        return [
            call_from(row)
            for owner in self._owners(number, branch)
            for span in self._call_spans(owner, first, last)
            for row in self.connection.execute(SELECT_CALLS_BETWEEN, (*span, branch, first, last))
        ]

    def latest_answer_call(self, number: int, branch: int, last: int) -> Call | None:
        for owner in self._owners(number, branch):
            for span in reversed(self._call_spans(owner, 0, last)):
                row = self.connection.execute(SELECT_LATEST_ANSWER_CALL, (*span, branch, last)).fetchone()
                if row is not None:
                    return call_from(row)
        return None

    def _call_spans(self, number: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return ranges of ids, without the ends, with all calls of a session at entries `first` to `last`."""
        spans: list[tuple[int, int]] = []
        begin = number << 32
        blocks: list[Any] = self.connection.execute(
            SELECT_BLOCKS, (number << 24, (number + 1) << 24)
        ).fetchall()
        for block, first_seq, last_seq in blocks:
            if last_seq < first or first_seq > last:
                if begin < block:
                    spans.append((begin, block))
                begin = block + BLOCK_SIZE
        return [*spans, (begin, (number + 1) << 32)]

    def _owners(self, number: int, branch: int) -> list[int]:
        """Return the owner of a branch's calls, unless the branch is outside the tree of `number`."""
        rows: list[Any] = self.connection.execute(
            SELECT_BRANCH_OWNER, {"number": number, "branch": branch}
        ).fetchall()
        return [owner for (owner,) in rows]

    def inbox(self, number: int, limit: int | None = None) -> Iterable[QueuedInput]:
        rows = self.connection.execute(SELECT_INBOX, (number, -1 if limit is None else limit))
        return (QueuedInput(number, body, at, imported == 1) for number, body, at, imported in rows)

    def storage_size(self, number: int) -> StorageSize:
        bindings = {"number": number}
        entries, size = self.connection.execute(SELECT_ENTRY_SIZE, bindings).get
        branches = self.connection.execute(
            "select count(*) from branch where session_number = :number", bindings
        ).get
        blobs, blob_size = self.connection.execute(SELECT_BLOB_SIZE, bindings).get
        return StorageSize(entries, size, branches, blobs, blob_size)
