"""A lab has no effects: its models call tools that reach out of the process, under the guards of the replay's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oakleaf import ScriptedModel, Session, assistant
from oakleaf.store import Store
from oakleaf_lab import Cell, Lab
from replay.test_no_effects import CALLS, ONCE, Outside, guard_process, outside, recorded, unrecorded

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
