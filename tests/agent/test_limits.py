"""Limits: what is refused before anything leaves the machine, and how it is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, ToolCall, ToolContext, Usage, assistant, system, user
from oakleaf.agent.limits import narrow
from oakleaf.errors import InvalidArgument, ModelError, TurnFailed, TurnLimit
from oakleaf.log.lease import Lease
from oakleaf.models.prices import Rates
from oakleaf.store import Store
from oakleaf.wire import Answer
from support.order_desk import Desk, ask
from support.sessions import tasks_of
from support.stopped_runs import stopped

DOLLAR = 100_000_000
DEAR = Rates(1_000, 1_000)
DEAR_OUTPUT = Rates(0, 1_000)
"""A first call is not refused for its input."""
LONG = "word " * 1_000


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("capped")


def error_of(result: oakleaf.RunResult) -> dict[str, Any]:
    last = result.events[-1]
    assert (last.type, last.data["stop_reason"]) == ("session:turn_completed", "error")
    error: dict[str, Any] = last.data["error"]
    return error


class TestCost:
    def test_a_first_call_that_would_cost_more_than_the_cap_is_not_made(self, session: Session) -> None:
        model = ScriptedModel(["never"], rates=DEAR)
        limits = Limits(max_cost_microcents=DOLLAR // 2)  # the input alone costs 0.6 dollars or more
        result = stopped(session.send_sync, LONG, model=model, limits=limits)
        assert (model.requests, session.path(), len(result.events)) == ([], [], 1)
        error = error_of(result)
        assert (error["code"], error["limit"], result.status) == ("turn_limit", "cost", "stopped")
        assert error["message"].startswith("$0.00 of $0.50 is spent, and the next call costs at least $0.62")
        assert session.send_sync(LONG, model=model, limits=Limits(max_cost_microcents=DOLLAR)).text == "never"

    def test_a_later_call_of_the_turn_is_checked_with_what_its_tools_returned(self, session: Session) -> None:
        @oakleaf.tool(effect="read")
        def read() -> str:
            return LONG

        model = ScriptedModel([assistant(ToolCall("c", "read")), "never"], rates=DEAR)
        # Behind the first call the input may come from a cache, which these rates make no cheaper.
        limits = Limits(max_cost_microcents=DOLLAR // 2)
        error = error_of(stopped(session.send_sync, "q", model=model, tools=[read], limits=limits))
        assert (len(model.requests), error["limit"]) == (1, "cost")
        assert session.transcript()[-1].message.text.startswith("(stopped: $")

    def test_input_that_may_come_from_a_cache_is_counted_at_the_price_of_the_cache(
        self, session: Session
    ) -> None:
        model = ScriptedModel(lambda request: "Yes.", rates=Rates(1_000, 0, cache_read=0))
        spent = session.send_sync(LONG, model=model).usage.cost_microcents
        assert (
            session.send_sync("q", model=model, limits=Limits(max_cost_microcents=spent + 1)).text == "Yes."
        )

    @pytest.mark.parametrize("rates", [None, Rates(0, 0)], ids=["the next", "an earlier one"])
    def test_a_cap_is_not_passed_by_a_call_without_a_price(
        self, session: Session, rates: Rates | None
    ) -> None:
        session.send_sync("q", model=ScriptedModel(["a"]))
        model = ScriptedModel(["counted", "b"], rates=rates)
        limits = Limits(max_cost_microcents=DOLLAR)
        error = error_of(stopped(session.send_sync, "q", model=model, limits=limits))
        assert (model.requests, len(session.path()), error["limit"]) == ([], 2, "cost")
        what = "scripted has no price" if rates is None else "1 call so far had no price"
        assert error["message"].startswith(f"{what}, so the limit of $1.00 cannot be checked; pip install")
        warned = session.send_sync(
            "q", model=model, limits=Limits(max_cost_microcents=DOLLAR, on_exceed="warn")
        )
        (warning,) = [event for event in warned.events if event.type == "session:limit_passed"]
        assert (warned.text, warning.data["limit"]) == ("counted", "cost")

    def test_no_model_of_a_chain_and_no_task_is_called_without_a_price(self, session: Session) -> None:
        second = ScriptedModel(["never"])

        @oakleaf.tool(effect="read")
        async def ask(ctx: ToolContext) -> str:
            return await ctx.task("do it", models=[second])

        first = ScriptedModel([assistant(ToolCall("c", "ask")), ModelError("m", "down")], rates=Rates(0, 0))
        limits = Limits(max_cost_microcents=DOLLAR, pause=lambda failures: 0.0)
        error = error_of(stopped(session.send_sync, "q", model=[first, second], tools=[ask], limits=limits))
        assert (second.requests, len(first.requests), error["limit"]) == ([], 2, "cost")
        assert "scripted has no price" in session.path()[3].message.results[0].content[0].text

    def test_a_call_that_a_crash_cut_off_does_not_stop_the_session_for_good(self, session: Session) -> None:
        with session.turn("q", model="anthropic:claude-opus-4-5") as turn:
            turn.failed("cut off")
        limits = Limits(max_cost_microcents=DOLLAR)
        model = ScriptedModel(["Here."], rates=Rates(0, 0))
        assert session.resume_sync(model=model, limits=limits).text == "Here."

    def test_a_run_that_only_warns_does_not_pass_the_cap_of_the_session(self) -> None:
        warns = Limits(max_cost_microcents=9, on_exceed="warn")
        assert narrow(warns, {"max_cost_microcents": 5}).on_exceed == "stop"
        assert narrow(warns, {"max_cost_microcents": 5, "on_exceed": "warn"}).on_exceed == "warn"
        assert narrow(warns, {"turns": 5}).on_exceed == "warn"

    @pytest.mark.extra
    def test_the_cost_cap_reaches_the_children(self, session: Session) -> None:
        def dear(request: Any) -> Answer:
            usage = Usage(1_000_000, 0, 0, 0)
            return Answer(assistant("thought"), usage, None, "anthropic", "claude-opus-4-5", "stop")

        class Dear(ScriptedModel):
            provider = "anthropic"

        @oakleaf.tool(effect="idempotent")
        async def think(n: int, ctx: ToolContext) -> str:
            return await ctx.task(
                "think", seeds=[system(str(n))], models=[Dear(dear, model="claude-opus-4-5")]
            )

        lines = [assistant(ToolCall(f"c{n}", "think", {"n": n})) for n in range(5)]
        model = ScriptedModel(lines, rates=Rates(0, 0))
        stopped(session.send_sync, "q", model=model, tools=[think], limits=Limits(max_cost_microcents=50_000))
        assert len(tasks_of(session)) == 1
        assert session.path()[-1].message.text.startswith("(stopped")

    def test_the_cap_is_checked_before_each_model_of_the_chain(self, session: Session) -> None:
        cut = Answer(assistant("half"), Usage(1_000, 1_000, 0, 0), None, "scripted", "m", None)
        second = ScriptedModel(["never"], rates=DEAR_OUTPUT)
        limits = Limits(max_cost_microcents=1, pause=lambda failures: 0.0)
        events = stopped(
            session.send_sync, "q", model=[ScriptedModel([cut], rates=DEAR_OUTPUT), second], limits=limits
        ).events
        assert events[-1].data["error"]["limit"] == "cost"
        assert second.requests == []


class TestQueuedInput:
    def test_one_past_the_cap_leaves_the_inbox_with_a_fact_and_an_event(self, session: Session) -> None:
        for text in ("one", "two", "three"):
            session.enqueue(text)
        result = stopped(session.resume_sync, model=ScriptedModel(["Yes."]), limits=Limits(turns=1))
        refused = [event for event in result.events if event.data.get("stop_reason") == "error"]
        facts = [fact for fact in session.journal() if fact.kind == "turn_refused"]
        assert [fact.data["error"] for fact in facts] == [event.data["error"] for event in refused]
        assert [event.journal_number for event in refused] == [fact.number for fact in facts]
        assert {event.data["error"]["code"] for event in refused} == {"turn_limit"}
        assert (len(facts), session.log.store.inbox(session.session_id)) == (2, [])
        assert [entry.message.text for entry in session.path()] == ["one", "Yes."]
        assert session.verify() == []


class TestTurns:
    def test_0_means_the_default_of_50(self, session: Session) -> None:
        for n in range(50):
            session.append([user(str(n)), assistant("a")])
        model = ScriptedModel(["never"])
        error = error_of(stopped(session.send_sync, "q", model=model, limits=Limits(turns=0)))
        assert (error["code"], error["limit"], model.requests) == ("turn_limit", "turns", [])
        assert "its 50 turns" in error["message"]

    def test_send_raises_past_the_cap_and_other_watchers_see_why(self, session: Session) -> None:
        """The session specification: past the cap it ends loudly, never with an empty text."""
        session.append([user("1"), assistant("a")])
        with pytest.raises(TurnLimit, match=r"its 1 turn; fork it or raise Limits\(turns=\)") as caught:
            session.send_sync("2", model=ScriptedModel(["never"]), limits=Limits(turns=1))
        assert (caught.value.limit, caught.value.result.status) == ("turns", "stopped")
        (fact,) = [fact for fact in session.journal() if fact.kind == "turn_refused"]
        (event,) = caught.value.result.events
        assert (event.journal_number, event.data["error"]) == (fact.number, fact.data["error"])
        assert [entry.message.text for entry in session.transcript()] == ["1", "a"]
        assert session.verify() == []

    def test_iterating_yields_the_event_before_it_raises(self, session: Session) -> None:
        session.append([user("1"), assistant("a")])

        seen = []

        async def main() -> None:
            async for event in session.send("2", model=ScriptedModel([]), limits=Limits(turns=1)):
                seen.append(event.type)

        with pytest.raises(TurnLimit):
            asyncio.run(main())
        assert seen == ["session:turn_completed"]

    def test_a_refusal_is_recorded_though_another_run_holds_the_session(self, session: Session) -> None:
        session.append([user("1"), assistant("a")])
        lease = Lease(session.log)
        lease.take(session.row)
        try:
            stopped(session.send_sync, "2", model=ScriptedModel([]), limits=Limits(turns=1))
        finally:
            lease.release()
        assert [fact.kind for fact in session.journal()][-1] == "turn_refused"

    def test_the_last_turns_before_the_cap_are_announced(self, session: Session) -> None:
        for n in range(43):
            session.append([user(str(n)), assistant("a")])

        def warnings() -> list[str]:
            events = session.send_sync("q", model=ScriptedModel(["a"])).events
            return [event.data["message"] for event in events if event.type == "session:warning"]

        assert warnings() == []
        assert warnings() == ["this is turn 45 of at most 50; fork it or raise Limits(turns=)"]

    def test_the_cap_of_a_session_may_be_above_the_default(self, session: Session) -> None:
        session.set(limits=Limits(turns=60))
        for n in range(50):
            session.append([user(str(n)), assistant("a")])
        assert session.send_sync("q", model=ScriptedModel(["a"])).text == "a"
        stopped(session.send_sync, "q", model=ScriptedModel(["a"]), limits=Limits(turns=51))

    def test_replays_are_not_capped_by_the_default(self, session: Session) -> None:
        for n in range(52):
            session.append([user(str(n)), assistant("a")])
        report = asyncio.run(session.replay(mode="strict"))
        assert (report.stop_reason, report.turns, report.is_identical) == (None, 52, True)


@pytest.mark.extra
class TestOwnLoop:
    """Limits that were set on a session hold in one's own loop too; the defaults of `send` do not."""

    def test_the_default_cap_does_not_hold(self, session: Session) -> None:
        for n in range(52):
            with session.turn(str(n)) as turn:
                turn.answer(assistant("a"))
        assert session.row.turns == 52

    def test_past_the_sessions_turns_the_input_is_refused_and_not_stored(self, session: Session) -> None:
        session.set(limits=Limits(turns=1))
        with session.turn("1") as turn:
            turn.answer(assistant("a"))
        with pytest.raises(TurnLimit, match="its 1 turn"), session.turn("2"):
            pass
        assert [entry.message.text for entry in session.transcript()] == ["1", "a"]
        assert [fact.kind for fact in session.journal()][-1] == "turn_refused"
        assert session.row.status == "idle"

    def test_past_the_sessions_rounds_the_turn_ends_in_public(self, session: Session) -> None:
        session.set(limits=Limits(rounds=1))
        with session.turn("1", model="anthropic:claude-opus-4-5") as turn:
            turn.answer(assistant(ToolCall("c", "look", {})))
            with pytest.raises(TurnLimit, match="called the model 1 time"):
                turn.run(turn.open_tool_calls[0], lambda: "found")
            assert turn.done
        assert [entry.role for entry in session.path()][-3:] == ["assistant", "tool", "assistant"]
        assert session.transcript()[-1].message.text.startswith("(stopped: ")
        assert (session.row.status, session.row.holder) == ("failed", None)
        assert session.verify() == []

    def test_past_the_sessions_money_no_turn_begins(self, session: Session) -> None:
        session.set(limits=Limits(max_cost_dollars=0.01))
        model = {"provider": "anthropic", "model": "claude-opus-4-5"}
        with session.turn("1") as turn:
            turn.answer(assistant("a"), usage=oakleaf.Usage(1_000_000, 0), **model)
        with pytest.raises(TurnLimit, match=r"of \$0.01 is spent"), session.turn("2"):
            pass

    def test_a_cap_of_no_money_at_all_allows_no_turn(self, session: Session) -> None:
        session.set(limits=Limits(max_cost_microcents=0))
        with pytest.raises(TurnLimit, match="is spent"), session.turn("1"):
            pass


