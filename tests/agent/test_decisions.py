"""The journal keeps who decided about a call, why, and by which surface."""

from __future__ import annotations

from pathlib import Path

import pytest

import oakleaf
from oakleaf import ScriptedModel, Session, Store, ToolCall, assistant, system
from oakleaf.core.facts import Approved, Denied
from oakleaf.errors import ApprovalRequired, ApproverUnnamed, InvalidText, InvalidTool, OakleafError
from oakleaf.ext import with_approval
from support.cli_store import refund

Decided = tuple[str | None, str | None, str | None]


@oakleaf.tool(approval="named")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


ASKS = ("Pay.", ToolCall("p1", "pay", {"amount": 5}))


def decisions(session: Session) -> list[Decided]:
    facts = [stored.fact for stored in session.journal()]
    return [(one.by, one.reason, one.surface) for one in facts if isinstance(one, Approved | Denied)]


def waiting(store: Store) -> Session:
    """Return a session of which a call wants a person with a name."""
    session = store.start("support", session_id="ses_paying")
    session.send_sync("Pay", model=ScriptedModel([assistant(*ASKS)]), tools=[pay])
    return session


def test_a_decision_is_kept_with_name_reason_and_surface(any_store: Store) -> None:
    session = waiting(any_store)
    (call,) = session.pending_approvals()
    session.approve(call, by=" ann ", reason="order 41 is lost", surface="chat")
    assert decisions(session) == [("ann", "order 41 is lost", "chat")]
    done = session.resume_sync(model=ScriptedModel(["Paid."]), tools=[pay])
    assert done.text == "Paid."


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("by", [None, "", "  "])
def test_a_tool_that_wants_a_name_gets_no_nameless_decision(
    store: Store, by: str | None, allow: bool
) -> None:
    session = waiting(store)
    (call,) = session.pending_approvals()
    with pytest.raises(ApproverUnnamed) as refused:
        session.approve(call, allow=allow, by=by)
    assert "needs the name of the person who decides" in str(refused.value)
    assert decisions(session) == []
    assert session.pending_approvals() == [call]


def test_an_own_loop_wants_the_name_too(store: Store) -> None:
    session = store.start()
    with pytest.raises(ApprovalRequired), session.turn("Pay", tools=[pay]) as turn:
        turn.answer(assistant(*ASKS))
        turn.run(ASKS[1], pay)
    (call,) = session.pending_approvals()
    with pytest.raises(ApproverUnnamed):
        session.approve(call)
    session.approve(call, by="ann")
    with session.turn() as turn:
        assert turn.run(ASKS[1], pay).results[0].text == "paid 5"


def test_an_operator_who_asks_for_approvals_keeps_the_wish_for_a_name(store: Store) -> None:
    session = store.start()
    tools = with_approval([pay, refund], True)
    answer = assistant(*ASKS, ToolCall("r1", "refund", {"order": 1}))
    session.send_sync("Both", model=ScriptedModel([answer]), tools=tools)
    first, second = session.pending_approvals()
    session.approve(second)
    with pytest.raises(ApproverUnnamed):
        session.approve(first)


def test_a_call_of_a_task_wants_the_name_too(store: Store) -> None:
    @oakleaf.tool(effect="idempotent")
    async def delegate(ctx: oakleaf.ToolContext) -> str:
        """Let a task pay."""
        model = ScriptedModel([assistant(*ASKS), "Paid."])
        return str(await ctx.task("Pay", models=[model], tools=[pay]))

    session = store.start()
    session.send_sync(
        "Pay", model=ScriptedModel([assistant(ToolCall("d1", "delegate", {}))]), tools=[delegate]
    )
    (call,) = session.pending_approvals()
    with pytest.raises(ApproverUnnamed):
        session.approve(call)
    session.approve(call, by="ann", reason="agreed")
    assert decisions(store.session(call.session_id)) == [("ann", "agreed", "Python")]


def test_a_reason_without_a_secret_and_without_a_nul(store: Store) -> None:
    session = waiting(store)
    (call,) = session.pending_approvals()
    with pytest.raises(InvalidText):
        session.approve(call, by="ann", reason="a\0b")
    secret = "sk-ant-api03-" + "A1b2C3d4" * 10
    session.approve(call, by="ann", reason=f"the key is {secret}")
    assert secret not in str(decisions(session))


def test_another_wish_than_a_name_is_refused() -> None:
    with pytest.raises(InvalidTool, match="approval 'signed' is unknown"):
        oakleaf.tool(approval="signed")(lambda: None)  # type: ignore[call-overload]


def test_a_name_in_a_bundle_decides_nothing(store: Store, tmp_path: Path) -> None:
    with oakleaf.open("memory:") as elsewhere:
        session = waiting(elsewhere)
        session.approve(session.pending_approvals()[0], by="the owner of the bank")
        session.export(tmp_path / "s.oakleaf")
    store.import_bundle(tmp_path / "s.oakleaf")
    taken = store.session("ses_paying")
    (call,) = taken.pending_approvals()
    assert call.decided_elsewhere == "approved"
    with pytest.raises(OakleafError, match="needs the name"):
        taken.approve(call)


def test_a_model_reads_no_name_of_a_person(store: Store) -> None:
    session = store.start("support", [system("You help.")])
    session.send_sync("Pay", model=ScriptedModel([assistant(*ASKS)]), tools=[pay])
    session.approve(session.pending_approvals()[0], allow=False, by="ann", reason="no budget")
    session.resume_sync(model=ScriptedModel(["Not paid."]), tools=[pay])
    assert "ann" not in str(session.messages("openai"))
