"""Hooks: functions of the host around turns, model calls and tool calls, in our loop and in an own loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import (
    Ending,
    Hooks,
    Limits,
    Refused,
    ScriptedModel,
    Session,
    Store,
    ToolCall,
    ToolContext,
    assistant,
)
from oakleaf.core.facts import TurnRefused
from oakleaf.errors import Overloaded, TurnFailed, TurnLimit
from support.sessions import tasks_of

span: ContextVar[str] = ContextVar("span", default="")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Notes:
    """What hooks saw, in order; a hook sets the context variable `span`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: list[Any] = []
        self.endings: list[Ending] = []

    def watch(self, kind: str) -> Callable[[Any], Callable[[Ending], None]]:
        def hook(watched: Any) -> Callable[[Ending], None]:
            parent = span.get()
            self.lines.append(f"{kind} in {parent or 'nothing'}")
            self.seen.append(watched)
            span.set(kind)

            def after(ending: Ending) -> None:
                self.lines.append(f"{kind} {ending.status}")
                self.endings.append(ending)

            return after

        return hook

    @property
    def hooks(self) -> Hooks:
        return Hooks(
            on_turn=self.watch("turn"), on_model_call=self.watch("model"), on_tool=self.watch("tool")
        )


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def store(tmp_path: Path, notes: Notes) -> Iterator[Store]:
    with oakleaf.open(tmp_path / "a.db", hooks=[notes.hooks]) as store:
        yield store


@oakleaf.tool(effect="read")
def lookup(order: int) -> str:
    """Look an order up."""
    return f"order {order} in {span.get()}"


CALL = ToolCall("c", "lookup", {"order": 41})
WATCHED = [
    "turn in nothing",
    "model in turn",
    "model done",
    "tool in turn",
    "tool done",
    "model in turn",
    "model done",
    "turn done",
]


def script() -> ScriptedModel:
    return ScriptedModel([assistant(CALL), "It is lost."])


def crash(request: object) -> str:
    raise ValueError("no")


def refuse(watched: object) -> None:
    raise Refused("not today")


class TestOurLoop:
    def test_hooks_see_turn_model_calls_and_tools(self, store: Store, notes: Notes) -> None:
        session = store.start("support")
        session.send_sync("Where is it?", model=script(), tools=[lookup], trace=TRACE)
        assert notes.lines == WATCHED
        turn, first, tool, _ = notes.seen
        assert (turn.agent, turn.input.text, turn.trace) == ("support", "Where is it?", TRACE)
        assert [message.text for message in first.request.messages] == ["Where is it?"]
        assert (tool.call, tool.turn) == (CALL, session.path()[1].turn)
        assert tool.key.startswith(session.session_id)
        answer, result, last, _ = notes.endings
        assert (answer.call.usage, last.message.text) == (session.model_calls()[0].usage, "It is lost.")
        assert result.message.results[0].text == "order 41 in tool", "the tool runs in the span of its hook"
        assert span.get() == ""

    def test_a_task_runs_within_the_tool_that_started_it(self, store: Store, notes: Notes) -> None:
        @oakleaf.tool(effect="read")
        async def delegate(ctx: ToolContext) -> str:
            """Ask another agent."""
            return await ctx.task("Look", agent="other", models=[ScriptedModel(["Found."])])

        session = store.start("support")
        model = ScriptedModel([assistant(ToolCall("c", "delegate", {})), "Done."])
        session.send_sync("Go", model=model, tools=[delegate])
        assert notes.lines[3:8] == [
            "tool in turn",
            "turn in tool",
            "model in turn",
            "model done",
            "turn done",
        ]
        assert {watched.session_id for watched in notes.seen} == {
            session.session_id,
            tasks_of(session)[0].session_id,
        }

    def test_a_failed_call_and_its_turn_are_seen_as_failed(self, store: Store, notes: Notes) -> None:
        model = ScriptedModel([Overloaded("m", "busy")] * 2)
        session = store.start()
        result = session.send_sync("Hi", model=model, limits=Limits(tries=2, pause=lambda failures: 0.0))
        with pytest.raises(TurnFailed):
            result.raise_for_status()
        assert [ending.status for ending in notes.endings] == ["failed"] * 3
        assert notes.endings[0].error_type == "Overloaded"
        assert "busy" in (notes.endings[2].error or "")

    def test_a_queued_input_is_a_turn_of_its_own(self, store: Store, notes: Notes) -> None:
        session = store.start()
        session.enqueue("first")
        session.send_sync("second", model=ScriptedModel(["1", "2"]))
        turns = [watched.input.text for watched in notes.seen if hasattr(watched, "input")]
        assert turns == ["first", "second"]

    def test_a_cancelled_run_ends_its_hooks(self, store: Store, notes: Notes) -> None:
        started = asyncio.Event()

        @oakleaf.tool(effect="read")
        async def wait() -> None:
            """Wait."""
            started.set()
            await asyncio.Event().wait()

        async def run() -> None:
            model = ScriptedModel([assistant(ToolCall("c", "wait", {}))])
            running = store.start().send("Hi", model=model, tools=[wait])
            task = asyncio.ensure_future(running._run_to_end())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())
        assert notes.lines[-2:] == ["tool cancelled", "turn cancelled"]

    def test_a_resumed_turn_has_the_trace_of_its_sender(
        self, store: Store, notes: Notes, tmp_path: Path
    ) -> None:
        session = store.start()
        with pytest.raises(ValueError, match="no"):
            session.send_sync("Hi", model=ScriptedModel([crash]), trace=TRACE)
        with oakleaf.open(tmp_path / "a.db", hooks=[notes.hooks]) as again:
            run = again.session(session.session_id).resume(model=ScriptedModel(["Hello."]))

            async def end() -> None:
                await run

            asyncio.run(end())
        turns = [watched for watched in notes.seen if hasattr(watched, "trace")]
        assert [(turn.turn, turn.trace) for turn in turns] == [(0, TRACE), (1, TRACE)]


