"""The state of a session is the fold of its path, whatever happens to the values outside."""

from __future__ import annotations

from oakleaf import Store
from support.store_contents import reopened


def test_later_changes_to_a_callers_values_do_not_reach_the_log(store: Store) -> None:
    """State is the fold of the path, not of whatever the caller's lists hold by now."""
    session = store.start()
    mine: list[int] = [1]
    session.note(state={"mine": mine, "deep": {"mine": mine}})
    mine.append(2)
    session.note(state={"next": 1})
    assert reopened(store, session).state == {"mine": [1], "deep": {"mine": [1]}, "next": 1}
    assert reopened(store, session).verify() == []
    assert session.state == {"mine": [1], "deep": {"mine": [1]}, "next": 1}


def test_changes_to_the_state_read_do_not_reach_the_log(store: Store) -> None:
    session = store.start()
    session.note(state={"a": 1, "deep": {"b": [1]}})
    session.state["forged"] = True
    session.state["deep"]["b"].append(2)
    session.note(state={"next": 1})
    assert reopened(store, session).state == {"a": 1, "deep": {"b": [1]}, "next": 1}
    assert reopened(store, session).verify() == []
