"""A turn of an own loop and a turn of `send` record the same: one runner drives both."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Entry,
    Limits,
    Message,
    ScriptedModel,
    Session,
    Store,
    ToolCall,
    ToolContext,
    Usage,
    assistant,
    user,
)
from oakleaf.agent.run import Run
from oakleaf.core.drafts import Blob
from oakleaf.core.media import digest
from oakleaf.errors import SessionRunning, TurnLimit
from oakleaf.models.prices import Rates

PNG = b"\x89PNG of a chart"
CALL = ToolCall("c1", "draw")


@oakleaf.tool(effect="read")
def draw(context: ToolContext) -> str:
    """Draw a chart."""
    context.blobs.append(Blob(digest(PNG), "image/png", PNG))
    context.details["chart"] = digest(PNG)
    return "drawn"


def run_own_loop(session: Session, **options: Any) -> None:
    """Run one turn that calls `draw` and then answers."""
    answers = iter([assistant(CALL), assistant("a")])
    with session.turn("q", tools=[draw], **options) as turn:
        while not turn.done:
            for call in turn.open_tool_calls:
                turn.run(call, draw)
            turn.answer(next(answers))


def run_send(session: Session, **options: Any) -> None:
    session.send_sync("q", model=ScriptedModel([assistant(CALL), "a"]), tools=[draw], **options)


def messages(session: Session) -> list[Message]:
    return [entry.message for entry in session.path() if entry.message is not None]


def message_text(entry: Entry) -> str:
    return entry.message.text if entry.message is not None else ""


RUNS = pytest.mark.parametrize("run", [run_own_loop, run_send])


class TestTurn:
    @RUNS
    def test_bytes_of_a_tool_are_stored_with_its_result(self, session: Session, run: Any) -> None:
        run(session)
        blob = session.log.store.blob(digest(PNG))
        assert blob is not None
        assert blob.data == PNG
        assert session.verify() == []

    @RUNS
    def test_a_tool_that_the_session_gave_up_is_not_run(self, session: Session, run: Any) -> None:
        session.set(tools=["another"])
        run(session)
        (result,) = [result for message in messages(session) for result in message.results]
        assert result.error
        assert "no tool of this name" in str(result.content)

    @RUNS
    def test_the_start_of_a_turn_names_trigger_window_and_policy(self, store: Store, run: Any) -> None:
        session = store.start(
            trigger_type="email", trigger_id="m1", context_window=9_000, policy={"sandbox": "none"}
        )
        run(session)
        run(session, trigger="cron")
        first, second = [fact.data for fact in session.journal() if fact.kind == "turn_started"]
        assert first["trigger"] == {"type": "email", "id": "m1"}
        assert second["trigger"] == {"type": "cron"}
        for data in (first, second):
            assert (data["context_window"], data["policy"]) == (9_000, {"sandbox": "none"})


class TestLease:
    def test_a_paused_answer_keeps_it(self, store: Store, session: Session) -> None:
        with session.turn("q") as turn:
            turn.answer(
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "text", "text": "Let me look"}],
                    "stop_reason": "pause_turn",
                    "usage": {"input_tokens": 1, "output_tokens": 1},
                }
            )
            assert not turn.done
            assert session.row.holder is not None
            with pytest.raises(SessionRunning):
                store.session(session.session_id).append([user("from elsewhere")])
            turn.answer(assistant("a"))
        assert (session.row.status, session.row.holder) == ("idle", None)

    def test_the_first_commit_of_a_resumed_turn_keeps_what_was_shown(self, any_store: Store) -> None:
        session = any_store.start()
        backend, now = any_store.backend, any_store.runtime.now
        with session.turn("q"):
            backend.save_draft(session.session_id, session.leaf, "half an ans", session.row.fence, now())
        before = session.row.facts
        with session.turn() as turn:
            turn.answer(assistant("a whole answer"))
        kinds = [fact.kind for fact in session.journal(before)]
        assert kinds[:2] == ["appended", "turn_resumed"]
        assert [(entry.finish, message_text(entry)) for entry in session.path()][1:] == [
            ("interrupted", "half an ans"),
            (None, "a whole answer"),
        ]
        assert session.verify() == []

    def test_a_limit_ends_the_turn_and_takes_back_the_announced_call(self, any_store: Store) -> None:
        session = any_store.start()
        session.set(limits=Limits(rounds=1))
        with session.turn("q", model="scripted:m") as turn:
            turn.answer(assistant(CALL), usage=Usage(3, 4, 0, 0))
            with pytest.raises(TurnLimit):
                turn.result("c1", "drawn")
        assert (session.row.status, session.row.holder) == ("failed", None)
        assert [call.usage.input_tokens for call in session.model_calls()] == [3]
        assert session.verify() == []

    def test_a_send_takes_and_gives_it_back_in_its_own_commits(
        self, any_store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = any_store.start()
        for name in ("lease", "release"):
            monkeypatch.setattr(any_store.backend, name, None)
        holders = []

        @oakleaf.tool(effect="read")
        def look() -> str:
            """Look who holds the session."""
            row = any_store.session(session.session_id).row
            holders.append((row.status, row.holder, row.fence))
            return "seen"

        model = ScriptedModel([assistant(ToolCall("c1", "look")), "a"])
        session.send_sync("q", model=model, tools=[look])
        ((status, holder, fence),) = holders
        assert (status, fence) == ("running", 1)
        assert holder is not None
        assert (session.row.status, session.row.holder, session.row.fence) == ("idle", None, 1)

    def test_queued_inputs_run_once_however_many_runs_take_them(self, any_store: Store) -> None:
        session = any_store.start()
        for n in range(6):
            session.enqueue(f"input {n}")
        runs = [any_store.session(session.session_id) for _ in range(3)]
        start = Barrier(len(runs))

        def run(handle: Session) -> None:
            start.wait()
            with suppress(SessionRunning):
                handle.resume_sync(model=ScriptedModel(["a"] * 6))

        with ThreadPoolExecutor(len(runs)) as threads:
            list(threads.map(run, runs))
        session.refresh()
        session.resume_sync(model=ScriptedModel(["a"] * 6))
        inputs = [message.text for message in messages(session) if message.role == "user"]
        assert inputs == [f"input {n}" for n in range(6)]
        assert session.row.holder is None
        assert session.verify() == []

    def test_an_input_runs_though_the_one_before_it_was_refused(self, any_store: Store) -> None:
        session = any_store.start()
        session.enqueue("a dear input " * 10_000)
        model = ScriptedModel(["a"])
        model.rates = Rates(1.0, 1.0)
        limits = Limits(max_cost_microcents=100_000)
        assert session.send_sync("q", model=model, limits=limits).text == "a"
        kinds = [fact.kind for fact in session.journal()]
        assert kinds.count("turn_refused") == kinds.count("turn_started") == 1
        assert (any_store.backend.inbox(session.session_id), session.row.holder) == ([], None)
        assert session.verify() == []

    def test_a_cancel_in_the_moment_a_turn_waits_closes_it(self, any_store: Store) -> None:
        def cancel(_: float) -> None:
            if runs and any_store.session(session.session_id).row.status == "waiting":
                runs[0].cancel()

        runs: list[Run] = []
        session = any_store.start()
        asked = Store(any_store.backend, replace(any_store.runtime, on_commit=cancel))

        async def send() -> None:
            model = ScriptedModel([assistant(CALL)])
            tool = oakleaf.tool(effect="read", approval=True)(draw.function)
            runs.append(asked.session(session.session_id).send("q", model=model, tools=[tool]))
            async for _ in runs[0]:
                pass

        asyncio.run(send())
        session.refresh()
        assert (session.row.status, session.row.holder) == ("cancelled", None)
        assert session.open_tool_calls == ()
        assert session.verify() == []
