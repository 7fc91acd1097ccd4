"""What one change does to the SQLite tables, inside a transaction somebody else opened.

Refuses first, writes afterwards: when a `BoughError` leaves here nothing was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import apsw
from msgspec import UNSET
from msgspec.structs import astuple

from ..core.codec import to_json
from ..core.drafts import Blob, NewEntry
from ..core.tree import Leaf
from ..core.usage import Call, Totals, total
from ..errors import BadPoint, Fenced, MissingBlob, NotFound, StaleLeaf, Trashed
from .sqlite_rows import CALL_COLUMNS, FACT_COLUMNS, call_from, fact_from
from .store import SETTABLE, Change, Committed, NewSession, SessionRow, difference

SELECT_HEAD = """
select no, branch, seq, facts, calls, fence, trashed_at,
       (select session_no from branch where branch.id = session.branch) = no
       and not exists (select 1 from entry where entry.id = (session.branch << 32 | session.seq) + 1)
from session where id = ? and space = ? and (?3 is null or owner = ?3)
"""
INSERT_ENTRY = """
insert into entry (id, turn, step, kind, role, internal, model, finish, entry_id, at, evidence, body)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_FACT = f"insert into journal ({FACT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_CALL = (
    f"insert into usage ({CALL_COLUMNS}, id) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
REPLACE_CALL = f"""
update usage set ({CALL_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) where id = ?
"""
SELECT_STARTED = f"""
select id, {CALL_COLUMNS} from usage where id > ? and id < ? and call_id = ? order by id desc limit 1
"""
SELECT_KEY = f"""
select {FACT_COLUMNS} from journal where id > ? and id < ? and key = ? order by id desc limit 1
"""
INSERT_BRANCH = "insert into branch (session_no, parent, parent_seq) values (?, ?, ?)"
UPDATE_HEAD = """
update session set facts = ?, updated_at = ?, branch = ?, seq = ?, turns = turns + ?, calls = calls + ?,
    input_tokens = input_tokens + ?, output_tokens = output_tokens + ?,
    cache_read_tokens = cache_read_tokens + ?, cache_write_tokens = cache_write_tokens + ?,
    cost_microcents = cost_microcents + ?, unpriced_calls = unpriced_calls + ?, unknown_calls = unknown_calls + ?"""
NOTHING = Totals()


def apply(writer: apsw.Connection, change: Change, space: str, owner: str | None) -> Committed:
    head = writer.execute(SELECT_HEAD, (change.session_id, space, owner)).fetchone()
    if head is None:
        raise NotFound(change.session_id)
    no, branch, seq, facts, calls, fence, trashed_at, is_growing = head
    present = Leaf(branch, seq)
    if trashed_at is not None:
        raise Trashed(change.session_id)
    if change.fence is not None and change.fence != fence:
        raise Fenced(change.session_id, change.fence, fence)
    if change.after is not None and change.after != present:
        return _repeated(writer, change, no, present, facts)
    _check_blobs(writer, space, change.entries, change.blobs)
    if change.move_to is not None:
        _check_move(writer, change.move_to, present)
    if change.blobs:
        insert_blobs(writer, space, change.blobs, change.at)
    leaf = present if change.move_to is None else change.move_to
    if change.entries:
        leaf = _grow(writer, no, leaf, change.entries, bool(is_growing) and change.move_to is None)
    growth = _add_calls(writer, change, no, calls, leaf.branch) if change.calls else NOTHING
    facts = _add_facts(writer, change, no, facts, leaf)
    _update_row(writer, change, no, leaf, growth, facts)
    if change.move_to is not None or (change.entries and change.fence is not None):
        # A draft dies with the answer it became, and with a rewind; only a fenced runner leaves drafts.
        writer.execute("delete from draft where no = ?", (no,))
    if change.takes is not None:
        writer.execute("delete from inbox where no = ? and n = ?", (no, change.takes))
    if change.state is not UNSET:
        state = None if change.state is None else change.state.decode()
        writer.execute("update session_detail set state = ? where no = ?", (state, no))
    return Committed(leaf, facts)


