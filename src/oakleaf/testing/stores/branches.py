"""Branches, paths, usage and state."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.entries import Note
from oakleaf.core.facts import ModelCallDropped, Moved
from oakleaf.core.messages import ToolCall, assistant, system, tool_result, user
from oakleaf.core.tree import Leaf, Range
from oakleaf.core.turns import Cursor
from oakleaf.core.usage import Totals, total
from oakleaf.errors import InvalidPosition, NotFound
from oakleaf.stores.base import Change
from oakleaf.testing.stores.writer import SessionWriter, StoreFactory, assert_raises, call, read_everything


class BranchConformance(StoreFactory):
    def test_rewinding_loses_nothing_and_the_next_append_grows_a_branch(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"))
        root, cursor = writer.leaf, writer.cursor
        writer.append(assistant("2"))
        leaf = writer.leaf
        writer.move(root, cursor)
        writer.append(assistant("other 2"))
        assert writer.leaf.branch != root.branch
        assert writer.texts() == ["1", "other 2"]
        left = writer.store.path("ses_a", leaf=leaf).entries
        assert [entry.message.text for entry in left if entry.message] == ["1", "2"]
        everything = writer.store.entries("ses_a")
        assert len(everything) == 3
        assert writer.store.entries("ses_a", Range(root.branch, 2, 9)) == everything[1:2]
        other = SessionWriter(writer.store, "ses_b")
        other.append(user("of another session"))
        assert writer.store.entries("ses_a", Range(other.leaf.branch, 1, 9)) == []

    def test_a_place_it_does_not_stand_on_is_refused_and_one_it_stands_on_is_not(self) -> None:
        store = self.open_store()
        source, stranger = SessionWriter(store), SessionWriter(self.open_store(space="other"), "ses_s")
        source.append(user("1"))
        under, cursor = source.leaf, source.cursor
        source.append(assistant("2"))
        fork = SessionWriter(store, "ses_f", fork_point=(under, cursor))
        fork.append(assistant("mine"))
        stranger.append(user("theirs"))
        for stray in (source.leaf, stranger.leaf, Leaf(999, 1)):
            assert_raises(InvalidPosition, partial(store.path, "ses_f", leaf=stray))
            assert_raises(InvalidPosition, partial(store.control_entries, "ses_f", leaf=stray))
        assert_raises(InvalidPosition, lambda: store.path("ses_a", leaf=fork.leaf))
        assert [entry.seq for entry in store.path("ses_f", leaf=under).entries] == [1]
        assert [entry.seq for entry in store.path("ses_f", leaf=Leaf(under.branch, 0)).entries] == []

    def test_a_move_back_to_a_tail_goes_on_in_its_branch(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"))
        first, first_cursor = writer.leaf, writer.cursor
        writer.append(assistant("2"))
        tail, tail_cursor = writer.leaf, writer.cursor
        writer.move(first, first_cursor)
        writer.move(tail, tail_cursor)
        writer.append(user("3"))
        assert writer.leaf.branch == tail.branch
        assert len(writer.store.branches("ses_a")) == 1

    def test_a_move_with_an_entry_opens_its_branch_in_one_change(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"))
        first, cursor = writer.leaf, writer.cursor
        writer.append(assistant("2"))
        written = build_entries(cursor, [Draft(Note({"left": 2}))], 300)
        moved = Moved((writer.leaf.branch, writer.leaf.seq))
        done = writer.commit(key="m", fact=moved, after=writer.leaf, move_to=first, entries=written.entries)
        assert done.leaf.seq == 2
        assert done.leaf.branch != first.branch

    def test_a_place_that_does_not_exist_is_refused(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"))
        before = read_everything(writer.store, "ses_a")
        for nowhere in (Leaf(writer.leaf.branch, 7), Leaf(999, 1)):
            assert_raises(InvalidPosition, lambda to=nowhere: writer.move(to, Cursor()))  # type: ignore[misc]
        assert read_everything(writer.store, "ses_a") == before

    def test_a_fork_does_not_touch_its_source(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"))
        at, cursor = writer.leaf, writer.cursor
        writer.append(assistant("2"))
        before = read_everything(writer.store, "ses_a")
        fork = writer.fork("ses_f", (at, cursor))
        assert read_everything(writer.store, "ses_a") == before
        assert fork.texts() == ["1"]
        fork.cursor = cursor
        fork.append(assistant("mine"))
        assert (fork.texts(), writer.texts()) == (["1", "mine"], ["1", "2"])
        assert read_everything(writer.store, "ses_a") == before
        assert fork.row.totals == Totals()

    def test_a_path_never_skips_a_number_however_deep(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("0"))
        for n in range(40):
            leaf, cursor = writer.leaf, writer.cursor
            writer.append(user(f"dead end {n}"))
            writer.move(leaf, cursor)
            writer.append(user(str(n)))
        seqs = [entry.seq for entry in writer.store.path("ses_a").entries]
        assert seqs == list(range(1, 42))
        assert len(writer.store.branches("ses_a")) == 41

    def test_parts_of_a_path_are_read_by_number(self) -> None:
        writer = SessionWriter(self.open_store())
        for n in range(10):
            writer.append(user(str(n)))

        def seqs(**part: Any) -> list[int]:
            return [entry.seq for entry in writer.store.path("ses_a", **part).entries]

        assert seqs(first=4, last=6) == [4, 5, 6]
        assert seqs(newest=3) == [8, 9, 10]
        assert seqs(newest=99) == list(range(1, 11))
        assert seqs(leaf=Leaf(writer.leaf.branch, 2)) == [1, 2]
        assert seqs(first=11) == []

    def test_entries_of_a_part_are_own_or_inherited_and_no_others(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"), assistant("2"), user("3"))
        fork = writer.fork("ses_f")
        fork.append(assistant("4"))
        other = SessionWriter(writer.store, "ses_other")
        other.append(user("x"))
        whole = writer.store.entries("ses_a")
        for session_id in ("ses_a", "ses_f"):
            assert writer.store.entries(session_id, Range(writer.leaf.branch, 2, 9)) == whole[1:]
        assert [stored.entry.seq for stored in writer.store.entries("ses_f")] == [4]
        assert writer.store.entries("ses_a", Range(fork.leaf.branch, 1, 9)) == []
        assert writer.store.entries("ses_a", Range(other.leaf.branch, 1, 9)) == []
        assert writer.store.entries("ses_a", Range(writer.leaf.branch, 4, 9)) == []
        assert writer.store.entries("ses_a", Range(999_999, 1, 9)) == []
        part = Range(writer.leaf.branch, 1, 9)
        for stranger in (self.open_store(space="other"), self.open_store(owner="ann")):
            assert_raises(NotFound, lambda store=stranger: store.entries("ses_f", part))  # type: ignore[misc]

    def test_the_public_reads_only_what_is_public(self) -> None:
        writer = SessionWriter(self.open_store(), seeds=[system("secret"), user("seed")])
        writer.append(user("q"))
        writer.append(assistant("thinking", ToolCall("c", "t")), tool_result("c", "inner"))
        writer.append(assistant("a"), Note({"host": 1}))
        entries = writer.store.path("ses_a", public=True).entries
        assert [entry.message.text for entry in entries if entry.message] == ["q", "a"]
        assert len(entries) == 2


class UsageConformance(StoreFactory):
    def test_usage_is_conserved(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        writer.append(assistant("a"), calls=(call("1", 1, 2),))
        writer.move(Leaf(writer.leaf.branch, 1), Cursor())
        writer.commit(key="f", after=writer.leaf, calls=(call("2", 1, None, None, None),))
        rows = writer.store.calls("ses_a")
        assert [row.call_id for row in rows] == ["1", "2"]
        assert writer.row.totals == total(rows) == Totals(2, 10, 1, 2, 3, 5, 1, 1)

    def test_a_started_call_is_replaced_by_its_answer(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"), calls=(call("1", 1, None, None, None),))
        assert writer.row.totals == Totals(1, 0, 0, 0, 0, 0, 1, 1)
        writer.append(assistant("a"), calls=(call("1", 1, 2),), replaces_call=True)
        assert writer.row.totals == Totals(1, 10, 1, 2, 3, 5, 0, 0) == total(writer.store.calls("ses_a"))

    def test_a_call_that_was_not_made_leaves_the_ledger(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"), calls=(call("1", 1, None, None, None),))
        writer.append(Note({"n": 1}), calls=(call("2", 1, None),))
        writer.append(Note({"n": 2}), calls=(call("3", 1, None),))
        change = Change(session_id="ses_a", key="~d", at=5, fact=ModelCallDropped("1"), drops_call="1")
        writer.store.commit(change)
        rows = writer.store.calls("ses_a")
        assert [row.call_id for row in rows] == ["2", "3"]
        assert writer.row.totals == total(rows) == Totals(2, 20, 2, 4, 6, 10, 0, 0)
        writer.store.commit(replace(change, key="e"))  # another process has dropped it: nothing more to drop
        writer.append(assistant("a"), calls=(call("4", 3, 4),))
        writer.store.commit(replace(change, key="~f", drops_call="4"))
        assert writer.store.calls("ses_a") == rows
        assert writer.row.totals == total(rows)

    def test_a_call_is_found_on_the_branch_of_its_answer(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        first = writer.leaf
        writer.append(assistant("a"), calls=(call("1", 1, 2),))
        writer.move(first, Cursor())
        writer.cursor = build_entries(Cursor(), [Draft(user("q"))], 1).cursor
        writer.append(assistant("b"), calls=(call("2", 1, 2),))
        one, two = writer.store.calls("ses_a")
        assert (one.branch, two.branch) == (first.branch, writer.leaf.branch)

    def test_a_fork_reads_the_calls_it_stands_on(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        writer.append(assistant("a"), calls=(call("1", 1, 2),))
        fork = writer.fork("ses_f")
        assert fork.store.calls("ses_f") == []
        assert [row.call_id for row in fork.store.inherited_calls("ses_f")] == ["1"]

    def test_the_calls_at_some_entries_of_a_branch_are_found_also_from_a_fork_of_it(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        branch = writer.leaf.branch
        failed = replace(call("2", 1, None), failed=True)
        writer.append(assistant("a"), calls=(call("1", 1, 2), failed))
        writer.fork("ses_f")
        writer.append(user("r"))
        titled = replace(call("4", 3, 4), purpose="title")
        writer.append(assistant("b"), calls=(call("3", 3, 4), titled))
        SessionWriter(writer.store, "ses_other")

        def at(name: str, first: int, last: int) -> list[str]:
            return [row.call_id for row in writer.store.calls_between(name, branch, first, last)]

        def latest(name: str, last: int) -> str | None:
            row = writer.store.latest_answer_call(name, branch, last)
            return None if row is None else row.call_id

        for name in ("ses_a", "ses_f"):
            assert at(name, 0, 9) == ["1", "2", "3", "4"]
            assert (at(name, 2, 2), at(name, 1, 1), at(name, 3, 3)) == (["1"], ["2"], [])
            assert (latest(name, 1), latest(name, 3), latest(name, 4)) == (None, "1", "3")
        assert (at("ses_other", 0, 9), latest("ses_other", 9)) == ([], None)
        assert_raises(NotFound, lambda: at("ses_none", 0, 9))

    def test_state_is_set_cleared_or_left(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"), state=b'{"a":1}')
        writer.append(user("2"))
        assert writer.store.detail("ses_a").state == b'{"a":1}'
        writer.append(user("3"), state=None)
        assert writer.store.detail("ses_a").state is None
