"""The loop: durable before dangerous, one effect, one answer, and a valid history whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Attachment,
    Broken,
    Happened,
    Limits,
    NeverHappened,
    Note,
    ScriptedModel,
    Session,
    Slow,
    ToolCall,
    ToolContext,
    Usage,
    Workspace,
    assistant,
    draw_tree,
    system,
    tool_result,
    user,
)
from oakleaf.agent.compaction_plan import Sizes
from oakleaf.agent.loop import build_loop
from oakleaf.agent.policy import local_run
from oakleaf.agent.writer import Writer
from oakleaf.core.context import Item
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import ToolCallsStarted
from oakleaf.core.fit import measure
from oakleaf.core.log_events import log_events
from oakleaf.errors import (
    ApprovalPending,
    ContextOverflow,
    Fenced,
    InputsQueued,
    InvalidArgument,
    InvalidMessage,
    InvalidOperation,
    InvalidPosition,
    KeyReused,
    ModelError,
    OakleafError,
    Overloaded,
    SessionRunning,
)
from oakleaf.ext import read
from oakleaf.log.doctor import session_health
from oakleaf.models.base import Delta
from oakleaf.models.prices import Rates
from oakleaf.store import Store
from oakleaf.testing.stores.writer import read_everything
from oakleaf.turn.runner import Runner
from oakleaf.wire import PROVIDERS, Answer, find_provider
from support.interleaving import interleaved
from support.order_desk import Desk, ask, is_valid
from support.sessions import exported
from support.stopped_runs import run_and_cancel, stopped

NOW = Limits(pause=lambda failures: 0.0)


@pytest.fixture
def desk() -> Desk:
    return Desk()


class TestSend:
    def test_a_turn_with_tools_runs_to_its_answer(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 41), ("tag", 41)), "It is lost."])
        events = session.send_sync("Where is order 41?", model=model, tools=desk.tools()).events
        assert [entry.role for entry in session.path()] == [
            "system",
            None,
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
            "session:started",
            "session:input",
            "session:turn_started",
            "session:answer",
            "session:calls_started",
            "session:tool_result",
            "session:tool_result",
            "session:answer",
            "session:turn_completed",
        ]
        assert is_valid(session)

    def test_durable_events_are_numbered_and_deltas_are_not(self, session: Session) -> None:
        events = session.send_sync("hi", model=ScriptedModel(["one two three"])).events
        numbers = [event.journal_number for event in events if event.journal_number is not None]
        assert numbers == sorted(numbers)
        deltas = [event for event in events if event.type == "session:delta"]
        assert "".join(event.data["text"] for event in deltas).strip() == "one two three"
        assert all(event.journal_number is None for event in deltas)

    def test_the_model_sees_the_prompt_the_tools_and_the_history(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 41)), "done"])
        session.send_sync("q", model=model, tools=desk.tools())
        assert [spec.name for spec in model.requests[0].tools] == ["look", "refund", "tag"]
        assert model.requests[0].context.system == ("You help.",)
        assert len(model.requests[1].context.items) == 3

    def test_every_call_is_one_row_of_the_ledger(self, session: Session, desk: Desk) -> None:
        session.send_sync("q", model=ScriptedModel([ask(("look", 1)), "done"]), tools=desk.tools())
        calls = session.model_calls()
        assert [(call.answer_seq, call.failed) for call in calls] == [(4, False), (6, False)]
        assert session.usage().unknown_calls == 0

    def test_an_answer_with_impossible_token_counts_is_stored_and_its_usage_is_unknown(
        self, session: Session
    ) -> None:
        answer = Answer(assistant("done"), Usage(-1, 5), None, "scripted", "m", "stop")
        cached = replace(answer, usage=Usage(10, 5, 2_000))  # cache reads beside the input, not in it
        model = ScriptedModel([answer, cached], rates=oakleaf.Rates(input=1, output=1))
        for text in ("q", "again"):
            session.send_sync(text, model=model)
        assert [(call.usage, call.price) for call in session.model_calls()] == [
            (Usage(None, 5), None),
            (Usage(10, 5, 2_000), None),
        ]
        assert [entry.message.text for entry in session.transcript()] == ["q", "done", "again", "done"]
        assert session.verify() == []

    def test_a_plain_function_is_an_unsafe_tool(self, session: Session) -> None:
        def add(a: int, b: int) -> int:
            return a + b

        call = assistant(ToolCall("c", "add", {"a": 2, "b": 3}))
        session.send_sync("q", model=ScriptedModel([call, "five"]), tools=[add])
        assert session.path()[4].message.results[0].content[0].text == "5"

    def test_async_send_streams(self, session: Session) -> None:
        async def main() -> list[str]:
            return [event.type async for event in session.send("hi", model=ScriptedModel(["yes"]))]

        assert asyncio.run(main())[-1] == "session:turn_completed"

    @pytest.mark.parametrize(
        "message", [system("x"), assistant("y"), 5], ids=["system", "assistant", "no message"]
    )
    def test_only_a_user_message_opens_a_turn(self, session: Session, message: Any) -> None:
        model = ScriptedModel(["never"])
        with pytest.raises(InvalidMessage, match="opens with a user message"):
            session.send_sync(message, model=model)
        with pytest.raises(InvalidMessage, match="opens with a user message"):
            session.enqueue(message)
        assert (session.row.status, len(session.path()), model.requests) == ("idle", 1, [])
        assert session.log.store.inbox(session.session_id) == []
        assert session.verify() == []


class TestStart:
    def test_the_first_input_tells_that_the_session_started_and_where_it_works(self, store: Store) -> None:
        workspace = Workspace(working_dir="/w", git_ref="main", variables={"team": "blue"})
        session = store.start("support", title="Lost", workspace=workspace)
        model = ScriptedModel(["one", "two"])
        started = session.send_sync("q", model=model).events[0]
        expected = {"working_dir": "/w", "git_ref": "main", "variables": {"team": "blue"}}
        expected |= {"fs_scope_tier": "sandboxed"}  # the default too: it decides what the tools may do
        assert (started.type, started.journal_number) == ("session:started", 1)
        assert started.data == {
            "session_id": session.session_id,
            "conversation_id": session.row.conversation_id,
            "agent": "support",
            "title": "Lost",
            "workspace": expected,
        }
        assert session.journal(limit=1)[0].kind == "started"
        assert "session:started" not in [event.type for event in session.send_sync("q", model=model).events]

    def test_the_input_is_durable_before_anything_is_told(self, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel(["a"]))
            async for event in run:
                if event.type == "session:started":
                    assert "q" in [entry.message.text for entry in session.path() if entry.message]

        asyncio.run(main())

    def test_each_turn_records_how_it_was_started_and_how_it_ended(self, store: Store, desk: Desk) -> None:
        about = {"trigger_type": "email", "trigger_id": "<1@x>", "context_window": 200_000}
        session = store.start("support", policy={"refunds": "ask"}, **about)
        model = ScriptedModel(["a", ModelError("m", "no"), ask(("look", 1)), ask(("look", 2))], model="m-1")
        session.send_sync("q", model=model, tools=desk.tools())
        session.send_sync("q", model=model, tools=desk.tools())
        stopped(session.send_sync, "q", model=model, tools=desk.tools(), limits=Limits(rounds=2))
        facts = session.journal()
        started = [fact.data for fact in facts if fact.kind == "turn_started"]
        assert started[0] == {
            "turn": 2,
            "trigger": {"type": "email", "id": "<1@x>"},
            "model": "m-1",
            "context_window": 200_000,
            "policy": {"refunds": "ask"},
        }
        definitions = session.context(at=2).settings.tool_definitions
        assert definitions is not None
        assert definitions.names == ("look", "refund", "tag")
        later = {name: value for name, value in started[0].items() if name != "trigger"}
        assert [{**data, "turn": 2} for data in started[1:]] == [later] * 2
        ended = [fact for fact in facts if fact.kind in ("turn_ended", "turn_left")]
        assert [fact.data.get("status") for fact in ended] == ["completed", "failed", "failed"]
        assert [fact.data.get("error", "")[:15] for fact in ended] == ["", "no", "the turn has ca"]
        assert all(fact.at > session.row.started_at for fact in ended)

    def test_each_end_of_a_turn_is_recorded_with_its_turn(self, session: Session, desk: Desk) -> None:
        session.send_sync("1", model=ScriptedModel(["fine"]))
        run_and_cancel(session.send("2", model=ScriptedModel([Slow(60)])), "session:turn_started", 0.02)
        session.send_sync("3", model=ScriptedModel([ModelError("m", "down")]), limits=NOW)
        model = ScriptedModel([ask(("look", 1))] * 2)
        stopped(session.resume_sync, model=model, tools=desk.tools(), limits=Limits(rounds=1))
        kinds = ("turn_ended", "turn_left")
        ended = [fact.data for fact in session.journal() if fact.kind in kinds]
        assert [(fact["turn"], fact["status"]) for fact in ended] == [
            (2, "completed"),
            (4, "cancelled"),
            (6, "failed"),
            (6, "failed"),
        ]


class TestOneShot:
    def test_it_ends_completed_and_not_at_rest(self, session: Session, desk: Desk) -> None:
        session.send_sync(
            "q", model=ScriptedModel([ask(("look", 1)), "a"]), tools=desk.tools(), one_shot=True
        )
        row = session.row
        assert (row.status, row.error) == ("completed", None)
        assert row.completed_at is not None
        assert row.completed_at > row.started_at
        assert session.journal()[-1].kind == "turn_ended", "in the commit of the answer, not behind it"
        assert is_valid(session)

    def test_a_tool_that_ends_the_turn_completes_it_too(self, session: Session) -> None:
        @oakleaf.tool(effect="read")
        def leave(ctx: ToolContext) -> str:
            ctx.ends_turn = True
            return "bye"

        session.send_sync(
            "q", model=ScriptedModel([assistant(ToolCall("c", "leave"))]), tools=[leave], one_shot=True
        )
        assert session.row.status == "completed"

    def test_one_that_was_cut_off_is_completed_by_whoever_resumes_it(
        self, store: Store, session: Session
    ) -> None:
        session.send_sync("q", model=ScriptedModel([ModelError("m", "no")]), one_shot=True)
        assert (session.row.status, session.row.completed_at is None) == ("failed", False)
        store.session(session.session_id).resume_sync(model=ScriptedModel(["a"]))
        assert session.row.status == "completed"

    @pytest.mark.parametrize("again", ["send", "turn", "append"])
    def test_what_is_sent_to_a_completed_session_opens_it_again(self, session: Session, again: str) -> None:
        session.send_sync("q", model=ScriptedModel(["a"]), one_shot=True)
        if again == "send":
            session.send_sync("more", model=ScriptedModel(["b"]))
        elif again == "turn":
            with session.turn("more") as turn:
                turn.answer(assistant("b"))
        else:
            session.append([user("more"), assistant("b")])
        assert (session.row.status, session.row.completed_at) == ("idle", None)

    def test_one_that_a_limit_or_a_person_stopped_is_not_completed(self, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel([Slow(30)]), one_shot=True)
            async for event in run:
                if event.type == "session:turn_started":
                    run.cancel()

        asyncio.run(main())
        assert (session.row.status, session.row.completed_at) == ("cancelled", None)

    def test_what_was_queued_meanwhile_is_taken_and_is_no_one_shot(
        self, store: Store, session: Session
    ) -> None:
        @oakleaf.tool(effect="read")
        def queue(ctx: ToolContext) -> str:
            store.session(ctx.session_id).enqueue("later")
            return "queued"

        model = ScriptedModel([assistant(ToolCall("c", "queue")), "a", "b"])
        session.send_sync("now", model=model, tools=[queue], one_shot=True)
        assert session.transcript()[-1].message.text == "b"
        assert (session.row.status, session.row.completed_at) == ("idle", None)

    def test_what_was_queued_before_is_no_one_shot_and_does_not_make_it_less_of_one(
        self, session: Session
    ) -> None:
        session.enqueue("earlier")
        session.send_sync("now", model=ScriptedModel(["a", "b"]), one_shot=True)
        assert session.transcript()[-1].message.text == "b"
        assert session.row.status == "completed"


class TestModels:
    def test_an_overloaded_model_is_asked_again_and_every_try_is_counted(self, session: Session) -> None:
        model = ScriptedModel([Overloaded("m", "529"), Overloaded("m", "529"), "here"])
        session.send_sync("q", model=model, limits=NOW)
        assert [call.failed for call in session.model_calls()] == [True, True, False]
        assert session.path()[-1].message.text == "here"

    def test_the_next_in_the_chain_answers_and_the_entry_says_who(self, session: Session) -> None:
        busy = ScriptedModel([Overloaded("m", "529")] * 4, model="first")
        session.send_sync("q", model=[busy, ScriptedModel(["from the second"], model="second")], limits=NOW)
        assert session.path()[-1].model == "second"

    @pytest.mark.parametrize(
        "line",
        [
            Broken(""),
            ModelError("m", "refused"),
            Answer(assistant(""), None, None, None, None, None),
        ],
    )
    def test_a_model_that_fails_leaves_a_turn_that_goes_on(self, session: Session, line: Any) -> None:
        events = session.send_sync("q", model=ScriptedModel([line]), limits=NOW).events
        assert events[-1].data["stop_reason"] == "error"
        assert session.row.status == "failed"
        assert is_valid(session)
        session.resume_sync(model=ScriptedModel(["better now"]))
        assert session.path()[-1].message.text == "better now"
        assert session.usage().calls == 2

    def test_an_overflow_compacts_once_and_tries_again(self, session: Session) -> None:
        session.append([user("old " * 200), assistant("answer " * 200)])
        model = ScriptedModel([ContextOverflow("m", "too long"), "short enough"])
        events = session.send_sync("new", model=model, limits=NOW).events
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

    def test_a_history_is_measured_as_it_grows_as_if_it_were_measured_anew(self, session: Session) -> None:
        sizes = Sizes()
        for n in range(12):
            session.append([user("q" * n * 7), assistant("ä" * n * 5)])
            if n == 8:
                session.compact("What was said before.")
            context = session.context()
            tokens = sum(measure(item.message).tokens for item in context.items)
            assert sizes.total(context.items) == tokens

    def test_what_was_measured_before_an_earlier_step_is_not_measured_again(self) -> None:
        items = tuple(Item(user("word " * 400), seq, seq) for seq in range(1, 4_001))
        sizes, took = Sizes(), list[float]()
        for _ in range(6):
            began = time.perf_counter()
            sizes.total(items)
            took.append(time.perf_counter() - began)
        assert min(took[1:]) < took[0] / 4

    @pytest.mark.parametrize(
        ("says", "summary", "replaces_earlier"),
        [
            ("They spoke of old things.", "They spoke of old things.", True),
            ("", "user: old", False),
            (ModelError("m", "no"), "user: old", False),
        ],
        ids=["a summary", "an empty one", "a failure"],
    )
    def test_a_model_writes_the_summary_and_its_cost_is_charged(
        self, session: Session, says: Any, summary: str, replaces_earlier: bool
    ) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        limits = Limits(context_tokens=300, summariser=ScriptedModel([says]), pause=lambda failures: 0.0)
        model = ScriptedModel(["fine"])
        session.send_sync("new", model=model, limits=limits)
        assert summary in model.requests[0].context.items[0].message.text
        compaction = next(entry.payload for entry in session.path() if entry.kind == "compaction")
        assert compaction.replaces_earlier is replaces_earlier
        assert [call.purpose for call in session.model_calls()].count("compaction") == 1
        assert is_valid(session)

    def test_one_input_that_is_too_long_is_never_dropped_silently(self, session: Session) -> None:
        events = session.send_sync(
            "long " * 900, model=ScriptedModel([ContextOverflow("m", "too long")]), limits=NOW
        ).events
        assert events[-1].data["error"]["code"] == "context_overflow"
        assert session.context().items[0].message.text == "long " * 900

    def test_a_turn_larger_than_the_window_still_compacts_and_keeps_its_input(
        self, session: Session, desk: Desk
    ) -> None:
        model = ScriptedModel([ask(("look", 1)), ask(("look", 2)), ContextOverflow("m", "too long"), "done"])
        session.send_sync("the whole question", model=model, tools=desk.tools(), limits=NOW)
        summary, question, *_ = model.requests[-1].context.items
        assert (summary.pinned, question.message.text) == (True, "the whole question")
        assert session.path()[-1].message.text == "done"
        assert is_valid(session)

    def test_two_overflows_stop_with_an_error(self, session: Session) -> None:
        session.append([user("old " * 200), assistant("answer " * 200)])
        model = ScriptedModel(lambda request: ContextOverflow("m", "too long"))
        events = session.send_sync("new", model=model, limits=NOW).events
        assert events[-1].data["error"]["code"] == "context_overflow"
        assert "the input is too large" in events[-1].data["error"]["message"]
        assert len(model.requests) < 6

    def test_a_bug_of_a_model_is_raised_and_the_session_goes_on(self, session: Session) -> None:
        def broken(request: Any) -> str:
            raise KeyError("a bug in a model")

        with pytest.raises(KeyError):
            session.send_sync("q", model=ScriptedModel(broken))
        assert session.row.status == "failed"
        session.resume_sync(model=ScriptedModel(["mended"]))
        assert session.path()[-1].message.text == "mended"

    def test_an_answer_in_the_wrong_role_is_refused(self, session: Session) -> None:
        events = session.send_sync("q", model=ScriptedModel([user("I am the user")])).events
        assert "role" in events[-1].data["error"]["message"]

    @pytest.mark.parametrize(
        "message",
        [
            assistant("half \ud800"),
            assistant(ToolCall("c", "t", {"n": float("nan")})),
            oakleaf.Message("assistant", (oakleaf.ToolResult("c"),)),
            user("in the wrong role"),
        ],
        ids=["half a character", "not a number", "a result", "a question"],
    )
    def test_an_unstorable_answer_is_a_failed_call_with_its_tokens(
        self, session: Session, message: Any
    ) -> None:
        bad = Answer(message, Usage(10, 5, 0, 0), None, "scripted", "m", "stop")
        events = session.send_sync("q", model=ScriptedModel([bad]), limits=NOW).events
        assert events[-1].data["error"]["code"] == "model_error"
        assert [(call.failed, call.usage.input_tokens) for call in session.model_calls()] == [(True, 10)]
        assert session.verify() == []
        session.send_sync("again", model=ScriptedModel(["whole"]))
        assert session.path()[-1].message.text == "whole"

    def test_after_an_unstorable_answer_the_next_model_is_asked(self, session: Session) -> None:
        bad = Answer(assistant("\ud800"), None, None, "scripted", "m", "stop")
        chain = [ScriptedModel([bad]), ScriptedModel(["whole"], model="second")]
        session.send_sync("q", model=chain, limits=NOW)
        assert session.path()[-1].model == "second"

    def test_after_the_last_try_there_is_no_pause(self, session: Session) -> None:
        def pause(failures: int) -> float:
            return 0.0 if failures < 2 else 60.0

        busy = ScriptedModel([Overloaded("m", "529")] * 3)
        chain = [busy, ScriptedModel(["second"])]
        events = session.send_sync("q", model=chain, limits=Limits(tries=3, pause=pause)).events
        assert [event.type for event in events].count("session:retry") == 2
        assert session.path()[-1].message.text == "second"


class TestLimits:
    @pytest.mark.parametrize(
        "name", ["turns", "rounds", "max_cost_microcents", "context_tokens", "context_window", "max_messages"]
    )
    def test_a_limit_is_a_whole_number_from_0_on(self, name: str) -> None:
        for value in (-1, "a", 1.5, True):
            with pytest.raises(InvalidArgument, match=name):
                Limits(**{name: value})

    def test_past_the_turn_cap_nothing_leaves_and_nothing_is_stored(self, session: Session) -> None:
        session.append([user("1"), assistant("a")])
        model = ScriptedModel(["never"])
        (event,) = stopped(session.send_sync, "2", model=model, limits=Limits(turns=1)).events
        assert event.type == "session:turn_completed"
        assert event.data["stop_reason"] == "error"
        assert event.data["error"]["code"] == "turn_limit"
        assert (model.requests, len(session.path())) == ([], 3)

    def test_a_turn_that_goes_round_in_circles_is_stopped_in_public(
        self, session: Session, desk: Desk
    ) -> None:
        model = ScriptedModel(lambda request: ask(("look", 1)))
        events = stopped(
            session.send_sync, "q", model=model, tools=desk.tools(), limits=Limits(rounds=3)
        ).events
        assert len(model.requests) == 3
        assert events[-1].data["error"]["code"] == "turn_limit"
        assert session.transcript()[-1].message.text.startswith("(stopped:")
        assert is_valid(session)

    def test_the_cost_cap_is_checked_before_anything_leaves(self, session: Session) -> None:
        with session.turn("q") as turn:
            turn.answer(
                assistant("a"), usage=Usage(1_000_000, 0), provider="anthropic", model="claude-opus-4-5"
            )
        model = ScriptedModel(["never"], rates=Rates(0, 0))
        (event,) = stopped(
            session.send_sync, "more", model=model, limits=Limits(max_cost_microcents=100)
        ).events
        assert (event.data["error"]["code"], event.data["error"]["limit"]) == ("turn_limit", "cost")
        assert (model.requests, len(session.path())) == ([], 3)

    def test_a_cap_that_only_warns_says_so_and_goes_on(self, session: Session) -> None:
        with session.turn("q") as turn:
            turn.answer(
                assistant("a"), usage=Usage(1_000_000, 0), provider="anthropic", model="claude-opus-4-5"
            )
        limits = Limits(max_cost_microcents=100, on_exceed="warn")
        events = session.send_sync("more", model=ScriptedModel(["still here"]), limits=limits).events
        assert [event.type for event in events].count("session:limit_passed") == 1
        assert session.path()[-1].message.text == "still here"


class TestMostMessages:
    """`max_messages` trims what a model is given, silently and by whole turns. It is not the turn cap."""

    @pytest.fixture
    def long(self, session: Session) -> Session:
        for n in range(3):
            call = ToolCall(f"c{n}", "look", {"order": n})
            session.append(
                [user(f"q{n}"), assistant(call), oakleaf.tool_result(f"c{n}", "found"), assistant("a")]
            )
        return session

    def context_lengths(self, model: ScriptedModel) -> list[int]:
        return [len(request.messages) for request in model.requests]

    @pytest.mark.parametrize(("most", "count"), [(13, 13), (12, 9), (6, 5), (1, 1), (0, 13)])
    def test_older_turns_go_whole_and_the_session_goes_on(self, long: Session, most: int, count: int) -> None:
        model = ScriptedModel(["fine"])
        events = long.send_sync("now", model=model, limits=Limits(max_messages=most)).events
        assert self.context_lengths(model) == [count]
        assert model.requests[0].context.system == ("You help.",)
        assert events[-1].data == {"stop_reason": "answered"}
        assert [entry.kind for entry in long.path()].count("message") == 15
        for name in PROVIDERS:
            request = find_provider(name).project(model.requests[0].context, read(long).blob)
            assert find_provider(name).violations(request) == []

    def test_a_turn_longer_than_that_is_given_whole(self, long: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 1)), ask(("look", 2)), "done"])
        long.send_sync("now", model=model, tools=desk.tools(), limits=Limits(max_messages=2))
        assert self.context_lengths(model) == [1, 3, 5]
        assert long.path()[-1].message.text == "done"

    def test_a_summary_stays(self, long: Session) -> None:
        long.compact("They looked.", first_kept=6)
        model = ScriptedModel(["fine"])
        long.send_sync("now", model=model, limits=Limits(max_messages=6))
        assert [item.pinned for item in model.requests[0].context.items] == [True, *[False] * 5]

    def test_a_maximum_holds_until_the_next_one(self, long: Session) -> None:
        long.set(limits={"max_messages": 6})
        model = ScriptedModel(["fine"] * 5)
        long.send_sync("now", model=model)
        long.send_sync("now", model=model, limits=Limits(max_messages=9))
        long.send_sync("now", model=model)
        long.set(limits=Limits(max_messages=0))
        long.send_sync("now", model=model)
        assert self.context_lengths(model) == [5, 7, 9, 19]

    def test_an_unchanged_maximum_is_written_once(self, long: Session) -> None:
        model = ScriptedModel(["fine"] * 4)
        for most in (0, 6, 6, None):
            long.send_sync("now", model=model, limits=Limits(max_messages=most))
        assert [entry.kind for entry in long.path()[13:]].count("settings") == 1

    def test_the_cost_of_a_turn_is_checked_by_its_own_maximum(self, session: Session) -> None:
        session.append([user("old " * 40_000), assistant("answer"), user("and?"), assistant("more")])
        model = ScriptedModel(["fine"], rates=oakleaf.Rates(1, 1))
        limits = Limits(max_messages=3, max_cost_dollars=0.01)
        session.send_sync("new", model=model, limits=limits).raise_for_status()
        assert self.context_lengths(model) == [3]

    def test_what_is_trimmed_away_need_not_be_summarised(self, session: Session) -> None:
        session.append([user("old " * 400), assistant("answer " * 400)])
        model = ScriptedModel(["fine"])
        session.send_sync("new", model=model, limits=Limits(context_tokens=300, max_messages=2))
        assert "compaction" not in [entry.kind for entry in session.path()]


class TestCrash:
    """What a process before left behind: an answer and the start of its tools, and nothing more."""

    @pytest.fixture
    def died(self, session: Session) -> Session:
        answer = ask(("look", 1), ("refund", 2), ("tag", 3))
        started = ToolCallsStarted(3, (0, 1, 2))
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
        self, store: Store, session: Session, desk: Desk
    ) -> None:
        session.append([user("q")])
        started = ToolCallsStarted(3, (0, 1))
        session.log.append([Draft(ask(("look", 1), ("tag", 2)))], facts=[started])
        keys = [session.idempotency_key(call) for call in session.open_tool_calls]
        session.append([oakleaf.tool_result("c0", "already")])
        store.session(session.session_id).resume_sync(model=ScriptedModel(["ok"]), tools=desk.tools())
        assert desk.did == [("tag", 2)]
        assert desk.keys == keys[1:]

    def test_a_call_cut_off_is_counted_with_unknown_tokens(self, store: Store, session: Session) -> None:
        model = ScriptedModel([Slow(30)])

        async def killed() -> None:
            async for event in session.send("q", model=model):
                if event.type == "session:turn_started":
                    while not model.requests:  # one that was not made is not counted
                        await asyncio.sleep(0.001)
                    return

        asyncio.run(killed())
        assert session.usage().unknown_calls == 1

    def test_a_failing_verify_leaves_the_outcome_unknown(self, session: Session, desk: Desk) -> None:
        def verify(order: int) -> None:
            raise OSError("the bank is closed")

        session.append([user("q"), ask(("refund", 1))])
        session.log.record(ToolCallsStarted(3, (0,)))
        session.resume_sync(model=ScriptedModel(["hm"]), tools=desk.tools(verify=verify))
        (result,) = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert (desk.did, result.outcome) == ([], "unknown")


class TestApproval:
    def test_the_wait_is_durable_and_the_call_runs_once(
        self, store: Store, session: Session, desk: Desk
    ) -> None:
        tools = desk.tools(approval=True)
        events = session.send_sync(
            "q", model=ScriptedModel([ask(("refund", 7), ("look", 7))]), tools=tools
        ).events
        assert [e.data["name"] for e in events if e.type == "session:approval_requested"] == ["refund"]
        assert desk.did == [("look", 7)]
        again = store.session(session.session_id)
        (call,) = again.open_tool_calls
        again.resume_sync(model=ScriptedModel([]), tools=tools)
        assert (desk.did, again.row.status) == ([("look", 7)], "waiting"), "still waiting, and asked once"
        again.approve(call)
        again.resume_sync(model=ScriptedModel(["done"]), tools=tools)
        assert desk.did == [("look", 7), ("refund", 7)]
        assert [fact.kind for fact in again.journal()].count("approval_requested") == 1
        assert again.row.status == "idle"
        assert is_valid(again)

    def test_a_decision_while_the_run_is_still_there_is_taken_by_it_in_whatever_moment(
        self, store: Store, desk: Desk
    ) -> None:
        """Who decides later finds a session that waits, and resumes it."""
        tools = desk.tools(approval=True)
        has_acted, at, decided = True, 0, list[str]()
        while has_acted:
            at += 1
            session = store.start()

            def decide(session_id: str = session.session_id) -> None:
                person = store.session(session_id)
                for pending in person.pending_approvals():
                    decided.append(person.row.status)
                    person.approve(pending)

            process, backend = interleaved(store, at, decide)
            process.session(session.session_id).send_sync(
                "q", model=ScriptedModel([ask(("refund", at)), "done"]), tools=tools
            )
            has_acted = backend.has_acted
            is_over = ("refund", at) in desk.did
            assert store.session(session.session_id).row.status == ("idle" if is_over else "waiting"), at
            assert is_over or bool(session.pending_approvals()) or decided[-1] == "waiting", at
            assert session.verify() == []
        assert "running" in decided, "some were decided in time"

    def test_a_new_input_does_not_abandon_a_call_that_waits_or_was_allowed(
        self, session: Session, desk: Desk
    ) -> None:
        tools, never = desk.tools(approval=True), ScriptedModel(["never"])
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=tools)
        for _ in ("waits", "allowed"):
            with pytest.raises(
                ApprovalPending, match="waits for refund; a new input would abandon this call"
            ):
                session.send_sync("something else", model=never, tools=tools)
            assert (session.row.status, session.leaf.seq, never.requests) == ("waiting", 4, [])
            session.approve(session.open_tool_calls[0])
        session.enqueue("something else")
        model = ScriptedModel(["done", "and this"])
        session.resume_sync(model=model, tools=tools)
        texts = [entry.message.text for entry in session.transcript()]
        assert (desk.did, texts) == ([("refund", 7)], ["q", "done", "something else", "and this"])

    def test_a_denial_is_told_to_the_model_and_nothing_runs(self, session: Session, desk: Desk) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=tools)
        session.approve(session.open_tool_calls[0], allow=False)
        with pytest.raises(InvalidOperation, match="was denied, which is final"):
            session.approve(session.open_tool_calls[0])
        session.resume_sync(model=ScriptedModel(["as you wish"]), tools=tools)
        assert desk.did == []
        assert session.path()[4].message.results[0].outcome == "denied"

    def test_approved_and_killed_before_it_ran_is_unknown_not_twice(
        self, session: Session, desk: Desk
    ) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=tools)
        session.approve(session.open_tool_calls[0])
        session.log.record(ToolCallsStarted(4, (0,)))  # and then the lights went out
        session.resume_sync(model=ScriptedModel(["hm"]), tools=tools)
        assert desk.did == []
        assert session.path()[4].message.results[0].outcome == "unknown"

    def test_an_approval_is_bound_to_the_exact_call(self, store: Store, session: Session, desk: Desk) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 1))]), tools=tools)
        other = store.session(session.session_id)
        (old,) = other.open_tool_calls
        session.rewind(to=0)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 1_000))]), tools=tools)
        with pytest.raises(InvalidPosition):
            other.approve(old)
        session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert desk.did == []

    def test_a_pending_question_outlives_a_tool_without_approval(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("refund", 1))])
        session.send_sync("q", model=model, tools=desk.tools(approval=True))
        session.resume_sync(model=ScriptedModel([]), tools=desk.tools())
        assert desk.did == []

    def test_a_denial_after_the_start_leaves_the_outcome_unknown(self, session: Session, desk: Desk) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 1))]), tools=tools)
        (waiting,) = session.open_tool_calls
        session.approve(waiting)
        session.log.record(ToolCallsStarted(4, (0,)))
        session.approve(waiting, allow=False)
        session.resume_sync(model=ScriptedModel(["hm"]), tools=tools)
        assert session.path()[4].message.results[0].outcome == "unknown"


class TestLease:
    def test_one_runner_drives_and_a_second_is_told_who(self, store: Store, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel([Slow(30)]))
            async for event in run:
                if event.type == "session:turn_started":
                    with pytest.raises(SessionRunning, match="here:1, whose lease"):
                        async for _ in store.session(session.session_id).resume(
                            model=ScriptedModel(["mine"])
                        ):
                            pass
                    run.cancel()

        asyncio.run(main())
        assert session.row.holder is None
        session.send_sync("again", model=ScriptedModel(["fine"]))

    def test_a_late_runner_is_fenced_and_writes_nothing(self, store: Store, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel([Slow(0.2, "late")]))
            async for event in run:
                if event.type == "session:turn_started":
                    row = session.row
                    store.backend.lease(session.session_id, "another", 10**18, (row.lease_until or 0) + 1)

        with pytest.raises(Fenced):
            asyncio.run(main())
        assert [entry.role for entry in session.path()] == ["system", "user"]
        assert session.row.holder == "another"

    def test_a_dead_runner_has_lost_its_lease_at_once(self, store: Store, session: Session) -> None:
        session.append([user("q")])
        now = store.runtime.now()
        store.backend.lease(session.session_id, "gone:9#1", now + 10**12, now)
        session.resume_sync(model=ScriptedModel(["going on"]))
        assert session.path()[-1].message.text == "going on"

    def test_resuming_a_session_at_rest_says_so(self, session: Session) -> None:
        model = ScriptedModel([])
        assert session.resume_sync(model=model).events[-1].data == {"stop_reason": "nothing to resume"}
        assert model.requests == []

    def test_a_new_input_settles_the_calls_of_a_broken_turn_first(self, session: Session, desk: Desk) -> None:
        started = ToolCallsStarted(3, (0,))
        session.append([user("q")])
        session.log.append([Draft(ask(("refund", 1)))], facts=[started])
        session.send_sync("never mind", model=ScriptedModel(["all right"]), tools=desk.tools())
        assert session.path()[3].message.results[0].outcome == "unknown"
        assert desk.did == []
        assert is_valid(session)

    def test_a_turn_of_ones_own_is_refused_while_a_loop_runs(self, store: Store, session: Session) -> None:
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

    def test_an_interrupted_run_is_fenced_and_the_turn_goes_on(self, store: Store, session: Session) -> None:
        @oakleaf.tool(effect="read")
        def meddle(order: int) -> str:
            store.session(session.session_id).interrupt()
            return "done"

        with pytest.raises(Fenced):
            session.send_sync("q", model=ScriptedModel([ask(("meddle", 1))]), tools=[meddle])
        assert session.row.status == "interrupted"
        session.refresh()
        session.resume_sync(model=ScriptedModel(["end"]))
        assert (session.row.status, session.verify()) == ("idle", [])


class TestOtherWriters:
    @pytest.fixture
    def store(self, store: Store) -> Store:
        """With a clock that does not outrun leases."""
        return Store(store.backend, replace(store.runtime, now=lambda: time.time_ns() // 1_000))

    def test_notes_and_inputs_are_welcome_and_anything_else_is_refused(
        self, store: Store, session: Session
    ) -> None:
        def elsewhere() -> None:
            other = store.session(session.session_id)
            other.note({"seen": len(other.path())}, state={"notes": len(other.path())})
            other.enqueue("more")
            other.title("renamed")
            for refused in (
                lambda: other.set(prompt="other"),
                lambda: other.append([user("me too")]),
                lambda: other.append([Note({}), user("me too")]),
                lambda: other.append([tool_result("c", "not paid")]),
                lambda: other.rewind(1),
                lambda: other.end(),
            ):
                with pytest.raises(SessionRunning):
                    refused()
            session.note({"through": "the runner's own handle"})

        @oakleaf.tool(effect="unsafe")
        def pay(ctx: ToolContext) -> str:
            elsewhere()
            return "paid"

        def answer(request: Any) -> Any:
            elsewhere()
            return [assistant(ToolCall("c", "pay")), "done", "more", "more", "more", "more"][
                sum(message.role == "assistant" for message in request.messages)
            ]

        limits = Limits(turns=2)
        stopped(session.send_sync, "q", model=ScriptedModel(answer), tools=[pay], limits=limits)
        kinds = [entry.role or entry.kind for entry in session.path()]
        assert kinds[1:9] == ["settings", "user", "note", "note", "assistant", "note", "note", "tool"]
        result = next(entry for entry in session.path() if entry.role == "tool").message.results[0]
        assert (result.outcome, result.error) == ("done", False)
        observations = [
            entry.payload.data["seen"]
            for entry in session.path()
            if "seen" in getattr(entry.payload, "data", ())
        ]
        assert session.state == {"notes": observations[-1]}
        assert all(call.usage.output_tokens is not None for call in session.model_calls())
        assert [call.answer_seq for call in session.model_calls()] == [
            entry.seq for entry in session.path() if entry.role == "assistant"
        ]
        assert is_valid(session)

    @pytest.mark.parametrize("seed", range(6))
    def test_nothing_known_or_paid_for_is_lost_whatever_others_write_at_every_step(
        self, store: Store, desk: Desk, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng, backend = random.Random(seed), store.backend
        session = store.start("support", [system("You help.")])
        notes, queued, refused = 0, 0, 0
        commit = type(backend).commit

        def interfere() -> None:
            nonlocal notes, queued, refused
            other = store.session(session.session_id)
            match rng.randrange(6):
                case 0 | 1:
                    other.note({"n": notes}, state={"notes": notes} if rng.random() < 0.5 else None)
                    notes += 1
                case 2 if queued < 2:
                    other.enqueue(f"queued {queued}")
                    queued += 1
                case 3 | 4:
                    write = rng.choice([lambda: other.set(prompt="x"), lambda: other.append([user("x")])])
                    with pytest.raises(SessionRunning):
                        write()
                    refused += 1

        def interfered(change: Any) -> Any:
            if change.fence is not None and backend.session(session.session_id).holder is not None:
                interfere()
            return commit(backend, change)

        def answer(request: Any) -> Any:
            interfere()
            turn = [item for item in request.context.items if item.turn == request.context.items[-1].turn]
            answers = sum(item.message.role == "assistant" for item in turn)
            return [ask(("look", 1), ("refund", 2), ("tag", 3)), ask(("refund", 4)), "done"][answers]

        monkeypatch.setattr(backend, "commit", interfered)
        model = ScriptedModel(answer)
        session.send_sync("q", model=model, tools=desk.tools())
        monkeypatch.undo()
        turns = 1 + queued
        path = store.session(session.session_id).path()
        assert [entry.message.text for entry in path if entry.role == "user"] == [
            "q",
            *(f"queued {n}" for n in range(queued)),
        ]
        assert sum(entry.kind == "note" for entry in path) == notes
        results = [result for entry in path if entry.message for result in entry.message.results]
        assert [result.outcome for result in results] == ["done"] * 4 * turns
        assert desk.did.count(("refund", 2)) == desk.did.count(("refund", 4)) == turns
        calls = session.model_calls()
        assert len(calls) == len(model.requests) == 3 * turns
        assert all(call.usage.output_tokens is not None for call in calls)
        assert refused + notes > 0
        assert is_valid(session)

    def test_another_process_may_add_a_note_and_no_settings(self, tmp_path: Path) -> None:
        script = (
            "import sys, oakleaf\n"
            "session = oakleaf.open(sys.argv[1]).session(sys.argv[2])\n"
            "session.note({'from': 'another process'})\n"
            "try: session.set(prompt='x')\n"
            "except oakleaf.errors.SessionRunning: print('refused')"
        )

        @oakleaf.tool(effect="unsafe")
        def pay(ctx: ToolContext) -> str:
            arguments = [sys.executable, "-c", script, str(tmp_path / "agent.db"), ctx.session_id]
            return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip()

        with oakleaf.open(tmp_path / "agent.db") as store:
            session = store.start("support")
            session.send_sync(
                "q", model=ScriptedModel([assistant(ToolCall("c", "pay")), "done"]), tools=[pay]
            )
            assert [entry.role or entry.kind for entry in session.path()] == [
                *("settings", "user", "assistant", "note", "tool", "assistant")
            ]
            assert session.path()[4].message.results[0].content[0].text == "refused"
            assert is_valid(session)

    def test_a_dead_runner_refuses_nobody(self, store: Store, session: Session) -> None:
        session.append([user("q")])
        store.backend.lease(session.session_id, "dead#1", store.runtime.now() + 10**12, store.runtime.now())
        with pytest.raises(SessionRunning):
            session.set(prompt="x")
        fresh_store = oakleaf.Store(
            store.backend, replace(store.runtime, is_gone=lambda holder: holder == "dead")
        )
        fresh_store.session(session.session_id).set(prompt="x")
        assert session.refresh().leaf.seq == 3


class TestStreaming:
    LONG = "word " * 200

    def test_streamed_text_comes_back_as_an_interrupted_answer_and_the_model_is_asked_again(
        self, store: Store, session: Session
    ) -> None:
        session.send_sync("q", model=ScriptedModel([Broken(self.LONG)]), limits=NOW)
        assert store.backend.draft(session.session_id) is not None
        again, model = store.session(session.session_id), ScriptedModel([Broken("half"), "whole"])
        again.resume_sync(model=[model, model])
        half, whole = again.path()[-2:]
        assert (half.finish, half.internal, half.turn, half.step) == ("interrupted", True, 2, 1)
        assert (whole.finish, whole.internal, whole.turn, whole.step) == ("stop", False, 2, 2)
        assert half.message.text == self.LONG
        assert [entry.message.text for entry in again.transcript()] == ["q", "whole"]
        for request in model.requests:  # it does not see its own half
            assert [message.text for message in request.messages] == ["q"]
        assert "word" not in str(again.messages("anthropic"))
        assert "[interrupted] word" in draw_tree(again)
        assert "**interrupted**" in exported(again, "markdown")
        assert [event.content.get("finish") for event in log_events(again.path())] == [
            None,
            None,
            "interrupted",
            None,
        ]
        assert again.row.status == "idle"
        assert is_valid(again)

    @pytest.mark.parametrize("after_resume", [False, True])
    def test_the_turn_may_end_with_what_was_shown(
        self, store: Store, session: Session, after_resume: bool
    ) -> None:
        session.send_sync("q", model=ScriptedModel([Broken(self.LONG)]), limits=NOW)
        again, model = store.session(session.session_id), ScriptedModel([])
        if after_resume:
            again.resume_sync(model=ScriptedModel([ModelError("m", "away")]), limits=NOW)
        again.resume_sync(model=model, keep_partial=True)
        last = again.path()[-1]
        assert (last.finish, last.internal, last.message.text) == ("partial", False, self.LONG)
        assert (model.requests, again.log.cursor.turn, again.row.status) == ([], 0, "idle")
        assert again.messages("openai-chat")[-1]["content"].endswith("(interrupted)")
        assert [fact.data["status"] for fact in again.journal() if fact.kind == "turn_ended"][
            -1
        ] == "interrupted"
        assert again.keep_partial() is None
        assert is_valid(again)

    def test_killed_in_mid_stream_it_is_never_passed_off_as_the_answer(self, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys, oakleaf\n"
            "from oakleaf.models.base import Delta\n"
            "class Dying(oakleaf.ScriptedModel):\n"
            "    async def stream(self, request):\n"
            "        yield Delta('half an answer ' * 100)\n"
            "        yield Delta('and ')\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "store = oakleaf.open(sys.argv[1])\n"
            "store.start('a', session_id='ses_killed').send_sync('q', model=Dying([]))\n"
        )
        path = tmp_path / "agent.db"
        killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
        assert killed.returncode == -9
        with oakleaf.open(path) as store:
            session, model = store.session("ses_killed"), ScriptedModel(["whole"])
            session.note({"from": "somebody who looked"})
            result = session.resume_sync(model=model)
            assert (result.text, result.status, len(model.requests)) == ("whole", "completed", 1)
            entries = [(entry.role or entry.kind, entry.finish) for entry in session.path()]
            assert entries == [
                *(("user", None), ("note", None), ("assistant", "interrupted"), ("assistant", "stop"))
            ]
            assert session.path()[2].message.text.startswith("half an answer half")
            assert [call.failed for call in session.model_calls()] == [False, False]
            assert is_valid(session)

    @pytest.mark.parametrize("end", ["the line goes dead", "no stop reason", "a bug"])
    def test_what_was_shown_is_kept_however_short_and_whatever_breaks_it_off(
        self, store: Store, session: Session, end: str
    ) -> None:
        class Breaking(ScriptedModel):
            async def stream(self, request: Any) -> Any:
                yield Delta("short words that ")
                if end == "the line goes dead":
                    raise ModelError("m", "reset")
                if end == "a bug":
                    raise KeyError("a bug in a model")
                yield Answer(assistant("short words that"), None, None, None, None, None)

        async def main() -> str:
            text = ""
            with contextlib.suppress(KeyError):
                async for event in session.send("q", model=Breaking([]), limits=NOW):
                    text += event.data["text"] if event.type == "session:delta" else ""
            return text

        text = asyncio.run(main())
        assert text.startswith("short words")
        again = store.session(session.session_id)
        again.resume_sync(model=ScriptedModel(["whole"]))
        half, whole = again.path()[-2:]
        assert (half.message.text, half.finish, whole.message.text) == (text, "interrupted", "whole")
        assert (again.row.status, again.log.cursor.turn) == ("idle", 0)
        assert is_valid(again)

    def test_a_new_input_leaves_what_was_shown_as_the_end_of_its_turn(
        self, store: Store, session: Session
    ) -> None:
        session.send_sync("q", model=ScriptedModel([Broken("half a word ")]), limits=NOW)
        again = store.session(session.session_id)
        again.send_sync("never mind", model=ScriptedModel(["fine"]))
        assert [entry.finish for entry in again.path()] == [None, None, "partial", None, "stop"]
        assert "(interrupted)" in str(again.messages("anthropic"))
        assert is_valid(again)

    def test_a_loop_of_ones_own_keeps_what_ours_had_shown(self, store: Store, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([Broken("half a word ")]), limits=NOW)
        again = store.session(session.session_id)
        with again.turn() as turn:
            turn.answer(assistant("whole"))
        assert [entry.finish for entry in again.path()] == [None, None, "interrupted", None]
        assert [entry.message.text for entry in again.transcript()] == ["q", "whole"]
        again.send_sync("r", model=ScriptedModel([Broken("half again ")]), limits=NOW)
        again = store.session(session.session_id)
        with again.turn("never mind") as turn:
            turn.answer(assistant("fine"))
        assert [entry.finish for entry in again.path()[4:]] == [None, "partial", None, None]
        assert "(interrupted)" in str(again.messages("anthropic"))
        assert is_valid(again)

    def test_what_was_shown_is_durable_soon_though_the_stream_says_no_more(
        self, store: Store, session: Session
    ) -> None:
        class Pondering(ScriptedModel):
            async def stream(self, request: Any) -> Any:
                yield Delta("short words and then ")
                await asyncio.sleep(30)

        async def wait_for_draft() -> str:
            while (draft := store.backend.draft(session.session_id)) is None:
                await asyncio.sleep(0.02)
            return draft

        async def main() -> None:
            run = session.send("q", model=Pondering([]))
            async for event in run:
                if event.type == "session:delta":
                    assert await asyncio.wait_for(wait_for_draft(), 10) == event.data["text"]
                    run.cancel()

        asyncio.run(main())
        assert session.row.status == "cancelled"

    def test_a_cancel_keeps_what_an_earlier_try_had_shown(self, session: Session) -> None:
        async def main() -> None:
            run = session.send(
                "q", model=[ScriptedModel([Broken("half a word ")]), ScriptedModel([Slow(30)])]
            )
            async for event in run:
                if event.type == "session:delta":
                    asyncio.get_running_loop().call_later(0.2, run.cancel)

        asyncio.run(main())
        assert session.path()[-1].message.text == "half a word (cancelled)"

    def test_the_answer_of_a_second_try_stands_alone(self, store: Store, session: Session) -> None:
        model = [ScriptedModel([Broken("half a word ")]), ScriptedModel(["whole"])]
        session.send_sync("q", model=model)
        assert [entry.message.text for entry in session.transcript()] == ["q", "whole"]
        assert store.backend.draft(session.session_id) is None

    def test_a_stream_of_many_pieces_is_not_a_commit_for_each(self, store: Store) -> None:
        saved: list[str] = []
        runtime = replace(store.runtime, now=lambda: 1_000_000_000_000_000)  # no time passes

        class CountingRunner(Runner):
            def save_draft(self, text: str) -> None:
                saved.append(text)
                super().save_draft(text)

        session = oakleaf.Store(store.backend, runtime).start("support")
        model = ScriptedModel(["word " * 400])

        policy = local_run([model], {}, NOW)
        writer = Writer(session.log, policy)
        writer.runner = CountingRunner(session.log)
        loop = build_loop(writer, policy)
        asyncio.run(loop.run("q"))
        assert len(saved) == 2000 // 400

    def test_a_rewind_leaves_the_draft_behind(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([Broken(self.LONG)]), limits=NOW)
        session.undo()
        assert session.log.store.draft(session.session_id) is None
        session.send_sync("q", model=ScriptedModel(["short"]))
        assert session.path()[-1].message.text == "short"

    def test_rollback_leaves_an_unanswered_turn_behind(self, session: Session) -> None:
        session.append([user("q")])
        model = ScriptedModel([])
        session.resume_sync(model=model, rollback=True)
        assert (len(session.path()), model.requests) == (1, [])
        assert read(session).cursor.turn == 0
        session.redo()
        assert len(session.path()) == 2

    def test_a_resume_that_cannot_start_leaves_no_turn_behind(self, session: Session) -> None:
        session.append([user("q")])
        for how in ({}, {"model": []}, {"model": "nobody:x"}, {"model": ScriptedModel([]), "tools": [print]}):
            with pytest.raises((TypeError, OakleafError)):
                session.resume(rollback=True, **how)
            assert len(session.path()) == 2

    def test_a_draft_ends_with_its_answer(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([self.LONG]))
        session.rewind(to=2)
        session.resume_sync(model=ScriptedModel(["another"]))
        assert session.path()[-1].message.text == "another"

    def test_a_new_input_keeps_the_words_of_a_broken_answer(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([Broken(self.LONG)]), limits=NOW)
        session.send_sync("go on", model=ScriptedModel(["sure"]))
        texts = [entry.message.text for entry in session.transcript()]
        assert texts[-4:] == ["q", self.LONG, "go on", "sure"]


class TestQueue:
    def test_input_for_a_busy_session_is_taken_when_the_turn_is_over(
        self, store: Store, session: Session
    ) -> None:
        model = ScriptedModel([Slow(0.05, "first"), "second", "third"])

        async def main() -> list[str]:
            events = []
            async for event in session.send("one", model=model):
                if event.type == "session:started":
                    other = store.session(session.session_id)
                    other.enqueue("two")
                    other.enqueue("three")
                events.append(event.type)
            return events

        assert asyncio.run(main()).count("session:turn_completed") == 3
        texts = [entry.message.text for entry in session.transcript()]
        assert texts == ["one", "first", "two", "second", "three", "third"]
        assert store.backend.inbox(session.session_id) == []
        assert is_valid(session)

    def test_what_is_queued_while_a_run_has_the_lease_is_taken_by_it_in_whatever_moment(
        self, store: Store
    ) -> None:
        has_acted, at = True, 0
        while has_acted:
            at += 1
            session = store.start()
            process, backend = interleaved(store, at, partial(session.enqueue, "two"))
            process.session(session.session_id).send_sync("one", model=ScriptedModel(lambda _: "ok"))
            has_acted = backend.has_acted
            texts = [entry.message.text for entry in store.session(session.session_id).transcript()]
            assert sorted(texts) == (["ok", "ok", "one", "two"] if has_acted else ["ok", "one"]), at
            assert session.verify() == []

    def test_what_was_queued_before_an_input_is_sent_runs_before_it_and_what_is_queued_later_after_it(
        self, store: Store, session: Session
    ) -> None:
        session.enqueue("one")
        session.enqueue("two")
        again = store.session(session.session_id)
        answers = iter("abcd")

        def answer(_: Any) -> str:
            text = next(answers)
            if text == "b":  # in the turn of "two"
                store.session(session.session_id).enqueue("four")
            return text

        again.send_sync("three", model=ScriptedModel(answer))
        texts = [entry.message.text for entry in again.transcript()]
        assert texts == ["one", "a", "two", "b", "three", "c", "four", "d"]
        assert store.backend.inbox(session.session_id) == []
        assert is_valid(again)

    def test_an_input_that_waits_for_queued_ones_is_durable_before_they_run(
        self, store: Store, session: Session
    ) -> None:
        session.enqueue("one")
        paths: list[list[str]] = []

        def answer(request: Any) -> str:
            queued = store.backend.inbox(session.session_id)
            paths.append([item.body.decode() for item in queued])
            if len(paths) == 1:
                raise KeyError("as if it were killed")
            return "b"

        with pytest.raises(KeyError):
            session.send_sync("two", model=ScriptedModel(answer), one_shot=True)
        assert ["two" in body for body in paths[0]] == [True]
        store.session(session.session_id).resume_sync(model=ScriptedModel(["a", "b"]))
        texts = [entry.message.text for entry in store.session(session.session_id).transcript()]
        assert texts == ["one", "a", "two", "b"]

    def test_an_attachment_behind_queued_inputs_is_durable_before_they_run(
        self, store: Store, session: Session
    ) -> None:
        image = oakleaf.Attachment(b"\x89PNG\r\n\x1a\n" + bytes(40), "image/png")
        session.enqueue("one")

        def answer(request: Any) -> str:
            raise KeyError("as if it were killed")

        with pytest.raises(KeyError):
            session.send_sync(user("two", image), model=ScriptedModel(answer))
        session.enqueue(user("three", image))
        store.backend.delete_unreferenced_blobs(2**60)
        again = store.session(session.session_id)
        model = ScriptedModel(["a", "b", "c"])
        again.resume_sync(model=model)
        assert [entry.message.text for entry in again.transcript()] == ["one", "a", "two", "b", "three", "c"]
        for model_request in model.requests[1:]:
            [handle] = model_request.messages[-1].media
            assert read(again).blob(handle.hash) == image.data
        assert again.verify() == []

    def test_an_input_with_a_key_is_refused_and_not_queued_if_a_queued_one_waits(
        self, store: Store, session: Session
    ) -> None:
        session.enqueue("one")
        desk, model = Desk(), ScriptedModel([assistant(ToolCall("c", "refund", {"order": 41}))])
        with pytest.raises(InputsQueued, match="send it again, as it is"):
            session.send_sync("two", model=model, tools=desk.tools(approval=True), key="m1")
        assert store.backend.inbox(session.session_id) == []
        assert session.row.status == "waiting"
        session.enqueue("three")
        with pytest.raises(ApprovalPending):
            session.send_sync("two", model=model, tools=desk.tools(approval=True))
        assert len(store.backend.inbox(session.session_id)) == 1, "what is refused is not queued"

    def test_an_input_that_waits_for_queued_ones_is_refused_if_they_use_up_its_turns(
        self, store: Store, session: Session
    ) -> None:
        session.enqueue("one")
        events = stopped(session.send_sync, "two", model=ScriptedModel(["a"]), limits=Limits(turns=1)).events
        assert events[-1].data["error"]["code"] == "turn_limit"
        assert [entry.message.text for entry in session.transcript()] == ["one", "a"]


class TestQueueInTheTrash:
    @pytest.mark.parametrize("how", ["send", "resume"])
    def test_inputs_that_were_queued_before_the_trash_run_after_it(self, store: Store, how: str) -> None:
        session = store.start()
        for text in ("one", "two"):
            session.enqueue(text)
        store.delete(session.session_id)
        store.restore(session.session_id)
        warnings = [
            one.message for one in session_health(store.backend, store.runtime) if one.level == "warning"
        ]
        assert f"{session.session_id} has 2 queued inputs, and nothing runs it" in warnings
        model = ScriptedModel(lambda _: "a")
        session = store.session(session.session_id)
        if how == "send":
            session.send_sync("three", model=model)
        else:
            session.resume_sync(model=model)
        inputs = [entry.message.text for entry in session.path() if entry.role == "user" and entry.message]
        assert inputs == (["one", "two", "three"] if how == "send" else ["one", "two"])
        assert store.backend.inbox(session.session_id) == []

    def test_a_turn_that_was_open_before_the_trash_goes_on_after_it(self, store: Store) -> None:
        session = store.start()
        session.append([user("q")])
        store.delete(session.session_id)
        store.restore(session.session_id)
        assert session.resume_sync(model=ScriptedModel(["a"])).text == "a"


class TestSendingWithAKey:
    def test_another_input_under_its_key_is_refused_and_the_same_is_not(
        self, store: Store, session: Session
    ) -> None:
        picture = Attachment(b"\x89PNG" + bytes(60), "image/png")
        secret, model = "key AKIA" + "A1B2" * 4, ScriptedModel(["a", "b"])
        for key, content in (("m1", user(f"see {secret}", picture)), ("m2", user("no secret", picture))):
            first = session.send_sync(content, model=model, key=key)
            again = store.session(session.session_id).send_sync(content, model=ScriptedModel([]), key=key)
            assert again.text == first.text
        path = session.path()
        for other in ("another", user("no secret", Attachment(b"other bytes", "image/png"))):
            with pytest.raises(KeyReused, match="key 'm2' belongs to the input at entry 4"):
                session.send_sync(other, model=ScriptedModel([]), key="m2")
            with pytest.raises(KeyReused), session.turn(other, key="m2"):
                pass
        assert store.session(session.session_id).path() == path

    def send(self, session: Session, *lines: Any, key: str = "m1", **how: Any) -> oakleaf.RunResult:
        return session.send_sync("hello", model=ScriptedModel([*lines]), key=key, limits=NOW, **how)

    def test_sent_again_the_recorded_result_is_returned_and_nothing_is_written(self, store: Store) -> None:
        session, desk = store.start(), Desk()
        call = assistant(ToolCall("c", "refund", {"order": 41}))
        first = self.send(session, call, "Refunded.", tools=desk.tools())
        session.send_sync("more", model=ScriptedModel(["Yes."]))
        before = read_everything(store.backend, session.session_id)
        for handle in (session, store.session(session.session_id)):
            again = self.send(handle, tools=desk.tools(), one_shot=True)
            assert (again.text, again.status, again.usage) == ("Refunded.", "completed", first.usage)
            assert again.error is None
        assert read_everything(store.backend, session.session_id) == before
        session.rewind(0)
        before = read_everything(store.backend, session.session_id)
        assert self.send(session).text == "Refunded."
        assert read_everything(store.backend, session.session_id) == before
        assert desk.did == [("refund", 41)]
        assert first.usage.calls == 2

    def test_a_turn_that_is_open_goes_on(self, store: Store) -> None:
        session, desk = store.start(), Desk()
        call = assistant(ToolCall("c", "refund", {"order": 41}))
        failed = self.send(session, call, Broken("away"), tools=desk.tools())
        assert failed.status == "failed"
        again = self.send(store.session(session.session_id), "Refunded.", tools=desk.tools())
        assert (again.text, again.status) == ("Refunded.", "completed")
        session.refresh()
        roles = [entry.role for entry in session.path()]
        assert roles == [None, "user", "assistant", "tool", "assistant"]
        assert desk.did == [("refund", 41)]

    def test_however_the_turn_ended_the_same_is_told_again(self, store: Store) -> None:
        call = assistant(ToolCall("c", "look", {"order": 41}))
        ended = store.start()
        limits = Limits(rounds=1)
        tools = Desk().tools()
        for _ in range(2):
            result = stopped(
                ended.send_sync, "x", model=ScriptedModel([call]), tools=tools, limits=limits, key="k"
            )
            assert (result.status, result.answer) == ("stopped", None)
            assert result.error is not None
            assert result.error.code == "turn_limit"
        cancelled = store.start()

        async def cancel() -> None:
            run = cancelled.send("x", model=ScriptedModel([Slow(60, "never")]), key="k")
            async for event in run:
                if event.type == "session:turn_started":
                    run.cancel()

        asyncio.run(cancel())
        again = cancelled.send_sync("x", model=ScriptedModel([]), key="k")
        assert again.status == "cancelled"

        @oakleaf.tool
        def hang_up(ctx: ToolContext) -> str:
            """End the call."""
            ctx.ends_turn = True
            return "bye"

        ended = store.start()
        results = [
            ended.send_sync("x", model=ScriptedModel(lines), tools=[hang_up], key="k")
            for lines in ([assistant(ToolCall("c", "hang_up"))], [])
        ]
        assert results[0].status == results[1].status == "completed"
        assert results[0].text == results[1].text

    def test_delivered_twice_at_once_it_runs_once(self, store: Store) -> None:
        session, desk = store.start(), Desk()
        model = ScriptedModel(
            lambda request: (
                "Refunded."
                if any(message.role == "tool" for message in request.messages)
                else assistant(ToolCall("c", "refund", {"order": 41}))
            )
        )
        outcomes: list[Any] = []
        start = threading.Barrier(4)

        def deliver() -> None:
            handle = store.session(session.session_id)
            start.wait()
            while True:
                try:
                    outcomes.append(handle.send_sync("hello", model=model, tools=desk.tools(), key="m1").text)
                    return
                except (SessionRunning, Fenced):  # delivered again, as a queue does
                    time.sleep(0.01)

        threads = [threading.Thread(target=deliver) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert outcomes == ["Refunded."] * 4
        assert desk.did == [("refund", 41)]
        session.refresh()
        assert len(session.path()) == 5
        assert session.verify() == []

    def test_no_key_costs_no_lookup(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(store.backend), "find_change", lambda *_: pytest.fail("looked up"))
        assert store.start().send_sync("hello", model=ScriptedModel(["Hi."])).text == "Hi."


class TestEventsThatAreLeft:
    """`break` cancels the run; the next send through the same handle met it at work: `StaleLeaf`, `OpenBatch`, `Fenced`."""

    @staticmethod
    async def leave_after(count: int, session: Session, how: str) -> None:
        async def wait() -> str:
            await asyncio.sleep(3600)
            return ""

        def count_up() -> str:
            return "1"

        calls = assistant(ToolCall("c", "wait"), ToolCall("d", "count_up"))
        run = session.send("left", model=ScriptedModel([calls]), tools=[wait, count_up])
        if how == "break":
            async for _ in run:
                count -= 1
                if count < 0:
                    break
        elif how == "an error":
            with contextlib.suppress(ZeroDivisionError):
                async for _ in run:
                    count = count - 1 if count else 1 // 0
        else:
            async with contextlib.aclosing(aiter(run)) as events:
                for _ in range(count + 1):
                    await anext(events)

    @pytest.mark.parametrize("how", ["break", "an error", "closed"])
    def test_the_next_send_through_the_handle_follows_their_end(self, session: Session, how: str) -> None:
        async def main(count: int) -> None:
            await self.leave_after(count, session, how)
            assert (await session.send("next", model=ScriptedModel(["a"]))).text == "a"

        for count in range(4):
            asyncio.run(main(count))
        texts = [entry.message.text for entry in session.path() if entry.message]
        assert texts.count("next") == texts.count("a") == texts.count("(cancelled)") == 4
        assert session.row.status == "idle"
        assert session.verify() == []

    def test_the_next_send_may_come_from_another_thread(self, session: Session) -> None:
        async def main() -> str:
            await self.leave_after(1, session, "break")
            result = await asyncio.to_thread(session.send_sync, "next", model=ScriptedModel(["a"]))
            return result.text

        assert asyncio.run(main()) == "a"

    def test_the_next_send_on_another_event_loop_does_not_wait_for_one_that_stands_still(
        self, session: Session
    ) -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(self.leave_after(1, session, "break"))
        with pytest.raises(SessionRunning):
            session.send_sync("next", model=ScriptedModel(["a"]))
        while waiting := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(waiting))
        loop.close()
        assert session.send_sync("next", model=ScriptedModel(["a"])).text == "a"

    def test_events_that_are_held_and_not_left_refuse_the_next_send(self, session: Session) -> None:
        async def main() -> None:
            is_refused = asyncio.Event()

            async def wait() -> str:
                await is_refused.wait()
                return ""

            model = ScriptedModel([assistant(ToolCall("c", "wait")), "a"])
            events = aiter(session.send("q", model=model, tools=[wait]))
            await anext(events)
            with pytest.raises(SessionRunning):
                await session.send("next", model=ScriptedModel(["b"]))
            is_refused.set()
            async for _ in events:
                pass

        asyncio.run(main())
        texts = [entry.message.text for entry in session.path() if entry.message]
        assert texts[-1] == "a"
        assert "next" not in texts