class TestOwnLoop:
    def test_hooks_see_the_same_calls_as_in_our_loop(self, store: Store, notes: Notes) -> None:
        session = store.start("support")
        with session.turn("Where is it?", model="fake:m", trace=TRACE) as turn:
            turn.answer(assistant(CALL))
            result = turn.run(turn.open_tool_calls[0], lookup)
            turn.answer(assistant("It is lost."))
        assert notes.lines == WATCHED
        assert result.results[0].text == "order 41 in tool"
        assert (notes.seen[0].trace, notes.seen[1].request) == (TRACE, None)
        assert notes.seen[1].at >= notes.seen[0].at
        assert span.get() == ""

    def test_an_async_turn_calls_them_too(self, store: Store, notes: Notes) -> None:
        async def run() -> None:
            async with store.start().turn("Where is it?", model="fake:m") as turn:
                assert span.get() == "turn"
                await turn.answer(assistant(CALL))
                await turn.run(turn.open_tool_calls[0], lookup)
                await turn.answer(assistant("It is lost."))
            assert span.get() == ""

        asyncio.run(run())
        assert notes.lines == WATCHED

    def test_a_tool_of_the_host_is_seen_from_start_to_result(self, store: Store, notes: Notes) -> None:
        with store.start().turn("Where is it?", model="fake:m") as turn:
            turn.answer(assistant(CALL, ToolCall("d", "other", {})))
            turn.started(turn.open_tool_calls[0])
            notes.lines.append("host runs it")
            turn.result("c", "lost", error=True)
            turn.result("d", "x")
            turn.answer(assistant("It is lost."))
        assert notes.lines[3:8] == [
            "tool in turn",
            "host runs it",
            "tool failed",
            "tool in turn",
            "tool done",
        ]

    def test_a_failed_call_is_seen(self, store: Store, notes: Notes) -> None:
        with store.start().turn("Hi", model="fake:m") as turn:
            turn.failed("busy")
            turn.answer(assistant("Hello."), usage=oakleaf.Usage(3, 1))
        assert notes.lines[1:5] == ["model in turn", "model failed", "model in turn", "model done"]

    def test_a_repeated_keyed_turn_calls_no_hook(self, store: Store, notes: Notes) -> None:
        session = store.start()
        for _ in range(2):
            with session.turn("Hi", key="k") as turn:
                turn.answer(assistant("Hello."))
        assert notes.lines.count("turn in nothing") == 1


