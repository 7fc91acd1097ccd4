"""What a model sees: the active path, and nothing beside it."""

from __future__ import annotations

from hypothesis import given

from oakleaf import (
    BranchSummary,
    Compaction,
    Entry,
    Note,
    Settings,
    ToolCall,
    Uncompaction,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.context import Context, build_context, fold_settings
from support.random_logs import path_of, paths


def texts(context: Context) -> list[str]:
    return [item.message.text for item in context.items]


def test_the_system_prompt_stands_apart_and_notes_never_show() -> None:
    context = build_context(
        path_of(system("one"), system("two"), Note({"x": 1}), user("q"), assistant("a"), seeds=2)
    )
    assert context.system == ("one", "two")
    assert texts(context) == ["q", "a"]


def test_a_compaction_shows_summary_kept_and_later_messages() -> None:
    path = path_of(
        system("s"),
        user("1"),
        assistant("2"),
        user("3"),
        assistant("4"),
        Compaction("sum", 4),
        user("5"),
        seeds=1,
    )
    context = build_context(path)
    assert context.system == ("s",)
    assert [text.split("\n\n")[-1] for text in texts(context)] == ["sum", "3", "4", "5"]
    assert context.items[0].pinned


def test_an_uncompaction_restores_the_exact_earlier_context() -> None:
    before = path_of(system("s"), user("1"), assistant("2"), user("3"), assistant("4"), seeds=1)
    path = path_of(*(e.payload for e in before), Compaction("sum", 4), Uncompaction(6), seeds=1)
    assert build_context(path) == build_context(before)


def test_the_summary_of_an_earlier_compaction_is_never_lost() -> None:
    turns = [user("1"), assistant("2"), Compaction("first", 2), user("4"), assistant("5")]
    both = build_context(path_of(*turns, Compaction("second", 5), user("7")))
    assert [text.split("\n\n")[-1] for text in texts(both)] == ["first", "second", "5", "7"]
    folded = build_context(
        path_of(*turns, Compaction("second tells first", 5, replaces_earlier=True), user("7"))
    )
    assert [text.split("\n\n")[-1] for text in texts(folded)] == ["second tells first", "5", "7"]


def test_cancelling_a_compaction_brings_the_earlier_back() -> None:
    turns = [
        user("1"),
        assistant("2"),
        Compaction("first", 2),
        user("4"),
        assistant("5"),
        Compaction("second", 5, replaces_earlier=True),
    ]
    assert texts(build_context(path_of(*turns, Uncompaction(6)))) == texts(build_context(path_of(*turns[:5])))


def test_a_branch_summary_names_the_branch_that_was_left() -> None:
    context = build_context(path_of(user("q"), BranchSummary("nothing there", 9, "ab")))
    assert "message 9" in texts(context)[1]
    assert texts(context)[1].endswith("nothing there")


def test_settings_fold_along_the_path() -> None:
    path = path_of(
        Settings(model="a", prompt="p", limits={"turns": 3}),
        Settings(prompt_patch="more"),
        Settings(model="b", prompt_patch="and more", tools=("x",), limits={"cost": 1}),
    )
    assert fold_settings(path) == Settings("b", "p", "more\n\nand more", ("x",), {"turns": 3, "cost": 1})
    assert fold_settings([*path, *path_of(Settings(prompt="new"))]).prompt_patch is None


def test_tools_only_narrow_along_the_path() -> None:
    path = path_of(Settings(tools=("a", "b", "c")), Settings(tools=("c", "b")), Settings(tools=("a", "b")))
    assert [fold_settings(path[:n]).tools for n in range(4)] == [None, ("a", "b", "c"), ("c", "b"), ("b",)]
    assert fold_settings([*path, *path_of(Settings(tools=()), Settings(tools=("b",)))]).tools == ()


def test_a_prompt_replaces_system_messages_and_a_patch_adds() -> None:
    seeds = [system("old"), user("q")]
    assert build_context(path_of(*seeds, Settings(prompt="new"), seeds=1)).system == ("new",)
    assert build_context(path_of(*seeds, Settings(prompt_patch="extra"), seeds=1)).system == ("old", "extra")


def test_a_window_that_begins_within_a_turn_drops_the_half_turn() -> None:
    path = path_of(
        user("1"), assistant(ToolCall("a", "t")), tool_result("a"), assistant("4"), user("5"), assistant("6")
    )
    assert texts(build_context(path[2:])) == ["5", "6"]
    assert texts(build_context(path[1:4])) == []


def test_details_of_the_host_are_not_in_the_context() -> None:
    from msgspec.structs import replace

    path = path_of(replace(user("q"), details={"mine": 1}))
    assert build_context(path).items[0].message.details is None


@given(paths())
def test_the_context_is_a_function_of_the_leaf(path: list[Entry]) -> None:
    assert build_context(path) == build_context(list(path))
