"""Labels: names for places of a tree, kept beside it."""

from __future__ import annotations

import pytest

from oakleaf import Leaf, assistant, system, user
from oakleaf.errors import InvalidArgument, InvalidPosition, InvalidText
from oakleaf.store import Store


def test_a_label_names_a_place_of_the_path_or_of_a_branch_left_behind(store: Store) -> None:
    session = store.start("a", [system("s")])
    session.append([user("q"), assistant("one")])
    leaf = session.leaf
    session.rewind(to=2)
    session.append([assistant("two")])
    assert session.label(leaf, "  the first\ntry ") == "the first try"
    session.label(3, "good")
    assert session.labels() == {leaf: "the first try", session.leaf: "good"}
    session.label(leaf, None)
    assert session.labels() == {session.leaf: "good"}
    assert session.verify() == []


def test_what_is_no_place_or_no_label_is_refused_and_nothing_is_written(store: Store) -> None:
    session = store.start("a", [system("s")])
    session.append([user("q"), assistant("one")])
    fork = session.fork(at=2)
    fork.append([assistant("two")])
    facts = fork.row.facts
    for place in (0, 4, Leaf(99, 1), Leaf(session.leaf.branch, 3), Leaf(fork.leaf.branch, 2)):
        with pytest.raises(InvalidPosition):
            fork.label(place, "x")
    with pytest.raises(InvalidArgument, match="100 characters"):
        fork.label(3, "x" * 101)
    with pytest.raises(InvalidText):
        fork.label(3, "a\0")
    assert fork.row.facts == facts
    assert fork.label(1, "shared") == "shared"
