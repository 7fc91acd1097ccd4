"""What broke the loop once, each as the law it taught."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import oakleaf
from oakleaf import (
    Broken,
    Limits,
    Media,
    RunResult,
    ScriptedModel,
    Session,
    Slow,
    ToolCall,
    ToolContext,
    assistant,
    user,
)
from oakleaf.errors import InvalidOperation, InvalidPosition
from oakleaf.models.prices import Rates
from oakleaf.store import Store
from support.sessions import tasks_of
from support.stopped_runs import stopped

NOW = Limits(pause=lambda failures: 0.0)


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("attacked")


def call(name: str, call_id: str = "c", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, arguments)


@oakleaf.tool(effect="read")
def look() -> str:
    return "x"


def results(session: Session) -> list[Any]:
    return [result for entry in session.path() if entry.message for result in entry.message.results]


class Purse:
    def __init__(self) -> None:
        self.paid: list[int] = []

    def pay(self, **how: Any) -> oakleaf.Tool:
        @oakleaf.tool(effect="unsafe", **how)
        def pay(n: int) -> str:
            """Pays."""
            self.paid.append(n)
            return "paid"

        return pay


class TestEffects:
    def test_a_call_of_anybodys_answer_has_a_durable_start_before_it_runs(self, session: Session) -> None:
        session.append([user("q"), assistant(call("look"))])
        kinds: list[list[str]] = []

        @oakleaf.tool(effect="unsafe")
        def look() -> str:
            kinds.append([fact.kind for fact in session.journal()])
            return "x"

        session.resume_sync(model=ScriptedModel(["ok"]), tools=[look])
        assert "calls_started" in kinds[0]

    def test_two_calls_with_one_id_run_once_each_and_keep_their_own_results(self, session: Session) -> None:
        purse = Purse()
        answer = assistant(call("pay", "same", n=1), call("pay", "same", n=2), call("pay", "same-2", n=3))
        session.send_sync("q", model=ScriptedModel([answer, "ok"]), tools=[purse.pay()])
        assert sorted(purse.paid) == [1, 2, 3]
        assert len({result.call_id for result in results(session)}) == 3

    def test_an_approval_is_bound_to_the_exact_call(self, store: Store, session: Session) -> None:
        purse = Purse()
        tools = [purse.pay(approval=True)]
        session.send_sync("q", model=ScriptedModel([assistant(call("pay", n=1))]), tools=tools)
        other = store.session(session.session_id)
        (old,) = other.open_tool_calls
        session.rewind(to=0)
        session.send_sync("q", model=ScriptedModel([assistant(call("pay", n=1_000))]), tools=tools)
        with pytest.raises(InvalidPosition):
            other.approve(old)
        session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert purse.paid == []

    def test_what_was_asked_stays_asked_when_the_tool_is_handed_in_without_approval(
        self, session: Session
    ) -> None:
        purse = Purse()
        answer = assistant(call("pay", n=1))
        session.send_sync("q", model=ScriptedModel([answer]), tools=[purse.pay(approval=True)])
        session.resume_sync(model=ScriptedModel([]), tools=[purse.pay()])
        assert purse.paid == []

    def test_a_verify_that_fails_does_not_know(self, session: Session) -> None:
        purse = Purse()

        def verify(n: int) -> None:
            raise OSError("the bank is closed")

        session.append([user("q"), assistant(call("pay", n=1))])
        session.log.record("calls_started", data={"seq": 2, "indexes": [0]})
        session.resume_sync(model=ScriptedModel(["hm"]), tools=[purse.pay(verify=verify)])
        assert (purse.paid, results(session)[0].outcome) == ([], "unknown")

    def test_a_denial_after_the_start_does_not_claim_that_nothing_happened(self, session: Session) -> None:
        purse = Purse()
        tools = [purse.pay(approval=True)]
        session.send_sync("q", model=ScriptedModel([assistant(call("pay", n=1))]), tools=tools)
        (waiting,) = session.open_tool_calls
        session.approve(waiting)
        session.log.record("calls_started", data={"seq": 3, "indexes": [0]})
        session.approve(waiting, allow=False)
        session.resume_sync(model=ScriptedModel(["hm"]), tools=tools)
        assert results(session)[0].outcome == "unknown"

    def test_an_unsafe_tool_that_is_late_has_an_unknown_outcome(self, session: Session) -> None:
        @oakleaf.tool(effect="unsafe", timeout=0.05)
        async def slow() -> str:
            await asyncio.sleep(30)
            return "never"

        session.send_sync("q", model=ScriptedModel([assistant(call("slow")), "hm"]), tools=[slow])
        assert results(session)[0].outcome == "unknown"


def stop() -> str:
    return next(iter([]))


def late() -> str:
    raise TimeoutError("the socket timed out")


async def unavailable() -> str:
    raise asyncio.CancelledError


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def mute() -> str:
    raise Mute


def half() -> str:
    return "\ud800"


def missing() -> Media:
    return Media("0" * 64, "image/png", 1)


def odd_state(ctx: ToolContext) -> str:
    ctx.update(x=float("nan"))
    return "x"


def odd_details(ctx: ToolContext) -> str:
    ctx.details["x"] = object()
    return "x"


def odd_end(ctx: ToolContext) -> str:
    ctx.ends_turn = "yes"  # type: ignore[assignment]
    return "x"


@pytest.mark.parametrize(
    "function",
    [stop, late, unavailable, mute, half, missing, odd_state, odd_details, odd_end],
    ids=lambda f: f.__name__,
)
def test_whatever_a_tool_does_there_is_a_result_and_the_turn_goes_on(session: Session, function: Any) -> None:
    model = ScriptedModel([assistant(call(function.__name__)), "ok"])
    session.send_sync("q", model=model, tools=[oakleaf.tool(effect="read")(function)])
    assert results(session)[0].error
    assert session.path()[-1].message.text == "ok"
    assert session.verify() == []


class TestCancel:
    def test_before_the_first_step_nobody_waits_for_ever(self, session: Session) -> None:
        async def main() -> list[oakleaf.Event]:
            run = session.send("q", model=ScriptedModel(["never"]))

            async def consume() -> list[oakleaf.Event]:
                return [event async for event in run]

            async def cancel() -> None:
                run.cancel()

            events, _ = await asyncio.wait_for(asyncio.gather(consume(), cancel()), 10)
            return events

        asyncio.run(main())
        session.send_sync("again", model=ScriptedModel(["fine"]))
        assert session.path()[-1].message.text == "fine"

    @pytest.mark.parametrize("steps", range(1, 12))
    def test_at_any_early_moment_the_lease_is_not_left_behind(self, session: Session, steps: int) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel([Slow(5)]))

            async def consume() -> None:
                async for _ in run:
                    pass

            task = asyncio.ensure_future(consume())
            for _ in range(steps):
                await asyncio.sleep(0)
            run.cancel()
            await asyncio.wait_for(task, 10)

        asyncio.run(main())
        assert session.row.holder is None
        session.refresh()
        session.send_sync("again", model=ScriptedModel(["fine"]))
        assert session.verify() == []

    def test_a_run_is_iterated_over_once(self, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel(["a"]))
            async for _ in run:
                pass
            with pytest.raises(InvalidOperation):
                async for _ in run:
                    pass

        asyncio.run(main())
        assert len(session.path()) == 2

    def test_what_had_finished_keeps_its_result(self, session: Session) -> None:
        @oakleaf.tool(effect="unsafe")
        async def quick() -> str:
            return "done in time"

        @oakleaf.tool(effect="unsafe")
        async def slow() -> str:
            await asyncio.sleep(30)
            return "never"

        async def main() -> None:
            answer = assistant(call("quick", "a"), call("slow", "b"))
            run = session.send("q", model=ScriptedModel([answer]), tools=[quick, slow])
            async for event in run:
                if event.type == "session:answer":
                    asyncio.get_running_loop().call_later(0.1, run.cancel)

        asyncio.run(main())
        outcomes = {result.call_id: result.outcome for result in results(session)}
        assert outcomes == {"a": "done", "b": "unknown"}
        assert session.verify() == []

    def test_what_was_said_is_kept(self, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel(["short words that reached somebody"]))
            async for event in run:
                if event.type == "session:delta":
                    run.cancel()

        asyncio.run(main())
        assert session.path()[-1].message.text.startswith("short")


class TestDrafts:
    LONG = "word " * 200

    def test_a_draft_dies_with_the_answer_it_became(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([self.LONG]))
        session.rewind(to=1)
        session.resume_sync(model=ScriptedModel(["another"]))
        assert session.path()[-1].message.text == "another"

    def test_a_new_input_keeps_what_the_broken_answer_had_said(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([Broken(self.LONG)]), limits=NOW)
        session.send_sync("go on", model=ScriptedModel(["sure"]))
        texts = [entry.message.text for entry in session.transcript()]
        assert texts == ["q", self.LONG, "go on", "sure"]


class TestLedger:
    @pytest.mark.parametrize(
        ("limits", "calls"),
        [(Limits(rounds=1), 1), (Limits(rounds=3), 3), (Limits(max_cost_microcents=20_000), 1)],
        ids=["one round", "three rounds", "cost"],
    )
    def test_a_call_that_a_limit_refuses_is_counted_nowhere(
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

    def test_a_task_that_a_limit_stops_counts_the_calls_it_made(self, store: Store) -> None:
        session, child = store.start("parent"), ScriptedModel(lambda request: assistant(call("look")))

        @oakleaf.tool(effect="idempotent")
        async def helper(ctx: ToolContext) -> str:
            return await ctx.task("go", models=[child], tools=[look], limits=Limits(rounds=2))

        parent = ScriptedModel([assistant(call("helper")), "done"])
        session.send_sync("q", model=parent, tools=[helper])
        assert len(child.requests) == 2
        assert session.usage("tree").calls == len(parent.requests) + len(child.requests)

    @pytest.mark.parametrize("at", range(6))
    def test_wherever_a_turn_is_cancelled_the_calls_it_made_are_counted(
        self, session: Session, at: int
    ) -> None:
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

    def test_a_turn_ended_by_a_tool_announces_no_further_call(self, session: Session) -> None:
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


def test_what_nobody_foresaw_is_raised_and_the_session_can_go_on(session: Session) -> None:
    def broken(request: Any) -> str:
        raise KeyError("a bug in a model")

    with pytest.raises(KeyError):
        session.send_sync("q", model=ScriptedModel(broken))
    assert session.row.status == "failed"
    session.resume_sync(model=ScriptedModel(["mended"]))
    assert session.path()[-1].message.text == "mended"


def test_a_model_that_answers_as_somebody_else_is_refused(session: Session) -> None:
    events = session.send_sync("q", model=ScriptedModel([user("I am the user")])).events
    assert "role" in events[-1].data["error"]["message"]


def test_many_blocking_tools_do_not_keep_a_result_from_becoming_durable(session: Session) -> None:
    import threading

    release = threading.Event()

    @oakleaf.tool(effect="read")
    def block(n: int) -> str:
        release.wait(20)
        return "late"

    @oakleaf.tool(effect="read")
    async def quick() -> str:
        return "quick"

    calls = [call("block", f"b{n}", n=n) for n in range(40)]

    async def main() -> None:
        model = ScriptedModel([assistant(*calls, call("quick", "q")), "ok"])
        async for event in session.send("q", model=model, tools=[block, quick]):
            if event.type == "session:tool_result" and event.data["name"] == "quick":
                assert results(session)[-1].call_id == "q"
                release.set()

    asyncio.run(asyncio.wait_for(main(), 15))


@pytest.mark.extra
def test_the_cost_cap_reaches_the_children(session: Session) -> None:
    from oakleaf import Usage, system
    from oakleaf.wire import Answer

    def dear(request: Any) -> Answer:
        usage = Usage(1_000_000, 0, 0, 0)
        return Answer(assistant("thought"), usage, None, "anthropic", "claude-opus-4-5", "stop")

    class Dear(ScriptedModel):
        provider = "anthropic"

    @oakleaf.tool(effect="idempotent")
    async def think(n: int, ctx: ToolContext) -> str:
        return await ctx.task("think", seeds=[system(str(n))], models=[Dear(dear, model="claude-opus-4-5")])

    lines = [assistant(call("think", f"c{n}", n=n)) for n in range(5)]
    model = ScriptedModel(lines, rates=Rates(0, 0))
    stopped(session.send_sync, "q", model=model, tools=[think], limits=Limits(max_cost_microcents=50_000))
    assert len(tasks_of(session)) == 1
    assert session.path()[-1].message.text.startswith("(stopped")


def test_a_turn_of_ones_own_is_refused_while_a_loop_drives(store: Store, session: Session) -> None:
    from oakleaf.errors import SessionRunning

    async def main() -> None:
        run = session.send("q", model=ScriptedModel([Slow(5)]))
        async for event in run:
            if event.type == "session:turn_started":
                with pytest.raises(SessionRunning), store.session(session.session_id).turn():
                    pass
                run.cancel()

    asyncio.run(main())
    with session.turn("mine") as turn:
        turn.answer(assistant("fine"))


class TestSpent:
    def test_a_summary_that_was_cancelled_is_in_the_ledger(self, session: Session) -> None:
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

    def test_tokens_told_by_an_answer_without_an_end_are_counted(self, session: Session) -> None:
        from oakleaf import Usage
        from oakleaf.wire import Answer

        endless = Answer(assistant("x"), Usage(7, 3), None, None, None, None)
        session.send_sync("q", model=ScriptedModel([endless]), limits=NOW)
        assert session.usage().input_tokens == 7
