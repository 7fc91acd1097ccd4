"""The usage of runs: every model call is counted once, however its turn ends."""

from __future__ import annotations

import asyncio

import pytest

import oakleaf
from oakleaf import (
    Limits,
    RunResult,
    ScriptedModel,
    Session,
    Slow,
    ToolCall,
    ToolContext,
    Usage,
    assistant,
    user,
)
from oakleaf.models.prices import Rates
from oakleaf.store import Store
from oakleaf.wire import Answer
from support.stopped_runs import stopped

NOW = Limits(pause=lambda failures: 0.0)


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("counted")


@oakleaf.tool(effect="read")
def look() -> str:
    return "x"


def call(name: str, call_id: str = "c") -> ToolCall:
    return ToolCall(call_id, name)


class TestAModelThatIsNotAsked:
    """Its package or its key is missing, so no request leaves the machine."""

    @pytest.fixture(autouse=True)
    def without_a_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    def test_is_not_in_the_ledger(self, any_store: Store) -> None:
        session = any_store.start()
        result = session.send_sync("q", model="anthropic:claude-x")
        assert (result.status, result.usage.calls) == ("failed", 0)
        assert (session.usage().calls, session.usage().unpriced_calls, session.model_calls()) == (0, 0, [])
        assert "model_call_failed" in [fact.kind for fact in session.journal()]
        assert session.verify() == []

    def test_leaves_the_call_to_the_next_of_the_chain(self, any_store: Store) -> None:
        session = any_store.start()
        chain = ["anthropic:claude-x", ScriptedModel(["Hello."])]
        assert session.send_sync("q", model=chain).text == "Hello."
        assert [call.model for call in session.model_calls()] == ["scripted"]
        assert session.verify() == []

    def test_writes_no_summary_and_costs_nothing(self, session: Session) -> None:
        from oakleaf.models.names import model_by_name

        session.append([user("long " * 2_000), assistant("ok")])
        limits = Limits(context_tokens=500, summariser=model_by_name("anthropic:claude-x"))
        assert session.send_sync("q", model=ScriptedModel(["a"]), limits=limits).text == "a"
        assert "compaction" in [entry.kind for entry in session.path()]
        assert [call.purpose for call in session.model_calls()] == ["answer"]
        assert session.verify() == []


class TestCalls:
    @pytest.mark.parametrize(
        ("limits", "calls"),
        [(Limits(rounds=1), 1), (Limits(rounds=3), 3), (Limits(max_cost_microcents=20_000), 1)],
        ids=["one round", "three rounds", "cost"],
    )
    def test_a_call_refused_by_a_limit_is_not_counted(
        self, session: Session, limits: Limits, calls: int
    ) -> None:
        model = ScriptedModel(lambda request: assistant(call("look")), rates=Rates(10, 10))
        result = stopped(session.send_sync, "q", model=model, tools=[look], limits=limits)
        assert result.status == "stopped"
        assert len(model.requests) == calls
        assert result.usage == session.refresh().totals == session.usage(by="turn")[2]
        assert all(session.usage(view) == result.usage for view in ("own", "path", "tree"))
        assert (result.usage.calls, result.usage.unknown_calls) == (calls, 0)
        assert session.fork().usage("path") == result.usage
        assert session.verify() == []
        stopped(session.send_sync, "again", model=model, tools=[look], limits=Limits(rounds=1))
        assert session.usage().calls == len(model.requests) == calls + 1  # the numbers of rows have no gap
        assert session.verify() == []

    def test_the_calls_of_a_stopped_task_are_counted(self, store: Store) -> None:
        session, child = store.start("parent"), ScriptedModel(lambda request: assistant(call("look")))

        @oakleaf.tool(effect="idempotent")
        async def helper(ctx: ToolContext) -> str:
            return await ctx.task("go", models=[child], tools=[look], limits=Limits(rounds=2))

        parent = ScriptedModel([assistant(call("helper")), "done"])
        session.send_sync("q", model=parent, tools=[helper])
        assert len(child.requests) == 2
        assert session.usage("tree").calls == len(parent.requests) + len(child.requests)

    @pytest.mark.parametrize("at", range(6))
    def test_the_calls_of_a_cancelled_turn_are_counted(self, session: Session, at: int) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        summariser = ScriptedModel([Slow(0.02, "sum")])
        model = ScriptedModel([assistant(call("look")), Slow(30, "never")])
        limits = Limits(context_tokens=300, summariser=summariser)

        async def main() -> RunResult:
            run = session.send("new", model=model, tools=[look], limits=limits)
            events = 0
            async for event in run:
                if events == at or event.type == "session:delta":
                    run.cancel()
                events += 1
            return run.result

        result = asyncio.run(main())
        assert result.status == "cancelled"
        call_count = len(model.requests) + len(summariser.requests)
        assert result.usage.calls == session.refresh().totals.calls == call_count
        assert session.verify() == []

    def test_a_turn_ended_by_a_tool_announces_no_call(self, session: Session) -> None:
        @oakleaf.tool(effect="read")
        def first(ctx: ToolContext) -> str:
            ctx.ends_turn = True
            return "x"

        @oakleaf.tool(effect="read")
        async def second() -> str:
            await asyncio.sleep(0.05)
            return "y"

        answer = assistant(call("first", "a"), call("second", "b"))
        session.send_sync("q", model=ScriptedModel([answer]), tools=[first, second])
        assert session.usage().calls == 1

    def test_an_overflow_is_not_a_try(self, session: Session) -> None:
        session.append([user("old " * 200), assistant("answer " * 200)])
        model = ScriptedModel([oakleaf.errors.ContextOverflow("m", "too long"), "fits"])
        session.send_sync("new", model=model, limits=Limits(tries=1))
        assert session.path()[-1].message.text == "fits"

    def test_a_cancelled_summary_is_counted(self, session: Session) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        limits = Limits(context_tokens=300, summariser=ScriptedModel([Slow(30, "sum")]))

        async def main() -> None:
            run = session.send("new", model=ScriptedModel(["never"]), limits=limits)
            async for event in run:
                if event.type == "session:turn_started":
                    asyncio.get_running_loop().call_later(0.1, run.cancel)

        asyncio.run(main())
        assert [call.purpose for call in session.model_calls()].count("compaction") == 1
        assert session.verify() == []

    def test_tokens_of_an_answer_without_an_end_are_counted(self, session: Session) -> None:
        endless = Answer(assistant("x"), Usage(7, 3), None, None, None, None)
        session.send_sync("q", model=ScriptedModel([endless]), limits=NOW)
        assert session.usage().input_tokens == 7
