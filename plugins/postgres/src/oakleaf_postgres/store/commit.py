"""Write one change of a session to PostgreSQL, as one statement.

`commit.sql` is the statement with all of its parts. The text depends on the shape of the change only: it is built once
and prepared once on each connection.

A change that fits runs alone, in one round trip (measured: `begin` and `commit` around it cost 1.3 to 1.5 times as
much). If it wrote nothing, or needs more than the statement can say (blobs, a branch of its own, many rows),
`commit_locked` locks the session, raises what was refused, and runs the same statement within its transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, Literal

from msgspec import UNSET, Struct
from msgspec.structs import astuple

from oakleaf.core.call_hash import call_hashes
from oakleaf.core.codec import to_json
from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.facts import encode_fact
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Totals, total
from oakleaf.errors import InvalidPosition, MissingBlob, NotFound
from oakleaf.stores.base import MADE_KEY, SETTABLE_COLUMNS, Change, CommitResult, Effect, is_callers_key
from oakleaf.stores.sql.rows import body_text, call_row, entry_row
from oakleaf_postgres.store.connections import SET_LOCK_TIMEOUT, SET_SPACE
from oakleaf_postgres.store.guard import SqlEffect
from oakleaf_postgres.store.rows import (
    CALL_NAMES,
    CALL_TYPES,
    CLOCK_LEAD,
    ENTRY_NAMES,
    ENTRY_TYPES,
    FACT_COLUMNS,
    caller_clock,
    insert_into,
    named_row,
    named_rows,
)
from oakleaf_postgres.store.statement import Connection, Rows, Statement, run_statement

MAX_ROWS = 16
"""Entries, facts and calls in the statement; those of a larger change are inserted after it, in the same transaction."""
TOOL_CALL_NAMES, TOOL_CALL_TYPES = ("hash", "seq"), ("bigint", "bigint")
FACT_NAMES = ("number", "kind", "key", "first_seq", "data")
FACT_TYPES = ("bigint", "text", "text", "bigint", "text")

SELECT_HEAD = f"""
select number, branch, seq, facts, calls, fence, trashed_at, owner, holder, lease_until - {CLOCK_LEAD},
       (select session_number from oakleaf.branch where branch.id = session.branch) = number,
       (select max(entry.seq) from oakleaf.entry where entry.branch = session.branch)
from oakleaf.session
where id = %(id)s and space = pg_catalog.current_setting('oakleaf.space', true)
  and (%(owner)s::text is null or owner = %(owner)s) for no key update
"""
SELECT_KEY = f"""
select {FACT_COLUMNS} from oakleaf.journal where session_number = %s and key = %s order by number desc limit 1
"""
IS_CALLERS_KEY = f"pg_catalog.left(journal.key, 1) <> '{MADE_KEY}'"
SELECT_CALLERS_KEY = f"""
select {FACT_COLUMNS} from oakleaf.journal where session_number = %s and key = %s and {IS_CALLERS_KEY} order by number desc limit 1
"""
INSERT_BRANCH = """
insert into oakleaf.branch (space, session_number, parent, parent_seq) values (%s, %s, %s, %s) returning id
"""
INSERT_ENTRY = insert_into("entry", "branch", "space", "owner", *ENTRY_NAMES)
INSERT_TOOL_CALL = insert_into("tool_call", "branch", "space", "hash", "seq")
INSERT_CALL = insert_into("usage", "session_number", "space", "owner", "number", *CALL_NAMES)
INSERT_FACT = insert_into("journal", "session_number", "space", "owner", "number", "kind", "data", "at")
INSERT_BLOB = """
insert into oakleaf.blob (space, hash, mime, size, at, bytes) values (%s, %s, %s, %s, %s, %s)
on conflict (space, hash) do update set at = greatest(blob.at, excluded.at)
"""
# For an entry of the same transaction: one that is stored already is locked against deletion and not written. Every new
# session uses the blob of its tools, and with an update of it each would wait until the one before was on disk.
INSERT_USED_BLOB = """
with stored as materialized (select number from oakleaf.blob where space = %s and hash = %s for key share)
insert into oakleaf.blob (space, hash, mime, size, at, bytes)
select %s, %s, %s, %s, %s, %s where not exists (select 1 from stored)
on conflict (space, hash) do update set at = greatest(blob.at, excluded.at)
"""
TIE_BLOB = """
insert into oakleaf.blob_use (branch, seq, blob_number, space)
select %s, %s, number, space from oakleaf.blob where space = %s and hash = %s on conflict do nothing
"""

BranchMode = Literal["none", "extend", "check", "open"]
"""What a change with entries does: extend the leaf's branch (`check`: if it may), or open one. `none`: no entries."""