def _repeated(writer: apsw.Connection, change: Change, no: int, present: Leaf, facts: int) -> Committed:
    """The leaf moved: either this very change did it, or the writer is stale.

    No index on the key: it would cost every append, and this scan is paid by the late one only.
    """
    assert change.after is not None
    found = writer.execute(SELECT_KEY, (no << 32, (no + 1) << 32, change.key)).fetchone()
    if found is None:
        raise StaleLeaf(change.session_id, change.after, present)
    data = fact_from(found).data
    return Committed(Leaf(data["branch"], data["last"]), found[0] & 0xFFFFFFFF, repeated=True)


def _grow(
    writer: apsw.Connection, no: int, under: Leaf, entries: Sequence[NewEntry], is_growing: bool
) -> Leaf:
    branch = under.branch
    if not is_growing:
        writer.execute(INSERT_BRANCH, (no, under.branch, under.seq))
        branch = writer.last_insert_rowid()
    insert_entries(writer, branch, entries)
    return Leaf(branch, entries[-1].seq)


def insert_entries(writer: apsw.Connection, branch: int, entries: Iterable[NewEntry]) -> None:
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
        for digest in e.media:
            writer.execute(
                "insert or ignore into blob_use select ?, no from blob where hash = ? and space = "
                "(select space from session join branch on session_no = session.no where branch.id = ?)",
                (base | e.seq, digest, branch),
            )


def _check_blobs(
    writer: apsw.Connection, space: str, entries: Iterable[NewEntry], coming: Sequence[Blob]
) -> None:
    for entry in entries:
        for digest in entry.media:
            known = (
                any(blob.hash == digest for blob in coming)
                or writer.execute(
                    "select 1 from blob where space = ? and hash = ?", (space, digest)
                ).fetchone()
            )
            if not known:
                raise MissingBlob(digest)


def _check_move(writer: apsw.Connection, to: Leaf, present: Leaf) -> None:
    held = writer.execute(
        "select 1 from entry where id = ? union all select 1 from branch where id = ? and parent_seq = ?",
        (to.branch << 32 | to.seq, to.branch, to.seq),
    ).fetchone()
    if held is None:
        raise BadPoint(str(to), 0, present.seq)


def insert_blobs(writer: apsw.Connection, space: str, blobs: Iterable[Blob], at: int) -> None:
    for blob in blobs:
        writer.execute(
            "insert into blob (space, hash, mime, size, at, bytes) values (?, ?, ?, ?, ?, ?) "
            "on conflict (space, hash) do update set at = max(at, excluded.at)",
            (space, blob.hash, blob.mime, len(blob.data), at, blob.data),
        )


def _add_calls(writer: apsw.Connection, change: Change, no: int, count: int, branch: int) -> Totals:
    growth = total(change.calls)
    for call in change.calls:
        row = _call_row(call, branch)
        started = None
        if change.replaces_call:
            started = writer.execute(SELECT_STARTED, (no << 32, (no + 1) << 32, call.call_id)).fetchone()
        if started is None:
            count += 1
            writer.execute(INSERT_CALL, (*row, no << 32 | count))
        else:
            growth = difference(growth, total([call_from(started[1:])]))
            writer.execute(REPLACE_CALL, (*row, started[0]))
    return growth


def _call_row(call: Call, branch: int) -> tuple[Any, ...]:
    usage, price = call.usage, call.price
    return (
        call.call_id,
        branch,
        call.after_seq,
        call.answer_seq,
        call.at,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        None if call.purpose == "answer" else call.purpose,
        None if call.bucket == "live" else call.bucket,
        call.provider,
        call.model,
        None if price is None else price.microcents,
        None if price is None else price.version,
        call.failed,
    )


