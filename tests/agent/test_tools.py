"""Tools of a run: each call has one result, runs once, and ends neither its siblings nor the turn."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import Media, ScriptedModel, Session, ToolCall, ToolContext, assistant, user
from oakleaf.core.turns import Rest, next_action
from oakleaf.errors import ToolsNotAllowed
from oakleaf.store import Store
from support.order_desk import Desk, ask, is_valid


@pytest.fixture
def desk() -> Desk:
    return Desk()


def results(session: Session) -> list[Any]:
    return [result for entry in session.path() if entry.message for result in entry.message.results]


class OwnError(BaseException):
    """An error of a library that is no `Exception`."""


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


class TestTools:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"order": "x"}, "Expected `int`"),
            ({}, "missing required"),
            ({"order": 1, "extra": 2}, "unknown field"),
        ],
    )
    def test_arguments_that_do_not_fit_are_an_error_for_the_model(
        self, session: Session, desk: Desk, arguments: dict[str, Any], message: str
    ) -> None:
        call = assistant(ToolCall("c", "look", arguments))
        session.send_sync("q", model=ScriptedModel([call, "sorry"]), tools=desk.tools())
        result = session.path()[4].message.results[0]
        assert result.error
        assert message in result.content[0].text
        assert desk.did == []

    def test_a_tool_that_raises_never_breaks_the_session(self, session: Session) -> None:
        @oakleaf.tool
        def boom() -> str:
            raise RuntimeError("no\0t today \ud800")

        @oakleaf.tool
        def odd() -> object:
            return object()

        calls = assistant(ToolCall("a", "boom"), ToolCall("b", "odd"), ToolCall("c", "nobody"))
        session.send_sync("q", model=ScriptedModel([calls, "sorry"]), tools=[boom, odd])
        results = [entry.message.results[0] for entry in session.path() if entry.role == "tool"]
        assert [result.error for result in results] == [True, True, True]
        assert is_valid(session)

    @pytest.mark.parametrize("timeout", [None, 30.0])
    @pytest.mark.parametrize(
        "error",
        [
            SystemExit("bye"),
            GeneratorExit("bye"),
            StopIteration("bye"),
            asyncio.CancelledError("bye"),
            TimeoutError("bye"),
            OwnError("bye"),
            BaseExceptionGroup("bye", [OwnError(), GeneratorExit(), SystemExit()]),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_an_error_of_a_tool_is_its_result_and_ends_nothing_else(
        self, session: Session, error: BaseException, timeout: float | None
    ) -> None:
        @oakleaf.tool(timeout=timeout)
        def leave() -> str:
            raise error

        @oakleaf.tool(timeout=timeout)
        async def leave_later() -> str:
            await asyncio.sleep(0)
            raise error

        @oakleaf.tool
        async def stay() -> str:
            await asyncio.sleep(0.01)
            return "here"

        tools = [leave, leave_later, stay]
        calls = assistant(*(ToolCall(tool.name, tool.name) for tool in tools))
        session.send_sync("q", model=ScriptedModel([calls, "sorry"]), tools=tools)
        results = [entry.message.results[0] for entry in session.path() if entry.role == "tool"]
        texts = {result.call_id: result.content[0].text for result in results if result.error}
        assert texts.keys() == {"leave", "leave_later"}
        for text in texts.values():
            assert f"{type(error).__name__}: bye" in text or "StopIteration" in text
        assert (session.row.status, session.transcript()[-1].message.text) == ("idle", "sorry")
        assert is_valid(session)

    def test_an_interrupt_raised_on_a_thread_is_the_tools_own(self, session: Session) -> None:
        @oakleaf.tool
        def interrupt() -> str:
            raise KeyboardInterrupt

        model = ScriptedModel([assistant(ToolCall("a", "interrupt")), "sorry"])
        assert session.send_sync("q", model=model, tools=[interrupt]).text == "sorry"

    @pytest.mark.parametrize("timeout", [None, 30.0])
    def test_ctrl_c_in_an_async_tool_cancels_the_turn(self, session: Session, timeout: float | None) -> None:
        @oakleaf.tool(timeout=timeout)
        async def interrupt() -> str:
            raise KeyboardInterrupt

        model = ScriptedModel([assistant(ToolCall("a", "interrupt"))])
        with pytest.raises(KeyboardInterrupt):
            session.send_sync("q", model=model, tools=[interrupt])
        assert (session.row.status, session.row.holder) == ("cancelled", None)
        assert is_valid(session)

    @pytest.mark.parametrize("leaving", ["returns", "raises", "exits"])
    @pytest.mark.parametrize("kind", ["sync", "async", "own loop"])
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_process_forked_by_a_tool_leaves_the_run(self, tmp_path: Path, kind: str, leaving: str) -> None:
        """It waited for ever in the thread pool of its parent, or closed the parent's event loop: the parent hung."""
        children: list[int] = []

        def fork() -> str:
            child = os.fork()
            if child == 0:
                if leaving == "raises":
                    raise ValueError("child")
                if leaving == "exits":
                    sys.exit(0)
                return "child"
            children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return "parent"

        async def fork_here() -> str:
            return fork()

        with oakleaf.open(tmp_path / "s.db") as store:
            session = store.start()
            if kind == "own loop":
                with session.turn("q") as turn:
                    turn.run(turn.answer(assistant(ToolCall("a", "fork"))).calls[0], fork)
                    turn.answer(assistant("done"))
            else:
                tool = oakleaf.tool(name="fork")(fork if kind == "sync" else fork_here)
                answers = ScriptedModel([assistant(ToolCall("a", "fork")), "done"])
                assert session.send_sync("q", model=answers, tools=[tool]).text == "done"
            results = [
                result for entry in session.path() if entry.message for result in entry.message.results
            ]
            assert [result.content[0].text for result in results] == ["parent"]
            assert (children, session.verify()) == ([1], [])

    @pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("several", [GeneratorExit()])])
    def test_a_model_that_exits_leaves_a_failed_turn(self, session: Session, error: BaseException) -> None:
        class Leaving(ScriptedModel):
            async def stream(self, request: Any) -> Any:
                raise error
                yield

        with pytest.raises(type(error)):
            session.send_sync("q", model=Leaving([]))
        assert (session.row.status, session.row.holder) == ("failed", None)
        session.resume_sync(model=ScriptedModel(["fine"]))
        assert session.transcript()[-1].message.text == "fine"

    def test_a_tool_that_takes_too_long_is_stopped(self, session: Session) -> None:
        @oakleaf.tool(timeout=0.05)
        async def slow() -> str:
            await asyncio.sleep(30)
            return "never"

        session.send_sync("q", model=ScriptedModel([assistant(ToolCall("a", "slow")), "sorry"]), tools=[slow])
        assert "took longer" in session.path()[4].message.results[0].content[0].text

    def test_a_tool_may_end_the_turn(self, session: Session) -> None:
        @oakleaf.tool(effect="read")
        def hang_up(ctx: ToolContext) -> str:
            ctx.ends_turn = True
            return "bye"

        model = ScriptedModel([assistant(ToolCall("a", "hang_up"))])
        events = session.send_sync("q", model=model, tools=[hang_up]).events
        assert events[-1].data == {"stop_reason": "ended by a tool"}
        closing = session.transcript()[-1]
        assert (closing.message.text, closing.finish) == ("(ended by a tool)", "ended_by_tool")
        assert (closing.turn, session.row.status, session.verify()) == (3, "idle", [])
        assert next_action(session.path()) == Rest("ended by a tool")
        session.rewind(closing.seq - 1)
        assert (
            session.resume_sync(model=ScriptedModel([])).events[-1].data["stop_reason"] == "ended by a tool"
        )
        assert session.transcript()[-1].message == closing.message
        assert session.row.status == "idle"

    def test_a_start_is_durable_before_the_tool_runs(self, session: Session) -> None:
        session.append([user("q"), assistant(ToolCall("c", "look"))])
        kinds: list[list[str]] = []

        @oakleaf.tool(effect="unsafe")
        def look() -> str:
            kinds.append([fact.kind for fact in session.journal()])
            return "x"

        session.resume_sync(model=ScriptedModel(["ok"]), tools=[look])
        assert "tool_calls_started" in kinds[0]

    def test_two_calls_of_one_id_run_once_each(self, session: Session, desk: Desk) -> None:
        ids = ["same", "same", "same-2"]
        answer = assistant(*(ToolCall(name, "refund", {"order": n}) for n, name in enumerate(ids)))
        session.send_sync("q", model=ScriptedModel([answer, "ok"]), tools=desk.tools())
        assert sorted(desk.did) == [("refund", 0), ("refund", 1), ("refund", 2)]
        assert len({result.call_id for result in results(session)}) == 3

    def test_a_late_unsafe_tool_has_an_unknown_outcome(self, session: Session) -> None:
        @oakleaf.tool(effect="unsafe", timeout=0.05)
        async def slow() -> str:
            await asyncio.sleep(30)
            return "never"

        session.send_sync("q", model=ScriptedModel([assistant(ToolCall("c", "slow")), "hm"]), tools=[slow])
        assert results(session)[0].outcome == "unknown"

    @pytest.mark.parametrize(
        "function",
        [stop, late, unavailable, mute, half, missing, odd_state, odd_details, odd_end],
        ids=lambda f: f.__name__,
    )
    def test_every_odd_tool_has_a_result_and_the_turn_goes_on(self, session: Session, function: Any) -> None:
        model = ScriptedModel([assistant(ToolCall("c", function.__name__)), "ok"])
        session.send_sync("q", model=model, tools=[oakleaf.tool(effect="read")(function)])
        assert results(session)[0].error
        assert session.path()[-1].message.text == "ok"
        assert session.verify() == []

    def test_many_blocking_tools_do_not_delay_the_result_of_another(self, session: Session) -> None:
        release = threading.Event()

        @oakleaf.tool(effect="read")
        def block(n: int) -> str:
            release.wait(20)
            return "late"

        @oakleaf.tool(effect="read")
        async def quick() -> str:
            return "quick"

        calls = [ToolCall(f"b{n}", "block", {"n": n}) for n in range(40)]

        async def main() -> None:
            model = ScriptedModel([assistant(*calls, ToolCall("q", "quick")), "ok"])
            async for event in session.send("q", model=model, tools=[block, quick]):
                if event.type == "session:tool_result" and event.data["name"] == "quick":
                    assert results(session)[-1].call_id == "q"
                    release.set()

        asyncio.run(asyncio.wait_for(main(), 15))

    def test_malformed_arguments_are_not_run_with_the_defaults(self, session: Session) -> None:
        did: list[bool] = []

        @oakleaf.tool
        def wipe(everything: bool = True) -> str:
            did.append(everything)
            return "wiped"

        half = assistant(ToolCall("c", "wipe", malformed='{"everything": fal'))
        session.send_sync("q", model=ScriptedModel([half, "end"]), tools=[wipe])
        (result,) = session.path()[4].message.results
        assert (did, result.error) == ([], True)
        assert "not a JSON object" in result.content[0].text


class TestNarrowing:
    def test_settings_narrow_the_tools_and_never_widen_them(self, session: Session, desk: Desk) -> None:
        session.set(tools=("look", "not given"))
        model = ScriptedModel([ask(("refund", 1), ("look", 2)), "ok"])
        session.send_sync("q", model=model, tools=desk.tools())
        assert [spec.name for spec in model.requests[0].tools] == ["look"]
        assert desk.did == [("look", 2)]
        assert is_valid(session)

    def test_a_run_has_only_the_tools_of_its_session(self, store: Store, desk: Desk) -> None:
        session = store.start(tool_names=["look", "tag"])
        model = ScriptedModel([ask(("refund", 1), ("look", 2)), "ok"])
        session.send_sync("q", model=model, tools=desk.tools())
        assert ([spec.name for spec in model.requests[0].tools], desk.did) == (["look", "tag"], [("look", 2)])
        for widen in (session.set, session.fork):
            with pytest.raises(ToolsNotAllowed, match="refund"):
                widen(tools=["look", "refund"])