class Shape(Struct, frozen=True):
    """The common part of two changes with the same statement."""

    branch: BranchMode
    entries: int
    tool_calls: int
    facts: int
    calls: int
    has_calls: bool
    replaces_call: bool
    drops_call: bool
    moves: bool
    columns: tuple[str, ...]
    has_tags: bool
    has_state: bool
    takes_input: bool
    drops_draft: bool
    has_leaf: bool
    is_fenced: bool
    needs_free: bool
    is_owned: bool

    @property
    def has_started_call(self) -> bool:
        """Whether the change replaces or deletes the row of a call started before."""
        return self.replaces_call or self.drops_call

    @property
    def has_new_totals(self) -> bool:
        return self.has_calls and not self.has_started_call

    @property
    def is_activity(self) -> bool:
        return self.branch != "none" or self.moves or self.has_calls

    @property
    def opens_branch(self) -> bool:
        return self.branch == "open"

    @property
    def extends_branch(self) -> bool:
        return self.branch in ("extend", "check")

    @property
    def checks_branch(self) -> bool:
        return self.branch == "check"

    @property
    def only_moves(self) -> bool:
        return self.moves and self.branch == "none"

    def has(self, part: str) -> bool:
        """Return whether the statement has the parts of `commit.sql` of the name."""
        name = part.removeprefix("not ")
        return name == "always" or bool(getattr(self, name)) == (name == part)


class PostgresHead(Struct, frozen=True):
    """The locked row of a session, as far as a change needs the row."""

    number: int
    leaf: Leaf
    facts: int
    calls: int
    fence: int
    trashed_at: int | None
    owner: str | None
    can_extend: bool
    """Its leaf is the last entry of a branch of its own."""
    holder: str | None
    lease_until: int | None


def fits_statement(change: Change) -> bool:
    """Whether the change can be written without reading anything first."""
    if is_callers_key(change.key):
        return False
    if change.blobs or _is_large(change) or ((change.entries or change.move_to) and change.after is None):
        return False
    return not any(entry.media or entry.references for entry in change.entries)


def _is_large(change: Change) -> bool:
    return len(change.entries) + len(change.facts) + len(change.calls) > MAX_ROWS


def expression_of(effect: Effect | None) -> str:
    """Return the SQL of an effect."""
    return effect.expression if isinstance(effect, SqlEffect) else ""


def shape_of(change: Change, owner: str | None, branch: BranchMode) -> Shape:
    """Return the shape; `branch` counts only if the change has entries."""
    is_large, has_entries, moves = _is_large(change), bool(change.entries), change.move_to is not None
    replaces_call = change.replaces_call and bool(change.calls)
    assert not replaces_call or len(change.calls) == 1, "a change replaces one call"
    return Shape(
        ("open" if moves else branch) if has_entries else "none",
        0 if is_large else len(change.entries),
        0 if is_large else len(tool_call_rows(change.entries)),
        0 if is_large else len(change.facts),
        len(change.calls) if replaces_call or not is_large else 0,
        bool(change.calls),
        replaces_call,
        change.drops_call is not None,
        moves,
        tuple(change.columns),
        bool(change.tags),
        change.state is not UNSET,
        change.inbox_number is not None,
        # The answer that a draft became replaces it, and a rewind drops it; only a fenced runner saves drafts.
        moves or (has_entries and change.fence is not None),
        change.after is not None,
        change.fence is not None,
        change.needs_free_session,
        owner is not None,
    )


