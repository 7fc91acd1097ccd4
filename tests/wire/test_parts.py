"""A history projected part by part is the history projected whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import oakleaf
from oakleaf import wire
from oakleaf.core.context import Context, build_context
from oakleaf.core.messages import ToolCall, assistant, tool_result, user
from oakleaf.ext import read
from oakleaf.wire import HistoryPart, render
from oakleaf.wire.offered_tools import called_tools
from oakleaf.wire.parts import join_messages, part_starts
from support.hosted_answers import GROUPS, reply
from support.random_logs import blobs, path_of, paths, thorough_settings


def join_parts(
    provider: wire.Provider, context: Context, starts: list[int], blobs: wire.Blobs = blobs
) -> dict[str, Any]:
    """The request of a context that is divided at these items; everything but its messages is that of its last part."""
    part, messages = HistoryPart(called_tools=called_tools(context.items)), list[dict[str, Any]]()
    request: dict[str, Any] = {}
    for first, end in zip([0, *starts], [*starts, len(context.items)], strict=True):
        part.is_start, part.is_end = not messages, end == len(context.items)
        system = context.system if first == 0 else ()
        request = provider.project(
            replace(context, system=system, items=context.items[first:end]), blobs, part
        )
        join_messages(provider, messages, request[provider.history])
    whole = provider.project(context, blobs)
    return {**{key: whole[key] for key in whole if key not in request}, **request, provider.history: messages}


@given(path=paths(max_entries=30), data=st.data())
@thorough_settings
def test_joined_parts_of_every_log_are_the_request(path, data):
    context = build_context(path)
    possible = part_starts(context.items)
    starts = sorted(data.draw(st.sets(st.sampled_from(possible)))) if possible else []
    for provider in wire.PROVIDERS.values():
        assert join_parts(provider, context, starts) == provider.project(context, blobs)


@pytest.mark.parametrize("name", list(wire.PROVIDERS))
def test_a_long_turn_is_divided_at_steps_with_ids_apart(name: str) -> None:
    steps = [
        entry for _ in range(20) for entry in (assistant(ToolCall("c", "look", {})), tool_result("c", "1"))
    ]
    context = build_context(path_of(user("Look."), *steps))
    starts = part_starts(context.items)
    assert starts == list(range(3, 41, 2))
    provider = wire.find_provider(name)
    assert render(join_parts(provider, context, starts)) == render(provider.project(context, blobs))


@pytest.mark.parametrize("issuer", list(GROUPS))
def test_paired_and_unpaired_blocks_survive_a_division(issuer: str) -> None:
    session = oakleaf.open("memory:").start("a")
    groups = [group for number in range(6) for group in GROUPS[issuer](number)]
    alone = [[group[at]] for at in (0, -1) for group in GROUPS[issuer](7 + at) if len(group) > 1]
    for blocks in [*groups, *alone]:
        if blocks[-1].get("type") == "thinking":
            continue
        with session.turn("q") as turn:
            for call in turn.answer(reply(issuer, blocks)).calls:
                turn.result(call.id, "done")
    context = session.context()
    for provider in wire.PROVIDERS.values():
        whole = provider.project(context, read(session).blob)
        for starts in (part_starts(context.items), part_starts(context.items)[::7]):
            assert join_parts(provider, context, starts, read(session).blob) == whole
