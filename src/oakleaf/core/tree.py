"""Lineage arithmetic: branches, leaves, and the ranges of a path.

A branch knows its parent and the seq at which it branched off; an entry is addressed by (branch, seq). So a path is a
handful of ranges and a fork is one small value. Knows nothing about the content of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Leaf(Struct, frozen=True, order=True, gc=False):
    """A session's position in the tree. Seq 0 is before the first entry."""

    branch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.branch}:{self.seq}"


class Branch(Struct, frozen=True, gc=False):
    """A branch of the tree: the parent, and the seq of the fork."""

    branch: int
    session_id: str | None
    """None once the session was purged and only a fork still needs the branch."""
    parent: int | None
    parent_seq: int
    """The seq of the last entry shared with the parent; the branch's own first seq is one more."""
    tail: int = 0
    """The seq of the branch's last entry."""


class Range(Struct, frozen=True, gc=False):
    branch: int
    first: int
    last: int


def lineage(branches: Mapping[int, Branch], leaf: Leaf) -> list[Range]:
    """Return the ranges of the path from root to leaf, oldest first, without empty ranges."""
    ranges: list[Range] = []
    branch: int | None = leaf.branch
    last = leaf.seq
    while branch is not None:
        node = branches[branch]
        if last > node.parent_seq:
            ranges.append(Range(branch, node.parent_seq + 1, last))
            last = node.parent_seq
        if node.parent is not None and node.parent >= branch:
            raise KeyError(node.parent)  # a parent is always older than its child: this cycle is forged
        branch = node.parent
    ranges.reverse()
    return ranges


def window(ranges: Iterable[Range], first: int, last: int) -> list[Range]:
    """Return the part of a path between two seqs, both included."""
    return [
        Range(part.branch, max(part.first, first), min(part.last, last))
        for part in ranges
        if part.first <= last and part.last >= first
    ]


def shared_seq(a: Iterable[Range], b: Iterable[Range]) -> int:
    """Return the seq of the last shared entry of two paths; 0 for none."""
    shared = 0
    for part_a, part_b in zip(a, b, strict=False):
        if part_a.branch != part_b.branch:
            break
        shared = min(part_a.last, part_b.last)
        if part_a.last != part_b.last:
            break
    return shared


def reachable_seqs(branches: Mapping[int, Branch], leaves: Iterable[Leaf]) -> dict[int, int]:
    """Return the last reachable seq of each branch from `leaves`.

    A leaf needs its branch up to its seq, and every ancestor up to where the line branched off. Branches that are
    not in the result are unreachable.
    """
    reach: dict[int, int] = {}
    for leaf in leaves:
        branch: int | None = leaf.branch
        seq = leaf.seq
        while branch is not None and branch in branches:
            if reach.get(branch, -1) >= seq:
                break
            reach[branch] = seq
            node = branches[branch]
            branch, seq = node.parent, min(seq, node.parent_seq)
    return reach


def contains_leaf(branches: Iterable[Branch], session_id: str, leaf: Leaf) -> bool:
    """Return whether a leaf is in a session's tree, given the branches of the session and of all ancestors.

    Of branches that belong to other sessions, the tree includes only what its own branches descend from.
    """
    by_id = {branch.branch: branch for branch in branches}
    own = [Leaf(branch.branch, branch.tail) for branch in by_id.values() if branch.session_id == session_id]
    branch = by_id.get(leaf.branch)
    if branch is None:
        return False
    return branch.parent_seq <= leaf.seq <= reachable_seqs(by_id, own).get(leaf.branch, -1)


def parse_seq(text: str) -> int | None:
    """Return an entry's number; None for other text, such as ², or too many digits for `int`."""
    return int(text) if text.isdecimal() and len(text) < 12 else None
