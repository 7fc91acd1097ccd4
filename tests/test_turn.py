"""One turn of somebody's own loop: every line durable when it returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Event,
    Happened,
    NeverHappened,
    ScriptedModel,
    Session,
    ToolCall,
    ToolContext,
    Turn,
    Usage,
    assistant,
    system,
    user,
)
from oakleaf.errors import (
    ApprovalRequired,
    CallAlreadyStarted,
    Fenced,
    InvalidOperation,
    InvalidText,
    OrphanResult,
    SessionRunning,
    StaleLeaf,
    TurnCancelled,
    UnrecognizedReply,
)
from oakleaf.log.lease import Lease
from oakleaf.store import Store
from oakleaf.testing.stores.writer import read_everything
from support.interleaving import interleaved

REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-5",
    "stop_reason": "tool_use",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "SIG"},
        {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"order": 41}},
    ],
    "usage": {
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_input_tokens": 50,
        "cache_creation_input_tokens": 10,
    },
}


@pytest.mark.extra
def test_an_answer_brings_its_usage_price_model_and_evidence(session: Session) -> None:
    with session.turn("where is it?") as turn:
        turn.answer(REPLY)
        entry = session.path()[-1]
        assert (entry.model, entry.finish) == ("claude-opus-4-5", "tool_use")
        assert entry.evidence is not None
        assert entry.evidence.issuer == "anthropic"
        turn.result("toolu_1", {"status": "lost"})
        assert "SIG" in str(session.messages("anthropic"))
        assert "SIG" not in str(session.messages("openai-chat"))
        turn.answer(assistant("It is lost."))
    (call,) = session.model_calls()
    assert call.usage == Usage(160, 20, 50, 10)
    assert call.price is not None
    assert call.price.microcents > 0
    assert call.price.version.startswith("genai-prices ")
    assert (call.after_seq, call.answer_seq) == (2, 3)


def test_a_model_without_a_price_is_counted_and_marked(session: Session) -> None:
    with session.turn("q") as turn:
        turn.answer(assistant("a"), usage=Usage(5, 1), provider="anthropic", model="made-up")
    assert session.usage().unpriced_calls == 1
    assert session.usage().cost_microcents == 0


@pytest.mark.parametrize(
    ("reported", "stored"),
    [
        ({"input_tokens": -1, "output_tokens": 20}, Usage(None, 20)),
        ({"input_tokens": 2**60, "output_tokens": -3}, Usage()),
        (
            {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": -9},
            Usage(5, 1),
        ),
    ],
)
@pytest.mark.extra
def test_an_answer_with_impossible_token_counts_is_stored_and_its_usage_is_unknown(
    session: Session, reported: dict[str, int], stored: Usage
) -> None:
    with session.turn("q") as turn:
        turn.failed("busy", usage=Usage(-1, -1), provider="anthropic", model="claude-opus-4-5")
        turn.answer({**REPLY, "usage": reported})
        turn.result("toolu_1", "lost")
        turn.answer(assistant("It is lost."), usage=Usage(True, 10, 50), model="gpt-5", provider="openai")
    failed, first, last = session.model_calls()
    assert (failed.usage, failed.price) == (Usage(), None)
    assert (first.usage, first.price is None) == (stored, stored.input_tokens is None)
    assert (last.usage, last.price) == (Usage(None, 10, 50), None)
    assert session.path()[-1].message == assistant("It is lost.")
    assert session.verify() == []


def test_the_journal_tells_when_a_turn_started_and_how_it_ended(session: Session) -> None:
    with session.turn("q", trigger="email", model="m") as turn:
        turn.answer(assistant("a"))
    facts = {fact.kind: fact.data for fact in session.journal()}
    assert facts["turn_started"] == {"turn": 2, "trigger": {"type": "email"}, "model": "m"}
    assert facts["turn_ended"] == {"turn": 2, "status": "completed"}


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("boom\0"), "failed"), (KeyboardInterrupt(), "cancelled"), (None, "interrupted")],
)
def test_leaving_early_marks_the_session_and_the_turn_goes_on_later(
    store: Store, session: Session, error: BaseException | None, status: str
) -> None:
    try:
        with session.turn("q") as turn:
            turn.answer(assistant(ToolCall("a", "t")))
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert session.row.status == status
    assert session.verify() == []
    again = store.session(session.session_id)
    with again.turn() as turn:
        assert [call.call.id for call in turn.open_tool_calls] == ["a"]
        assert again.row.status == "running"
        turn.result("a", "ok")
        turn.answer(assistant("done"))
    assert again.row.status == "idle"
    assert again.verify() == []


def taken_over(store: Store, session: Session, *, until: int) -> None:
    """Another runner takes the session when the turn's hold on it is over."""
    later = (session.row.lease_until or 0) + 1
    store.backend.lease(session.session_id, "another:2#1", later + until, later)