def values_of(
    change: Change, shape: Shape, space: str, owner: str | None, parent: Leaf | None
) -> dict[str, Any]:
    """Return the values of the statement by name. `parent`: where a branch that it opens begins."""
    entries, after, to = change.entries, change.after, change.move_to
    state = change.state
    values: dict[str, Any] = {
        "space": space,
        "id": change.session_id,
        "clock": caller_clock(),
        "owner": owner,
        "at": change.at,
        "activity": change.activity,
        "inactive_before": change.inactive_before,
        "fence": change.fence,
        "new_facts": 1 + len(change.facts),
        "new_turns": change.inherited_turns + change.inputs,
        "input": change.inbox_number,
        "state": state.decode() if isinstance(state, bytes) else None,
    }
    if isinstance(change.effect, SqlEffect):
        values.update(change.effect.values)
    if after is not None:
        values["after_branch"], values["after_seq"] = after.branch, after.seq
    if to is not None:
        values["to_branch"], values["to_seq"] = to.branch, to.seq
    if parent is not None:
        values["parent_branch"], values["parent_seq"] = parent.branch, parent.seq
    if entries:
        values["last_seq"], values["next_seq"] = entries[-1].seq, entries[0].seq
    if change.calls or shape.drops_call:
        values.update(zip(NEW_SUMS, astuple(total(change.calls)), strict=True))
    if shape.drops_call:
        values["call_call_id_0"] = change.drops_call
    for name, value in change.columns.items():
        values[f"set_{name}"] = to_json(value, name).decode() if name == "tool_names" else value
    if change.tags:
        values["tags"] = to_json(dict(change.tags), "tags").decode()
    for n in range(shape.entries):
        values.update(zip(named_row("entry", ENTRY_NAMES, n), entry_row(entries[n]), strict=True))
    for n, tool_call in enumerate(tool_call_rows(entries) if shape.tool_calls else ()):
        values.update(zip(named_row("tool_call", TOOL_CALL_NAMES, n), tool_call, strict=True))
    for n in range(shape.calls):
        row = (1 - shape.calls + n, *call_row(change.calls[n], None))
        values.update(zip(named_row("call", ("number", *CALL_NAMES), n), row, strict=True))
    # Facts and calls are numbered back from the last one, whose number the advanced row holds.
    last, first = len(change.facts), entries[0].seq if entries else None
    for n, fact in enumerate((change.fact, *change.facts[: shape.facts])):
        kind, body = encode_fact(fact)
        key, first = (change.key, first) if n == 0 else (None, None)
        row = (n - last, kind, key, first, body_text(body))
        values.update(zip(named_row("fact", FACT_NAMES, n), row, strict=True))
    return values


# -- the statement -----------------------------------------------------------------------------------

_SET = {"lease_until": f"%(set_lease_until)s::bigint + {CLOCK_LEAD}"}
NEW_SUMS = tuple(f"new_{name}" for name in Totals.__struct_fields__)
COMMENT = re.compile(r"^ *--(?!\?).*\n", re.MULTILINE)
TEMPLATE = COMMENT.sub("", (files("oakleaf_postgres.store") / "commit.sql").read_text())


