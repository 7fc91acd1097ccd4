"""What one change does to the SQLite tables, inside a transaction that the caller opened.

Refuses first, writes afterwards: when an `OakleafError` is raised here nothing was written. The session's row is updated
before anything is inserted, and only if its leaf and counts are the expected ones; so the state after the last change
may be cached instead of read, and a stale cache costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import apsw
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from oakleaf.core.call_hash import call_hashes
from oakleaf.core.codec import to_json
from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Totals, difference, total
from oakleaf.errors import Fenced, InvalidPosition, MissingBlob, NotFound, SessionTrashed, StaleLeaf
from oakleaf.stores.base import (
    MADE_KEY,
    SETTABLE_COLUMNS,
    Change,
    CommitResult,
    NewSession,
    SessionRow,
    is_callers_key,
)
from oakleaf.stores.sql.rows import CALL_COLUMNS, FACT_COLUMNS, call_from, call_row, fact_from

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
INSERT_TOOL_CALL = "insert into tool_call (branch, hash, seq) values (?, ?, ?)"
INSERT_FACT = f"insert into journal ({FACT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_CALL = (
    f"insert into usage ({CALL_COLUMNS}, id) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
REPLACE_CALL = f"""
update usage set ({CALL_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) where id = ?
"""
DROP_CALL = "delete from usage where id = ?"
CLOSE_UP_CALLS = "update usage set id = id - 1 where id > ? and id <= ?"
SELECT_STARTED = f"""
select id, {CALL_COLUMNS} from usage where id > ? and id < ? and call_id = ? order by id desc limit 1
"""
SELECT_KEY = f"""
select {FACT_COLUMNS} from journal where id > ? and id < ? and key = ? order by id desc limit 1
"""
SELECT_CALLERS_KEY = f"""
select {", ".join(f"journal.{name}" for name in FACT_COLUMNS.split(", "))}, session.branch, session.seq
from session left join journal on journal.key = ?4 and substr(journal.key, 1, 1) <> '{MADE_KEY}'
    and journal.id > session.number << 32 and journal.id < (session.number + 1) << 32
where session.id = ?1 and session.space = ?2 and (?3 is null or session.owner = ?3)
order by journal.id desc limit 1
"""
INSERT_BRANCH = "insert into branch (session_number, parent, parent_seq) values (?, ?, ?)"
UPDATE_HEAD = "update session set facts = ?, updated_at = ?, branch = ?, seq = ?, turns = turns + ?"
ADD_GROWTH = "".join(f", {name} = {name} + ?" for name in Totals.__struct_fields__)
# Not by a trigger: to find out that there is nothing to do took one 10,000 instructions, a fiftieth of an append.
SET_NEEDS_INDEXING = ", needs_indexing = 1"
WHERE_HEAD = (
    " where number = ? and branch = ? and seq = ? and facts = ? and calls = ? and fence = coalesce(?, fence)"
    " and trashed_at is null"
)
WHERE_NEEDS_INDEXING = " and needs_indexing"
WHERE_FREE = " and (holder is null or coalesce(lease_until, 0) <= ?)"
NOTHING = Totals()
Executor = apsw.Connection | apsw.Cursor
Started = tuple[int, Call]
"""A ledger row's key and its content so far."""


class SqliteHead(Struct, frozen=True, gc=False):
    """What a change needs to know of its session."""

    number: int
    leaf: Leaf
    facts: int
    calls: int
    active_at: int
    is_growing: bool
    """Whether the leaf is the tail of a branch it owns."""
    needs_indexing: bool = True
    """Whether the flag is set that it may have text which the search index lacks, as after every change."""
    lease: tuple[str | None, int | None] = (None, None)
    """Holder and end, if they were read."""


class Heads:
    """A cache of the sessions of one tenant after their latest changes. Only the writing thread uses it."""

    MAX_SESSIONS = 1_000

    def __init__(self, space: str, owner: str | None) -> None:
        self.space, self.owner = space, owner
        self._known: dict[str, SqliteHead] = {}

    def recall(self, change: Change) -> SqliteHead | None:
        """Return the head if it is cached and the change extends it. A change that may be refused reads instead."""
        head = self._known.get(change.session_id)
        may_lack_blobs = any(entry.media for entry in change.entries)
        is_next = head is not None and change.after == head.leaf and change.move_to is None
        return head if is_next and not may_lack_blobs else None

    def remember(self, session_id: str, head: SqliteHead | None) -> None:
        if head is None or not head.is_growing:
            self._known.pop(session_id, None)
            return
        if len(self._known) >= self.MAX_SESSIONS and session_id not in self._known:
            self._known.clear()
        self._known[session_id] = head


def apply(writer: apsw.Cursor, change: Change, heads: Heads) -> CommitResult:
    if is_callers_key(change.key):
        earlier = find_change(writer, heads.space, heads.owner, change.session_id, change.key)
        if earlier is not None:
            return earlier
    head = heads.recall(change)
    if head is None:
        head = _read(writer, change, heads)
        if change.after is not None and change.after != head.leaf:
            return _find_committed(writer, change, head)
        change.refuse_if_held(*head.lease)
        if change.move_to is not None:
            _check_place(writer, change.move_to, head.leaf)
    _check_blobs(writer, heads.space, change.entries, change.blobs)
    started = _started_calls(writer, change, head.number)
    new_head = _advance(writer, change, head, started)
    heads.remember(change.session_id, new_head)
    if new_head is None:  # the cached head was stale: another process has written since
        return apply(writer, change, heads)
    if change.blobs:
        insert_blobs(writer, heads.space, change.blobs, change.at)
    insert_entries(writer, new_head.leaf.branch, change.entries)
    if change.calls:
        _add_calls(writer, change, head, new_head.leaf.branch, started)
    elif started:
        _drop_call(writer, head, started)
    _add_facts(writer, change, head, new_head.leaf)
    _delete_consumed(writer, change, head.number)
    return CommitResult(new_head.leaf, new_head.facts)


def _read(writer: apsw.Cursor, change: Change, heads: Heads) -> SqliteHead:
    row = writer.execute(SELECT_HEAD, (change.session_id, heads.space, heads.owner)).fetchone()
    if row is None:
        raise NotFound(change.session_id)
    number, branch, seq, facts, calls, active_at, needs_indexing, fence, trashed_at, *lease, is_growing = row
    if trashed_at is not None:
        raise SessionTrashed(change.session_id)
    if change.fence is not None and change.fence != fence:
        raise Fenced(change.session_id, change.fence, fence)
    return SqliteHead(
        number,
        Leaf(branch, seq),
        facts,
        calls,
        active_at,
        bool(is_growing),
        bool(needs_indexing),
        (lease[0], lease[1]),
    )


def find_change(
    reader: Executor, space: str, owner: str | None, session_id: str, key: str
) -> CommitResult | None:
    """Return what was recorded under a caller's key."""
    row = reader.execute(SELECT_CALLERS_KEY, (session_id, space, owner, key)).fetchone()
    if row is None:
        raise NotFound(session_id)
    return None if row[0] is None else _repeat(row[:-2], Leaf(*row[-2:]))


def _repeat(row: tuple[Any, ...], present: Leaf) -> CommitResult:
    data = fact_from(row).data
    leaf = Leaf(data["branch"], data["last"]) if "last" in data else present
    return CommitResult(leaf, row[0] & 0xFFFFFFFF, is_repeat=True)


def _find_committed(writer: apsw.Cursor, change: Change, head: SqliteHead) -> CommitResult:
    """Return the result of this change if it moved the leaf itself; else the writer is stale.

    There is no index on a key that Oakleaf made: it would slow down every append, and only a late writer pays for this scan.
    """
    assert change.after is not None
    base = head.number << 32
    row = writer.execute(SELECT_KEY, (base, base + (1 << 32), change.key)).fetchone()
    if row is None:
        change.refuse_if_held(*head.lease)
        raise StaleLeaf(change.session_id, change.after, head.leaf)
    return _repeat(row, head.leaf)


def _advance(
    writer: apsw.Cursor, change: Change, head: SqliteHead, started: Mapping[str, Started]
) -> SqliteHead | None:
    """Update the session's row; return the new head, or None if the row is not at `head`."""
    leaf = head.leaf if change.move_to is None else change.move_to
    is_growing = head.is_growing and change.move_to is None
    if change.entries:
        # Only for a head that was read, not cached: nothing can refuse the change any more.
        if not is_growing:
            writer.execute(INSERT_BRANCH, (head.number, leaf.branch, leaf.seq))
            leaf = Leaf(writer.connection.last_insert_rowid(), leaf.seq)
        leaf, is_growing = Leaf(leaf.branch, change.entries[-1].seq), True
    growth = total(change.calls) if change.calls else NOTHING
    if started:
        growth = difference(growth, total([call for _, call in started.values()]))
    facts = head.facts + 1 + len(change.facts)
    active_at = change.activity if head.active_at < change.inactive_before else head.active_at
    _update_row(writer, change, head, leaf, growth, facts, active_at)
    if not writer.connection.changes():
        return None
    return SqliteHead(head.number, leaf, facts, head.calls + growth.calls, active_at, is_growing)


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
            writer.execute(
                "insert or ignore into blob_use select ?, number from blob where hash = ? and space = "
                "(select space from session join branch on session_number = session.number where branch.id = ?)",
                (base | e.seq, digest, branch),
            )


def _check_blobs(writer: Executor, space: str, entries: Iterable[NewEntry], new: Sequence[Blob]) -> None:
    for entry in entries:
        for digest in entry.media:
            exists = (
                any(blob.hash == digest for blob in new)
                or writer.execute(
                    "select 1 from blob where space = ? and hash = ?", (space, digest)
                ).fetchone()
            )
            if not exists:
                raise MissingBlob(digest)


def _check_place(writer: Executor, to: Leaf, present: Leaf) -> None:
    row = writer.execute(
        "select 1 from entry where id = ? union all select 1 from branch where id = ? and parent_seq = ?",
        (to.branch << 32 | to.seq, to.branch, to.seq),
    ).fetchone()
    if row is None:
        raise InvalidPosition(str(to), 0, present.seq)


def insert_blobs(writer: Executor, space: str, blobs: Iterable[Blob], at: int) -> None:
    for blob in blobs:
        writer.execute(
            "insert into blob (space, hash, mime, size, at, bytes) values (?, ?, ?, ?, ?, ?) "
            "on conflict (space, hash) do update set at = max(at, excluded.at)",
            (space, blob.hash, blob.mime, len(blob.data), at, blob.data),
        )


def _started_calls(writer: apsw.Cursor, change: Change, number: int) -> dict[str, Started]:
    """Return the rows, by call id, that were written when the calls started that the change replaces or drops."""
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
    n = (head.number << 32 | head.facts) + 1
    first = change.entries[0].seq if change.entries else None
    place = (leaf.branch, first, leaf.seq) if change.after is not None else (None, None, None)
    writer.execute(INSERT_FACT, (n, change.kind, change.key, *place, _text(change.data), change.at))
    for fact in change.facts:
        n += 1
        writer.execute(INSERT_FACT, (n, fact.kind, None, None, None, None, _text(fact.data), change.at))


def _delete_consumed(writer: apsw.Cursor, change: Change, number: int) -> None:
    if change.move_to is not None or (change.entries and change.fence is not None):
        # A draft is deleted with the answer it became, and by a rewind; only a fenced runner saves drafts.
        writer.execute("delete from draft where session_number = ?", (number,))
    if change.inbox_number is not None:
        writer.execute(
            "delete from inbox where session_number = ? and number = ?", (number, change.inbox_number)
        )
    if change.state is not UNSET:
        state = None if change.state is None else change.state.decode()
        writer.execute("update session_detail set state = ? where session_number = ?", (state, number))


def _text(data: dict[str, Any]) -> str | None:
    return to_json(data, "journal data").decode() if data else None


def _update_row(
    writer: apsw.Cursor,
    change: Change,
    head: SqliteHead,
    leaf: Leaf,
    growth: Totals,
    facts: int,
    active_at: int,
) -> None:
    columns = change.columns
    if "tool_names" in columns:
        columns = {**columns, "tool_names": to_json(columns["tool_names"], "tool_names").decode()}
    turns = change.inherited_turns + change.inputs
    bindings: list[Any] = [facts, change.at, leaf.branch, leaf.seq, turns]
    if growth is not NOTHING:
        bindings += astuple(growth)
    if active_at != head.active_at:  # else the index is not written
        columns = {**columns, "active_at": active_at}
    bindings += columns.values()
    if change.tags:
        bindings.append(to_json(dict(change.tags), "tags").decode())
    bindings += (head.number, head.leaf.branch, head.leaf.seq, head.facts, head.calls, change.fence)
    needs_free = change.needs_free_session
    if needs_free:
        bindings.append(change.at)
    query = _update(growth is not NOTHING, tuple(columns), bool(change.tags), head.needs_indexing, needs_free)
    writer.execute(query, bindings)


@lru_cache(maxsize=256)
def _update(
    with_growth: bool, names: tuple[str, ...], with_tags: bool, needs_indexing: bool, needs_free: bool
) -> str:
    """Return the statement. A session that was indexed since its head was cached is not at this head."""
    assert {*SETTABLE_COLUMNS, "active_at"}.issuperset(names), names
    growth = ADD_GROWTH if with_growth else ""
    sets = "".join(f", {name} = ?" for name in names)
    patch = ", tags = json_patch(coalesce(tags, '{}'), ?)" if with_tags else ""
    flag, where = ("", WHERE_NEEDS_INDEXING) if needs_indexing else (SET_NEEDS_INDEXING, "")
    free = WHERE_FREE if needs_free else ""
    return f"{UPDATE_HEAD}{growth}{sets}{patch}{flag}{WHERE_HEAD}{where}{free}"


SESSION_COLUMNS_SET = (
    *("id", "space", "owner", "conversation_id", "agent", "title", "status", "relation", "parent_session"),
    *(
        "parent_seq",
        "trigger_type",
        "trigger_id",
        "model",
        "context_window",
        "tool_names",
        "seed_count",
        "tags",
    ),
    *("started_at", "updated_at", "active_at"),
)
SESSION_COLUMNS_ZERO = (
    *("branch", "seq", "turns", "calls", "input_tokens", "output_tokens", "cache_read_tokens", "fence"),
    *("cache_write_tokens", "cost_microcents", "unpriced_calls", "unknown_calls", "imported_facts"),
)
INSERT_SESSION = f"""
insert into session ({", ".join((*SESSION_COLUMNS_SET, *SESSION_COLUMNS_ZERO))}, facts)
values ({", ".join("?" * len(SESSION_COLUMNS_SET))}, {", ".join("0" * len(SESSION_COLUMNS_ZERO))}, 1)
"""


def _session_row(row: SessionRow) -> list[Any]:
    json = {
        "id": row.session_id,
        "active_at": row.updated_at,
        "tool_names": to_json(row.tool_names, "tool names").decode() if row.tool_names else None,
        "tags": to_json(row.tags, "tags").decode() if row.tags else None,
    }
    return [json[name] if name in json else getattr(row, name) for name in SESSION_COLUMNS_SET]


def insert_session(writer: apsw.Connection, new: NewSession) -> None:
    row, detail, parent = new.row, new.detail, new.fork_point
    if parent is not None:
        _check_place(writer, parent, parent)
    _check_blobs(writer, row.space, new.seeds, new.blobs)
    writer.execute(INSERT_SESSION, _session_row(row))
    number = writer.last_insert_rowid()
    texts = [
        None if text is None else text.decode()
        for text in (detail.spec, detail.policy, detail.workspace, detail.state)
    ]
    writer.execute(
        "insert into session_detail (session_number, spec, policy, workspace, state) values (?, ?, ?, ?, ?)",
        (number, *texts),
    )
    writer.execute(INSERT_BRANCH, (number, parent.branch if parent else None, parent.seq if parent else 0))
    branch = writer.last_insert_rowid()
    insert_blobs(writer, row.space, new.blobs, row.started_at)
    insert_entries(writer, branch, new.seeds)
    seq = new.seeds[-1].seq if new.seeds else parent.seq if parent else 0
    writer.execute("update session set branch = ?, seq = ? where number = ?", (branch, seq, number))
    data = new.origin
    fact = (number << 32 | 1, "started", new.key, branch, None, seq, _text(data), row.started_at)
    writer.execute(INSERT_FACT, fact)
