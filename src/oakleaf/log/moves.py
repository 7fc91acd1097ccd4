"""The consequences of a move of the leaf, known before the move. Moves nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from oakleaf.core.entries import Entry
from oakleaf.log.imports import ForeignEntries
from oakleaf.log.log import Log


class Move(Struct, frozen=True):
    """The target of a move of the leaf, and the entries between."""

    to: int
    """The seq of the target."""
    entries: Sequence[Entry] | None
    """The entries between the two positions, oldest first; None if neither position is on the path to the
    other."""
    imported: frozenset[int]
    """The seqs of imported entries: a stranger wrote the entries."""


def rewind_move(log: Log, to: int) -> Move:
    """Return the entries left behind by a rewind to entry `to`."""
    at = log.place(to).at
    return _move(log, at, log.path(since=at).entries)


def redo_move(log: Log) -> Move:
    """Return the entries regained by a redo."""
    leaf, target = log.leaf, log.redo_target()
    path = log.store.path(log.session_id, leaf=target, first=leaf.seq + 1)
    is_ahead = not leaf.seq or any(
        part.branch == leaf.branch and leaf.seq <= part.last for part in path.ranges
    )
    return _move(log, target.seq, path.entries if is_ahead else None)


def _move(log: Log, to: int, entries: Sequence[Entry] | None) -> Move:
    foreign = ForeignEntries(log)
    imported = frozenset(entry.seq for entry in entries or () if foreign.contains(entry))
    return Move(to, entries, imported)
