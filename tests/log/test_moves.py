"""What a move of the leaf leaves behind or returns to, told before it is made."""

from __future__ import annotations

import io

import pytest

import oakleaf
from oakleaf import Session, ToolCall, assistant, tool_result, user
from oakleaf.errors import InvalidPosition, NothingToRedo
from oakleaf.ext import read
from oakleaf.store import Store


@pytest.fixture
def session(store: Store) -> Session:
    session = store.start()
    session.append([user("1"), assistant(ToolCall("c", "look", {})), tool_result("c", "3"), assistant("4")])
    return session


def seqs(session: Session, to: int) -> list[int]:
    return [entry.seq for entry in read(session).rewind_move(to).entries or ()]


def test_a_rewind_leaves_what_comes_after_the_legal_position(session: Session) -> None:
    assert seqs(session, 3) == [4]
    assert seqs(session, 2) == [2, 3, 4], "a call is not separated from its result"
    assert read(session).rewind_move(2).to == 1
    assert session.leaf.seq == 4, "nothing has moved"
    with pytest.raises(InvalidPosition):
        read(session).rewind_move(5)


def test_a_redo_returns_to_what_the_rewind_left(session: Session) -> None:
    with pytest.raises(NothingToRedo):
        read(session).redo_move()
    session.rewind(1)
    move = read(session).redo_move()
    assert (move.to, [entry.seq for entry in move.entries or ()]) == (4, [2, 3, 4])
    session.redo()
    session.rewind(0)
    assert [entry.seq for entry in read(session).redo_move().entries or ()] == [1, 2, 3, 4]


def test_a_redo_to_another_branch_names_no_entries(session: Session) -> None:
    session.rewind(1)
    session.append([assistant("other")])
    first = session.leaf
    session.checkout(oakleaf.Leaf(1, 4))
    session.checkout(first)
    assert read(session).redo_move().entries is None


def test_entries_that_came_with_an_import_are_told_apart(session: Session) -> None:
    bundle = io.BytesIO()
    session.export(bundle)
    bundle.seek(0)
    with oakleaf.open("memory:") as elsewhere:
        copy = elsewhere.session(elsewhere.import_bundle(bundle).session_id)
        copy.append([user("5")])
        move = read(copy).rewind_move(0)
        assert ([entry.seq for entry in move.entries or ()], move.imported) == (
            [1, 2, 3, 4, 5],
            frozenset({1, 2, 3, 4}),
        )
    assert read(session).rewind_move(0).imported == frozenset()
