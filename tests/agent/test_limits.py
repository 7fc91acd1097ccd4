"""Limits: what is refused before anything leaves the machine, and how it is said."""

from __future__ import annotations

from typing import Any

import pytest

import bough
from bough import Limits, ScriptedModel, Session, ToolCall, ToolContext, assistant, user
from bough.agent.limits import narrow
from bough.errors import ModelError
from bough.models.prices import Rates
from conftest import Store

DOLLAR = 100_000_000
DEAR = Rates(1_000, 1_000)
LONG = "word " * 1_000


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("capped")


def error_of(result: bough.RunResult) -> dict[str, Any]:
    last = result.events[-1]
    assert (last.type, last.data["stop_reason"]) == ("session:turn_completed", "error")
    error: dict[str, Any] = last.data["error"]
    return error


class TestCost:
    def test_a_first_call_that_would_cost_more_than_the_cap_is_not_made(self, session: Session) -> None:
        model = ScriptedModel(["never"], rates=DEAR)
        limits = Limits(max_cost_microcents=DOLLAR // 2)  # the input alone costs 0.6 dollars or more
        result = session.send_sync(LONG, model=model, limits=limits)
        assert (model.requests, session.path(), len(result.events)) == ([], [], 1)
        error = error_of(result)
        assert (error["code"], error["limit"], result.status) == ("turn_limit", "cost", "stopped")
        assert error["message"].startswith("$0.00 of $0.50 is spent, and the next call costs at least $0.62")
        assert session.send_sync(LONG, model=model, limits=Limits(max_cost_microcents=DOLLAR)).text == "never"

    def test_a_later_call_of_the_turn_is_checked_with_what_its_tools_returned(self, session: Session) -> None:
        @bough.tool(effect="read")
        def read() -> str:
            return LONG

        model = ScriptedModel([assistant(ToolCall("c", "read")), "never"], rates=DEAR)
        # Behind the first call the input may come from a cache, which these rates make no cheaper.
        limits = Limits(max_cost_microcents=DOLLAR // 2)
        error = error_of(session.send_sync("q", model=model, tools=[read], limits=limits))
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
        error = error_of(session.send_sync("q", model=model, limits=limits))
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

        @bough.tool(effect="read")
        async def ask(ctx: ToolContext) -> str:
            return await ctx.task("do it", models=[second])

        first = ScriptedModel([assistant(ToolCall("c", "ask")), ModelError("m", "down")], rates=Rates(0, 0))
        limits = Limits(max_cost_microcents=DOLLAR, pause=lambda failures: 0.0)
        error = error_of(session.send_sync("q", model=[first, second], tools=[ask], limits=limits))
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


class TestQueuedInput:
    def test_one_past_the_cap_leaves_the_inbox_with_a_fact_and_an_event(self, session: Session) -> None:
        for text in ("one", "two", "three"):
            session.enqueue(text)
        result = session.resume_sync(model=ScriptedModel(["Yes."]), limits=Limits(turns=1))
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
        error = error_of(session.send_sync("q", model=model, limits=Limits(turns=0)))
        assert (error["code"], error["limit"], model.requests) == ("turn_limit", "turns", [])
        assert "its 50 turns" in error["message"]
