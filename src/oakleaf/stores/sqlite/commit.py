"""The writes of a change to the SQLite tables, inside a transaction opened by the caller.

Reads the session's row, refuses, and writes afterwards: when an `OakleafError` is raised here nothing was written. The
transaction holds SQLite's write lock, so the row does not change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import apsw
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from oakleaf.core.call_hash import call_hashes
from oakleaf.core.codec import to_json
from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.facts import StoredFact, encode_fact
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Totals, difference, total
from oakleaf.errors import InvalidPosition, MissingBlob, NotFound
from oakleaf.stores.base import (
    MADE_KEY,
    SETTABLE_COLUMNS,
    Change,
    CommitResult,
    NewSession,
    SessionDetail,
    is_callers_key,
    repeat_of,
)
from oakleaf.stores.sql.rows import CALL_COLUMNS, FACT_COLUMNS, call_from, call_row, fact_from, fact_row
from oakleaf.stores.sql.session_rows import detail_row, session_row

SELECT_HEAD = """
select number, branch, seq, facts, calls, active_at, needs_indexing, fence, trashed_at, holder, lease_until,
       (select session_number from branch where branch.id = session.branch) = number
       and not exists (select 1 from entry where entry.id = (session.branch << 32 | session.seq) + 1)
from session where id = ? and space = ? and (?3 is null or owner = ?3)
"""
INSERT_ENTRY = """
insert into entry (id, turn, step, kind, role, internal, model, finish, entry_id, at, evidence, body)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_BLOB = """
insert into blob (space, hash, mime, size, at, bytes) values (?, ?, ?, ?, ?, ?)
on conflict (space, hash) do update set at = max(at, excluded.at)
"""
INSERT_BLOB_USE = """
insert or ignore into blob_use
select ?, number from blob where hash = ? and space = (
    select space from session join branch on session_number = session.number where branch.id = ?)
"""
SELECT_BLOB = "select 1 from blob where space = ? and hash = ?"
SELECT_PLACE = """
select 1 from entry where id = ? union all select 1 from branch where id = ? and parent_seq = ?
"""
DELETE_DRAFT = "delete from draft where session_number = ?"
DELETE_INPUT = "delete from inbox where session_number = ? and number = ?"
SET_STATE = "update session_detail set state = ? where session_number = ?"
INSERT_TOOL_CALL = "insert into tool_call (branch, hash, seq) values (?, ?, ?)"
INSERT_FACT = """
insert into journal (id, kind, key, branch, first_seq, last_seq, data, at) values (?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_CALL = """
insert into usage (call_id, branch, after_seq, answer_seq, at,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
    purpose, bucket, provider, model, cost_microcents, price_version, failed, id)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
