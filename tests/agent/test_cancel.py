"""Cancelling a run: from any side and in any moment the session stays valid and takes the next input."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, Slow, ToolCall, ToolContext, assistant, user
from oakleaf.core.drafts import Draft
from oakleaf.log import lease
from oakleaf.store import Store
from support.order_desk import Desk, ask, is_valid
from support.sessions import tasks_of
from support.stopped_runs import run_and_cancel


@pytest.fixture
def desk() -> Desk:
    return Desk()


def results(session: Session) -> list[Any]:
    return [result for entry in session.path() if entry.message for result in entry.message.results]


class TestCancel:
    @pytest.mark.parametrize("when", ["model", "tool"])
    def test_the_session_stays_valid_and_takes_the_next_input(self, session: Session, when: str) -> None:
        @oakleaf.tool(effect="read")
        async def wait() -> str:
            await asyncio.sleep(30)
            return "never"

        @oakleaf.tool(effect="read")
        def quick() -> str:
            return "quick"

        calls = assistant(ToolCall("a", "quick"), ToolCall("b", "wait"))
        model = ScriptedModel([Slow(30)] if when == "model" else [calls])

        async def main() -> list[str]:
            run = session.send("q", model=model, tools=[wait, quick])
            events = []
            async for event in run:
                events.append(event.type)
                if event.type == ("session:turn_started" if when == "model" else "session:tool_result"):
                    run.cancel()
            return events

        assert asyncio.run(main())[-1] == "session:turn_completed"
        assert session.row.status == "cancelled"
        assert session.transcript()[-1].message.text == "(cancelled)"
        assert is_valid(session)
        session.send_sync("again", model=ScriptedModel(["fine"]))
        assert session.path()[-1].message.text == "fine"

    def test_from_another_thread(self, session: Session) -> None:
        session.cancel()  # nothing runs, nothing happens

        def cancel_once_it_runs() -> None:
            while session.row.status != "running":
                time.sleep(0.01)
            session.cancel()

        other = threading.Thread(target=cancel_once_it_runs)
        other.start()
        events = session.send_sync("q", model=ScriptedModel([Slow(30)])).events
        other.join()
        assert events[-1].data == {"stop_reason": "cancelled"}
        assert session.row.status == "cancelled"
        assert is_valid(session)

    @pytest.mark.parametrize("when", ["model", "tool", "task"])
    def test_from_another_handle(
        self, store: Store, session: Session, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "TICK_SECONDS", 0.02)

        @oakleaf.tool(effect="idempotent")
        async def wait(ctx: ToolContext) -> str:
            if when == "task":
                return await ctx.task("think", models=[ScriptedModel([Slow(30)])])
            await asyncio.sleep(30)
            return "never"

        model = ScriptedModel([Slow(30)] if when == "model" else [assistant(ToolCall("c", "wait"))])
        cancelled: list[bool] = []

        def cancel_once_it_runs() -> None:
            kind = {"model": "turn_started", "tool": "tool_calls_started", "task": "task_started"}[when]
            while not any(fact.kind == kind for fact in session.journal()):
                time.sleep(0.01)
            if when == "task":
                while not tasks_of(session) or tasks_of(session)[0].row.status != "running":
                    time.sleep(0.01)
            cancelled.append(store.session(session.session_id).cancel())

        other = threading.Thread(target=cancel_once_it_runs)
        other.start()
        result = session.send_sync("q", model=model, tools=[wait])
        other.join()
        assert (result.status, cancelled) == ("cancelled", ["requested"])
        assert result.events[-1].journal_number == session.row.facts
        assert [child.row.status for child in tasks_of(session)] == ["cancelled"] * (when == "task")
        assert session.row.status == "cancelled"
        assert not store.session(session.session_id).cancel()
        assert is_valid(session)
        session.send_sync("again", model=ScriptedModel(["fine"]))
        assert session.path()[-1].message.text == "fine"

    def test_a_cancelled_task_leaves_its_parent_running(
        self, store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "TICK_SECONDS", 0.02)

        @oakleaf.tool(effect="idempotent")
        async def delegate(ctx: ToolContext) -> str:
            return await ctx.task("think", models=[ScriptedModel([Slow(30)])])

        def cancel_the_task() -> None:
            while not tasks_of(session) or not tasks_of(session)[0].cancel():
                time.sleep(0.01)

        other = threading.Thread(target=cancel_the_task)
        other.start()
        model = ScriptedModel([assistant(ToolCall("c", "delegate")), "It was cancelled."])
        result = session.send_sync("q", model=model, tools=[delegate])
        other.join()
        assert (result.status, result.text) == ("completed", "It was cancelled.")
        assert session.path()[4].message.results[0].content[0].text == "(cancelled)"
        assert is_valid(session)

    def test_an_orphaned_or_waiting_turn_is_closed_at_once(
        self, store: Store, session: Session, desk: Desk
    ) -> None:
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=desk.tools(approval=True))
        assert store.session(session.session_id).cancel()
        assert session.row.status == "cancelled"
        session.refresh()
        session.append([user("again")])
        session.log.append([Draft(ask(("refund", 8), ("look", 8)))], starts=[0])
        store.backend.lease(session.session_id, "gone:1#1", store.runtime.now() + 10**12, store.runtime.now())
        assert store.session(session.session_id).cancel()
        session.refresh()
        results = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert [result.outcome for result in results] == ["interrupted", "unknown", "interrupted"]
        assert [fact.kind for fact in session.journal() if fact.kind == "cancel_requested"] == []
        assert is_valid(session)

    def test_a_cancel_missed_by_a_dead_runner_is_done_by_the_next(
        self, store: Store, session: Session
    ) -> None:
        session.append([user("q")])
        now = store.runtime.now()
        fence = store.backend.lease(session.session_id, "elsewhere:1#1", now + 10**12, now)
        assert store.session(session.session_id).cancel()
        store.backend.release(session.session_id, fence)
        model = ScriptedModel(["never"])
        assert session.resume_sync(model=model).status == "cancelled"
        assert model.requests == []
        session.rewind(1)
        session.append([user("the same place, another turn")])
        assert session.resume_sync(model=ScriptedModel(["fine"])).text == "fine"

    def test_a_tool_on_a_thread_sees_the_cancel(self, session: Session) -> None:
        flags: queue.SimpleQueue[bool] = queue.SimpleQueue()

        @oakleaf.tool(effect="read")
        def patient(ctx: ToolContext) -> str:
            until = time.monotonic() + 20
            while not ctx.is_cancelled and time.monotonic() < until:
                time.sleep(0.01)
            flags.put(ctx.is_cancelled)
            return "stopped"

        async def main() -> None:
            run = session.send(
                "q", model=ScriptedModel([assistant(ToolCall("a", "patient"))]), tools=[patient]
            )
            async for event in run:
                if event.type == "session:answer":
                    asyncio.get_running_loop().call_later(0.05, run.cancel)

        asyncio.run(main())
        assert flags.get(timeout=30)
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

    def test_after_a_denial_a_new_input_is_taken(self, session: Session, desk: Desk) -> None:
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 7))]), tools=tools)
        session.approve(session.open_tool_calls[0], allow=False)
        session.send_sync("never mind", model=ScriptedModel(["all right"]), tools=tools)
        assert desk.did == []
        assert session.path()[4].message.results[0].outcome == "interrupted"
        assert is_valid(session)

    def test_before_the_first_step_the_run_ends(self, session: Session) -> None:
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
    def test_at_every_early_step_the_lease_is_given_back(self, session: Session, steps: int) -> None:
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

    def test_finished_calls_keep_their_results(self, session: Session) -> None:
        @oakleaf.tool(effect="unsafe")
        async def quick() -> str:
            return "done in time"

        @oakleaf.tool(effect="unsafe")
        async def slow() -> str:
            await asyncio.sleep(30)
            return "never"

        async def main() -> None:
            answer = assistant(ToolCall("a", "quick"), ToolCall("b", "slow"))
            run = session.send("q", model=ScriptedModel([answer]), tools=[quick, slow])
            async for event in run:
                if event.type == "session:answer":
                    asyncio.get_running_loop().call_later(0.1, run.cancel)

        asyncio.run(main())
        outcomes = {result.call_id: result.outcome for result in results(session)}
        assert outcomes == {"a": "done", "b": "unknown"}
        assert session.verify() == []

    def test_the_words_so_far_are_kept(self, session: Session) -> None:
        async def main() -> None:
            run = session.send("q", model=ScriptedModel(["short words that reached somebody"]))
            async for event in run:
                if event.type == "session:delta":
                    run.cancel()

        asyncio.run(main())
        assert session.path()[-1].message.text.startswith("short")

    def test_a_cancel_reaches_the_child_and_both_can_go_on(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            return await ctx.task("do it", models=[ScriptedModel([Slow(60, "late")])])

        run = session.send("q", model=ScriptedModel([ask(("delegate", 1))]), tools=[delegate])

        async def cancel_once_the_child_runs() -> None:
            while [child.row.status for child in tasks_of(session)] != ["running"]:
                await asyncio.sleep(0.01)
            run.cancel()

        async def both() -> None:
            other = asyncio.create_task(cancel_once_the_child_runs())
            async for _ in run:
                pass
            await other

        asyncio.run(both())
        (child,) = tasks_of(session)
        assert (session.row.status, child.row.status) == ("cancelled", "cancelled")
        assert (child.row.holder, child.path()[-1].finish) == (None, "cancelled")
        assert session.verify() == child.verify() == []
        child.send_sync("again", model=ScriptedModel(["fine"]))

    def test_a_tool_has_cleaned_up_when_the_run_is_over(self, session: Session) -> None:
        leftovers: list[str] = []

        @oakleaf.tool
        async def tidy(order: int) -> str:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                leftovers.append("clean")
            return "never"

        run = session.send("q", model=ScriptedModel([ask(("tidy", 1))]), tools=[tidy])
        run_and_cancel(run, "session:answer", 0.05)
        assert leftovers == ["clean"]

    def test_a_call_before_its_start_is_interrupted(self, session: Session) -> None:
        @oakleaf.tool(approval=True)
        def danger(order: int) -> str:
            return "never"

        @oakleaf.tool
        async def wait(order: int) -> str:
            await asyncio.sleep(60)
            return "never"

        both = assistant(ToolCall("c0", "danger", {"order": 1}), ToolCall("c1", "wait", {"order": 1}))
        run = session.send("q", model=ScriptedModel([both]), tools=[danger, wait])
        run_and_cancel(run, "session:approval_requested", 0.05)
        outcomes = [(result.call_id, result.outcome) for result in results(session)]
        assert outcomes == [
            ("c0", "interrupted"),
            ("c1", "unknown"),
        ]
        assert "before this was run" in results(session)[0].content[0].text

    def test_three_cancels_are_one_and_durable_at_the_end(self, tmp_path: Path) -> None:
        """While another process writes: the second cancel comes before the first is on the disk."""
        place = tmp_path / "agent.db"
        with oakleaf.open(place) as store:
            session = store.start("a")
            other = apsw.Connection(str(place))
            run = session.send("q", model=ScriptedModel([Slow(60)]))

            async def main() -> None:
                async for event in run:
                    if event.type == "session:turn_started":
                        other.execute("begin immediate")
                        threading.Timer(0.3, lambda: other.execute("rollback")).start()
                        for seconds in (0.0, 0.05, 0.1):
                            asyncio.get_running_loop().call_later(seconds, run.cancel)

            asyncio.run(main())
            row = store.session(session.session_id).row
            assert (row.status, row.holder) == ("cancelled", None)
            assert session.verify() == []
