"""The values of a policy, each on a loop of its own; docs/effects.md and docs/workers.md say who uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, Store, ToolCall, assistant
from oakleaf.agent.events import StopRun
from oakleaf.agent.loop import build_loop
from oakleaf.agent.policy import EffectOfEntries, GoesOn, Recorded, RunPolicy, local_run
from oakleaf.agent.writer import Writer
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry
from oakleaf.core.usage import Call
from oakleaf.errors import StoreLacks
from oakleaf.stores.base import Effect


@oakleaf.tool(effect="read")
def look() -> str:
    """Look around."""
    return "a river"


def model() -> ScriptedModel:
    return ScriptedModel([assistant(ToolCall("c1", "look", {})), "A river."])


def run(session: Session, policy: RunPolicy, content: str | None) -> None:
    asyncio.run(build_loop(Writer(session.log, policy), policy).run(content))


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("guide")


def policy_of(**changes: Any) -> RunPolicy:
    return replace(local_run([model()], {"look": look}, Limits()), **changes)


class TestGoesOn:
    def test_a_run_that_may_not_call_ends_behind_its_step(self, session: Session) -> None:
        with pytest.raises(StopRun):
            run(session, policy_of(goes_on=GoesOn(may_call=lambda: False)), "Where am I?")
        assert [entry.role for entry in session.path() if entry.message] == ["user", "assistant", "tool"]
        assert len(session.model_calls()) == 1, "the call of the next process is not announced"
        assert session.resume_sync(model=model(), tools=[look]).text == "A river."

    def test_a_turn_that_a_cancel_leaves_is_resumed(self, session: Session) -> None:
        @oakleaf.tool(name="look", effect="read")
        async def wait() -> str:
            """Look around, for ever."""
            waiting.set()
            await asyncio.sleep(60)
            return "never"

        async def cancel() -> None:
            policy = replace(local_run([model()], {"look": wait}, Limits()), goes_on=GoesOn(cancel="leave"))
            task = asyncio.ensure_future(build_loop(Writer(session.log, policy), policy).run("Where am I?"))
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        waiting = asyncio.Event()
        asyncio.run(cancel())
        session.refresh()
        assert session.row.holder is None
        assert len(session.open_tool_calls) == 1
        assert session.resume_sync(model=model(), tools=[look]).text == "A river."


class TestStepEnd:
    def test_an_effect_that_the_store_does_not_know_is_refused(self, session: Session) -> None:
        ends: list[tuple[int, int]] = []

        def end(path: Sequence[Entry], drafts: Sequence[Draft], calls: Collection[Call]) -> EffectOfEntries:
            ends.append((len(path), len(calls)))
            return lambda entries: Effect()

        with pytest.raises(StoreLacks, match="engine"):
            run(session, policy_of(step_end=end), "Where am I?")
        assert set(ends) == {(len(session.path()), 1)}, "asked for the result, with the call of the step"
        assert session.path()[-1].role == "assistant", "no result without the effect"


class TestRecorded:
    def test_a_call_that_is_not_announced_is_charged_once(self, session: Session) -> None:
        run(session, policy_of(recorded=Recorded(announces=False, bucket="trial")), "Where am I?")
        calls = session.model_calls()
        assert [(call.bucket, call.failed) for call in calls] == [("trial", False), ("trial", False)]
