"""A page of the difference between two paths, read from where they part: as fast in a long session as in a short one.

The ids tell where the shared part ends, without reading it. Turns after it are aligned within a window of both sides,
which gives the rows of `replay.diff`, unless more turns than a window holds are missing on one side.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..core import context as contexts
from ..core.codec import from_json
from ..core.entries import Entry
from ..core.state import State, fold_state, state_updates
from ..core.tool_definitions import read_tools
from ..core.tree import Leaf, Range
from ..core.usage import Call, Totals, total
from ..log.log import Log
from ..log.prompt import prompt_frame
from .diff import (
    ComparedPath,
    DiffRow,
    DiffSide,
    SetupChange,
    compare_setup,
    compared_row,
    compared_side,
    incomplete_reason,
)
from .turn_comparison import Aligned, align
from .turn_reader import TurnView, message_text, read_turns

STEP = 250
MAX_SCANNED = 2_000
"""Entries of each side that one page reads; a turn that is longer is compared as far as that."""


class DiffCursor(Struct, frozen=True):
    """Where a page begins: the seqs of the next turns of both sides."""

    a: int
    b: int


class DiffWindow(Struct, frozen=True):
    """Some turns of both sides."""

    a: DiffSide
    b: DiffSide
    shared: int
    rows: tuple[DiffRow, ...]
    setup: tuple[SetupChange, ...]
    is_state_same: bool | None
    """None: it would have to be folded from more entries than a page reads, or the page is not the first."""
    next: DiffCursor | None
    """Where the next page begins; None after the last one."""


class _Side(Struct, frozen=True):
    log: Log
    leaf: Leaf

    def read(self, first: int, last: int) -> list[Entry]:
        last = min(last, self.leaf.seq)
        if first > last:
            return []
        return self.log.store.path(self.log.session_id, leaf=self.leaf, first=first, last=last).entries

    def forward(self, first: int, count: int) -> Iterator[Entry]:
        for begin in range(first, min(first + count - 1, self.leaf.seq) + 1, STEP):
            yield from self.read(begin, min(begin + STEP, first + count) - 1)

    def entry_id(self, seq: int) -> bytes:
        return self.read(seq, seq)[0].entry_id


class _Turns(Struct, frozen=True):
    """The turns of a window."""

    turns: list[TurnView]
    entries: list[Entry]
    next: int | None
    """The seq of the next turn; None if the path ends before it."""


def diff_window(a: tuple[Log, Leaf], b: tuple[Log, Leaf], at: DiffCursor | None, limit: int) -> DiffWindow:
    """Compare about `limit` turns of two paths, from a cursor on, or from where they part."""
    sides = _Side(*a), _Side(*b)
    shared, is_first = _shared(*sides), at is None
    if at is None:
        start = _first_turn(*sides, shared)
        at = DiffCursor(start, start)
    windows = _turns(sides[0], at.a, limit), _turns(sides[1], at.b, limit)
    aligned = _final_rows(*windows)
    turns_a = [one for one, _, _ in aligned if one is not None]
    turns_b = [other for _, other, _ in aligned if other is not None]
    path_a, path_b = _compared_path(sides[0], windows[0]), _compared_path(sides[1], windows[1])
    rows = tuple(compared_row(*row, path_a, path_b) for row in aligned)
    return DiffWindow(
        replace(compared_side(path_a, turns_a, [row.a for row in rows]), seq=sides[0].leaf.seq),
        replace(compared_side(path_b, turns_b, [row.b for row in rows]), seq=sides[1].leaf.seq),
        shared,
        rows,
        _setup(sides, (path_a, path_b)) if is_first else (),
        _is_state_same(sides, shared) if is_first else None,
        _next(windows, (turns_a, turns_b), at),
    )


def _shared(a: _Side, b: _Side) -> int:
    """Return the number of entries at the start that both have: an id covers everything before it."""
    end = min(a.leaf.seq, b.leaf.seq)
    stored_once = 0  # what is stored once, because one session is a fork of the other, or both of a third
    if a.log.store is b.log.store:
        for one, other in zip(_ranges(a), _ranges(b), strict=False):
            if one.branch != other.branch:
                break
            stored_once = min(one.last, other.last)
            if one.last != other.last:
                break
    seqs = range(stored_once + 1, end + 1)
    return stored_once + bisect_left(seqs, True, key=lambda seq: a.entry_id(seq) != b.entry_id(seq))


def _ranges(side: _Side) -> Sequence[Range]:
    log = side.log
    return log.store.path(log.session_id, leaf=side.leaf, first=side.leaf.seq + 1).ranges


def _first_turn(a: _Side, b: _Side, shared: int) -> int:
    """Return the seq of the first turn that is not completely shared."""
    if not shared:
        return 1
    turn = a.read(shared, shared)[0].turn
    following = [*a.read(shared + 1, shared + 1), *b.read(shared + 1, shared + 1)]
    return turn if turn and any(entry.turn == turn for entry in following) else shared + 1


def _turns(side: _Side, first: int, limit: int) -> _Turns:
    entries: list[Entry] = []
    inputs = 0
    for entry in side.forward(first, MAX_SCANNED):
        is_input = bool(entry.turn) and entry.turn == entry.seq
        if is_input and inputs == limit:
            return _Turns(read_turns(entries), entries, entry.seq)
        inputs += is_input
        entries.append(entry)
    if not entries or entries[-1].seq == side.leaf.seq:
        return _Turns(read_turns(entries), entries, None)
    last = max((n for n, entry in enumerate(entries) if entry.turn == entry.seq), default=0)
    if last:  # the last turn of the window is not known to its end
        return _Turns(read_turns(entries[:last]), entries[:last], entries[last].seq)
    return _Turns(read_turns(entries), entries, _next_input(side, entries[-1]))


def _next_input(side: _Side, last: Entry) -> int | None:
    """Return the seq of the next turn after one that is longer than a window."""
    for entry in side.forward(last.seq + 1, side.leaf.seq):
        if entry.turn == entry.seq:
            return entry.seq
    return None


def _final_rows(a: _Turns, b: _Turns) -> list[Aligned]:
    """Return the rows that do not depend on what comes after the windows: up to the last input that both have."""
    aligned = list(align(a.turns, b.turns))
    if a.next is None and b.next is None:
        return aligned
    pairs = [
        n
        for n, (one, other, _) in enumerate(aligned)
        if one is not None and other is not None and message_text(one.input) == message_text(other.input)
    ]
    return aligned[: pairs[-1] + 1] if pairs else aligned


def _next(
    windows: tuple[_Turns, _Turns], rows: Sequence[Sequence[TurnView]], at: DiffCursor
) -> DiffCursor | None:
    """Return where the next page begins: after the turns of this one."""
    seqs = []
    is_end = True
    for window, turns, seq in zip(windows, rows, (at.a, at.b), strict=True):
        rest = window.turns[len(turns) :]
        is_end = is_end and not rest and window.next is None
        following = rest[0].turn if rest else window.next
        seqs.append(following if following is not None else max([seq, *(turn.last + 1 for turn in turns)]))
    return None if is_end else DiffCursor(*seqs)


def _compared_path(side: _Side, window: _Turns) -> ComparedPath:
    log, entries = side.log, window.entries
    settings = contexts.fold_settings(prompt_frame(log, side.leaf))
    row = log.store.session(log.session_id)
    return ComparedPath(
        log.session_id,
        entries,
        _costs(side, entries),
        incomplete_reason(log, row) if side.leaf == row.leaf else None,
        read_tools(settings.tool_definitions, log.read_blob),
    )


def _costs(side: _Side, entries: Sequence[Entry]) -> dict[int, Totals]:
    """Return what each turn of these entries cost."""
    if not entries:
        return {}
    turn_of = {entry.seq: entry.turn for entry in entries}
    first, last, calls = entries[0].seq, entries[-1].seq, dict[int, list[Call]]()
    store, session_id = side.log.store, side.log.session_id
    for part in _ranges(side):
        if part.last >= first and part.first <= last:
            for call in store.calls_between(session_id, part.branch, first, min(part.last, last)):
                calls.setdefault(turn_of.get(call.seq, 0), []).append(call)
    return {turn: total(rows) for turn, rows in calls.items()}


def _setup(sides: Sequence[_Side], paths: Sequence[ComparedPath]) -> tuple[SetupChange, ...]:
    frames = [contexts.build_context(prompt_frame(side.log, side.leaf)) for side in sides]
    return compare_setup(paths[0], paths[1], frames[0], frames[1])


def _is_state_same(sides: tuple[_Side, _Side], shared: int) -> bool | None:
    if any(side.leaf.seq - shared > MAX_SCANNED for side in sides):
        return None
    tails = [side.read(shared + 1, side.leaf.seq) for side in sides]
    if not any(state_updates(entry.payload) for tail in tails for entry in tail):
        return True
    states = [_stored_state(side) for side in sides]
    if None not in states:
        return states[0] == states[1]
    if shared > MAX_SCANNED:
        return None
    base: State = fold_state(sides[0].read(1, shared))
    return fold_state(tails[0], base) == fold_state(tails[1], base)


def _stored_state(side: _Side) -> State | None:
    """Return the state at the end, if the session is there and it was stored."""
    row, detail = side.log.store.session_with_detail(side.log.session_id)
    if row.leaf != side.leaf or detail.state is None:
        return None
    state: State = from_json(detail.state)
    return state