@pytest.mark.parametrize("late", ["answer", "result", "failed"])
def test_a_turn_that_was_taken_over_writes_nothing(store: Store, session: Session, late: str) -> None:
    def write(turn: Turn) -> None:
        if late == "answer":
            turn.answer(assistant("late"))
        elif late == "failed":
            turn.failed("the line went dead")
        else:
            turn.result("a", "late")

    with session.turn("q") as turn:
        if late == "result":
            turn.answer(assistant(ToolCall("a", "t")))
        facts = session.row.facts
        taken_over(store, session, until=10**12)
        with pytest.raises(Fenced):
            write(turn)
    row = session.row
    assert (row.status, row.holder, row.facts) == ("running", "another:2#1", facts)
    assert session.verify() == []


def test_a_turn_left_after_another_has_driven_the_session_does_not_touch_its_status(
    store: Store, session: Session
) -> None:
    with session.turn("q"):
        taken_over(store, session, until=10**12)
        store.backend.release(session.session_id, session.row.fence)
        before = session.row
    assert session.row == before


def test_a_turn_may_be_opened_again_after_it_was_taken_over(store: Store, session: Session) -> None:
    with session.turn("q") as turn:
        taken_over(store, session, until=10**12)
        store.backend.release(session.session_id, session.row.fence)
        with pytest.raises(Fenced):
            turn.answer(assistant("late"))
    with session.turn() as turn:
        turn.answer(assistant("in time"))
    assert session.path()[-1].message.text == "in time"
    assert session.row.status == "idle"


def test_taking_over_a_session_without_an_open_turn_leaves_its_status(store: Store, session: Session) -> None:
    """As of one whose runner has just ended its turn, or runs a shell command: there is nothing to resume."""
    other, refund = store.session(session.session_id), oakleaf.tool(approval=True, name="refund")(lambda: "")
    for status in ("idle", "waiting"):
        if status == "waiting":
            with pytest.raises(ApprovalRequired), session.turn("q") as turn:
                turn.run(turn.answer(assistant(ToolCall("c1", "refund", {}))).calls[0], refund)
        lease = Lease(session.log)
        lease.take(session.row)
        other.interrupt()
        assert (other.row.status, other.row.holder) == (status, None)
        lease.stop()


def test_there_must_be_a_turn_to_go_on_with(session: Session) -> None:
    with pytest.raises(InvalidOperation, match="no turn is open"), session.turn():
        pass


def test_a_tool_may_end_the_turn(session: Session) -> None:
    with session.turn("q") as turn:
        turn.answer(assistant(ToolCall("a", "hang_up")))
        turn.result("a", "bye", ends_turn=True)
    assert session.row.status == "idle"
    assert [entry.message.text for entry in session.transcript()] == ["q", "(ended by a tool)"]
    assert session.verify() == []


def test_a_failed_call_is_counted_and_leaves_no_entry(session: Session) -> None:
    with session.turn("q") as turn:
        turn.failed("overloaded", usage=Usage(10, 0), provider="anthropic", model="m")
        turn.answer(assistant("a"), usage=Usage(10, 2))
    assert [(call.failed, call.answer_seq) for call in session.model_calls()] == [(True, None), (False, 3)]
    assert session.usage().calls == session.usage("path").calls == 2
    assert len(session.path()) == 3