@lru_cache(maxsize=1024)
def statement(shape: Shape, condition: str = "", effect: str = "") -> Statement:
    """Build the statement, with the condition of a guard and the expression of an effect if there are any."""
    assert SETTABLE_COLUMNS.issuperset(shape.columns), shape.columns
    _, *parts = re.split(r"^--\? (.+)\n", f"--? always\n{TEMPLATE}", flags=re.MULTILINE)
    text = "".join(part for name, part in zip(parts[::2], parts[1::2], strict=True) if shape.has(name))
    filled = text.format(
        in_space=SET_SPACE,
        for_write=SET_LOCK_TIMEOUT,
        guard=f"and {condition}" if condition else "",
        effect=f", {effect}" if effect else "",
        columns="".join(f", {name} = {_SET.get(name, f'%(set_{name})s')}" for name in shape.columns),
        clock_lead=CLOCK_LEAD,
        entry_rows=named_rows("entry", ENTRY_NAMES, ENTRY_TYPES, shape.entries),
        tool_call_rows=named_rows("tool_call", TOOL_CALL_NAMES, TOOL_CALL_TYPES, shape.tool_calls),
        call_rows=named_rows("call", ("number", *CALL_NAMES), ("bigint", *CALL_TYPES), shape.calls),
        fact_rows=named_rows("fact", FACT_NAMES, FACT_TYPES, 1 + shape.facts),
    )
    return Statement.parse(filled)


def tool_call_rows(entries: Iterable[NewEntry]) -> list[tuple[int, int]]:
    """Return hash and seq for the tool calls of entries."""
    return [(hash_, entry.seq) for entry in entries for hash_ in call_hashes(entry.role, entry.body)]


def committed(rows: Rows) -> CommitResult | None:
    """Read the statement's result; None without a write."""
    if not rows:
        return None
    branch, seq, facts = rows[0][:3]
    return CommitResult(Leaf(branch, seq), facts)


# -- under the session's lock ------------------------------------------------------------------------


def lock_head(writer: Connection, session_id: str, owner: str | None) -> PostgresHead:
    values = {"id": session_id, "owner": owner, "clock": caller_clock()}
    row = writer.execute(SELECT_HEAD, values).fetchone()
    if row is None:
        raise NotFound(session_id)
    number, branch, seq, facts, calls, fence, trashed_at, row_owner, holder, until, is_own, tail = row
    can_extend = bool(is_own) and (tail is None or tail == seq)
    leaf = Leaf(branch, seq)
    return PostgresHead(number, leaf, facts, calls, fence, trashed_at, row_owner, can_extend, holder, until)


def commit_locked(writer: Connection, change: Change, space: str, owner: str | None) -> CommitResult:
    """Write any change in the open transaction, or raise the reason for a refusal."""
    head = lock_head(writer, change.session_id, owner)
    earlier = change.check(head, partial(_find_change, writer, head))
    if earlier is not None:
        return earlier
    check_blobs(writer, space, change.entries, change.blobs)
    insert_blobs(writer, space, change.blobs, change.at, change.entries)
    parent = head.leaf if change.move_to is None else change.move_to
    shape = shape_of(change, owner, "extend" if head.can_extend else "open")
    values = values_of(change, shape, space, owner, parent)
    done = committed(run_statement(writer, statement(shape, effect=expression_of(change.effect)), values))
    if done is None:  # the lock is held and every other condition was checked
        raise InvalidPosition(str(change.move_to), 0, head.leaf.seq)
    if _is_large(change):
        _insert_rows(writer, change, head, done.leaf.branch, space, has_calls=shape.calls > 0)
    tie_blobs(writer, done.leaf.branch, change.entries, space)
    return done


def _find_change(writer: Connection, head: PostgresHead, key: str) -> CommitResult | None:
    """Return the record of a key.

    There is no index on a key that Oakleaf made: it would cost every append, and only a late writer pays for this scan.
    """
    query = SELECT_CALLERS_KEY if is_callers_key(key) else SELECT_KEY
    fact = writer.execute(query, (head.number, key)).fetchone()
    return None if fact is None else repeat_of(fact, head.leaf)


def repeat_of(fact: Sequence[Any], present: Leaf) -> CommitResult:
    """Return the result of an earlier change, by the fact; a change without a leaf has the present leaf."""
    leaf = present if fact[3] is None else Leaf(fact[3], fact[5])
    return CommitResult(leaf, fact[0], is_repeat=True)


