"""The result of a run, a tool as the function it was, and how little is read before an input is durable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, Slow, ToolCall, ToolContext, assistant, system
from oakleaf.errors import InvalidArgument, InvalidOperation
from oakleaf.models.prices import Rates
from support.stopped_runs import stopped


@oakleaf.tool(effect="idempotent")
def refund(order: int) -> str:
    """Give the money back."""
    return f"refunded {order}"


@oakleaf.tool
def keyed(order: int, ctx: ToolContext) -> str:
    """Return the key."""
    return f"{order} under {ctx.key}"


@oakleaf.tool(approval=True)
async def pay(order: int) -> str:
    """Pay."""
    return f"paid {order}"


class TestARunThatIsNotAwaited:
    def test_has_no_answer_and_says_how_to_get_one(self, session: Session) -> None:
        run = session.send("q", model=ScriptedModel(["a"]))
        for name in ("text", "status", "usage", "error"):
            with pytest.raises(InvalidOperation, match=rf"\(await session\.send\(…\)\)\.{name}"):
                getattr(run, name)
        with pytest.raises(InvalidOperation, match="async for event in"):
            list(run)  # type: ignore[call-overload]
        assert not hasattr(run, "colour")
        run.cancel()

    def test_warns_when_it_is_dropped(self, session: Session) -> None:
        with pytest.warns(RuntimeWarning, match=r"nothing was sent; await session\.send"):
            session.send("q", model=ScriptedModel(["a"]))
        assert session.path(since=1) == []

    def test_of_something_that_is_no_model_is_refused(self, session: Session) -> None:
        with pytest.raises(InvalidArgument, match='a name such as "anthropic:claude-…"'):
            session.send("q", model=len)  # type: ignore[arg-type]


def calls(name: str) -> Any:
    return assistant(ToolCall("c", name, {"order": 41}))


class TestRunResult:
    def test_it_has_the_final_answer_and_what_it_cost(self, session: Session) -> None:
        model = ScriptedModel([calls("refund"), "Done."], rates=Rates(input=1, output=1))
        result = session.send_sync("Refund 41.", model=model, tools=[refund])
        assert (result.text, result.status, result.error) == ("Done.", "completed", None)
        assert result.usage == session.usage()
        assert result.usage.calls == 2

    def test_events_carry_what_they_name(self, session: Session) -> None:
        result = session.send_sync(
            "Refund 41.", model=ScriptedModel([calls("refund"), "Done."]), tools=[refund]
        )
        by_type = {event.type: event.data for event in reversed(result.events)}
        assert by_type["session:turn_started"]["text"] == "Refund 41."
        assert by_type["session:answer"]["calls"] == [
            {"call_id": "c", "name": "refund", "arguments": {"order": 41}}
        ]
        tool_result = by_type["session:tool_result"]
        assert (tool_result["name"], tool_result["call_id"], tool_result["error"]) == ("refund", "c", False)
        assert tool_result["content"] == [{"type": "text", "text": "refunded 41"}]

    def test_a_run_can_be_awaited(self, session: Session) -> None:
        async def main() -> oakleaf.RunResult:
            run = session.send("hi", model=ScriptedModel(["hello"]))
            with pytest.raises(InvalidOperation, match="has not ended"):
                _ = run.result
            result = await run
            assert run.result is result
            return result

        assert asyncio.run(main()).text == "hello"

    def test_a_call_that_needs_approval_leaves_it_waiting(self, session: Session) -> None:
        result = session.send_sync("Pay.", model=ScriptedModel([calls("pay")]), tools=[pay])
        assert (result.status, result.text) == ("waiting", "")
        requested, waiting = result.events[-2:]
        assert (requested.data["arguments"], waiting.type) == ({"order": 41}, "session:waiting")

    def test_a_limit_stops_it_and_a_failing_model_fails_it(self, session: Session) -> None:
        session.send_sync("1", model=ScriptedModel(["one"]))
        ended = stopped(session.send_sync, "2", model=ScriptedModel(["two"]), limits=Limits(turns=1))
        assert ended.status == "stopped"
        assert ended.error is not None
        assert ended.error.code == "turn_limit"
        failed = session.send_sync("3", model=ScriptedModel([]))
        assert failed.status == "failed"
        assert failed.error is not None
        assert "no more lines" in failed.error.message

    def test_a_cancelled_one_says_so(self, session: Session) -> None:
        async def main() -> oakleaf.RunResult:
            run = session.send("q", model=ScriptedModel([Slow(30)]))
            asyncio.get_running_loop().call_later(0.05, run.cancel)
            return await run

        assert asyncio.run(main()).status == "cancelled"

    def test_nothing_to_resume_is_idle(self, session: Session) -> None:
        assert session.resume_sync(model=ScriptedModel([])).status == "idle"

    def test_the_sync_form_refuses_a_running_event_loop(self, session: Session) -> None:
        async def main() -> None:
            with pytest.raises(InvalidOperation, match="cannot run inside a running event loop"):
                session.send_sync("q", model=ScriptedModel(["a"]))

        asyncio.run(main())
        assert session.path()[-1].role == "system", "nothing was sent"

    def test_a_run_is_iterated_over_once(self, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel(["a"]))
            async for _ in run:
                pass
            with pytest.raises(InvalidOperation):
                async for _ in run:
                    pass

        asyncio.run(main())
        assert len(session.path()) == 3


class TestToolIsAFunction:
    def test_it_is_called_as_the_function_it_was(self) -> None:
        assert refund(41) == "refunded 41"
        assert keyed(41, ToolContext("k", "s", ToolCall("c", "keyed", {}), {})) == "41 under k"
        assert asyncio.run(pay(41)) == "paid 41"

    def test_it_keeps_name_docstring_and_signature(self) -> None:
        assert (refund.__name__, refund.__doc__) == ("refund", "Give the money back.")
        assert list(inspect.signature(keyed).parameters) == ["order", "ctx"]
        assert inspect.unwrap(refund) is refund.function

    def test_its_options_are_listed_by_help(self) -> None:
        assert {"effect", "verify", "dry_run", "approval", "timeout"} <= inspect.signature(
            oakleaf.tool
        ).parameters.keys()
        assert oakleaf.tool.__doc__ is not None
        assert "idempotent" in oakleaf.tool.__doc__


def test_an_input_is_durable_after_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path with row and details: the commit of the input takes the lease under the fence of that row."""
    store = oakleaf.open(str(tmp_path / "agent.db"))
    session = store.session(store.start("support", [system("You help.")]).session_id)
    backend, operations = store.backend, list[str]()
    for name in dir(type(backend)):
        method = getattr(backend, name)
        if name.startswith("_") or not callable(method):
            continue

        def counted(*args: Any, _name: str = name, _method: Any = method, **kwargs: Any) -> Any:
            operations.append(_name)
            return _method(*args, **kwargs)

        monkeypatch.setattr(backend, name, counted)
    session.send_sync("hi", model=ScriptedModel(["hello"]))
    operations = [name for name in operations if name != "life_token"]  # known since the file was opened
    assert operations[: operations.index("commit") + 1] == ["path", "commit"]


