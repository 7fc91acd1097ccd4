"""An audit finds every call with an effect, once, with who allowed it and how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

import oakleaf
from oakleaf import AuditedCall, Session, Store, ToolCall, Usage, assistant, tool_result, user
from oakleaf.errors import ApprovalRequired, InvalidArgument
from oakleaf.ext import with_approval
from oakleaf.models.scripted import ScriptedModel
from oakleaf.verbs.audit import Audit
from support.cli_store import look_up, refund


@oakleaf.tool(effect="idempotent")
def set_status(order: int) -> str:
    """Set a status."""
    return "set"


@oakleaf.tool
def explode(order: int) -> str:
    """Fail."""
    raise RuntimeError("no connection")


def call(number: int, name: str) -> ToolCall:
    return ToolCall(f"c{number}", name, {"order": number})


def shown(calls: list[AuditedCall]) -> list[tuple[str, str, str]]:
    return [(one.tool, one.effect, one.outcome) for one in calls]


def everything(store: Store, **options: object) -> list[AuditedCall]:
    return list(store.audit(0, **options))  # type: ignore[arg-type]


def send(session: Session, *names: str) -> None:
    calls = [call(n, name) for n, name in enumerate(names)]
    tools = [look_up, refund, set_status, explode]
    session.send_sync("go", model=ScriptedModel([assistant("", *calls), "Done."]), tools=tools)


def test_effects_are_listed_and_reads_are_not(store: Store) -> None:
    session = store.start("support", owner="ann")
    send(session, "look_up", "refund", "set_status", "explode")
    found = everything(store)
    assert shown(found) == [
        ("refund", "unsafe", "done"),
        ("set_status", "idempotent", "done"),
        ("explode", "unsafe", "failed"),
    ]
    first = found[0]
    assert (first.session, first.owner, first.agent) == (session.session_id, "ann", "support")
    assert (first.entry, first.index, first.arguments) == (f"{session.session_id}@3", 1, {"order": 1})
    assert first.approved is None
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at


def test_a_decision_stands_beside_the_call(store: Store) -> None:
    session = store.start()
    model = ScriptedModel([assistant("", call(1, "refund"), call(2, "refund")), "Done."])
    tools = with_approval([refund], True)
    session.send_sync("both", model=model, tools=tools)
    assert everything(store) == []  # nothing was done yet
    first, second = session.pending_approvals()
    session.approve(first, by="ann", reason="lost")
    session.approve(second, allow=False, by="bob", reason="paid back already")
    session.resume_sync(model=model, tools=tools)
    denied, done = everything(store)
    assert (done.approved, done.by, done.reason, done.surface, done.outcome) == (
        *(True, "ann", "lost", "Python", "done"),
    )
    assert (denied.approved, denied.by, denied.reason, denied.outcome) == (
        *(False, "bob", "paid back already", "denied"),
    )


def test_an_own_loop_is_audited_with_the_cost_of_its_call(store: Store) -> None:
    session = store.start()
    with session.turn("go") as turn:
        answer = assistant("", call(1, "pay"))
        turn.answer(answer, usage=Usage(1_000, 200), provider="anthropic", model="claude-sonnet-4-5")
        turn.result("c1", "paid")
        turn.answer(assistant("Done."))
    (found,) = everything(store)
    assert (found.tool, found.effect, found.outcome) == ("pay", "unsafe", "done")
    assert found.cost_microcents is not None
    assert found.cost_microcents > 0


def test_a_call_that_may_have_run_is_unknown(store: Store) -> None:
    session = store.start()
    with pytest.raises(RuntimeError), session.turn("go") as turn:
        turn.answer(assistant("", call(1, "pay")))
        turn.started(call(1, "pay"))
        raise RuntimeError("the process ends here")
    assert shown(everything(store)) == [("pay", "unsafe", "unknown")]


def test_a_call_that_waits_in_an_own_loop_is_no_effect(store: Store) -> None:
    session = store.start()
    paying = oakleaf.tool(approval=True)(refund.function)
    with pytest.raises(ApprovalRequired), session.turn("go", tools=[paying]) as turn:
        turn.answer(assistant("", call(1, "refund")))
        turn.run(call(1, "refund"), paying)
    assert everything(store) == []


def test_a_fork_does_nothing_twice_and_other_branches_count(store: Store) -> None:
    session = store.start()
    send(session, "refund")
    session.fork()
    session.rewind(to=1)
    session.append([assistant("", call(7, "pay")), tool_result("c7", "paid"), assistant("Done.")])
    assert [one.tool for one in everything(store)] == ["refund", "pay"]


def test_the_trash_is_audited_and_replays_are_not(store: Store) -> None:
    session = store.start()
    send(session, "refund")
    session.replay_sync()
    store.delete(session.session_id)
    assert [one.tool for one in _all_pages(store, 1)] == ["refund"]


def test_a_span_of_time_has_its_calls_alone(store: Store) -> None:
    for _ in range(3):
        send(store.start(), "refund")
    first, second, third = everything(store)
    assert list(store.audit(second.started_at, third.started_at)) == [second]
    assert list(store.audit(third.started_at + 1)) == []
    assert first.started_at < second.started_at


def test_only_one_owner_is_audited(store: Store) -> None:
    for owner in ("ann", "bob"):
        send(store.start(owner=owner), "refund")
    assert [one.owner for one in everything(store, owner="bob")] == ["bob"]


def test_pages_cover_every_session_once(store: Store) -> None:
    for _ in range(5):
        send(store.start(), "refund")
    assert len({one.session for one in _all_pages(store, 2)}) == len(list(_all_pages(store, 2))) == 5
    with pytest.raises(InvalidArgument):
        store.audit(0, page="nonsense")


def test_a_long_session_is_read_from_its_end(store: Store) -> None:
    session = store.start()
    for n in range(150):
        session.append(
            [user("go"), assistant("", call(n, "pay")), tool_result(f"c{n}", "paid"), assistant("ok")]
        )
    found = everything(store)
    assert [one.arguments["order"] for one in found] == list(range(150))
    assert list(store.audit(found[-1].started_at)) == found[-1:]
    assert store.audit(0).next is None
    store.delete(store.start().session_id)
    assert store.audit(0).next == "1:", "the trash is read, too"


def test_a_report_shows_hostile_text_as_text(store: Store, tmp_path: Path) -> None:
    session = store.start(owner="<b>ann</b>")
    made = ToolCall("1", "pay", {"to": "<script>alert(1)</script>\u202e001\x1b[31m"})
    session.append([user("go"), assistant("", made), tool_result("1", "done"), assistant("ok")])
    file = tmp_path / "audit.html"
    Audit(output=str(file))(store)
    report = file.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;·001␛[31m" in report
    assert "&lt;b&gt;ann&lt;/b&gt;" in report
    assert [mark for mark in ("<script", "<b>", "\u202e", "\x1b") if mark in report] == []


def _all_pages(store: Store, limit: int) -> list[AuditedCall]:
    page = store.audit(0, limit=limit)
    found = list(page)
    while page.next is not None:
        page = store.audit(0, page=page.next, limit=limit)
        found += page
    return found