def test_a_call_cut_off_by_a_crash_is_counted_with_unknown_tokens(store: Store, session: Session) -> None:
    turn = session.turn("q", model="anthropic:claude-opus-4-5")
    turn.__enter__()
    del turn  # as if the process died while the model thinks
    again = store.session(session.session_id)
    assert (again.usage().calls, again.usage().unknown_calls) == (1, 1)
    with again.turn(model="anthropic:claude-opus-4-5") as turn:
        turn.answer(assistant(ToolCall("a", "t")), usage=Usage(7, 1))
        turn.result("a")
        turn.answer(assistant("done"), usage=Usage(9, 1))
    assert (again.usage().calls, again.usage().unknown_calls, again.usage().input_tokens) == (3, 1, 16)
    assert again.verify() == []


def test_a_call_that_the_block_was_left_without_is_not_counted(session: Session) -> None:
    with session.turn("q", model="anthropic:claude-opus-4-5") as turn:
        turn.answer(assistant(ToolCall("a", "t")), usage=Usage(7, 1))
        turn.result("a")
    assert session.row.status == "interrupted"
    assert (session.usage().calls, session.row.totals.unknown_calls) == (1, 0)
    with session.turn(model="anthropic:claude-opus-4-5") as turn:
        turn.failed("busy")
    with pytest.raises(TimeoutError), session.turn("again", model="anthropic:claude-opus-4-5"):
        raise TimeoutError  # by the model, as far as Oakleaf knows
    assert (session.usage().calls, session.row.totals.unknown_calls) == (3, 2)
    assert session.verify() == []


def test_one_input_counts_once_however_many_entries_it_made(session: Session) -> None:
    with session.turn("q") as turn:
        for n in range(3):
            turn.answer(assistant(ToolCall(f"c{n}", "t")), usage=Usage(10, 1))
            turn.result(f"c{n}")
        turn.answer(assistant("a"), usage=Usage(10, 1))
    assert session.row.turns == 1
    assert session.usage(by="turn")[2].input_tokens == 40


@pytest.mark.parametrize(
    "reply",
    [None, 41, "text", {}, {"choices": []}, {"type": "message"}, object()],
    ids=["none", "number", "text", "empty", "no choices", "no content", "object"],
)
def test_what_is_no_answer_is_refused_and_nothing_is_written(session: Session, reply: object) -> None:
    with session.turn("q") as turn:
        leaf = session.leaf
        with pytest.raises(UnrecognizedReply):
            turn.answer(reply)
        assert session.leaf == leaf == session.row.leaf
        turn.answer(assistant("a"))


CALL = ToolCall("c1", "refund", {"order": 41})


def killed_inside(store: Store, session: Session, function: Callable[..., Any] | None = None) -> Session:
    """Leave a turn inside its tool as a killed process does; return the handle of the next process."""
    turn = session.turn("q").__enter__()
    (call,) = turn.answer(assistant(CALL)).calls

    def killed(**_: Any) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turn.run(call, oakleaf.tool(effect="read", name="refund")(function) if function else killed)
    return store.session(session.session_id)


class OwnError(BaseException):
    """An error of a library that is no `Exception`."""


