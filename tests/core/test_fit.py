"""Budgets: whole turns, newest first, never half of one."""

from __future__ import annotations

import pytest
from hypothesis import given

from oakleaf import Budget, Compaction, Entry, ToolCall, assistant, system, tool_result, user
from oakleaf.core.context import build_context
from oakleaf.core.entries import Evidence
from oakleaf.core.fit import fit, measure
from oakleaf.core.tool_definitions import ToolSpec, define_tools
from oakleaf.core.turns import group_by_turn
from oakleaf.errors import TurnTooLarge
from support.random_logs import budgets, entries, path_of, paths

LONG = "word " * 100


def turns(n: int) -> list[Entry]:
    payloads = [system("s")]
    for k in range(n):
        payloads += [
            user(f"{k} {LONG}"),
            assistant(ToolCall(f"c{k}", "t")),
            tool_result(f"c{k}", LONG),
            assistant("a"),
        ]
    return path_of(*payloads, seeds=1)


def test_older_turns_are_dropped_whole_and_named() -> None:
    context = build_context(turns(5))
    one = sum(measure(item.message).tokens for item in context.items[-4:])
    fitted = fit(context, Budget(tokens=2 * one + 60))
    assert [item.seq for item in fitted.context.items] == list(range(14, 22))
    assert fitted.dropped == tuple(range(2, 14))
    assert fitted.context.system == ("s",)


def test_the_newest_turn_is_never_dropped_silently() -> None:
    with pytest.raises(TurnTooLarge, match="turn 2 alone"):
        fit(build_context(turns(1)), Budget(tokens=50))


def test_a_system_prompt_that_does_not_fit_is_said_so() -> None:
    with pytest.raises(TurnTooLarge, match="always stays"):
        fit(build_context(path_of(system(LONG), user("q"), seeds=1)), Budget(bytes=100))


def test_the_summary_stays_as_the_system_prompt_stays() -> None:
    path = path_of(user(LONG), assistant("2"), Compaction("sum", 3), user(LONG), assistant("5"), user("6"))
    fitted = fit(build_context(path), Budget(messages=2))
    assert [item.pinned for item in fitted.context.items] == [True, False]
    assert fitted.dropped == (4, 5)


def test_definitions_of_tools_always_stay_and_count() -> None:
    path = turns(3)
    tools = define_tools([ToolSpec("look", "Looks. " * 100, {"type": "object"})])
    with_tools = path_of(
        *(entry.payload for entry in path[:1]), tools.draft().payload, *(e.payload for e in path[1:])
    )
    tokens = fit(build_context(path), Budget(tokens=10_000)).size.tokens
    assert fit(build_context(with_tools), Budget(tokens=10_000)).size.tokens > tokens + 175
    assert fit(build_context(path), Budget(tokens=tokens)).dropped == ()
    assert fit(build_context(with_tools), Budget(tokens=tokens)).dropped != ()
    with pytest.raises(TurnTooLarge, match="always stays"):
        fit(build_context(with_tools), Budget(tokens=100))


def test_evidence_counts_for_the_issuer_and_for_any() -> None:
    seal = {"0": {"signature": "s" * 4_000}, "langgraph": {"raw": "r" * 4_000}}
    path = entries([(user("q"), None), (assistant("a"), Evidence("openai-chat@host", seal))])
    context = build_context(path)
    tokens = {
        provider: fit(context, Budget(), provider).size.tokens for provider in (None, "openai-chat", "openai")
    }
    assert tokens[None] == tokens["openai-chat"] >= tokens["openai"] + 1_000
    assert tokens["openai"] < 50


def test_bytes_and_media_are_budgets_too() -> None:
    from oakleaf import Media

    image = Media("0" * 64, "image/png", 30_000)
    path = path_of(user("old", image), assistant("a"), user("new", image), assistant("b"))
    assert fit(build_context(path), Budget(media=1)).dropped == (1, 2)
    assert fit(build_context(path), Budget(bytes=50_000)).dropped == (1, 2)
    assert fit(build_context(path), Budget(bytes=90_000)).dropped == ()


def test_max_messages_trims_silently_and_still_whole_turns() -> None:
    assert fit(build_context(turns(5)), Budget(messages=7)).dropped == tuple(range(2, 18))


@given(paths(), budgets)
def test_no_budget_parts_a_turn_or_loses_an_item_unnamed(path: list[Entry], budget: Budget) -> None:
    context = build_context(path)
    try:
        fitted = fit(context, budget)
    except TurnTooLarge:
        return
    numbers = [item.seq for item in fitted.context.items if not item.pinned]
    loose = [item for item in context.items if not item.pinned]
    assert sorted([*fitted.dropped, *numbers]) == [item.seq for item in loose]
    for group in group_by_turn(loose):
        inside = [item.seq in numbers for item in group]
        assert all(inside) or not any(inside)
    for name in ("tokens", "bytes", "media", "messages"):
        limit = getattr(budget, name)
        assert limit is None or getattr(fitted.size, name) <= limit
