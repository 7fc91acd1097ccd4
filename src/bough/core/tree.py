"""Lineage arithmetic: branches, leaves, and the ranges a path is read from.

A branch knows its parent and the seq it left it at; an entry is found by (branch, seq). So a path is a
handful of ranges and a fork is one small value. Knows nothing of what entries hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Leaf(Struct, frozen=True, order=True, gc=False):
    """Where a session stands. Seq 0 is the place before the first entry."""

    branch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.branch}:{self.seq}"


class Branch(Struct, frozen=True, gc=False):
    """One line of growth: the parent branch, and the seq it left it at."""

    branch: int
    session_id: str | None
    """None once its session was purged and only a fork keeps it."""
    parent: int | None
    parent_seq: int
    """The seq of the last entry it shares with its parent; its own first seq is one more."""
    tail: int = 0
    """The seq of its last entry."""


class Range(Struct, frozen=True, gc=False):
    branch: int
    first: int
    last: int


def lineage(branches: Mapping[int, Branch], leaf: Leaf) -> list[Range]:
    """The ranges of the path root → leaf, oldest first; empty ranges are left out."""
    ranges: list[Range] = []
    branch: int | None = leaf.branch
    last = leaf.seq
    while branch is not None:
        node = branches[branch]
        if last > node.parent_seq:
            ranges.append(Range(branch, node.parent_seq + 1, last))
            last = node.parent_seq
        if node.parent is not None and node.parent >= branch:
            raise KeyError(node.parent)  # a parent is older than its child: this is a ring somebody forged
        branch = node.parent
    ranges.reverse()
    return ranges


def window(ranges: Iterable[Range], first: int, last: int) -> list[Range]:
    """The part of a path between two seqs, both included."""
    return [
        Range(part.branch, max(part.first, first), min(part.last, last))
        for part in ranges
        if part.first <= last and part.last >= first
    ]


def reachable_seqs(branches: Mapping[int, Branch], leaves: Iterable[Leaf]) -> dict[int, int]:
    """How far each branch must be kept, given every place something still stands on.

    A foot keeps its branch up to its seq, and thereby every ancestor up to where the line left it.
    Branches that are not named may go.
    """
    keep: dict[int, int] = {}
    for foot in leaves:
        branch: int | None = foot.branch
        seq = foot.seq
        while branch is not None and branch in branches:
            if keep.get(branch, -1) >= seq:
                break
            keep[branch] = seq
            node = branches[branch]
            branch, seq = node.parent, min(seq, node.parent_seq)
    return keep


def contains_leaf(branches: Iterable[Branch], session_id: str, leaf: Leaf) -> bool:
    """Whether a place is of a session's tree, given its own branches and the ones they hang on.

    Of branches that belong to others, its tree has what its own branches stand on and no more.
    """
    known = {branch.branch: branch for branch in branches}
    own = [Leaf(branch.branch, branch.tail) for branch in known.values() if branch.session_id == session_id]
    held = known.get(leaf.branch)
    return held is not None and held.parent_seq <= leaf.seq <= reachable_seqs(known, own).get(leaf.branch, -1)
