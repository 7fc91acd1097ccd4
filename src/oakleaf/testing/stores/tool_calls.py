"""Finding tool calls by their hash."""

from __future__ import annotations

from oakleaf.core.call_hash import call_hash
from oakleaf.core.messages import ToolCall, assistant, tool_result, user
from oakleaf.core.tree import Leaf
from oakleaf.stores.base import CallPlace
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.testing.stores.transfer import move
from oakleaf.testing.stores.writer import SessionWriter, StoreFactory, delete

REFUND = ToolCall("c1", "refund", {"order": 41, "why": {"a": 1, "b": [2.0]}})
SAME = ToolCall("c9", "refund", {"why": {"b": [2], "a": 1.0}, "order": 41})
OTHER = ToolCall("c2", "refund", {"order": 42})


class ToolCallConformance(StoreFactory):
    def test_an_answer_is_found_by_its_calls_whatever_the_order_of_their_keys(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        writer.append(assistant("both", REFUND, OTHER))
        answer = writer.leaf
        writer.append(tool_result("c1", "done"), tool_result("c2", "done"), assistant("ok"))
        for call in (REFUND, SAME, OTHER):
            assert writer.store.find_tool_calls("ses_a", call_hash(call)) == [CallPlace("ses_a", answer)]
        assert writer.store.find_tool_calls("ses_a", call_hash(ToolCall("c1", "refund"))) == []

    def test_equal_calls_of_one_answer_are_found_once_and_malformed_ones_never(self) -> None:
        writer = SessionWriter(self.open_store())
        twice = (REFUND, ToolCall("c3", REFUND.name, REFUND.arguments))
        broken = ToolCall("c4", "mail", malformed="{")
        writer.append(user("q"), assistant(*twice, broken))
        assert writer.store.find_tool_calls("ses_a", call_hash(REFUND)) == [CallPlace("ses_a", writer.leaf)]
        assert writer.store.find_tool_calls("ses_a", call_hash(ToolCall("c4", "mail"))) == []

    def test_answers_of_every_branch_are_found_the_newest_branch_first(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        start, cursor = writer.leaf, writer.cursor
        writer.append(assistant(REFUND))
        first = writer.leaf
        writer.move(start, cursor)
        writer.append(assistant(SAME))
        assert [place.leaf for place in writer.store.find_tool_calls("ses_a", call_hash(REFUND))] == [
            writer.leaf,
            first,
        ]

    def test_calls_of_tasks_are_found_and_those_of_forks_are_not(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store)
        task = SessionWriter(store, "ses_t", relation="task", parent_session="ses_a", parent_seq=0)
        below = SessionWriter(store, "ses_b", relation="task", parent_session="ses_t", parent_seq=0)
        fork = writer.fork("ses_f")
        for each in (task, below, fork):
            each.append(user("q"), assistant(REFUND))
        found = store.find_tool_calls("ses_a", call_hash(REFUND))
        assert {place.session_id for place in found} == {"ses_t", "ses_b"}
        assert [place.session_id for place in store.find_tool_calls("ses_f", call_hash(REFUND))] == ["ses_f"]
        store.trash("ses_t", 500)
        assert len(store.find_tool_calls("ses_a", call_hash(REFUND))) == 2

    def test_seeds_and_a_large_change_are_found_too(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store, seeds=[user("s"), assistant(REFUND), tool_result("c1")])
        assert store.find_tool_calls("ses_a", call_hash(REFUND)) == [
            CallPlace("ses_a", Leaf(writer.leaf.branch, 2))
        ]
        writer.append(*[each for _ in range(30) for each in (user("q"), assistant(OTHER), tool_result("c2"))])
        assert len(store.find_tool_calls("ses_a", call_hash(OTHER))) == 30

    def test_calls_are_found_where_a_session_was_moved_to(self) -> None:
        writer, there = SessionWriter(MemoryStore()), self.open_store()
        writer.append(user("q"), assistant(REFUND), tool_result("c1"), assistant("done"))
        move(writer.store, there, "ses_a")
        (place,) = there.find_tool_calls("ses_a", call_hash(SAME))
        assert (place.session_id, place.leaf.seq) == ("ses_a", 2)

    def test_a_purge_forgets_what_no_fork_inherits(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store)
        writer.append(user("q"))
        writer.append(assistant(REFUND), tool_result("c1"))
        fork = writer.fork("ses_f")
        writer.append(assistant(OTHER), tool_result("c2"))
        fork.append(assistant("ok"))
        delete(store, "ses_a")
        assert store.find_tool_calls("ses_f", call_hash(OTHER)) == []
        assert store.tool_calls("ses_f") == set()  # of its own there are none
        delete(store, "ses_f")
        again = SessionWriter(store)
        again.append(user("q"))
        assert store.find_tool_calls("ses_a", call_hash(REFUND)) == []