class TestBookkeeping:
    @pytest.mark.parametrize("awaited", ["session:calls_started", "session:task_started"])
    def test_starts_are_told_while_the_call_runs(self, session: Session, awaited: str) -> None:
        """The tool ends only once its caller has seen that it started; the events came with the result."""

        async def main() -> list[oakleaf.Event]:
            seen, events = asyncio.Event(), []

            class Waiting(ScriptedModel):
                async def stream(
                    self, request: oakleaf.Request
                ) -> AsyncIterator[oakleaf.Delta | oakleaf.Answer]:
                    await asyncio.wait_for(seen.wait(), 20)
                    async for piece in super().stream(request):
                        yield piece

            @oakleaf.tool(effect="read")
            async def work(order: int, ctx: oakleaf.ToolContext) -> str:
                if awaited == "session:task_started":
                    return await ctx.task("do it", models=[Waiting(["Done."])])
                await asyncio.wait_for(seen.wait(), 20)
                return "worked"

            async for event in session.send("q", model=ScriptedModel([calls("work"), "ok"]), tools=[work]):
                events.append(event)
                if event.type == awaited:
                    seen.set()
            return events

        events = asyncio.run(main())
        (result,) = [event for event in events if event.type == "session:tool_result"]
        assert not result.data["error"]
        numbers = [event.journal_number for event in events if event.journal_number is not None]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
