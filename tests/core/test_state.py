"""State is the fold of the updates on the path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oakleaf import Note, ToolCall, assistant, derive_updates, tool_result, user
from oakleaf.core.state import fold_state, merge_state
from support.random_logs import path_of

values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda v: st.dictionaries(st.sampled_from("abc"), v, max_size=3),
    max_leaves=8,
)
states = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def test_updates_ride_in_results_and_notes() -> None:
    path = path_of(
        Note(state={"n": 1}),
        user("q"),
        assistant(ToolCall("a", "t"), ToolCall("b", "t")),
        tool_result("b", "x", state={"order": {"id": 41, "open": True}}),
        tool_result("a", "x", state={"order": {"open": None}, "n": 2}),
    )
    assert fold_state(path) == {"n": 2, "order": {"id": 41}}
    assert fold_state(path[:4]) == {"n": 1, "order": {"id": 41, "open": True}}


def test_derived_updates_fold_to_the_state() -> None:
    """The migration plan's deriveConversationUpdates: updates are derived from results, not drained from memory."""
    first, second = {"order": {"id": 41}}, {"order": {"open": None}, "n": 2}
    path = path_of(
        user("q"),
        assistant(ToolCall("a", "t"), ToolCall("b", "t")),
        tool_result("b", "x", state=first),
        tool_result("a", "x", state=second),
    )
    assert derive_updates(path) == [first, second]
    assert derive_updates([entry.message for entry in path if entry.message]) == [first, second]
    assert fold_state(path) == merge_state(merge_state({}, first), second)


def test_details_that_are_no_update_change_nothing() -> None:
    ask = assistant(ToolCall("a", "t"))
    assert (
        fold_state(path_of(user("q"), ask, tool_result("a", details={"state": "not an object", "x": 1})))
        == {}
    )


@given(states, states)
def test_a_merge_changes_neither_side_and_leaves_no_null(state: dict, update: dict) -> None:
    state = merge_state({}, state)
    before = repr(state), repr(update)
    merged = merge_state(state, update)
    assert (repr(state), repr(update)) == before
    assert "None" not in repr(merged)
    for key, value in update.items():
        if not isinstance(value, dict):
            assert merged.get(key) == value


@given(states)
def test_an_update_twice_is_an_update_once(update: dict) -> None:
    assert merge_state(merge_state({}, update), update) == merge_state({}, update)