def find_committed(writer: Connection, change: Change, owner: str | None) -> CommitResult | None:
    """Return the result of a change with a lost answer, if the key is in the journal.

    The lock waits for a server process that may still be writing it. Called before anything is refused, since the
    session may have been taken over or trashed after the change.
    """
    head = lock_head(writer, change.session_id, owner)
    fact = writer.execute(SELECT_KEY, (head.number, change.key)).fetchone()
    moves_leaf = bool(change.entries) or change.move_to is not None
    if fact is not None and is_callers_key(change.key) and fact[7] != change.at:
        return repeat_of(fact, head.leaf)
    if fact is None or (moves_leaf and head.leaf == change.after):  # the key of an earlier change
        return None
    leaf = head.leaf if fact[3] is None else Leaf(fact[3], fact[5])
    return CommitResult(leaf, fact[0] + len(change.facts))


def _insert_rows(
    writer: Connection, change: Change, head: PostgresHead, branch: int, space: str, *, has_calls: bool
) -> None:
    """Insert the rows of a large change beyond the first fact."""
    session = (head.number, space, head.owner)
    with writer.cursor() as cursor:
        entries = [(branch, space, head.owner, *entry_row(entry)) for entry in change.entries]
        cursor.executemany(INSERT_ENTRY, entries)
        tool_calls = [(branch, space, *row) for row in tool_call_rows(change.entries)]
        cursor.executemany(INSERT_TOOL_CALL, tool_calls)
        facts = [(n, *encode_fact(fact)) for n, fact in enumerate(change.facts, head.facts + 2)]
        rows = ((*session, n, kind, body_text(body), change.at) for n, kind, body in facts)
        cursor.executemany(INSERT_FACT, rows)
        if not has_calls:
            calls = enumerate(change.calls, head.calls + 1)
            cursor.executemany(INSERT_CALL, [(*session, n, *call_row(call, branch)) for n, call in calls])


def insert_branch(writer: Connection, space: str, number: int, parent: Leaf | None) -> int:
    place = (parent.branch, parent.seq) if parent else (None, 0)
    row = writer.execute(INSERT_BRANCH, (space, number, *place)).fetchone()
    assert row is not None
    return int(row[0])


def check_blobs(writer: Connection, space: str, entries: Iterable[NewEntry], blobs: Sequence[Blob]) -> None:
    """Lock the blobs of the entries. Raise MissingBlob unless all media are stored already or among `blobs`."""
    new = {blob.hash for blob in blobs}
    for entry in entries:
        for digest in (digest for digest in (*entry.media, *entry.references) if digest not in new):
            query = "select 1 from oakleaf.blob where space = %s and hash = %s for key share"
            is_missing = writer.execute(query, (space, digest)).fetchone() is None
            if is_missing and digest in entry.media:
                raise MissingBlob(digest)


def insert_blobs(
    writer: Connection, space: str, blobs: Sequence[Blob], at: int, entries: Iterable[NewEntry] = ()
) -> None:
    """Store blobs; blobs of `entries` in the same transaction are not written again."""
    used = {digest for entry in entries for digest in entry.media}
    for blob in blobs:
        values = (space, blob.hash, blob.mime, len(blob.data), at, blob.data)
        if blob.hash in used:
            writer.execute(INSERT_USED_BLOB, (space, blob.hash, *values))
        else:
            writer.execute(INSERT_BLOB, values)


def tie_blobs(writer: Connection, branch: int, entries: Iterable[NewEntry], space: str) -> None:
    """Record the blobs of each entry."""
    uses = [
        (branch, entry.seq, space, digest)
        for entry in entries
        for digest in (*entry.media, *entry.references)
    ]
    if uses:
        with writer.cursor() as cursor:
            cursor.executemany(TIE_BLOB, uses)