class TestAnotherProcess:
    def test_what_it_did_to_the_open_turn_is_seen_by_one_who_continues_it(
        self, store: Store, session: Session
    ) -> None:
        behind, ended = store.session(session.session_id), store.session(session.session_id)
        with session.turn("where is it?") as turn:
            behind.refresh()
            (call,) = turn.answer(REPLY).calls
        with behind.turn() as turn:
            assert [each.call for each in turn.open_tool_calls] == [call]
            ended.refresh()
            turn.run(call, lambda order: "shipped")
            turn.answer(assistant("It is on its way."))
        before = read_everything(store.backend, session.session_id)
        with pytest.raises(InvalidOperation, match="no turn is open"), ended.turn():
            pass
        assert read_everything(store.backend, session.session_id) == before
        assert ended.row.status == "idle"

    @pytest.mark.parametrize("ends", [False, True], ids=["runs", "has run"])
    def test_a_turn_that_it_starts_at_the_same_time_is_refused_by_what_it_does(
        self, store: Store, ends: bool
    ) -> None:
        """As running while it runs, and as a moved leaf afterwards: this one has not run, so that none can have taken it
        over."""
        refused, at, has_acted = set(), 0, True
        while has_acted:
            at += 1
            session = store.start("support", [system("You help.")])
            other = store.session(session.session_id).turn("from elsewhere")

            def act(other: Turn = other) -> None:
                turn = other.__enter__()
                if ends:
                    turn.answer(assistant("done"))

            process, backend = interleaved(store, at, act)
            turn = process.session(session.session_id).turn("from here")
            try:
                turn.__enter__()
            except (SessionRunning, StaleLeaf) as error:
                refused.add(type(error))
                other.__exit__(None, None, None)
            has_acted = backend.has_acted
        assert refused == {StaleLeaf if ends else SessionRunning}


