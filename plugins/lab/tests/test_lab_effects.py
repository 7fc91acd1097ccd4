"""A lab has no effects: its models call tools that reach out of the process, under the guards of the replay's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oakleaf import Message, ScriptedModel, Session, ToolCall, assistant
from oakleaf.errors import InvalidTool
from oakleaf.store import Store
from oakleaf_lab import Cell, Lab
from replay.test_no_effects import CALLS, ONCE, Outside, guard_process, outside, recorded, unrecorded
from support.tool_source import Shop

__all__ = ["outside", "recorded"]  # fixtures


def calling(script: Callable[[], list[Any]]) -> Callable[[Cell], ScriptedModel]:
    return lambda cell: ScriptedModel(script(), model="caller")


@pytest.mark.parametrize("mode", ["recorded", "dry"])
@pytest.mark.parametrize("after", ["stop", "continue"])
def test_no_lane_has_an_effect(
    store: Store, recorded: Session, outside: Outside, mode: Any, after: Any
) -> None:
    tools = outside.tools()
    lab = Lab(
        store,
        recorded.session_id,
        baseline_model=calling(lambda: [assistant(*CALLS), "Done."]),
        model=calling(lambda: unrecorded("other")),
        tools=tools,
        baseline_tools=tools,
        mode=mode,
        after_divergence=after,
    )
    with guard_process() as tripped:
        report = lab.run_sync()
    assert tripped == []
    assert outside.counts() == ONCE
    assert report.status == "complete"
    assert report.lane("baseline").classes["same"].value == 1.0
    assert report.lane("candidate").classes["arguments_changed"].value == 1.0


def test_a_lab_connects_to_no_source_of_tools(store: Store) -> None:
    """What the source offered and returned is recorded."""
    shop, session = Shop(), store.start()
    call = ToolCall("c1", "look", {"place": "the cellar"})
    session.send_sync("go", model=ScriptedModel([assistant(call), "done"]), tools=[shop])
    shop.steps.clear()

    def answer(request: Any) -> Message:
        is_called = request.messages[-1].role == "tool"
        return assistant("done" if is_called else call)

    report = Lab(store, session.session_id, baseline_model=ScriptedModel(answer)).run_sync()
    assert report.status == "complete"
    assert [lane.classes["same"].value for lane in report.lanes[1:]] == [1.0, 1.0]
    assert shop.steps == []
    with pytest.raises(InvalidTool, match="the shop cannot be a tool: its tools are known in a run only"):
        Lab(store, session.session_id, baseline_model=ScriptedModel(answer), tools=[shop])