class TestDollars:
    def test_dollars_are_microcents(self) -> None:
        assert Limits(max_cost_dollars=0.25).max_cost_microcents == DOLLAR // 4
        assert (
            narrow(Limits(max_cost_dollars=2), {"max_cost_microcents": DOLLAR}).max_cost_microcents == DOLLAR
        )

    @pytest.mark.parametrize("dollars", [-1, float("nan"), float("inf"), "5", True])
    def test_what_is_no_amount_is_refused(self, dollars: Any) -> None:
        with pytest.raises(InvalidArgument, match="max_cost_dollars"):
            Limits(max_cost_dollars=dollars)

    def test_two_amounts_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="max_cost_microcents says it already"):
            Limits(max_cost_dollars=1, max_cost_microcents=1)


def test_a_dict_in_place_of_limits_is_refused_with_the_form(session: Session) -> None:
    with pytest.raises(InvalidArgument, match=r"expected oakleaf\.Limits\(rounds=3\)"):
        session.send("q", model=ScriptedModel([]), limits={"rounds": 3})  # type: ignore[arg-type]


class TestResult:
    def test_the_text_of_a_failed_turn_is_an_error_and_no_empty_string(self, session: Session) -> None:
        result = session.send_sync("q", model=ScriptedModel([ModelError("m", "refused", "wait")]))
        assert (result.status, result.answer) == ("failed", None)
        with pytest.raises(TurnFailed, match="refused"):
            _ = result.text

    def test_raise_for_status_passes_an_answer_and_raises_what_has_none(self, session: Session) -> None:
        assert session.send_sync("q", model=ScriptedModel(["a"])).raise_for_status().text == "a"
        failed = session.send_sync("q", model=ScriptedModel([ModelError("m", "refused", "wait")]))
        with pytest.raises(TurnFailed, match="refused") as caught:
            failed.raise_for_status()
        assert caught.value.status == "failed"


