"""The decisions of a person about an open turn, and what the person reads."""

from __future__ import annotations

import pytest

from oakleaf import ScriptedModel, Session, ToolCall, assistant
from oakleaf.errors import NotWaiting
from oakleaf.ext import with_approval
from oakleaf.store import Store
from oakleaf.verbs.base import Caller
from oakleaf.verbs.turns import Approve
from support.cli_store import refund
from support.golden_text import check_golden

NOW = 1_000_000_100_000_000


def waiting(store: Store) -> Session:
    """Return a session in which two calls wait."""
    session = store.start("support", session_id="ses_case")
    refunds = [ToolCall(f"r{order}", "refund", {"order": order}) for order in (41, 42)]
    model = ScriptedModel([assistant("I refund both.", *refunds)])
    session.send_sync("Refund both", model=model, tools=with_approval([refund], True))
    return session


def test_the_plan_of_an_approval_has_each_call_whole(store: Store) -> None:
    waiting(store)
    approve = Approve(session="ses_case")
    planned = approve.plan(Caller(store))
    assert approve.question(planned) == "Allow these 2 calls?"
    check_golden("approve_plan", approve, planned, NOW)


def test_an_approval_says_what_still_waits_and_how_to_continue(store: Store) -> None:
    waiting(store)
    first = Approve(session="ses_case", call=["1"])
    check_golden("approve_first", first, first(store), NOW)
    second = Approve(session="ses_case", deny=True)
    check_golden("approve_denied", second, second(store), NOW)
    third = Approve(session="ses_case")
    check_golden("approve_nothing", third, third.plan(Caller(store)), NOW)


def test_only_the_calls_of_the_plan_are_approved(store: Store) -> None:
    """While a person reads the plan, somebody else decides the first call: the second takes its number."""
    session = waiting(store)
    approve = Approve(session="ses_case", call=["1"])
    planned = approve.plan(Caller(store))
    first, second = session.pending_approvals()
    session.approve(first, allow=False)
    with pytest.raises(NotWaiting):
        approve.confirmed(planned)(store)
    assert session.pending_approvals() == [second]
