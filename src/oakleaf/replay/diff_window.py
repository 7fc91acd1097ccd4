"""A page of the difference between two paths, as fast in a long session as in a short session.

The ids tell the end of the shared part without a read of the part. Later turns are aligned within a window of
both sides. The rows are the rows of `replay.diff`, unless one side lacks more turns than a window holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from oakleaf.core.entries import Entry
from oakleaf.core.turn_comparison import Aligned, DiffRow, align
from oakleaf.core.turn_reader import TurnView, message_text, read_turns
from oakleaf.replay.compared_path import PathSide, first_unshared_turn, is_state_same, shared_seq
from oakleaf.replay.diff import (
    DiffSide,
    SetupChange,
    compare_setup,
    compared_path,
    compared_row,
    compared_side,
)

if TYPE_CHECKING:
    from oakleaf.replay.diff import DiffTarget

MAX_SCANNED = 2_000
"""Entries of each side read by one page; a longer turn is compared in part."""


class DiffCursor(Struct, frozen=True):
    """Where a page begins: the seqs of the next turns of both sides."""

    a: int
    b: int


class DiffWindow(Struct, frozen=True):
    """Some turns of both sides: iterates over the rows."""

    a: DiffSide
    b: DiffSide
    shared: int
    rows: tuple[DiffRow, ...]
    setup: tuple[SetupChange, ...]
    is_state_same: bool | None
    """None on later pages, and if the fold needs more entries than a page reads."""
    next: DiffCursor | None
    """The start of the next page; None after the last page."""

    def __iter__(self) -> Iterator[DiffRow]:
        return iter(self.rows)


class _Turns(Struct, frozen=True):
    """The turns of a window."""

    turns: list[TurnView]
    entries: list[Entry]
    next: int | None
    """The seq of the next turn; None at the end of the path."""


def diff_window(a: DiffTarget, b: DiffTarget, at: DiffCursor | None, limit: int) -> DiffWindow:
    """Compare about `limit` turns of two paths from a cursor on, or from the end of the shared part."""
    sides = compared_path(a), compared_path(b)
    shared, is_first = shared_seq(*sides), at is None
    if at is None:
        start = first_unshared_turn(*sides, shared)
        at = DiffCursor(start, start)
    windows = _turns(sides[0], at.a, limit), _turns(sides[1], at.b, limit)
    aligned = _final_rows(*windows)
    turns_a = [one for one, _, _ in aligned if one is not None]
    turns_b = [other for _, other, _ in aligned if other is not None]
    path_a, path_b = (side.compared(window.entries) for side, window in zip(sides, windows, strict=True))
    rows = tuple(compared_row(*row, path_a, path_b) for row in aligned)
    return DiffWindow(
        compared_side(path_a, turns_a, [row.a for row in rows]),
        compared_side(path_b, turns_b, [row.b for row in rows]),
        shared,
        rows,
        compare_setup(path_a, path_b) if is_first else (),
        is_state_same(sides, shared, MAX_SCANNED) if is_first else None,
        _next(windows, (turns_a, turns_b), at),
    )


def _turns(side: PathSide, first: int, limit: int) -> _Turns:
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


def _next_input(side: PathSide, last: Entry) -> int | None:
    """Return the seq of the next turn after a turn longer than a window."""
    for entry in side.forward(last.seq + 1, side.leaf.seq):
        if entry.turn == entry.seq:
            return entry.seq
    return None


def _final_rows(a: _Turns, b: _Turns) -> list[Aligned]:
    """Return the final rows, up to the last shared input: entries after the windows cannot change them."""
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
    """Return the start of the next page: after the turns of the present page."""
    seqs = []
    is_end = True
    for window, turns, seq in zip(windows, rows, (at.a, at.b), strict=True):
        rest = window.turns[len(turns) :]
        is_end = is_end and not rest and window.next is None
        following = rest[0].turn if rest else window.next
        seqs.append(following if following is not None else max([seq, *(turn.last + 1 for turn in turns)]))
    return None if is_end else DiffCursor(*seqs)
