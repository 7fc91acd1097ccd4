"""How a turn of an own loop ends: cancelled from elsewhere, redelivered, in wait for a person, awaited after its events."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

import oakleaf
from oakleaf import ScriptedModel, Session, Store, ToolCall, Turn, assistant, tool
from oakleaf.errors import (
    ApprovalPending,
    ApprovalRequired,
    InvalidOperation,
    SessionRunning,
    StaleLeaf,
    TurnCancelled,
)
from support.all_stores import ALL_STORES
from support.paths import SUPPORT
from support.processes import wait_until

CALLS = assistant(ToolCall("c1", "look"), ToolCall("c2", "look"))


@pytest.fixture
def session(any_store: Store) -> Session:
    return any_store.start(session_id="ses_own")


def other(store: Store) -> Session:
    return store.session("ses_own")


def outcomes(session: Session) -> list[str]:
    session.refresh()
    return [result.outcome for entry in session.path() for result in entry.results]


class TestWithoutABlock:
    @pytest.mark.parametrize(
        "verb",
        [
            lambda turn: turn.answer(assistant("Here.")),
            lambda turn: turn.result("c1", "known"),
            lambda turn: turn.failed("overloaded"),
            lambda turn: turn.started(ToolCall("c1", "look")),
            lambda turn: turn.run(ToolCall("c1", "look"), print),
        ],
    )
    def test_a_verb_names_the_block(self, session: Session, verb: Callable[[Turn], object]) -> None:
        with pytest.raises(InvalidOperation, match=r"with session\.turn\(text\) as turn"):
            verb(session.turn("q"))
        assert session.path() == []


class TestSync:
    def test_the_next_verb_raises_and_the_block_closes_the_turn(
        self, any_store: Store, session: Session
    ) -> None:
        ran: list[str] = []
        with pytest.raises(TurnCancelled), session.turn("q") as turn:
            turn.answer(CALLS)
            assert other(any_store).cancel() == "requested"
            wait_until(lambda: turn.is_cancel_requested)
            turn.run(turn.open_tool_calls[0], lambda: ran.append("look"))
        assert ran == []
        assert outcomes(session) == ["interrupted", "interrupted"]
        assert (session.row.status, session.row.holder, session.verify()) == ("cancelled", None, [])

    def test_what_is_known_is_stored_first(self, any_store: Store, session: Session) -> None:
        with pytest.raises(TurnCancelled), session.turn("q") as turn:
            turn.answer(CALLS)
            other(any_store).cancel()
            wait_until(lambda: turn.is_cancel_requested)
            turn.result("c1", "known")
        assert outcomes(session) == ["done", "interrupted"]

    def test_a_paid_answer_is_stored_and_a_final_one_ends_the_turn(
        self, any_store: Store, session: Session
    ) -> None:
        with session.turn("q") as turn:
            other(any_store).cancel()
            wait_until(lambda: turn.is_cancel_requested)
            turn.answer(assistant("Here."))
            assert turn.done
        assert (session.refresh().status, turn.text) == ("idle", "Here.")

    def test_a_block_that_looks_itself_and_leaves_is_closed(self, any_store: Store, session: Session) -> None:
        with session.turn("q") as turn:
            other(any_store).cancel()
            wait_until(lambda: turn.is_cancel_requested)
        assert session.refresh().status == "cancelled"

    def test_a_request_to_a_dead_loop_holds_for_the_next_block(
        self, any_store: Store, session: Session
    ) -> None:
        with pytest.raises(KeyError), session.turn("q") as turn:
            turn.answer(CALLS)
            raise KeyError
        assert other(any_store).cancel() == "cancelled"
        assert other(any_store).cancel() is None
        with pytest.raises(StaleLeaf), session.turn("next"):
            pass
        session.refresh()
        with session.turn("next") as turn:
            assert not turn.is_cancel_requested
            turn.answer(assistant("ok"))


class TestAsync:
    def test_the_task_is_cancelled_in_the_middle_of_a_model_call(
        self, any_store: Store, session: Session
    ) -> None:
        async def run() -> None:
            with pytest.raises(TurnCancelled):
                async with session.turn("q") as turn:
                    await turn.answer(CALLS)
                    assert await asyncio.to_thread(other(any_store).cancel) == "requested"
                    await asyncio.sleep(20)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0, "the task itself goes on"

        started = time.monotonic()
        asyncio.run(run())
        assert time.monotonic() - started < 15
        assert outcomes(session) == ["interrupted", "interrupted"]
        assert (session.row.status, session.verify()) == ("cancelled", [])

    def test_a_cancellation_of_the_task_by_its_owner_stays_one(self, session: Session) -> None:
        async def turn_for_long() -> None:
            async with session.turn("q"):
                await asyncio.sleep(20)

        async def run() -> None:
            task = asyncio.create_task(turn_for_long())
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())
        assert session.refresh().status == "cancelled"

    def test_the_property_is_one_in_both_kinds(self, session: Session) -> None:
        async def run() -> None:
            async with session.turn("q") as turn:
                assert turn.is_cancel_requested is False
                await turn.answer(assistant("ok"))

        asyncio.run(run())

    def test_a_tool_in_a_thread_ends_first(self, any_store: Store, session: Session) -> None:
        began, done = Event(), Event()

        def slow() -> str:
            began.set()
            time.sleep(2)
            done.set()
            return "ok"

        async def run() -> None:
            with pytest.raises(TurnCancelled):
                async with session.turn("q") as turn:
                    await turn.answer(assistant(ToolCall("c1", "slow")))
                    running = asyncio.ensure_future(turn.run(turn.open_tool_calls[0], slow))
                    await asyncio.to_thread(began.wait, 10)
                    await asyncio.to_thread(other(any_store).cancel)
                    await running

        asyncio.run(run())
        assert session.refresh().status == "cancelled"
        assert session.verify() == []


@pytest.fixture(params=[name for name in ALL_STORES if name != "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    url: str = request.getfixturevalue("database").url
    return url


class TestInAnotherProcess:
    @pytest.mark.parametrize(("how", "outcome"), [("asked", "done"), ("async", "unknown")])
    def test_the_block_ends_and_the_turn_is_closed(self, url: str, how: str, outcome: str) -> None:
        """A synchronous tool ends, and its result is stored; an asynchronous one is cut off."""
        with oakleaf.open(url) as store:
            session = store.start(session_id="ses_own")
            with runner(url, how) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "inside\n"
                assert other(store).cancel() == "requested"
                assert process.stdout.readline() == "TurnCancelled\n"
                assert process.wait(60) == 0
            assert other(store).cancel() is None
            assert outcomes(session) == [outcome]
            assert (session.row.status, session.row.holder, session.verify()) == ("cancelled", None, [])

    def test_cancel_closes_the_turn_of_a_killed_one(self, url: str) -> None:
        with oakleaf.open(url) as store:
            session = store.start(session_id="ses_own")
            with runner(url, "async") as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "inside\n"
                process.kill()
                process.wait(60)
            assert other(store).cancel() == "cancelled"
            assert outcomes(session) == ["unknown"]
            assert session.row.status == "cancelled"


def runner(url: str, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SUPPORT / "runner_process.py"), url, "ses_own", how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class TestTheNextStep:
    def test_names_the_verb_of_the_own_loop(self, any_store: Store, session: Session) -> None:
        with session.turn("q"):
            with (
                pytest.raises(SessionRunning, match=r"session\.turn\(…, take_over=True\)"),
                other(any_store).turn("?"),
            ):
                pass
            with pytest.raises(SessionRunning, match=r"session\.resume\(…, take_over=True\)"):
                other(any_store).send_sync("?", model=ScriptedModel(["a"]))


class TestARedeliveredKey:
    def test_answers_with_the_text_of_its_own_turn(self, session: Session) -> None:
        for key, text in (("mail-1", "One."), ("mail-2", "Two.")):
            with session.turn(f"q {key}", key=key) as turn:
                turn.answer(assistant(text))
            assert turn.text == text
        with session.turn("q mail-1", key="mail-1") as turn:
            assert (turn.done, turn.text, turn.open_tool_calls) == (True, "One.", ())

    def test_in_asyncio_answers_the_same(self, any_store: Store, session: Session) -> None:
        async def answer(key: str, *replies: str) -> str:
            async with other(any_store).turn(f"q {key}", key=key) as turn:
                for reply in replies:
                    await turn.answer(assistant(reply))
            return turn.text

        async def run() -> list[str]:
            await answer("mail-1", "One.")
            await answer("mail-2", "Two.")
            return [await answer("mail-1"), await answer("mail-2")]

        assert asyncio.run(run()) == ["One.", "Two."]

    def test_gives_the_recorded_results_of_its_own_turn(self, any_store: Store, session: Session) -> None:
        def run(key: str, result: str) -> list[str]:
            with other(any_store).turn(f"q {key}", key=key) as turn:
                for _ in turn.answer(assistant(ToolCall("c1", "look"))).calls:
                    stored = turn.result("c1", result)
                answer = turn.answer(assistant(f"It is {result}."))
            return [stored.results[0].text, answer.text, turn.text]

        first, second = run("mail-1", "here"), run("mail-2", "gone")
        assert run("mail-1", "another") == first == ["here", "It is here.", "It is here."]
        assert run("mail-2", "another") == second == ["gone", "It is gone.", "It is gone."]

    def test_of_send_answers_with_the_text_of_its_own_turn(self, session: Session) -> None:
        model = ScriptedModel(["One.", "Two."])
        for key in ("mail-1", "mail-2"):
            session.send_sync(key, model=model, key=key)
        assert [session.send_sync(key, model=model, key=key).text for key in ("mail-1", "mail-2")] == [
            "One.",
            "Two.",
        ]


class TestARunThatWasIterated:
    def test_gives_its_result_when_awaited(self, session: Session) -> None:
        async def run() -> tuple[str, str]:
            sending = session.send("hi", model=ScriptedModel(["Hello."]))
            async for _ in sending:
                pass
            return (await sending).text, sending.result.text

        assert asyncio.run(run()) == ("Hello.", "Hello.")

    def test_that_was_left_early_gives_a_cancelled_result(self, session: Session) -> None:
        async def run() -> str:
            sending = session.send("hi", model=ScriptedModel(["Hello."]))
            async for _ in sending:
                break
            return (await sending).status

        assert asyncio.run(run()) in ("cancelled", "completed")


class TestAnInputWhileAnApprovalWaits:
    def test_is_refused_with_the_decision_as_the_next_step(self, session: Session) -> None:
        refund = tool(lambda: "paid", name="refund", approval=True)
        with pytest.raises(ApprovalRequired), session.turn("pay") as turn:
            turn.answer(assistant(ToolCall("c1", "refund")))
            turn.run(turn.open_tool_calls[0], refund)
        with (
            pytest.raises(ApprovalPending, match=r"then continue the turn: session\.turn\(\)"),
            session.turn("?"),
        ):
            pass
        (asked,) = session.pending_approvals()
        session.approve(asked)
        with session.turn() as turn:
            turn.run(turn.open_tool_calls[0], refund)
            turn.answer(assistant("Paid."))
        assert turn.text == "Paid."