class TestRunningATool:
    def test_the_start_is_durable_before_the_function_is_called(self, store: Store, session: Session) -> None:
        def refund(order: int) -> dict[str, int]:
            fact = store.session(session.session_id).journal()[-1]
            assert (fact.kind, fact.data) == ("tool_calls_started", {"seq": 3, "indexes": [0]})
            return {"refunded": order}

        with session.turn("q") as turn:
            (call,) = turn.answer(assistant(CALL)).calls
            assert turn.run(call, refund).results[0].content[0].text == '{"refunded":41}'
            assert not turn.done
            turn.answer(assistant("done"))
            assert turn.done
        assert session.verify() == []

    @pytest.mark.parametrize(
        ("function", "text"),
        [
            (lambda order: 1 / 0, "ZeroDivisionError: division by zero"),
            (lambda: "no such argument", "unexpected keyword argument 'order'"),
            (lambda order: object(), "refund returned a value that cannot be stored"),
            (lambda order: "\ud800", "refund returned a value that cannot be stored"),
            (lambda order: asyncio.sleep(0), "pass an `async def` function"),
        ],
        ids=["raises", "arguments", "value", "text", "awaitable"],
    )
    def test_whatever_the_function_does_the_call_has_a_result(
        self, session: Session, function: Callable[..., Any], text: str
    ) -> None:
        with session.turn("q") as turn:
            (call,) = turn.answer(assistant(CALL)).calls
            (result,) = turn.run(call, function).results
            assert (result.error, result.outcome) == (True, "done")
            assert text in str(result.content)
            turn.answer(assistant("done"))

    @pytest.mark.parametrize(
        "error",
        [SystemExit("bye"), GeneratorExit("bye"), OwnError("bye"), BaseExceptionGroup("bye", [OwnError()])],
    )
    @pytest.mark.parametrize("timeout", [None, 30.0])
    @pytest.mark.parametrize("kind", ["sync", "async", "async turn"])
    def test_whatever_it_raises_the_call_has_a_result(
        self, session: Session, kind: str, timeout: float | None, error: BaseException
    ) -> None:
        def leave(order: int) -> str:
            raise error

        async def leave_later(order: int) -> str:
            await asyncio.sleep(0)
            raise error

        function = leave if kind == "sync" else leave_later
        refund = oakleaf.tool(name="refund", timeout=timeout)(function)

        async def run() -> oakleaf.Message:
            if kind != "async turn":
                with session.turn("q") as turn:
                    turn.answer(assistant(CALL))
                    return await turn.run(CALL, refund)  # type: ignore[no-any-return]
            async with session.turn("q") as async_turn:
                await async_turn.answer(assistant(CALL))
                return await async_turn.run(CALL, refund)

        if kind == "sync":
            with session.turn("q") as turn:
                turn.answer(assistant(CALL))
                (result,) = turn.run(CALL, refund).results
        else:
            (result,) = asyncio.run(run()).results
        assert (result.error, result.outcome) == (True, "done")
        assert f"{type(error).__name__}: bye" in str(result.content)

    def test_ctrl_c_leaves_the_block(self, session: Session) -> None:
        def interrupted(order: int) -> NoReturn:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), session.turn("q") as turn:
            turn.run(turn.answer(assistant(CALL)).calls[0], interrupted)
        assert session.row.status == "cancelled"
        assert len(session.log.cursor.open_calls) == 1

    def test_one_that_is_dropped_with_its_event_loop_has_no_result(self, session: Session) -> None:
        async def wait(order: int) -> None:
            await asyncio.sleep(60)

        with session.turn("q") as turn:
            (call,) = turn.answer(assistant(CALL)).calls
            running = turn.run(call, wait)

            async def begin() -> None:
                running.send(None)

            asyncio.run(begin())
            running.close()
            assert [each.call for each in turn.open_tool_calls] == [call]

    def test_an_async_function_is_awaited(self, session: Session) -> None:
        async def refund(order: int) -> str:
            await asyncio.sleep(0)
            return f"refunded {order}"

        async def loop() -> None:
            with session.turn("q") as turn:
                for function in (refund, oakleaf.tool(refund)):
                    (call,) = turn.answer(assistant(CALL)).calls
                    message = await turn.run(call, function)
                    assert "refunded 41" in str(message)
                turn.answer(assistant("done"))

        asyncio.run(loop())
        assert session.verify() == []

    def test_malformed_arguments_are_not_run(self, session: Session) -> None:
        with session.turn("q") as turn:
            (call,) = turn.answer(assistant(ToolCall("c1", "refund", {}, malformed='{"ord'))).calls
            assert "was not run" in str(turn.run(call, lambda: pytest.fail("it ran")))
            turn.answer(assistant("done"))

    def test_a_tool_has_its_context_and_its_timeout(self, session: Session) -> None:
        @oakleaf.tool(timeout=0.01)
        def refund(order: int, ctx: ToolContext) -> str:
            while not ctx.is_cancelled:
                ctx.update(order=order)
            return "late"

        @oakleaf.tool
        def hang_up(ctx: ToolContext) -> str:
            ctx.update(key=ctx.key)
            ctx.ends_turn = True
            return "bye"

        with session.turn("q") as turn:
            calls = turn.answer(assistant(CALL, ToolCall("c2", "hang_up"))).calls
            assert turn.run(calls[0], refund).results[0].outcome == "unknown"
            key = session.idempotency_key(turn.open_tool_calls[0])
            turn.run(turn.open_tool_calls[0], hang_up)
            assert turn.done
        assert session.state == {"key": key}

    def test_only_an_open_call_is_run(self, session: Session) -> None:
        with session.turn("q") as turn:
            (call,) = turn.answer(assistant(CALL)).calls
            turn.run(call, lambda order: "once")
            with pytest.raises(OrphanResult):
                turn.run(call, lambda order: pytest.fail("twice"))
            turn.answer(assistant("done"))

    def test_an_unsafe_call_that_was_started_is_never_run_again_and_the_model_is_told(
        self, store: Store, session: Session
    ) -> None:
        again = killed_inside(store, session)
        with again.turn() as turn:
            (call,) = turn.open_tool_calls
            (result,) = turn.run(call, lambda order: pytest.fail("refunded twice")).results
            assert (result.outcome, result.error) == ("unknown", True)
            assert "outcome unknown" in str(again.messages("anthropic"))
            turn.answer(assistant("done"))
        assert again.verify() == []

    def test_a_call_that_was_not_started_is_run_after_a_crash(self, store: Store, session: Session) -> None:
        session.turn("q").__enter__().answer(assistant(CALL))
        again = store.session(session.session_id)
        with again.turn() as turn:
            assert turn.run(turn.open_tool_calls[0], lambda order: "refunded").results[0].outcome == "done"
            turn.answer(assistant("done"))

    @pytest.mark.parametrize("effect", ["read", "idempotent"])
    def test_a_read_or_idempotent_tool_runs_again_under_the_same_key(
        self, store: Store, session: Session, effect: Any
    ) -> None:
        keys = []

        def refund(order: int, ctx: ToolContext) -> str:
            keys.append(ctx.key)
            if len(keys) == 1:
                raise KeyboardInterrupt
            return "refunded"

        again = killed_inside(store, session, refund)
        with again.turn() as turn:
            turn.run(turn.open_tool_calls[0], oakleaf.tool(effect=effect)(refund))
            turn.answer(assistant("done"))
        assert len(keys) == 2
        assert len(set(keys)) == 1
        assert [fact.kind for fact in again.journal()].count("tool_calls_started") == 1

    @pytest.mark.parametrize(
        ("verify", "outcome"),
        [
            (lambda order: Happened("it was refunded"), "it was refunded"),
            (lambda order: NeverHappened(), "refunded now"),
            (lambda order: None, "unknown"),
        ],
    )
    def test_verify_settles_a_call_that_was_started(
        self, store: Store, session: Session, verify: Callable[..., Any], outcome: str
    ) -> None:
        again = killed_inside(store, session)

        def refund(order: int) -> str:
            return "refunded now"

        with again.turn() as turn:
            result = turn.run(turn.open_tool_calls[0], oakleaf.tool(verify=verify)(refund))
            assert outcome in str(result)
            turn.answer(assistant("done"))

    def test_a_tool_of_ones_own_says_that_it_starts_once(self, store: Store, session: Session) -> None:
        turn = session.turn("q").__enter__()
        (call,) = turn.answer(assistant(CALL)).calls
        turn.started(call)
        with pytest.raises(CallAlreadyStarted):
            turn.started(call)
        del turn  # as if its process died
        with store.session(session.session_id).turn() as turn:
            with pytest.raises(CallAlreadyStarted, match='outcome="unknown"'):
                turn.started(turn.open_tool_calls[0])
            turn.result("c1", "refunded, says the bank")
            turn.answer(assistant("done"))

    def test_a_call_that_needs_approval_runs_once_it_is_approved(
        self, store: Store, session: Session
    ) -> None:
        @oakleaf.tool(approval=True)
        def refund(order: int) -> str:
            return f"refunded {order}"

        calls = (CALL, ToolCall("c2", "refund", {"order": 42}))
        with suppress(ApprovalRequired), session.turn("q") as turn:
            first, second = turn.answer(assistant(*calls)).calls
            turn.run(first, refund)
        assert session.row.status == "waiting"
        again = store.session(session.session_id)
        again.approve(again.pending_approvals()[0])
        with again.turn() as turn:
            assert "refunded 41" in str(turn.run(first, refund))
            with pytest.raises(ApprovalRequired):
                turn.run(second, refund)
            again.approve(again.pending_approvals()[0], allow=False)
            assert turn.run(second, refund).results[0].outcome == "denied"
            turn.answer(assistant("done"))
        assert again.verify() == []


