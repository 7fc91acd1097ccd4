"""How a turn of an own loop ends: cancelled from elsewhere, redelivered, in wait for a person, awaited after its events."""

from __future__ import annotations

import asyncio
import time
from threading import Event

import pytest

from oakleaf import ScriptedModel, Session, Store, ToolCall, assistant, tool
from oakleaf.errors import ApprovalPending, ApprovalRequired, StaleLeaf, TurnCancelled
from support.processes import wait_until

CALLS = assistant(ToolCall("c1", "look"), ToolCall("c2", "look"))


@pytest.fixture
def session(store: Store) -> Session:
    return store.start(session_id="ses_own")


def other(store: Store) -> Session:
    return store.session("ses_own")


def outcomes(session: Session) -> list[str]:
    session.refresh()
    return [result.outcome for entry in session.path() for result in entry.results]


class TestSync:
    def test_the_next_verb_raises_and_the_block_closes_the_turn(self, store: Store, session: Session) -> None:
        ran: list[str] = []
        with pytest.raises(TurnCancelled), session.turn("q") as turn:
            turn.answer(CALLS)
            assert other(store).cancel() == "requested"
            wait_until(lambda: turn.is_cancel_requested)
            turn.run(turn.open_tool_calls[0], lambda: ran.append("look"))
        assert ran == []
        assert outcomes(session) == ["interrupted", "interrupted"]
        assert (session.row.status, session.row.holder, session.verify()) == ("cancelled", None, [])

    def test_what_is_known_is_stored_first(self, store: Store, session: Session) -> None:
        with pytest.raises(TurnCancelled), session.turn("q") as turn:
            turn.answer(CALLS)
            other(store).cancel()
            wait_until(lambda: turn.is_cancel_requested)
            turn.result("c1", "known")
        assert outcomes(session) == ["done", "interrupted"]

    def test_a_paid_answer_is_stored_and_a_final_one_ends_the_turn(
        self, store: Store, session: Session
    ) -> None:
        with session.turn("q") as turn:
            other(store).cancel()
            wait_until(lambda: turn.is_cancel_requested)
            turn.answer(assistant("Here."))
            assert turn.done
        assert (session.refresh().status, turn.text) == ("idle", "Here.")

    def test_a_block_that_looks_itself_and_leaves_is_closed(self, store: Store, session: Session) -> None:
        with session.turn("q") as turn:
            other(store).cancel()
            wait_until(lambda: turn.is_cancel_requested)
        assert session.refresh().status == "cancelled"

    def test_a_request_to_a_dead_loop_holds_for_the_next_block(self, store: Store, session: Session) -> None:
        with pytest.raises(KeyError), session.turn("q") as turn:
            turn.answer(CALLS)
            raise KeyError
        assert other(store).cancel() == "cancelled"
        assert other(store).cancel() is None
        with pytest.raises(StaleLeaf), session.turn("next"):
            pass
        session.refresh()
        with session.turn("next") as turn:
            assert not turn.is_cancel_requested
            turn.answer(assistant("ok"))


class TestAsync:
    def test_the_task_is_cancelled_in_the_middle_of_a_model_call(
        self, store: Store, session: Session
    ) -> None:
        async def run() -> None:
            with pytest.raises(TurnCancelled):
                async with session.turn("q") as turn:
                    await turn.answer(CALLS)
                    assert await asyncio.to_thread(other(store).cancel) == "requested"
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

    def test_a_tool_in_a_thread_ends_first(self, store: Store, session: Session) -> None:
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
                    await asyncio.to_thread(other(store).cancel)
                    await running

        asyncio.run(run())
        assert session.refresh().status == "cancelled"
        assert session.verify() == []


class TestARedeliveredKey:
    def test_answers_with_the_text_of_its_own_turn(self, session: Session) -> None:
        for key, text in (("mail-1", "One."), ("mail-2", "Two.")):
            with session.turn(f"q {key}", key=key) as turn:
                turn.answer(assistant(text))
            assert turn.text == text
        with session.turn("q mail-1", key="mail-1") as turn:
            assert (turn.done, turn.text) == (True, "One.")

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
