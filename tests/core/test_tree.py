"""Lineage: a path is a few ranges, and what nobody stands on may go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oakleaf.core.tree import Branch, Leaf, Range, lineage, reachable_seqs, window

TREE = {
    1: Branch(1, "a", None, 0),
    2: Branch(2, "a", 1, 5),
    3: Branch(3, "b", 2, 7),
    4: Branch(4, "b", 3, 7),  # hangs on 3 before its first entry: on 2's seventh
}


def test_a_path_is_the_ranges_of_branches_oldest_first() -> None:
    assert lineage(TREE, Leaf(3, 9)) == [Range(1, 1, 5), Range(2, 6, 7), Range(3, 8, 9)]


def test_a_branch_without_own_entries_adds_no_range() -> None:
    assert lineage(TREE, Leaf(4, 7)) == [Range(1, 1, 5), Range(2, 6, 7)]
    assert lineage(TREE, Leaf(4, 8)) == [Range(1, 1, 5), Range(2, 6, 7), Range(4, 8, 8)]


def test_the_place_before_the_first_entry_is_an_empty_path() -> None:
    assert lineage(TREE, Leaf(1, 0)) == []


def test_a_window_keeps_the_ranges_between() -> None:
    assert window(lineage(TREE, Leaf(3, 9)), 5, 8) == [Range(1, 5, 5), Range(2, 6, 7), Range(3, 8, 8)]
    assert window(lineage(TREE, Leaf(3, 9)), 10, 12) == []


def test_branches_are_kept_up_to_the_last_foot() -> None:
    assert reachable_seqs(TREE, [Leaf(2, 6)]) == {2: 6, 1: 5}
    assert reachable_seqs(TREE, [Leaf(2, 6), Leaf(1, 9)]) == {2: 6, 1: 9}
    assert reachable_seqs(TREE, []) == {}


@st.composite
def trees(draw: st.DrawFn) -> dict[int, Branch]:
    tails = {1: draw(st.integers(0, 6))}
    tree = {1: Branch(1, "s", None, 0)}
    for n in range(2, draw(st.integers(2, 9))):
        parent = draw(st.sampled_from(sorted(tree)))
        at = draw(st.integers(tree[parent].parent_seq, tails[parent]))
        tree[n], tails[n] = Branch(n, "s", parent, at), at + draw(st.integers(0, 5))
    return {n: Branch(b.branch, b.session_id, b.parent, b.parent_seq, tails[n]) for n, b in tree.items()}


@given(trees())
def test_a_path_never_skips_a_number(tree: dict[int, Branch]) -> None:
    for branch in tree.values():
        for seq in range(branch.parent_seq, branch.tail + 1):
            numbers = [
                n
                for part in lineage(tree, Leaf(branch.branch, seq))
                for n in range(part.first, part.last + 1)
            ]
            assert numbers == list(range(1, seq + 1))


@given(trees(), st.data())
def test_kept_branches_hold_the_path_to_every_foot(tree: dict[int, Branch], data: st.DataObject) -> None:
    feet = [
        Leaf(n, data.draw(st.integers(b.parent_seq, b.tail)))
        for n, b in tree.items()
        if data.draw(st.booleans())
    ]
    keep = reachable_seqs(tree, feet)
    needed = {(p.branch, s) for foot in feet for p in lineage(tree, foot) for s in range(p.first, p.last + 1)}
    positions = {(n, s) for n, last in keep.items() for s in range(tree[n].parent_seq + 1, last + 1)}
    assert needed <= positions
    ends = {(foot.branch, foot.seq) for foot in feet} | {(tree[n].parent, tree[n].parent_seq) for n in keep}
    assert all((n, last) in ends for n, last in keep.items())  # and no branch further than something stands
