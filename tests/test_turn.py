"""One turn of somebody's own loop: every line durable when it returns."""

from __future__ import annotations

import pytest

from bough import Session, ToolCall, Turn, Usage, assistant, system
from bough.errors import Fenced, InvalidOperation, UnrecognizedReply
from conftest import Store

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


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("support", [system("You help.")])


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
    assert facts["turn_started"] == {"turn": 2, "trigger": "email", "model": "m"}
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


def test_there_must_be_a_turn_to_go_on_with(session: Session) -> None:
    with pytest.raises(InvalidOperation, match="no turn is open"), session.turn():
        pass


def test_a_tool_may_end_the_turn(session: Session) -> None:
    with session.turn("q") as turn:
        turn.answer(assistant(ToolCall("a", "hang_up")))
        turn.result("a", "bye", ends_turn=True)
    assert session.row.status == "idle"
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
    turn.__enter__()  # and the process dies while the model thinks
    again = store.session(session.session_id)
    assert (again.usage().calls, again.usage().unknown_calls) == (1, 1)
    with again.turn(model="anthropic:claude-opus-4-5") as turn:
        turn.answer(assistant(ToolCall("a", "t")), usage=Usage(7, 1))
        turn.result("a")
        turn.answer(assistant("done"), usage=Usage(9, 1))
    assert (again.usage().calls, again.usage().unknown_calls, again.usage().input_tokens) == (3, 1, 16)
    assert again.verify() == []


def test_one_input_counts_once_however_many_entries_it_made(session: Session) -> None:
    with session.turn("q") as turn:
        for n in range(3):
            turn.answer(assistant(ToolCall(f"c{n}", "t")), usage=Usage(10, 1))
            turn.result(f"c{n}")
        turn.answer(assistant("a"), usage=Usage(10, 1))
    assert session.row.turns == 1
    assert session.usage_by_turn()[2].input_tokens == 40


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