REPLACE_CALL = """
update usage set call_id = ?, branch = ?, after_seq = ?, answer_seq = ?, at = ?,
    input_tokens = ?, output_tokens = ?, cache_read_tokens = ?, cache_write_tokens = ?,
    purpose = ?, bucket = ?, provider = ?, model = ?, cost_microcents = ?, price_version = ?, failed = ?
where id = ?
"""
DROP_CALL = "delete from usage where id = ?"
CLOSE_UP_CALLS = "update usage set id = id - 1 where id > ? and id <= ?"
SELECT_STARTED = f"""
select id, {CALL_COLUMNS} from usage where id > ? and id < ? and call_id = ? order by id desc limit 1
"""
# There is no index on a key that Oakleaf made: it would slow down every append, and only a late writer pays for this scan.
SELECT_MADE_KEY = f"""
select {FACT_COLUMNS} from journal where key = ? and id > ? and id < ? order by id desc limit 1
"""
SELECT_CALLERS_KEY = f"""
select {FACT_COLUMNS} from journal where key = ? and substr(key, 1, 1) <> '{MADE_KEY}' and id > ? and id < ?
order by id desc limit 1
"""
INSERT_SESSION = """
insert into session (id, space, owner, conversation_id, agent, title, status, relation, parent_session, parent_seq,
    trigger_type, trigger_id, model, context_window, tool_names, branch, seq, seed_count, turns,
    calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_microcents, unpriced_calls, unknown_calls,
    facts, fence, holder, lease_until, tags, started_at, updated_at, completed_at, trashed_at, error, imported_facts, active_at)
values (:id, :space, :owner, :conversation_id, :agent, :title, :status, :relation, :parent_session, :parent_seq,
    :trigger_type, :trigger_id, :model, :context_window, :tool_names, :branch, :seq, :seed_count, :turns,
    :calls, :input_tokens, :output_tokens, :cache_read_tokens, :cache_write_tokens, :cost_microcents, :unpriced_calls, :unknown_calls,
    :facts, :fence, :holder, :lease_until, :tags, :started_at, :updated_at, :completed_at, :trashed_at, :error, :imported_facts, :active_at)
"""
INSERT_DETAIL = (
    "insert into session_detail (session_number, spec, policy, workspace, state) values (?, ?, ?, ?, ?)"
)
SET_LEAF = "update session set branch = ?, seq = ? where number = ?"
INSERT_BRANCH = "insert into branch (session_number, parent, parent_seq) values (?, ?, ?)"
UPDATE_HEAD = """
update session set facts = ?, updated_at = ?, branch = ?, seq = ?, turns = turns + ?, calls = calls + ?,
    input_tokens = input_tokens + ?, output_tokens = output_tokens + ?, cache_read_tokens = cache_read_tokens + ?,
    cache_write_tokens = cache_write_tokens + ?, cost_microcents = cost_microcents + ?,
    unpriced_calls = unpriced_calls + ?, unknown_calls = unknown_calls + ?
where number = ?
"""
# Each statement below writes an index, or is rare: so none is part of the statement that every change runs.
SET_ACTIVE_AT = "update session set active_at = ? where number = ?"
SET_NEEDS_INDEXING = "update session set needs_indexing = 1 where number = ?"
MERGE_TAGS = "update session set tags = json_patch(coalesce(tags, '{}'), ?) where number = ?"
SET_COLUMN = {name: f"update session set {name} = ? where number = ?" for name in SETTABLE_COLUMNS}
NOTHING = Totals()
Executor = apsw.Connection | apsw.Cursor
Started = tuple[int, Call]
"""A ledger row's key and content so far."""


class SqliteHead(Struct, frozen=True, gc=False):
    """The columns of a session's row for the decision about a change."""

    number: int
    leaf: Leaf
    facts: int
    calls: int
    active_at: int
    needs_indexing: bool
    fence: int
    trashed_at: int | None
    holder: str | None
    lease_until: int | None
    is_growing: bool
    """Whether the leaf is the tail of an own branch."""


def apply(writer: apsw.Cursor, change: Change, space: str, owner: str | None) -> CommitResult:
    head = _read_head(writer, change.session_id, space, owner)
    earlier = change.check(head, partial(_find_change, writer, head))
    if earlier is not None:
        return earlier
    if change.move_to is not None:
        _check_place(writer, change.move_to, head.leaf)
    _check_blobs(writer, space, change.entries, change.blobs)
    started = _started_calls(writer, change, head.number)
    leaf = _next_leaf(writer, change, head)
    facts = head.facts + 1 + len(change.facts)
    _update_row(writer, change, head, leaf, facts, started)
    if change.blobs:
        insert_blobs(writer, space, change.blobs, change.at)
    insert_entries(writer, leaf.branch, change.entries)
    if change.calls:
        _add_calls(writer, change, head, leaf.branch, started)
    elif started:
        _drop_call(writer, head, started)
    _add_facts(writer, change, head, leaf)
    _delete_consumed(writer, change, head.number)
    return CommitResult(leaf, facts)