class TestRefusal:
    def store(self, tmp_path: Path, **hooks: Any) -> Store:
        return oakleaf.open(tmp_path / "a.db", hooks=[Hooks(**hooks)])

    def test_a_refused_turn_stores_no_input(self, tmp_path: Path) -> None:
        with self.store(tmp_path, on_turn=refuse) as store:
            session, model = store.start(), ScriptedModel(["no"])
            with pytest.raises(TurnLimit, match="a hook refused: not today") as caught:
                session.send_sync("Hi", model=model)
            assert (caught.value.limit, session.path(), model.requests) == ("hook", [], [])
            with pytest.raises(TurnLimit, match="not today"), session.turn("Hi"):
                pass
            session.refresh()
            assert session.path() == []
            assert sum(isinstance(fact.fact, TurnRefused) for fact in session.journal()) == 2

    def test_a_refused_queued_input_leaves_the_queue(self, tmp_path: Path) -> None:
        def hook(watched: Any) -> None:
            if watched.input.text == "bad":
                raise Refused("not today")

        with self.store(tmp_path, on_turn=hook) as store:
            session = store.start()
            session.enqueue("bad")
            session.send_sync("good", model=ScriptedModel(["Hello."]))
            assert [entry.text for entry in session.path()] == ["good", "Hello."]

    def test_a_refused_model_call_is_not_made_and_closes_the_turn(self, tmp_path: Path) -> None:
        with self.store(tmp_path, on_model_call=refuse) as store:
            session, model = store.start(), ScriptedModel(["no"])
            with pytest.raises(TurnLimit, match="not today"):
                session.send_sync("Hi", model=model)
            assert (model.requests, session.model_calls()) == ([], [])
            assert "not today" in session.path()[-1].text
            assert not session.verify()

    def test_a_refused_tool_does_not_run_and_the_model_reads_why(self, tmp_path: Path) -> None:
        ran: list[int] = []

        @oakleaf.tool
        def lookup(order: int) -> None:
            """Look up."""
            ran.append(order)

        with self.store(tmp_path, on_tool=refuse) as store:
            session = store.start()
            session.send_sync("Hi", model=script(), tools=[lookup])
            with session.turn("Again", model="fake:m") as turn:
                turn.answer(assistant(CALL))
                turn.run(turn.open_tool_calls[0], lookup)
                turn.answer(assistant("I may not."))
            results = [entry.message.results[0] for entry in session.path() if entry.role == "tool"]
            assert [(result.text, result.outcome) for result in results] == [
                ("Refused: not today", "denied")
            ] * 2
            assert ran == []

    def test_a_call_of_the_host_that_was_made_cannot_be_refused(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with self.store(tmp_path, on_model_call=refuse) as store:
            session = store.start()
            with session.turn("Hi", model="fake:m") as turn:
                turn.answer(assistant("Hello."))
            assert session.path()[-1].text == "Hello."
        assert "on_model_call refused too late: not today" in caplog.text

    def test_earlier_hooks_hear_of_a_refusal(self, tmp_path: Path, notes: Notes) -> None:
        with oakleaf.open("memory:", hooks=[notes.hooks, Hooks(on_tool=refuse)]) as store:
            store.start().send_sync("Hi", model=script(), tools=[lookup])
        assert notes.lines[3:5] == ["tool in turn", "tool refused"]


class TestFaults:
    def answer(self, hooks: Hooks) -> tuple[Session, list[str]]:
        with oakleaf.open("memory:", hooks=[hooks]) as store:
            session = store.start()
            session.send_sync("Where is it?", model=script(), tools=[lookup])
            with session.turn("Again", model="fake:m") as turn:
                turn.answer(assistant("Hello."))
            return session, [entry.text for entry in session.path()]

    def test_a_hook_that_raises_is_logged_and_the_work_goes_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(value: object) -> None:
            raise SystemExit("broken")

        _, texts = self.answer(Hooks(on_turn=broken, on_model_call=lambda _: broken, on_tool=broken))
        assert texts[-1] == "Hello."
        assert "on_turn failed: SystemExit: broken; the work goes on without this hook" in caplog.text
        assert caplog.text.count("on_model_call failed") == 3

    def test_a_failed_hook_leaves_no_secret_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        secret = "sk-ant-api03-" + "A1b2" * 20

        def broken(value: object) -> None:
            raise ValueError(f"wrong key {secret}")

        self.answer(Hooks(on_turn=broken))
        assert "wrong key [redacted]; the work goes on" in caplog.text
        assert "Traceback" in caplog.text
        assert secret not in caplog.text

    def test_a_hook_that_hangs_is_left_after_its_timeout(self, caplog: pytest.LogCaptureFixture) -> None:
        release = threading.Event()
        try:
            session, texts = self.answer(Hooks(on_model_call=lambda _: release.wait(), timeout=0.05))
        finally:
            release.set()
        assert texts[-1] == "Hello."
        assert "on_model_call has not returned after 0.05 s" in caplog.text
        (record, *_) = [record for record in caplog.records if record.name == "oakleaf.hooks"]
        assert (record.__dict__["session_id"], record.__dict__["turn"]) == (
            session.session_id,
            session.path()[1].turn,
        )

    def test_a_hook_that_hangs_holds_up_no_other_session(self) -> None:
        order: list[str] = []
        release = threading.Event()

        async def send(store: Store, text: str) -> None:
            await store.start().send(text, model=ScriptedModel(["Hello."]))
            order.append(text)
            release.set()

        def hang(watched: Any) -> None:
            if watched.request.messages[0].text == "slow":
                assert release.wait(60)

        async def both(store: Store) -> None:
            await asyncio.gather(send(store, "slow"), send(store, "fast"))

        with oakleaf.open("memory:", hooks=[Hooks(on_model_call=hang, timeout=60)]) as store:
            asyncio.run(both(store))
        assert order == ["fast", "slow"]


class TestLog:
    def test_the_library_is_silent_by_default(self) -> None:
        handlers = logging.getLogger("oakleaf").handlers
        with oakleaf.open("memory:") as store:
            store.start().send_sync("Hi", model=ScriptedModel(["Hello."]))
        assert any(isinstance(handler, logging.NullHandler) for handler in handlers)

    def test_records_have_session_and_turn(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "oakleaf")
        with oakleaf.open("memory:") as store:
            session = store.start("support")
            session.send_sync("Where is it?", model=script(), tools=[lookup])
            with session.turn("Again", model="fake:m") as turn:
                turn.answer(assistant("Hello."))
        records = [record for record in caplog.records if record.name in ("oakleaf.turn", "oakleaf.tool")]
        assert [record.getMessage() for record in records] == [
            "tool lookup done",
            "turn support done",
            "turn done",
        ]
        assert {record.__dict__["session_id"] for record in records} == {session.session_id}
        first, second = (entry.seq for entry in session.path() if entry.seq == entry.turn)
        assert [record.__dict__["turn"] for record in records] == [first, first, second]
        assert "Where is it?" not in caplog.text


class TestTrace:
    @pytest.mark.parametrize("trace", ["", "x", "00-0-0-01", TRACE.upper(), TRACE + "\n"])
    def test_a_wrong_traceparent_is_refused_before_anything_is_written(self, trace: str) -> None:
        with oakleaf.open("memory:") as store:
            session = store.start()
            with pytest.raises(oakleaf.OakleafError, match="trace"):
                session.send_sync("Hi", model=ScriptedModel(["no"]), trace=trace)
            with pytest.raises(oakleaf.OakleafError, match="trace"):
                session.turn("Hi", trace=trace)
            assert session.path() == []


def test_a_replay_runs_no_hook_of_a_tool(store: Store, notes: Notes) -> None:
    session = store.start()
    session.send_sync("Where is it?", model=script(), tools=[lookup])
    before = notes.lines.count("tool in turn")
    session.replay_sync(model=script(), tools="recorded")
    assert notes.lines.count("tool in turn") == before