class TestRounds:
    def test_rounds_are_counted_across_resumes(self, session: Session) -> None:
        limits = Limits(rounds=3, pause=lambda failures: 0.0)
        model = ScriptedModel(
            [ask(("look", 1)), ask(("look", 1)), ModelError("m", "down"), ask(("look", 1)), "never"]
        )
        session.send_sync("q", model=model, tools=Desk().tools(), limits=limits)
        events = stopped(session.resume_sync, model=model, tools=Desk().tools(), limits=limits).events
        assert events[-1].data["error"]["code"] == "turn_limit"
        assert len(model.requests) == 4

    def test_the_event_of_a_stopped_turn_has_its_journal_number(self, session: Session) -> None:
        model = ScriptedModel([ask(("look", 1))])
        events = stopped(
            session.send_sync, "q", model=model, tools=Desk().tools(), limits=Limits(rounds=1)
        ).events
        assert events[-1].journal_number == session.row.facts


class TestSettings:
    def test_limits_of_the_session_hold(self, session: Session) -> None:
        session.set(limits=Limits(turns=1))
        assert session.context().settings.limits == {"turns": 1}
        with pytest.raises(InvalidArgument, match="pass it to send"):
            session.set(limits=Limits(tries=2))
        session.set(limits={"turns": 1, "the host's own": "kept"})
        session.send_sync("1", model=ScriptedModel(["a"]))
        (event,) = stopped(session.send_sync, "2", model=ScriptedModel(["never"])).events
        assert event.data["error"]["code"] == "turn_limit"

    def test_limits_of_the_session_only_narrow(self, session: Session) -> None:
        session.set(limits={"turns": 9, "on_exceed": "warn"})
        session.send_sync("1", model=ScriptedModel(["a"]))
        (event,) = stopped(
            session.send_sync, "2", model=ScriptedModel(["never"]), limits=Limits(turns=1)
        ).events
        assert event.data["error"]["code"] == "turn_limit"

    def test_a_limit_that_is_no_number_is_refused_before_a_call(self, session: Session) -> None:
        session.set(limits={"turns": "many"})
        model = ScriptedModel(["never"])
        with pytest.raises(InvalidArgument, match="turns"):
            session.send_sync("1", model=model)
        assert model.requests == []