def test_no_model_call_is_announced_behind_a_result_that_ends_the_turn(session: Session) -> None:
    """The first result of a batch ended the turn; the last one announced a call that nobody made."""
    with session.turn("q", model="anthropic:claude-opus-4-5") as turn:
        turn.answer(assistant(ToolCall("a", "hang_up"), ToolCall("b", "look")), usage=Usage(1, 1))
        turn.result("a", "bye", ends_turn=True)
        turn.result("b", "seen")
    assert turn.done
    assert (session.usage().calls, session.usage().unknown_calls) == (1, 0)


def test_others_may_add_notes_and_inputs_to_an_open_turn_and_nothing_else(store: Store) -> None:
    # with a clock that does not outrun the lease
    store = Store(store.backend, replace(store.runtime, now=lambda: time.time_ns() // 1_000))
    session = store.start("support", [system("You help.")])

    def elsewhere() -> None:
        other = store.session(session.session_id)
        other.note({"from": "elsewhere"})
        other.enqueue("later")
        for refused in (
            lambda: other.set(prompt="x"),
            lambda: other.append([user("x")]),
            lambda: other.rewind(1),
            lambda: other.end(),
            lambda: other.turn("x").__enter__(),
        ):
            with pytest.raises(SessionRunning):
                refused()

    with session.turn("q", model="anthropic:claude-opus-4-5") as turn:
        elsewhere()
        turn.answer(REPLY)
        elsewhere()
        turn.result("toolu_1", "lost")
        session.set(prompt_patch="Be brief.")  # the loop's own handle is the runner
        elsewhere()
        turn.failed("overloaded")
        elsewhere()
        turn.answer(assistant("It is lost."), usage=Usage(5, 1))
    kinds = [entry.role or entry.kind for entry in session.path()]
    assert kinds == [
        "system",
        "user",
        "note",
        "assistant",
        "note",
        "tool",
        "settings",
        "note",
        "note",
        "assistant",
    ]
    assert [call.answer_seq for call in session.model_calls()] == [4, None, 10]
    assert session.verify() == []
    store.session(session.session_id).set(prompt="x")  # the turn is over


def test_a_cancelled_block_stores_what_is_known_and_closes_the_turn(store: Store, session: Session) -> None:
    with pytest.raises(TurnCancelled), session.turn("q") as turn:
        turn.answer(assistant(ToolCall("c1", "look"), ToolCall("c2", "look")))
        assert not turn.is_cancel_requested
        assert store.session(session.session_id).cancel() == "requested"
        assert turn.is_cancel_requested
        turn.result("c1", "known")  # what is known is not lost
    assert store.session(session.session_id).cancel() is None
    session.refresh()
    results = [result for entry in session.path() if entry.message for result in entry.message.results]
    assert [result.outcome for result in results] == ["done", "interrupted"]
    assert (session.row.status, session.verify()) == ("cancelled", [])


def test_a_file_that_an_input_names_by_its_id_goes_back_as_it_came(session: Session) -> None:
    content = [{"type": "text", "text": "see"}, {"type": "file", "file": {"file_id": "file-1"}}]
    with session.turn({"role": "user", "content": content}) as turn:
        turn.answer(oakleaf.assistant("yes"))
    assert session.messages("openai-chat")[1]["content"] == content
    assert session.messages("anthropic")[0]["content"][1] == {"type": "text", "text": "[file: file-1]"}


def test_a_turn_that_was_taken_over_keeps_the_new_lease(store: Store, session: Session) -> None:
    """It cleared the other's lease on its way out, and a third could have driven beside it."""
    later = store.runtime.now() + 3_600_000_000
    with session.turn("q") as turn:
        store.backend.lease(session.session_id, "elsewhere:1#b", later + 1, later)
        with pytest.raises(Fenced):
            turn.answer(assistant("late"))
    row = session.row
    assert (row.status, row.holder, row.error) == ("running", "elsewhere:1#b", None)


def test_a_refused_answer_does_not_count_its_call_twice(session: Session) -> None:
    with session.turn("q", model="scripted:m") as turn:
        with pytest.raises(InvalidText):
            turn.answer(assistant("\ud800"), usage=Usage(7, 7, 0, 0))
        with pytest.raises(InvalidText):
            turn.failed("\ud800")
        turn.answer(assistant("whole"), usage=Usage(7, 7, 0, 0))
    assert [call.usage.input_tokens for call in session.model_calls()] == [7]


def test_an_ended_turn_takes_no_answer(session: Session) -> None:
    with session.turn("q") as turn:
        turn.answer(assistant("a"))
        with pytest.raises(InvalidOperation, match="turn 2 has ended"):
            turn.answer(assistant("b"))
    assert len(session.path()) == 3


def test_a_turn_within_another_is_refused(session: Session) -> None:
    with session.turn("outer") as outer:
        with pytest.raises(SessionRunning), session.turn("inner"):
            pass
        outer.answer(assistant("a"))
    assert (session.row.status, len(session.path())) == ("idle", 3)


def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def told(events: Sequence[Event]) -> list[tuple[str, Any, int | None]]:
    """Return the durable events, without the ids and the finish reasons that providers name."""
    left_out = ("session_id", "conversation_id", "finish")
    return [
        (
            event.type,
            {name: value for name, value in event.data.items() if name not in left_out},
            event.journal_number,
        )
        for event in events
        if event.journal_number is not None
    ]


def in_any_order(events: Sequence[Event]) -> list[str]:
    """Return the events without numbers and starts: `send` starts both calls in one fact, and runs them side by side."""
    return sorted(str(each[:2]) for each in told(events) if each[0] != "session:calls_started")


class TestEvents:
    CALLS = assistant(CALL, ToolCall("c2", "refund", {"order": 42}))

    def test_events_are_those_of_a_send_with_the_same_script(self, store: Store) -> None:
        sent, own = store.start("a", [system("x")]), store.start("a", [system("x")])
        model = ScriptedModel([self.CALLS, "done", "Hello."])
        expected = [
            sent.send_sync(text, model=model, tools=[oakleaf.tool(refund)]).events for text in ("q", "r")
        ]
        with own.turn("q", model="scripted:m", tools=[refund]) as turn:
            events = turn.events()
            turn.answer(self.CALLS)
            for call in turn.open_tool_calls:
                turn.started(call)
            for call in turn.open_tool_calls:
                turn.result(call.call.id, refund(**call.call.arguments))
                events += turn.events()
            turn.answer(assistant("done"))
        events += turn.events()
        assert turn.events() == []
        assert [event.journal_number for event in events] == [fact.number for fact in own.journal()]
        assert in_any_order(events) == in_any_order(expected[0])
        with own.turn("r", model="scripted:m") as turn:
            turn.answer(assistant("Hello."))
        assert in_any_order(turn.events()) == in_any_order(expected[1])

    def test_numbers_equal_those_of_a_send(self, store: Store) -> None:
        sent, own = store.start("a", [system("x")]), store.start("a", [system("x")])
        model = ScriptedModel([assistant(CALL), "done"])
        expected = sent.send_sync("q", model=model, tools=[oakleaf.tool(refund)]).events
        with own.turn("q", model="scripted:m", tools=[refund]) as turn:
            turn.answer(assistant(CALL))
            turn.run(turn.open_tool_calls[0], refund)
            turn.answer(assistant("done"))
        assert told(turn.events()) == told(expected)

    def test_a_wait_for_a_person_is_told_as_by_send(self, store: Store) -> None:
        asking = oakleaf.tool(approval=True)(refund)
        sent, own = store.start("a", [system("x")]), store.start("a", [system("x")])
        expected = sent.send_sync("q", model=ScriptedModel([assistant(CALL)]), tools=[asking]).events
        with suppress(ApprovalRequired), own.turn("q", model="scripted:m", tools=[asking]) as turn:
            turn.run(turn.answer(assistant(CALL)).calls[0], asking)
        *events, waiting = told(turn.events())
        *others, expected_waiting = told(expected)
        assert events == others
        assert waiting[1].pop("error").startswith("ApprovalRequired")  # what left the block
        assert waiting == expected_waiting

    def test_a_continued_turn_tells_from_there(self, store: Store, session: Session) -> None:
        again = killed_inside(store, session)
        opened = again.turn(take_over=True)
        facts = len(again.journal())
        with opened as turn:
            turn.run(turn.open_tool_calls[0], refund)
            turn.answer(assistant("done"))
        events = turn.events()
        assert [event.journal_number for event in events] == list(range(facts + 1, len(again.journal()) + 1))
        result = next(event for event in events if event.type == "session:tool_result")
        assert (result.data["call_id"], result.data["outcome"]) == ("c1", "unknown")

    def test_a_keyed_turn_that_has_ended_tells_nothing(self, session: Session) -> None:
        for _ in range(2):
            with session.turn("q", key="k") as turn:
                while not turn.done:
                    turn.answer(assistant("done"))
            events = turn.events()
        assert events == []