def _read_head(reader: Executor, session_id: str, space: str, owner: str | None) -> SqliteHead:
    row: Any = reader.execute(SELECT_HEAD, (session_id, space, owner)).fetchone()
    if row is None:
        raise NotFound(session_id)
    number, branch, seq, *rest = row
    return SqliteHead(number, Leaf(branch, seq), *rest)


def find_change(
    reader: Executor, space: str, owner: str | None, session_id: str, key: str
) -> CommitResult | None:
    """Return the recorded result of a caller's key."""
    head = _read_head(reader, session_id, space, owner)
    return _find_change(reader, head, key) if is_callers_key(key) else None


def _find_change(reader: Executor, head: SqliteHead, key: str) -> CommitResult | None:
    query = SELECT_CALLERS_KEY if is_callers_key(key) else SELECT_MADE_KEY
    row: Any = reader.execute(query, (key, head.number << 32, (head.number + 1) << 32)).fetchone()
    return None if row is None else repeat_of(fact_from(row), head.leaf)


def _next_leaf(writer: apsw.Cursor, change: Change, head: SqliteHead) -> Leaf:
    """Return the leaf after the change; open a branch if the entries need a new branch."""
    leaf = head.leaf if change.move_to is None else change.move_to
    if not change.entries:
        return leaf
    branch = leaf.branch
    if change.move_to is not None or not head.is_growing:
        writer.execute(INSERT_BRANCH, (head.number, leaf.branch, leaf.seq))
        branch = writer.connection.last_insert_rowid()
    return Leaf(branch, change.entries[-1].seq)


def insert_entries(writer: Executor, branch: int, entries: Iterable[NewEntry]) -> None:
    base = branch << 32
    for e in entries:
        writer.execute(
            INSERT_ENTRY,
            (
                base | e.seq,
                e.turn,
                e.step,
                None if e.kind == "message" else e.kind,
                e.role,
                e.internal,
                e.model,
                e.finish,
                e.entry_id,
                e.at,
                e.evidence,
                e.body,
            ),
        )
        for hash_ in call_hashes(e.role, e.body):
            writer.execute(INSERT_TOOL_CALL, (branch, hash_, e.seq))
        for digest in (*e.media, *e.references) if e.media or e.references else ():
            writer.execute(INSERT_BLOB_USE, (base | e.seq, digest, branch))


def _check_blobs(writer: Executor, space: str, entries: Iterable[NewEntry], new: Sequence[Blob]) -> None:
    for entry in entries:
        for digest in entry.media:
            exists = (
                any(blob.hash == digest for blob in new)
                or writer.execute(SELECT_BLOB, (space, digest)).fetchone()
            )
            if not exists:
                raise MissingBlob(digest)


def _check_place(writer: Executor, to: Leaf, present: Leaf) -> None:
    row = writer.execute(SELECT_PLACE, (to.branch << 32 | to.seq, to.branch, to.seq)).fetchone()
    if row is None:
        raise InvalidPosition(str(to), 0, present.seq)


def insert_blobs(writer: Executor, space: str, blobs: Iterable[Blob], at: int) -> None:
    for blob in blobs:
        writer.execute(INSERT_BLOB, (space, blob.hash, blob.mime, len(blob.data), at, blob.data))


def _started_calls(writer: apsw.Cursor, change: Change, number: int) -> dict[str, Started]:
    """Return the rows of started calls, by call id, that the change replaces or drops."""
    if not change.replaces_call and change.drops_call is None:
        return {}
    started: dict[str, Started] = {}
    call_ids = [call.call_id for call in change.calls]
    for call_id in call_ids if change.drops_call is None else [change.drops_call]:
        row = writer.execute(SELECT_STARTED, (number << 32, (number + 1) << 32, call_id)).fetchone()
        if row is not None:
            started[call_id] = row[0], call_from(row[1:])
    return started


def _add_calls(
    writer: apsw.Cursor, change: Change, head: SqliteHead, branch: int, started: Mapping[str, Started]
) -> None:
    count = head.calls
    for call in change.calls:
        row = call_row(call, branch)
        if call.call_id in started:
            writer.execute(REPLACE_CALL, (*row, started[call.call_id][0]))
        else:
            count += 1
            writer.execute(INSERT_CALL, (*row, head.number << 32 | count))