def _add_facts(writer: apsw.Connection, change: Change, no: int, facts: int, leaf: Leaf) -> int:
    base = no << 32
    facts += 1
    first = change.entries[0].seq if change.entries else None
    place = (leaf.branch, first, leaf.seq) if change.after is not None else (None, None, None)
    writer.execute(
        INSERT_FACT, (base | facts, change.kind, change.key, *place, _text(change.data), change.at)
    )
    for fact in change.facts:
        facts += 1
        row = (base | facts, fact.kind, None, None, None, None, _text(fact.data), change.at)
        writer.execute(INSERT_FACT, row)
    return facts


def _text(data: dict[str, Any]) -> str | None:
    return to_json(data, "journal data").decode() if data else None


def _update_row(
    writer: apsw.Connection, change: Change, no: int, leaf: Leaf, growth: Totals, facts: int
) -> None:
    turns = 0
    for entry in change.entries:
        turns += entry.turn == entry.seq
    bindings = [facts, change.at, leaf.branch, leaf.seq, turns, *astuple(growth)]
    if change.row:
        for name, value in change.row.items():
            bindings.append(to_json(value, name).decode() if name == "tool_names" else value)
    if change.tags:
        bindings.append(to_json(dict(change.tags), "tags").decode())
    bindings.append(no)
    writer.execute(_update(tuple(change.row), bool(change.tags)), bindings)


@lru_cache(maxsize=256)
def _update(names: tuple[str, ...], with_tags: bool) -> str:
    assert SETTABLE.issuperset(names), names
    sets = "".join(f", {name} = ?" for name in names)
    patch = ", tags = json_patch(coalesce(tags, '{}'), ?)" if with_tags else ""
    return f"{UPDATE_HEAD}{sets}{patch} where no = ?"


SESSION_GIVEN = (
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
    *("started_at", "updated_at"),
)
SESSION_ZERO = (
    *("branch", "seq", "turns", "calls", "input_tokens", "output_tokens", "cache_read_tokens", "fence"),
    *("cache_write_tokens", "cost_microcents", "unpriced_calls", "unknown_calls"),
)
INSERT_SESSION = f"""
insert into session ({", ".join((*SESSION_GIVEN, *SESSION_ZERO))}, facts)
values ({", ".join("?" * len(SESSION_GIVEN))}, {", ".join("0" * len(SESSION_ZERO))}, 1)
"""


def _session_row(row: SessionRow) -> list[Any]:
    json = {
        "id": row.session_id,
        "tool_names": to_json(row.tool_names, "tool names").decode() if row.tool_names else None,
        "tags": to_json(row.tags, "tags").decode() if row.tags else None,
    }
    return [json[name] if name in json else getattr(row, name) for name in SESSION_GIVEN]


def insert_session(writer: apsw.Connection, new: NewSession) -> None:
    row, detail, under = new.row, new.detail, new.fork_of
    _check_blobs(writer, row.space, new.seeds, new.blobs)
    writer.execute(INSERT_SESSION, _session_row(row))
    no = writer.last_insert_rowid()
    wide = [
        None if text is None else text.decode()
        for text in (detail.spec, detail.policy, detail.workspace, detail.state)
    ]
    writer.execute(
        "insert into session_detail (no, spec, policy, workspace, state) values (?, ?, ?, ?, ?)", (no, *wide)
    )
    writer.execute(INSERT_BRANCH, (no, under.branch if under else None, under.seq if under else 0))
    branch = writer.last_insert_rowid()
    insert_blobs(writer, row.space, new.blobs, row.started_at)
    insert_entries(writer, branch, new.seeds)
    seq = new.seeds[-1].seq if new.seeds else under.seq if under else 0
    writer.execute("update session set branch = ?, seq = ? where no = ?", (branch, seq, no))
    data = {"relation": row.relation, "parent": row.parent_session} if row.parent_session else {}
    fact = (no << 32 | 1, "started", new.key, branch, None, seq, _text(data), row.started_at)
    writer.execute(INSERT_FACT, fact)
