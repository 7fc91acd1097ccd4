"""The loop: durable before dangerous, one effect, one answer, and a valid history whatever happens."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import bough
from bough import (
    Broken,
    Happened,
    Limits,
    NeverHappened,
    ScriptedModel,
    Session,
    Slow,
    ToolCall,
    ToolContext,
    Usage,
    assistant,
    system,
    user,
)
from bough.core.drafts import Draft, FurtherFact
from bough.errors import Fenced, ModelError, Overflow, Overloaded, Running
from bough.wire import PROVIDERS, Answer, wire
from conftest import Sessions

NOW = Limits(pause=lambda failures: 0.0)


class Desk:
    """Tools with a memory of what they did."""

    def __init__(self) -> None:
        self.did: list[tuple[str, Any]] = []
        self.keys: list[str] = []

    def tools(self, **how: Any) -> list[bough.Tool]:
        @bough.tool(effect="read")
        def look(order: int, ctx: ToolContext) -> dict[str, int]:
            """Look an order up."""
            self.did.append(("look", order))
            self.keys.append(ctx.key)
            ctx.update(seen=order)
            return {"order": order}

        @bough.tool(effect="unsafe", **how)
        def refund(order: int) -> str:
            """Give the money back."""
            self.did.append(("refund", order))
            return "refunded"

        @bough.tool(effect="idempotent")
        async def tag(order: int, ctx: ToolContext) -> str:
            """Tag an order."""
            self.did.append(("tag", order))
            self.keys.append(ctx.key)
            return "tagged"

        return [look, refund, tag]


def ask(*calls: tuple[str, int]) -> Any:
    return assistant(
        "Let me see.", *(ToolCall(f"c{n}", name, {"order": order}) for n, (name, order) in enumerate(calls))
    )


@pytest.fixture
def session(store: Sessions) -> Session:
    return store.start("support", [system("You help.")])


@pytest.fixture
def desk() -> Desk:
    return Desk()


def is_valid(session: Session) -> bool:
    assert session.verify() == []
    requests = {name: session.request(name) for name in PROVIDERS}
    return all(wire(name).violations(request) == [] for name, request in requests.items())


class TestSend:
    def test_a_turn_with_tools_runs_to_its_answer(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 41), ("tag", 41)), "It is lost."])
        events = session.send_sync("Where is order 41?", model=model, tools=desk.tools())
        assert [entry.role for entry in session.path()] == [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
        ]
        assert sorted(desk.did) == [("look", 41), ("tag", 41)]
        assert session.state == {"seen": 41}
        assert session.row.status == "idle"
        kinds = [event.type for event in events if event.type != "session:delta"]
        assert kinds == [
            "session:turn_started",
            "session:answer",
            "session:tool_result",
            "session:tool_result",
            "session:answer",
            "session:turn_completed",
        ]
        assert is_valid(session)

    def test_durable_events_are_numbered_and_deltas_are_not(self, session: Session) -> None:
        events = session.send_sync("hi", model=ScriptedModel(["one two three"]))
        numbers = [event.n for event in events if event.n is not None]
        assert numbers == sorted(numbers)
        deltas = [event for event in events if event.type == "session:delta"]
        assert "".join(event.data["text"] for event in deltas).strip() == "one two three"
        assert all(event.n is None for event in deltas)

    def test_the_model_sees_the_prompt_the_tools_and_the_history(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 41)), "done"])
        session.send_sync("q", model=model, tools=desk.tools())
        assert [spec.name for spec in model.requests[0].tools] == ["look", "refund", "tag"]
        assert model.requests[0].context.system == ("You help.",)
        assert len(model.requests[1].context.items) == 3

    def test_every_call_is_one_row_of_the_ledger(self, session: Session, desk: Desk) -> None:
        session.send_sync("q", model=ScriptedModel([ask(("look", 1)), "done"]), tools=desk.tools())
        calls = session.calls()
        assert [(call.answer_seq, call.failed) for call in calls] == [(3, False), (5, False)]
        assert session.usage().unknown_calls == 0

    def test_a_plain_function_is_an_unsafe_tool(self, session: Session) -> None:
        def add(a: int, b: int) -> int:
            return a + b

        call = assistant(ToolCall("c", "add", {"a": 2, "b": 3}))
        session.send_sync("q", model=ScriptedModel([call, "five"]), tools=[add])
        assert session.path()[3].message.results[0].content[0].text == "5"

    def test_async_send_streams(self, session: Session) -> None:
        async def main() -> list[str]:
            return [event.type async for event in session.send("hi", model=ScriptedModel(["yes"]))]

        assert asyncio.run(main())[-1] == "session:turn_completed"


class TestTools:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"order": "x"}, "Expected `int`"),
            ({}, "missing required"),
            ({"order": 1, "extra": 2}, "unknown field"),
        ],
    )
    def test_arguments_that_do_not_fit_come_back_as_an_error_the_model_can_mend(
        self, session: Session, desk: Desk, arguments: dict[str, Any], said: str
    ) -> None:
        call = assistant(ToolCall("c", "look", arguments))
        session.send_sync("q", model=ScriptedModel([call, "sorry"]), tools=desk.tools())
        result = session.path()[3].message.results[0]
        assert result.error
        assert said in result.content[0].text
        assert desk.did == []

    def test_a_tool_that_raises_or_returns_nonsense_never_breaks_the_session(self, session: Session) -> None:
        @bough.tool
        def boom() -> str:
            raise RuntimeError("no\0t today \ud800")

        @bough.tool
        def odd() -> object:
            return object()

        calls = assistant(ToolCall("a", "boom"), ToolCall("b", "odd"), ToolCall("c", "nobody"))
        session.send_sync("q", model=ScriptedModel([calls, "sorry"]), tools=[boom, odd])
        results = [entry.message.results[0] for entry in session.path() if entry.role == "tool"]
        assert [result.error for result in results] == [True, True, True]
        assert is_valid(session)

    def test_a_tool_that_takes_too_long_is_stopped(self, session: Session) -> None:
        @bough.tool(timeout=0.05)
        async def slow() -> str:
            await asyncio.sleep(30)
            return "never"

        session.send_sync("q", model=ScriptedModel([assistant(ToolCall("a", "slow")), "sorry"]), tools=[slow])
        assert "took longer" in session.path()[3].message.results[0].content[0].text

    def test_a_tool_may_end_the_turn(self, session: Session) -> None:
        @bough.tool(effect="read")
        def hang_up(ctx: ToolContext) -> str:
            ctx.ends_turn = True
            return "bye"

        model = ScriptedModel([assistant(ToolCall("a", "hang_up"))])
        events = session.send_sync("q", model=model, tools=[hang_up])
        assert events[-1].data == {"stop_reason": "ended by a tool"}
        assert session.row.status == "idle"


class TestNarrowing:
    def test_settings_narrow_the_tools_and_never_widen_them(self, session: Session, desk: Desk) -> None:
        session.set(tools=("look", "not given"))
        model = ScriptedModel([ask(("refund", 1), ("look", 2)), "ok"])
        session.send_sync("q", model=model, tools=desk.tools())
        assert [spec.name for spec in model.requests[0].tools] == ["look"]
        assert desk.did == [("look", 2)]
        assert is_valid(session)


class TestModels:
    def test_an_overloaded_model_is_asked_again_and_every_try_is_counted(self, session: Session) -> None:
        model = ScriptedModel([Overloaded("m", "529"), Overloaded("m", "529"), "here"])
        session.send_sync("q", model=model, limits=NOW)
        assert [call.failed for call in session.calls()] == [True, True, False]
        assert session.path()[-1].message.text == "here"

    def test_the_next_in_the_chain_answers_and_the_entry_says_who(self, session: Session) -> None:
        busy = ScriptedModel([Overloaded("m", "529")] * 4, model="first")
        session.send_sync("q", model=[busy, ScriptedModel(["from the second"], model="second")], limits=NOW)
        assert session.path()[-1].model == "second"

    @pytest.mark.parametrize(
        "line",
        [
            Broken("half a sen"),
            ModelError("m", "refused"),
            Answer(assistant("x"), None, None, None, None, None),
        ],
    )
    def test_a_model_that_fails_leaves_a_turn_that_goes_on(self, session: Session, line: Any) -> None:
        events = session.send_sync("q", model=ScriptedModel([line]), limits=NOW)
        assert events[-1].data["stop_reason"] == "error"
        assert session.row.status == "failed"
        assert is_valid(session)
        session.resume_sync(model=ScriptedModel(["better now"]))
        assert session.path()[-1].message.text == "better now"
        assert session.usage().calls == 2

    def test_an_overflow_compacts_once_and_tries_again(self, session: Session) -> None:
        session.append([user("old " * 200), assistant("answer " * 200)])
        model = ScriptedModel([Overflow("m", "too long"), "short enough"])
        events = session.send_sync("new", model=model, limits=NOW)
        assert "session:compacted" in [event.type for event in events]
        assert model.requests[1].context.items[0].pinned
        assert session.path()[-1].message.text == "short enough"
        session.uncompact()
        assert len(session.context().items) == 4

    def test_a_history_past_the_threshold_is_compacted_before_the_call(self, session: Session) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        model = ScriptedModel(["fine"])
        session.send_sync("new", model=model, limits=Limits(context_tokens=300))
        assert model.requests[0].context.items[0].pinned
        assert [entry.kind for entry in session.path()][-2:] == ["compaction", "message"]

    @pytest.mark.parametrize(
        ("says", "told", "folds"),
        [
            ("They spoke of old things.", "They spoke of old things.", True),
            ("", "user: old", False),
            (ModelError("m", "no"), "user: old", False),
        ],
        ids=["a summary", "an empty one", "a failure"],
    )
    def test_a_model_writes_the_summary_and_its_cost_is_charged(
        self, session: Session, says: Any, told: str, folds: bool
    ) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        limits = Limits(context_tokens=300, summariser=ScriptedModel([says]), pause=lambda failures: 0.0)
        model = ScriptedModel(["fine"])
        session.send_sync("new", model=model, limits=limits)
        assert told in model.requests[0].context.items[0].message.text
        compaction = next(entry.payload for entry in session.path() if entry.kind == "compaction")
        assert compaction.folds is folds
        assert [call.purpose for call in session.calls()].count("compaction") == 1
        assert is_valid(session)

    def test_one_input_that_is_too_long_is_never_dropped_silently(self, session: Session) -> None:
        events = session.send_sync(
            "long " * 900, model=ScriptedModel([Overflow("m", "too long")]), limits=NOW
        )
        assert events[-1].data["error"]["code"] == "Overflow"
        assert session.context().items[0].message.text == "long " * 900

    def test_a_turn_larger_than_the_window_still_compacts_and_keeps_its_input(
        self, session: Session, desk: Desk
    ) -> None:
        model = ScriptedModel([ask(("look", 1)), ask(("look", 2)), Overflow("m", "too long"), "done"])
        session.send_sync("the whole question", model=model, tools=desk.tools(), limits=NOW)
        assert "the whole question" in model.requests[-1].context.items[0].message.text
        assert session.path()[-1].message.text == "done"
        assert is_valid(session)

    def test_two_overflows_stop_with_an_error(self, session: Session) -> None:
        session.append([user("old " * 200), assistant("answer " * 200)])
        model = ScriptedModel([Overflow("m", "too long"), Overflow("m", "still too long")])
        events = session.send_sync("new", model=model, limits=NOW)
        assert events[-1].data["error"]["code"] == "Overflow"


class TestLimits:
    def test_past_the_turn_cap_nothing_leaves_and_nothing_is_stored(self, session: Session) -> None:
        session.append([user("1"), assistant("a")])
        model = ScriptedModel(["never"])
        (event,) = session.send_sync("2", model=model, limits=Limits(turns=1))
        assert event.type == "session:turn_completed"
        assert event.data["stop_reason"] == "error"
        assert event.data["error"]["code"] == "turn_limit"
        assert (model.requests, len(session.path())) == ([], 3)

    def test_a_turn_that_goes_round_in_circles_is_stopped_in_public(
        self, session: Session, desk: Desk
    ) -> None:
        model = ScriptedModel(lambda request: ask(("look", 1)))
        events = session.send_sync("q", model=model, tools=desk.tools(), limits=Limits(rounds=3))
        assert len(model.requests) == 3
        assert events[-1].data["error"]["code"] == "turn_limit"
        assert session.transcript()[-1].message.text.startswith("(stopped:")
        assert is_valid(session)

    def test_the_cost_cap_is_checked_before_anything_leaves(self, session: Session) -> None:
        with session.turn("q") as turn:
            turn.answer(
                assistant("a"), usage=Usage(1_000_000, 0), provider="anthropic", model="claude-opus-4-5"
            )
        model = ScriptedModel(["never"])
        (event,) = session.send_sync("more", model=model, limits=Limits(max_cost_microcents=100))
        assert event.data["error"]["code"] == "cost_limit"
        assert model.requests == []

    def test_a_cap_that_only_warns_says_so_and_goes_on(self, session: Session) -> None:
        with session.turn("q") as turn:
            turn.answer(
                assistant("a"), usage=Usage(1_000_000, 0), provider="anthropic", model="claude-opus-4-5"
            )
        limits = Limits(max_cost_microcents=100, on_exceed="warn")
        events = session.send_sync("more", model=ScriptedModel(["still here"]), limits=limits)
        assert [event.type for event in events].count("session:limit_passed") == 1
        assert session.path()[-1].message.text == "still here"


class TestCrash:
    """What a process before left behind: an answer and the start of its tools, and nothing more."""

    @pytest.fixture
    def died(self, session: Session) -> Session:
        answer = ask(("look", 1), ("refund", 2), ("tag", 3))
        started = FurtherFact("calls_started", {"seq": 3, "indexes": [0, 1, 2]})
        session.append([user("q")])
        session.log.append([Draft(answer)], facts=[started])
        return session

    def test_an_unsafe_tool_never_runs_twice(self, died: Session, desk: Desk) -> None:
        died.resume_sync(model=ScriptedModel(["I do not know."]), tools=desk.tools())
        assert sorted(desk.did) == [("look", 1), ("tag", 3)]
        refund = next(r for e in died.path() if e.message for r in e.message.results if r.call_id == "c1")
        assert (refund.outcome, refund.error) == ("unknown", True)
        assert is_valid(died)

    def test_its_verify_function_settles_what_happened(self, died: Session, desk: Desk) -> None:
        tools = desk.tools(verify=lambda order: Happened("refunded before"))
        died.resume_sync(model=ScriptedModel(["Done."]), tools=tools)
        assert ("refund", 2) not in desk.did
        refund = next(r for e in died.path() if e.message for r in e.message.results if r.call_id == "c1")
        assert (refund.outcome, refund.content[0].text) == ("done", "refunded before")

    def test_what_never_happened_is_run(self, died: Session, desk: Desk) -> None:
        tools = desk.tools(verify=lambda order: NeverHappened())
        died.resume_sync(model=ScriptedModel(["Done."]), tools=tools)
        assert ("refund", 2) in desk.did

    def test_finished_siblings_are_not_run_again_and_keys_are_the_same(
        self, store: Sessions, session: Session, desk: Desk
    ) -> None:
        session.append([user("q")])
        started = FurtherFact("calls_started", {"seq": 3, "indexes": [0, 1]})
        session.log.append([Draft(ask(("look", 1), ("tag", 2)))], facts=[started])
        keys = [session.call_key(call) for call in session.open_calls]
        session.append([bough.tool_result("c0", "already")])
        store.session(session.session_id).resume_sync(model=ScriptedModel(["ok"]), tools=desk.tools())
        assert desk.did == [("tag", 2)]
        assert desk.keys == keys[1:]

    def test_a_call_cut_off_is_counted_with_unknown_tokens(self, store: Sessions, session: Session) -> None:
        async def killed() -> None:
            run = session.send("q", model=ScriptedModel([Slow(30)]))
            async for event in run:
                if event.type == "session:turn_started":
                    return

        asyncio.run(killed())
        assert session.usage().unknown_calls == 1


class TestApproval:
    def test_the_wait_is_durable_and_the_call_runs_once(
        self, store: Sessions, session: Session, desk: Desk
    ) -> None:
        tools = desk.tools(approval=True)
        events = session.send_sync("q", model=ScriptedModel([ask(("refund", 7), ("look", 7))]), tools=tools)
        assert [e.data["name"] for e in events if e.type == "session:approval_requested"] == ["refund"]
        assert desk.did == [("look", 7)]
        again = store.session(session.session_id)
        (call,) = again.open_calls
        again.resume_sync(model=ScriptedModel([]), tools=tools)
        assert desk.did == [("look", 7)], "still waiting, and asked once"
        again.approve(call)
        again.resume_sync(model=ScriptedModel(["done"]), tools=tools)
        assert desk.did == [("look", 7), ("refund", 7)]
        assert [fact.kind for fact in again.journal()].count("approval_asked") == 1
        assert is_valid(again)

    def test_a_denial_is_told_to_the_model_and_nothing_runs(self, session: Session, desk: Desk) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=tools)
        session.approve(session.open_calls[0], allow=False)
        session.resume_sync(model=ScriptedModel(["as you wish"]), tools=tools)
        assert desk.did == []
        assert session.path()[3].message.results[0].outcome == "denied"

    def test_approved_and_killed_before_it_ran_is_unknown_not_twice(
        self, session: Session, desk: Desk
    ) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=tools)
        session.approve(session.open_calls[0])
        session.log.record("calls_started", data={"seq": 3, "indexes": [0]})  # and then the lights went out
        session.resume_sync(model=ScriptedModel(["hm"]), tools=tools)
        assert desk.did == []
        assert session.path()[3].message.results[0].outcome == "unknown"


class TestCancel:
    @pytest.mark.parametrize("when", ["model", "tool"])
    def test_the_session_stays_valid_and_takes_the_next_input(self, session: Session, when: str) -> None:
        @bough.tool(effect="read")
        async def wait() -> str:
            await asyncio.sleep(30)
            return "never"

        @bough.tool(effect="read")
        def quick() -> str:
            return "quick"

        calls = assistant(ToolCall("a", "quick"), ToolCall("b", "wait"))
        model = ScriptedModel([Slow(30)] if when == "model" else [calls])

        async def main() -> list[str]:
            run = session.send("q", model=model, tools=[wait, quick])
            seen = []
            async for event in run:
                seen.append(event.type)
                if event.type == ("session:turn_started" if when == "model" else "session:tool_result"):
                    run.cancel()
            return seen

        assert asyncio.run(main())[-1] == "session:turn_completed"
        assert session.row.status == "cancelled"
        assert session.transcript()[-1].message.text == "(cancelled)"
        assert is_valid(session)
        session.send_sync("again", model=ScriptedModel(["fine"]))
        assert session.path()[-1].message.text == "fine"

    def test_from_another_thread(self, session: Session) -> None:
        session.cancel()  # nothing runs, nothing happens
        timer = threading.Timer(0.1, session.cancel)
        timer.start()
        events = session.send_sync("q", model=ScriptedModel([Slow(30)]))
        timer.join()
        assert events[-1].data == {"stop_reason": "cancelled"}
        assert session.row.status == "cancelled"
        assert is_valid(session)

    def test_a_tool_in_a_thread_can_see_that_it_is_cancelled(self, session: Session) -> None:
        seen: list[bool] = []

        @bough.tool(effect="read")
        def patient(ctx: ToolContext) -> str:
            until = time.monotonic() + 20
            while not ctx.is_cancelled and time.monotonic() < until:
                time.sleep(0.01)
            seen.append(ctx.is_cancelled)
            return "stopped"

        async def main() -> None:
            run = session.send(
                "q", model=ScriptedModel([assistant(ToolCall("a", "patient"))]), tools=[patient]
            )
            async for event in run:
                if event.type == "session:answer":
                    asyncio.get_running_loop().call_later(0.05, run.cancel)

        asyncio.run(main())
        assert seen == [True]
        assert is_valid(session)

    def test_during_a_compaction_the_old_context_stays(self, session: Session) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        limits = Limits(context_tokens=300, summariser=ScriptedModel([Slow(30, "sum")]))

        async def main() -> None:
            run = session.send("new", model=ScriptedModel(["never"]), limits=limits)
            async for event in run:
                if event.type == "session:turn_started":
                    asyncio.get_running_loop().call_later(0.05, run.cancel)

        asyncio.run(main())
        assert "compaction" not in [entry.kind for entry in session.path()]
        assert session.row.status == "cancelled"
        assert is_valid(session)

    def test_during_an_approval_wait_there_is_nothing_to_abort_and_a_new_input_is_taken(
        self, session: Session, desk: Desk
    ) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=tools)
        session.send_sync("never mind", model=ScriptedModel(["all right"]), tools=tools)
        assert desk.did == []
        assert session.path()[3].message.results[0].outcome == "interrupted"
        assert is_valid(session)


class TestLease:
    def test_one_runner_drives_and_a_second_is_told_who(self, store: Sessions, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel([Slow(30)]))
            async for event in run:
                if event.type == "session:turn_started":
                    with pytest.raises(Running, match="here:1#"):
                        async for _ in store.session(session.session_id).resume(
                            model=ScriptedModel(["mine"])
                        ):
                            pass
                    run.cancel()

        asyncio.run(main())
        assert session.row.holder is None
        session.send_sync("again", model=ScriptedModel(["fine"]))

    def test_a_late_runner_is_fenced_and_writes_nothing(self, store: Sessions, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel([Slow(0.2, "late")]))
            async for event in run:
                if event.type == "session:turn_started":
                    row = session.row
                    store.store.lease(session.session_id, "another", 10**18, (row.lease_until or 0) + 1)

        with pytest.raises(Fenced):
            asyncio.run(main())
        assert [entry.role for entry in session.path()] == ["system", "user"]
        assert session.row.holder == "another"

    def test_a_dead_runner_has_lost_its_lease_at_once(self, store: Sessions, session: Session) -> None:
        session.append([user("q")])
        now = store.world.now()
        store.store.lease(session.session_id, "gone:9#1", now + 10**12, now)
        session.resume_sync(model=ScriptedModel(["going on"]))
        assert session.path()[-1].message.text == "going on"

    def test_resuming_a_session_at_rest_says_so(self, session: Session) -> None:
        model = ScriptedModel([])
        assert session.resume_sync(model=model)[-1].data == {"stop_reason": "nothing to resume"}
        assert model.requests == []

    def test_a_new_input_settles_the_calls_of_a_broken_turn_first(self, session: Session, desk: Desk) -> None:
        started = FurtherFact("calls_started", {"seq": 3, "indexes": [0]})
        session.append([user("q")])
        session.log.append([Draft(ask(("refund", 1)))], facts=[started])
        session.send_sync("never mind", model=ScriptedModel(["all right"]), tools=desk.tools())
        assert session.path()[3].message.results[0].outcome == "unknown"
        assert desk.did == []
        assert is_valid(session)


class TestStreaming:
    LONG = "word " * 200

    def test_streamed_text_comes_back_as_an_interrupted_answer_that_ends_its_turn(
        self, store: Sessions, session: Session
    ) -> None:
        session.send_sync("q", model=ScriptedModel([Broken(self.LONG)]), limits=NOW)
        assert store.store.draft(session.session_id) is not None
        again = store.session(session.session_id)
        again.resume_sync(model=ScriptedModel([]))
        last = again.path()[-1]
        assert (last.finish, last.internal) == ("interrupted", False)
        assert last.message.text == self.LONG
        assert again.row.status == "idle"
        assert is_valid(again)

    def test_a_rewind_leaves_the_draft_behind(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([Broken(self.LONG)]), limits=NOW)
        session.rollback()
        assert session.log.store.draft(session.session_id) is None
        session.send_sync("q", model=ScriptedModel(["short"]))
        assert session.path()[-1].message.text == "short"

    def test_rollback_leaves_an_unanswered_turn_behind(self, session: Session) -> None:
        session.append([user("q")])
        model = ScriptedModel([])
        session.resume_sync(model=model, rollback=True)
        assert (len(session.path()), model.requests) == (1, [])
        assert session.rollback() is None
        session.redo()
        assert len(session.path()) == 2


class TestTask:
    def test_the_parent_keeps_the_answer_and_the_child_the_way_to_it(
        self, store: Sessions, session: Session
    ) -> None:
        @bough.tool(effect="idempotent")
        async def delegate(what: str, ctx: ToolContext) -> str:
            """Has a child do it."""
            child = ScriptedModel([ask(("look", 9)), f"{what} is done"])
            return await ctx.task(
                what, agent="helper", seeds=[system("You help.")], models=[child], tools=Desk().tools()
            )

        model = ScriptedModel([assistant(ToolCall("c", "delegate", {"what": "digging"})), "It is dug."])
        session.send_sync("dig", model=model, tools=[delegate])
        assert session.path()[3].message.results[0].content[0].text == "digging is done"
        (child,) = session.children()
        assert (child.row.agent, child.row.parent_seq, len(child.path())) == ("helper", 3, 5)
        assert session.usage("tree").calls == 4
        assert is_valid(child)
        kinds = [fact.kind for fact in session.journal()]
        assert kinds.index("task_started") < kinds.index("turn_ended")

    def test_two_tasks_of_one_tool_are_two_children_and_found_again_after_a_crash(
        self, store: Sessions, session: Session
    ) -> None:
        asked: list[str] = []

        def answer(request: Any) -> str:
            asked.append(request.context.items[-1].message.text)
            return f"{asked[-1]} done"

        @bough.tool(effect="idempotent")
        async def delegate(ctx: ToolContext) -> list[str]:
            return [await ctx.task(what, models=[ScriptedModel(answer)]) for what in ("A", "B")]

        for _ in range(2):  # the second time as if the process had died before the result was kept
            session.append([user("q"), assistant(ToolCall("c", "delegate"))])
            session.resume_sync(model=ScriptedModel(["ok"]), tools=[delegate])
            result = session.path()[-2].message.results[0].content[0].text
            assert result == '["A done","B done"]'
            session.rewind(to=1)
        assert asked == ["A", "B", "A", "B"]
        assert len(session.children()) == 4

    def test_tasks_may_not_be_nested_without_end(self, session: Session) -> None:
        def digger() -> bough.Tool:
            @bough.tool(effect="idempotent")
            async def dig(ctx: ToolContext) -> str:
                model = ScriptedModel([assistant(ToolCall("c", "dig")), "up again"])
                return await ctx.task("deeper", models=[model], tools=[digger()])

            return dig

        session.send_sync("q", model=ScriptedModel([assistant(ToolCall("c", "dig")), "ok"]), tools=[digger()])
        depth, at = 0, session
        while at.children():
            depth, at = depth + 1, at.children()[0]
        assert depth == 4
        assert "nested 4 deep" in str([e.message for e in at.path()])


class TestQueue:
    def test_input_for_a_busy_session_is_taken_when_the_turn_is_over(
        self, store: Sessions, session: Session
    ) -> None:
        model = ScriptedModel([Slow(0.05, "first"), "second", "third"])

        async def main() -> list[str]:
            seen = []
            async for event in session.send("one", model=model):
                if event.type == "session:turn_started" and not seen:
                    other = store.session(session.session_id)
                    other.enqueue("two")
                    other.enqueue("three")
                seen.append(event.type)
            return seen

        assert asyncio.run(main()).count("session:turn_completed") == 3
        told = [entry.message.text for entry in session.transcript()]
        assert told == ["one", "first", "two", "second", "three", "third"]
        assert store.store.inbox(session.session_id) == []
        assert is_valid(session)

    def test_what_is_queued_survives_and_is_taken_by_the_next_run(
        self, store: Sessions, session: Session
    ) -> None:
        session.enqueue("later")
        again = store.session(session.session_id)
        again.send_sync("now", model=ScriptedModel(["a", "b"]))
        assert [entry.message.text for entry in again.transcript()] == ["now", "a", "later", "b"]