class TestTasks:
    def test_the_cap_of_the_parent_holds_for_the_child(self, session: Session) -> None:
        models: list[ScriptedModel] = []

        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            models.append(ScriptedModel(["never"], rates=DEAR_OUTPUT))
            return await ctx.task("do it", models=models[-1:], limits=Limits(rounds=5))

        model = ScriptedModel([ask(("delegate", 1)), "never"], rates=DEAR_OUTPUT)
        stopped(session.send_sync, "q", model=model, tools=[delegate], limits=Limits(max_cost_microcents=1))
        assert models[0].requests == []

    def test_a_refused_child_tells_its_parent_the_reason(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            return await ctx.task("do it", models=[ScriptedModel(["never"], rates=DEAR_OUTPUT)])

        model = ScriptedModel([ask(("delegate", 1)), "never"], rates=DEAR_OUTPUT)
        stopped(session.send_sync, "q", model=model, tools=[delegate], limits=Limits(max_cost_microcents=1))
        (result,) = session.path()[3].message.results
        assert "of $0.00000001 is spent" in result.content[0].text

    def test_the_cap_of_a_child_counts_its_own_calls_only(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            cheap = ScriptedModel(["done"], rates=DEAR_OUTPUT)
            return await ctx.task("do it", models=[cheap], limits=Limits(max_cost_microcents=1))

        session.send_sync(
            "q", model=ScriptedModel([ask(("delegate", 1)), "end"], rates=DEAR_OUTPUT), tools=[delegate]
        )
        assert session.path()[3].message.results[0].content[0].text == "done"