def _drop_call(writer: apsw.Cursor, head: SqliteHead, started: Mapping[str, Started]) -> None:
    """Delete the row of a call that was not made. Rows have the numbers up to the count of calls: later ones close up."""
    for key, _ in started.values():
        writer.execute(DROP_CALL, (key,))
        writer.execute(CLOSE_UP_CALLS, (key, head.number << 32 | head.calls))


def _add_facts(writer: apsw.Cursor, change: Change, head: SqliteHead, leaf: Leaf) -> None:
    for fact in change.stored_facts(head.facts + 1, leaf):
        writer.execute(INSERT_FACT, (head.number << 32 | fact.number, *fact_row(fact)))


def _delete_consumed(writer: apsw.Cursor, change: Change, number: int) -> None:
    if change.move_to is not None or (change.entries and change.fence is not None):
        # A draft is deleted with the answer it became, and by a rewind; only a fenced runner saves drafts.
        writer.execute(DELETE_DRAFT, (number,))
    if change.inbox_number is not None:
        writer.execute(DELETE_INPUT, (number, change.inbox_number))
    if change.state is not UNSET:
        state = None if change.state is None else change.state.decode()
        writer.execute(SET_STATE, (state, number))


def _update_row(
    writer: apsw.Cursor,
    change: Change,
    head: SqliteHead,
    leaf: Leaf,
    facts: int,
    started: Mapping[str, Started],
) -> None:
    growth = total(change.calls) if change.calls else NOTHING
    if started:
        growth = difference(growth, total([call for _, call in started.values()]))
    turns = change.inherited_turns + change.inputs
    place = (facts, change.at, leaf.branch, leaf.seq, turns)
    writer.execute(UPDATE_HEAD, (*place, *astuple(growth), head.number))
    if head.active_at < change.inactive_before:
        writer.execute(SET_ACTIVE_AT, (change.activity, head.number))
    if not head.needs_indexing:
        writer.execute(SET_NEEDS_INDEXING, (head.number,))
    for name, value in change.columns.items():
        column = to_json(value, name).decode() if name == "tool_names" else value
        writer.execute(SET_COLUMN[name], (column, head.number))
    if change.tags:
        writer.execute(MERGE_TAGS, (to_json(dict(change.tags), "tags").decode(), head.number))


def insert_row(
    writer: apsw.Connection, columns: Mapping[str, Any], active_at: int, detail: SessionDetail
) -> int:
    """Insert a session's row by its columns, with its detail; return the session's number."""
    writer.execute(INSERT_SESSION, {**columns, "active_at": active_at})
    number = writer.last_insert_rowid()
    writer.execute(INSERT_DETAIL, (number, *detail_row(detail)))
    return number


def insert_session(writer: apsw.Connection, new: NewSession) -> None:
    row, detail, parent = new.row, new.detail, new.fork_point
    if parent is not None:
        _check_place(writer, parent, parent)
    _check_blobs(writer, row.space, new.seeds, new.blobs)
    number = insert_row(writer, session_row(row, branch=0, seq=0, facts=1), row.updated_at, detail)
    writer.execute(INSERT_BRANCH, (number, parent.branch if parent else None, parent.seq if parent else 0))
    branch = writer.last_insert_rowid()
    insert_blobs(writer, row.space, new.blobs, row.started_at)
    insert_entries(writer, branch, new.seeds)
    seq = new.seeds[-1].seq if new.seeds else parent.seq if parent else 0
    writer.execute(SET_LEAF, (branch, seq, number))
    kind, body = encode_fact(new.fact)
    started = StoredFact(1, kind, new.key, row.started_at, body, Leaf(branch, seq))
    writer.execute(INSERT_FACT, (number << 32 | 1, *fact_row(started)))
