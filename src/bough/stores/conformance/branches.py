"""Branches, paths, usage and state."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...core.drafts import Draft, build_entries
from ...core.entries import Note
from ...core.messages import ToolCall, assistant, system, tool_result, user
from ...core.tree import Leaf
from ...core.turns import Cursor
from ...core.usage import Totals, total
from ...errors import InvalidPosition
from ..base import Change
from .writer import Opening, Pen, call, everything, refused


class Branching(Opening):
    def test_rewinding_loses_nothing_and_the_next_append_grows_a_branch(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("1"))
        root, cursor = pen.leaf, pen.cursor
        pen.append(assistant("2"))
        left = pen.leaf
        pen.move(root, cursor)
        pen.append(assistant("other 2"))
        assert pen.leaf.branch != root.branch
        assert pen.texts() == ["1", "other 2"]
        assert [e.message.text for e in pen.store.path("ses_a", leaf=left).entries if e.message] == ["1", "2"]
        assert len(pen.store.entries("ses_a")) == 3

    def test_a_place_it_does_not_stand_on_is_refused_and_one_it_stands_on_is_not(self) -> None:
        store = self.opened()
        source, stranger = Pen(store), Pen(self.opened(space="other"), "ses_s")
        source.append(user("1"))
        under, cursor = source.leaf, source.cursor
        source.append(assistant("2"))
        fork = Pen(store, "ses_f", fork_point=(under, cursor))
        fork.append(assistant("mine"))
        stranger.append(user("theirs"))
        for stray in (source.leaf, stranger.leaf, Leaf(999, 1)):
            refused(InvalidPosition, partial(store.path, "ses_f", leaf=stray))
            refused(InvalidPosition, partial(store.non_message_entries, "ses_f", leaf=stray))
        refused(InvalidPosition, lambda: store.path("ses_a", leaf=fork.leaf))
        assert [entry.seq for entry in store.path("ses_f", leaf=under).entries] == [1]
        assert [entry.seq for entry in store.path("ses_f", leaf=Leaf(under.branch, 0)).entries] == []

    def test_a_move_back_to_a_tail_goes_on_in_its_branch(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("1"))
        first, first_cursor = pen.leaf, pen.cursor
        pen.append(assistant("2"))
        tail, tail_cursor = pen.leaf, pen.cursor
        pen.move(first, first_cursor)
        pen.move(tail, tail_cursor)
        pen.append(user("3"))
        assert pen.leaf.branch == tail.branch
        assert len(pen.store.branches("ses_a")) == 1

    def test_a_move_with_an_entry_opens_its_branch_in_one_change(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("1"))
        first, cursor = pen.leaf, pen.cursor
        pen.append(assistant("2"))
        written = build_entries(cursor, [Draft(Note({"left": 2}))], 300)
        done = pen.store.commit(
            Change(
                session_id="ses_a",
                key="m",
                at=300,
                kind="moved",
                after=pen.leaf,
                move_to=first,
                entries=written.entries,
            )
        )
        assert done.leaf.seq == 2
        assert done.leaf.branch != first.branch

    def test_a_place_that_does_not_exist_is_refused(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("1"))
        before = everything(pen.store, "ses_a")
        for nowhere in (Leaf(pen.leaf.branch, 7), Leaf(999, 1)):
            refused(InvalidPosition, lambda to=nowhere: pen.move(to, Cursor()))  # type: ignore[misc]
        assert everything(pen.store, "ses_a") == before

    def test_a_fork_does_not_touch_its_source(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("1"))
        at, cursor = pen.leaf, pen.cursor
        pen.append(assistant("2"))
        before = everything(pen.store, "ses_a")
        fork = Pen(
            pen.store, "ses_f", fork_point=(at, cursor), relation="fork", parent_session="ses_a", parent_seq=1
        )
        assert everything(pen.store, "ses_a") == before
        assert fork.texts() == ["1"]
        fork.cursor = cursor
        fork.append(assistant("mine"))
        assert (fork.texts(), pen.texts()) == (["1", "mine"], ["1", "2"])
        assert everything(pen.store, "ses_a") == before
        assert fork.row.totals == Totals()

    def test_a_path_never_skips_a_number_however_deep(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("0"))
        for n in range(40):
            leaf, cursor = pen.leaf, pen.cursor
            pen.append(user(f"dead end {n}"))
            pen.move(leaf, cursor)
            pen.append(user(str(n)))
        seqs = [entry.seq for entry in pen.store.path("ses_a").entries]
        assert seqs == list(range(1, 42))
        assert len(pen.store.branches("ses_a")) == 41

    def test_parts_of_a_path_are_read_by_number(self) -> None:
        pen = Pen(self.opened())
        for n in range(10):
            pen.append(user(str(n)))

        def seqs(**part: Any) -> list[int]:
            return [entry.seq for entry in pen.store.path("ses_a", **part).entries]

        assert seqs(first=4, last=6) == [4, 5, 6]
        assert seqs(newest=3) == [8, 9, 10]
        assert seqs(newest=99) == list(range(1, 11))
        assert seqs(leaf=Leaf(pen.leaf.branch, 2)) == [1, 2]
        assert seqs(first=11) == []

    def test_the_public_reads_only_what_is_public(self) -> None:
        pen = Pen(self.opened(), seeds=[system("secret"), user("seed")])
        pen.append(user("q"))
        pen.append(assistant("thinking", ToolCall("c", "t")), tool_result("c", "inner"))
        pen.append(assistant("a"), Note({"host": 1}))
        found = pen.store.path("ses_a", public=True).entries
        assert [entry.message.text for entry in found if entry.message] == ["q", "a"]
        assert len(found) == 2


class Counting(Opening):
    def test_usage_is_conserved(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("q"))
        pen.append(assistant("a"), calls=(call("1", 1, 2),))
        pen.move(Leaf(pen.leaf.branch, 1), Cursor())
        pen.store.commit(
            Change(session_id="ses_a", key="f", at=5, after=pen.leaf, calls=(call("2", 1, None, None, None),))
        )
        rows = pen.store.calls("ses_a")
        assert [row.call_id for row in rows] == ["1", "2"]
        assert pen.row.totals == total(rows) == Totals(2, 10, 1, 2, 3, 5, 1, 1)

    def test_a_started_call_is_replaced_by_its_answer(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("q"), calls=(call("1", 1, None, None, None),))
        assert pen.row.totals == Totals(1, 0, 0, 0, 0, 0, 1, 1)
        pen.append(assistant("a"), calls=(call("1", 1, 2),), replaces_call=True)
        assert pen.row.totals == Totals(1, 10, 1, 2, 3, 5, 0, 0) == total(pen.store.calls("ses_a"))

    def test_a_call_is_found_on_the_branch_of_its_answer(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("q"))
        first = pen.leaf
        pen.append(assistant("a"), calls=(call("1", 1, 2),))
        pen.move(first, Cursor())
        pen.cursor = build_entries(Cursor(), [Draft(user("q"))], 1).cursor
        pen.append(assistant("b"), calls=(call("2", 1, 2),))
        one, two = pen.store.calls("ses_a")
        assert (one.branch, two.branch) == (first.branch, pen.leaf.branch)

    def test_a_fork_reads_the_calls_it_stands_on(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("q"))
        pen.append(assistant("a"), calls=(call("1", 1, 2),))
        fork = Pen(
            pen.store,
            "ses_f",
            fork_point=(pen.leaf, pen.cursor),
            relation="fork",
            parent_session="ses_a",
            parent_seq=2,
        )
        assert fork.store.calls("ses_f") == []
        assert [row.call_id for row in fork.store.inherited_calls("ses_f")] == ["1"]

    def test_state_is_set_cleared_or_left(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("1"), state=b'{"a":1}')
        pen.append(user("2"))
        assert pen.store.detail("ses_a").state == b'{"a":1}'
        pen.append(user("3"), state=None)
        assert pen.store.detail("ses_a").state is None
