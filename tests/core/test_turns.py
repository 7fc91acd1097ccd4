"""Where an entry may stand, and what is to be done next."""

from __future__ import annotations

import pytest
from hypothesis import given

from oakleaf import (
    CallModel,
    Compaction,
    Entry,
    Note,
    Rest,
    RunTools,
    Settings,
    ToolCall,
    Uncompaction,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.turns import (
    Cursor,
    advance,
    cursor_after,
    cursor_from_tail,
    group_by_turn,
    is_completed,
    next_action,
)
from oakleaf.errors import InvalidPosition, OpenBatch, OrphanResult
from support.random_logs import path_of, paths

ASK = assistant(ToolCall("a", "t"), ToolCall("b", "t"))


def test_a_turn_is_named_by_the_input_and_steps_count() -> None:
    path = path_of(
        system("s"),
        user("q"),
        ASK,
        tool_result("b"),
        tool_result("a"),
        assistant("done"),
        user("next"),
        seeds=1,
    )
    assert [(entry.turn, entry.step) for entry in path] == [
        (0, 0),
        (2, 0),
        (2, 1),
        (2, 1),
        (2, 1),
        (2, 2),
        (7, 0),
    ]


def test_an_open_batch_closes_before_anything_follows() -> None:
    path = path_of(user("q"), ASK, tool_result("a"))
    cursor = cursor_after(path)
    for payload in (user("x"), assistant("x"), Settings(), system("x")):
        with pytest.raises(OpenBatch, match="b"):
            advance(cursor, payload)
    assert advance(cursor, Note()).cursor.open_calls == cursor.open_calls
    assert advance(cursor, tool_result("b")).cursor.open_calls == ()


def test_a_tool_result_follows_the_call_once() -> None:
    for path in (path_of(user("q")), path_of(user("q"), ASK, tool_result("a"))):
        with pytest.raises(OrphanResult):
            advance(cursor_after(path), tool_result("a"))
    with pytest.raises(OrphanResult):
        advance(Cursor(), tool_result("a"))


def test_two_calls_with_one_id_take_two_results() -> None:
    path = path_of(user("q"), assistant(ToolCall("same", "t"), ToolCall("same", "t")), tool_result("same"))
    assert [call.index for call in cursor_after(path).open_calls] == [1]


def test_next_action_calls_the_model_after_input_and_last_result() -> None:
    assert next_action(path_of(user("q"))) == CallModel()
    assert next_action(path_of(user("q"), ASK, tool_result("b"), tool_result("a"))) == CallModel()


def test_next_action_runs_open_calls_and_knows_started_calls() -> None:
    action = next_action(path_of(user("q"), ASK, tool_result("a")), started=[(2, 0), (2, 1)])
    assert isinstance(action, RunTools)
    assert [call.call.id for call in action.calls] == ["b"]
    assert action.started == {(2, 1)}


@pytest.mark.parametrize("payload", [Compaction("s", 10**6), Compaction("s", 4), Compaction("s", 0)])
def test_a_compaction_must_not_hide_later_entries(payload: Compaction) -> None:
    cursor = cursor_after(path_of(user("q"), assistant("a")))
    with pytest.raises(InvalidPosition, match="entries 1 to 3"):
        advance(cursor, payload)
    assert advance(cursor, Compaction("s", 3)).cursor.seq == 3


@pytest.mark.parametrize("seq", [-1, 0, 3])
def test_an_uncompaction_names_an_earlier_entry(seq: int) -> None:
    with pytest.raises(InvalidPosition, match="entries 1 to 2"):
        advance(cursor_after(path_of(user("q"), assistant("a"))), Uncompaction(seq))


def test_next_action_rests_when_there_is_nothing_to_do() -> None:
    assert next_action([]) == Rest("empty")
    assert next_action(path_of(system("s"), user("seed"), seeds=2)) == Rest("empty")
    assert next_action(path_of(user("q"), assistant("a"))) == Rest("answered")
    ended = path_of(user("q"), ASK, tool_result("a", ends_turn=True), tool_result("b"))
    assert next_action(ended) == Rest("ended by a tool")


def test_a_turn_is_completed_by_the_final_answer() -> None:
    assert is_completed(path_of(user("q"), assistant("a")))
    assert not is_completed(path_of(user("q")))
    assert not is_completed(path_of(user("q"), ASK))
    assert not is_completed(path_of(user("q"), ASK, tool_result("a"), tool_result("b")))
    ended = [user("q"), ASK, tool_result("a"), tool_result("b", ends_turn=True)]
    assert not is_completed(path_of(*ended))
    assert is_completed(path_of(*ended, assistant("(ended by a tool)")))
    assert not is_completed([])


@given(paths())
def test_a_short_look_back_gives_the_cursor_of_the_path(path: list[Entry]) -> None:
    for end in range(len(path) + 1):
        whole = cursor_after(path[:end])
        for start in range(end):
            part = cursor_from_tail(path[start:end])
            assert part is None or part == whole


@given(paths())
def test_groups_lose_nothing_and_keep_calls_with_results(path: list[Entry]) -> None:
    groups = group_by_turn(path)
    assert [entry for group in groups for entry in group] == path
    for group in groups:
        calls = sum(len(entry.message.calls) for entry in group if entry.message)
        results = sum(len(entry.message.results) for entry in group if entry.message)
        assert results <= calls
