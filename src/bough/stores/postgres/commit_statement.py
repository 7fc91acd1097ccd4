"""A change as one statement of PostgreSQL, which is what almost every change is.

Its first part moves the session's leaf if it stands where the change expects it; its other parts insert what hangs
on that, so nothing is written if it does not. The text depends on the shape of a change only: it is made once,
prepared once on each connection, and its values are handed in. Knows nothing of refusals: no row comes back, and
`postgres_write` finds out why.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import astuple

from ...core.codec import to_json
from ...core.usage import Totals, total
from ..base import SETTABLE_COLUMNS, Change
from ..rows import call_row, entry_row
from .connections import NO_ENGINE_SQL, SET_SPACE, EngineSql
from .rows import CALL_NAMES, CALL_TYPES, ENTRY_NAMES, ENTRY_TYPES, json_text, placeholders
from .statement import Statement

MOST_ROWS = 16
"""Entries, facts and calls a change may have to be one statement; a larger one is worth several."""
FACT_TYPES = ("bigint", "text", "text", "bigint", "text")
OF_HEAD = "head.space, head.owner"


class Shape(Struct, frozen=True):
    """What two changes have in common that are the same statement."""

    entries: int
    moves: bool
    facts: int
    calls: int
    replaces: bool
    row: tuple[str, ...]
    has_tags: bool
    has_state: bool
    takes: bool
    drops_draft: bool
    is_bound: bool
    is_fenced: bool
    is_owned: bool
    is_growing: bool
    """The leaf's branch is known to be the session's own, which it stays for good."""


def shape_of(change: Change, owner: str | None, *, is_growing: bool = False) -> Shape | None:
    """None: it is none of the plain ones."""
    entries, facts, calls = len(change.entries), len(change.facts), len(change.calls)
    moves = change.move_to is not None
    if (moves and entries) or change.blobs or (change.replaces_call and calls > 1):
        return None
    if entries + facts + calls > MOST_ROWS or ((entries or moves) and change.after is None):
        return None
    for entry in change.entries:
        if entry.media:
            return None
    return Shape(
        entries,
        moves,
        facts,
        calls,
        change.replaces_call and calls == 1,
        tuple(change.columns),
        bool(change.tags),
        change.state is not UNSET,
        change.inbox_number is not None,
        _drops_draft(change),
        change.after is not None,
        change.fence is not None,
        owner is not None,
        is_growing and entries > 0,
    )


def _drops_draft(change: Change) -> bool:
    """A draft dies with the answer it became, and with a rewind; only a fenced runner leaves drafts."""
    return change.move_to is not None or (len(change.entries) > 0 and change.fence is not None)


def bindings_of(
    change: Change,
    space: str,
    owner: str | None,
    engine: EngineSql = NO_ENGINE_SQL,
    *,
    is_growing: bool = False,
) -> list[Any]:
    """The values of the statement, in the order `statement` puts their places."""
    entries, after, to = change.entries, change.after, change.move_to
    replaces = change.replaces_call and len(change.calls) == 1
    found: list[Any] = [change.calls[0].call_id, space, change.session_id] if replaces else []
    found += row_values(change, total(change.calls) if change.calls else None)
    if entries:
        found.append(entries[-1].seq)
    if to is not None:
        found += (to.branch, to.seq)
    found += (space, *engine.condition_values, change.session_id)
    if owner is not None:
        found.append(owner)
    if after is not None:
        found += (after.branch, after.seq)
    if change.fence is not None:
        found.append(change.fence)
    if entries and after is not None and not is_growing:
        found += (space, after.branch, space, after.branch, after.seq + 1)
    if to is not None:
        found += (space, to.branch, to.seq, space, to.branch, to.seq)
    for entry in entries:
        found += entry_row(entry)
    for n, call in enumerate(change.calls, 1 - len(change.calls)):
        found += call_row(call, None)
        found.append(n)
    if replaces:
        call_id, _, *rest = call_row(change.calls[0], None)
        found += (call_id, *rest, space)
    found += _fact_values(change)
    if change.inbox_number is not None:
        found += (space, change.inbox_number)
    if _drops_draft(change):
        found.append(space)
    if change.state is not UNSET:
        found += (None if change.state is None else change.state.decode(), space)
    found += engine.effect_values
    return found


def row_values(change: Change, growth: Totals | None) -> list[Any]:
    turns = 0
    for entry in change.entries:
        turns += entry.turn == entry.seq
    found = [1 + len(change.facts), change.at, turns, *(() if growth is None else astuple(growth))]
    for name, value in change.columns.items():
        found.append(to_json(value, name).decode() if name == "tool_names" else value)
    if change.tags:
        found.append(to_json(dict(change.tags), "tags").decode())
    return found


def _fact_values(change: Change) -> list[Any]:
    """Numbers count back from the last one, for that is what the moved head tells."""
    last = len(change.facts)
    first = change.entries[0].seq if change.entries else None
    found = [change.at, -last, change.kind, change.key, first, json_text(change.data, "journal data")]
    for n, fact in enumerate(change.facts, 1 - last):
        found += (n, fact.kind, None, None, json_text(fact.data, "journal data"))
    return found


def sets_of(row: Iterable[str], has_tags: bool) -> str:
    names = tuple(row)
    assert SETTABLE_COLUMNS.issuperset(names), names
    sets = "".join(f", {name} = %s" for name in names)
    return sets + (
        ", tags = jsonb_strip_nulls(coalesce(session.tags, '{}') || %s::text::jsonb)" if has_tags else ""
    )


GROWTH = "facts = session.facts + %s, updated_at = %s, turns = session.turns + %s"
SUMS = (
    *("calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_microcents"),
    *("unpriced_calls", "unknown_calls"),
)
TOTALS = "".join(f", {name} = session.{name} + %s" for name in SUMS)
# A call that had started is counted already: what it counted is taken off. Read before the session is locked, so
# the count of facts must still be the one read with it; if somebody came between nothing is written.
TOTALS_ANEW = "".join(f", {name} = session.{name} + %s - coalesce(before.{name}, 0)" for name in SUMS)
BEFORE = f"""before as materialized (
    select session.facts, started.* from bough.session left join lateral (
        select n, 1 as calls, {", ".join(f"coalesce({name}, 0) as {name}" for name in SUMS[1:6])},
               (cost_microcents is null)::integer as unpriced_calls,
               (input_tokens is null and output_tokens is null)::integer as unknown_calls
        from bough.usage where usage.session_no = session.no and usage.call_id = %s order by n desc limit 1
    ) as started on true
    where {SET_SPACE} and session.id = %s)"""
# The leaf is the tail of a branch of this session's own: an append goes on in it. By the leaf that is expected and
# not by the row's, for then it is two probes of an index; joined, PostgreSQL would walk the whole branch. Not asked
# when the branch is known to be its own: that it has gone on behind the leaf, the key of the first entry tells.
IS_GROWING = f"""
    session.no = (select session_no from bough.branch where {SET_SPACE} and branch.id = %s)
    and not exists (select 1 from bough.entry where {SET_SPACE} and entry.branch = %s and entry.seq = %s)"""
# Where the leaf is to go there is an entry, or a branch begins.
IS_THERE = f"""
    (exists (select 1 from bough.entry where {SET_SPACE} and entry.branch = %s and entry.seq = %s)
     or exists (select 1 from bough.branch where {SET_SPACE} and branch.id = %s and branch.parent_seq = %s))"""


@lru_cache(maxsize=1024)
def statement(shape: Shape, before: str = "", behind: str = "") -> Statement:
    """With what `Said` has to say, if anything."""
    parts = [BEFORE, _head(shape, before)] if shape.replaces else [_head(shape, before)]
    if shape.entries:
        names = ", ".join(ENTRY_NAMES)
        parts.append(f"""entries as (
    insert into bough.entry (branch, space, owner, {names})
    select head.branch, {OF_HEAD}, given.* from head
    cross join (values {placeholders(ENTRY_TYPES, shape.entries)}) as given)""")
    if shape.calls:
        parts.append(_calls(shape))
    if shape.replaces:
        sets = ", ".join(f"{name} = %s" for name in CALL_NAMES if name != "branch")
        parts.append(f"""replaced as (
    update bough.usage set branch = head.branch, {sets} from head cross join before
    where {SET_SPACE} and usage.session_no = head.no and usage.n = before.n)""")
    place = "case when given.key is not null then {} end" if shape.is_bound else "null::bigint"
    parts.append(f"""facts as (
    insert into bough.journal (session_no, n, space, owner, kind, key, branch, first, last, data, at)
    select head.no, head.facts + given.n, {OF_HEAD}, given.kind, given.key, {place.format("head.branch")},
           given.first, {place.format("head.seq")}, given.data, %s from head
    cross join (values {placeholders(FACT_TYPES, 1 + shape.facts)}) as given (n, kind, key, first, data))""")
    told = f"branch, seq, facts, {behind}" if behind else "branch, seq, facts"
    return Statement.from_positional(f"with {', '.join([*parts, *_rest(shape)])}\nselect {told} from head")


def _calls(shape: Shape) -> str:
    names = ", ".join(f"given.{name}" for name in CALL_NAMES if name != "branch")
    given = ", ".join((*CALL_NAMES, "n"))
    new = " cross join before where before.n is null" if shape.replaces else ""
    return f"""calls as (
    insert into bough.usage (session_no, n, space, owner, branch, {names.replace("given.", "")})
    select head.no, head.calls + given.n, {OF_HEAD}, head.branch, {names} from head
    cross join (values {placeholders((*CALL_TYPES, "bigint"), shape.calls)}) as given ({given}){new})"""


def _head(shape: Shape, before: str) -> str:
    conditions = [SET_SPACE, before, "session.id = %s"] if before else [SET_SPACE, "session.id = %s"]
    conditions += ["session.owner = %s"] * shape.is_owned
    conditions.append("session.trashed_at is null")
    conditions += ["session.branch = %s and session.seq = %s"] * shape.is_bound
    conditions += ["session.fence = %s"] * shape.is_fenced
    conditions += [IS_GROWING] * (shape.entries > 0 and not shape.is_growing)
    conditions += [IS_THERE] * shape.moves
    conditions += ["session.facts = before.facts"] * shape.replaces
    moved = ", branch = %s, seq = %s" if shape.moves else ", seq = %s" * bool(shape.entries)
    totals = TOTALS_ANEW if shape.replaces else TOTALS if shape.calls else ""
    source = "from before " if shape.replaces else ""
    returned = ", ".join(
        f"session.{name}" for name in ("no", "space", "owner", "branch", "seq", "facts", "calls")
    )
    return f"""head as (
    update bough.session set {GROWTH}{totals}{sets_of(shape.row, shape.has_tags)}{moved}
    {source}where {" and ".join(conditions)}
    returning {returned})"""


def _rest(shape: Shape) -> list[str]:
    parts = []
    if shape.takes:
        parts.append(f"""taken as (
    delete from bough.inbox using head where {SET_SPACE} and inbox.no = head.no and inbox.n = %s)""")
    if shape.drops_draft:
        parts.append(
            f"dropped as (delete from bough.draft using head where {SET_SPACE} and draft.no = head.no)"
        )
    if shape.has_state:
        parts.append(f"""stated as (
    update bough.session_detail set state = %s from head where {SET_SPACE} and session_detail.no = head.no)""")
    return parts
