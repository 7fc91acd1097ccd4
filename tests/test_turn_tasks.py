"""Tasks of an own loop: a tool of `turn.run` starts a child session, as under `send`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import Event, ScriptedModel, Session, Tool, ToolCall, ToolContext, assistant, system
from oakleaf.errors import ApprovalRequired, TaskTrashed, TurnLimit
from oakleaf.store import Store
from support.sessions import tasks_of

DELEGATE = assistant(ToolCall("c", "delegate", {"n": 7}))
LEFT_OUT = ("session_id", "conversation_id", "finish", "child", "error")


def lines_of(*lines: Any) -> ScriptedModel:
    """Return a model that says the line after what was said already, in whichever process."""

    def answer(request: Any) -> Any:
        return lines[sum(message.role == "assistant" for message in request.messages)]

    return ScriptedModel(answer)


def delegate_to(*tools: Tool, **about: Any) -> Tool:
    @oakleaf.tool(**{"effect": "idempotent", **about})
    async def delegate(n: int, ctx: ToolContext) -> str:
        """Let a child do the work."""
        return await ctx.task(f"pay {n}", tools=tools)

    return delegate


def told(events: list[Event] | tuple[Event, ...]) -> list[Any]:
    return [
        (event.type, {name: value for name, value in event.data.items() if name not in LEFT_OUT})
        for event in events
        if event.journal_number is not None
    ]


class Desk:
    def __init__(self) -> None:
        self.paid: list[int] = []

    @property
    def pay(self) -> Tool:
        @oakleaf.tool(approval=True)
        def pay(n: int) -> str:
            """Pay."""
            self.paid.append(n)
            return f"paid {n}"

        return pay


PAYS = (assistant(ToolCall("p", "pay", {"n": 7})), "It is paid.")


async def drive(session: Session, tool: Tool, model: Any, content: str | None = "q") -> list[Event]:
    """Run an own loop to the end, or to a wait for a person. Return the events."""
    with suppress(ApprovalRequired):
        async with session.turn(content, model="scripted:m", tools=[tool], task_models=model) as turn:
            while not turn.done:
                await asyncio.gather(*(turn.run(call, tool) for call in turn.open_tool_calls))
                if not turn.done:
                    is_first = session.path()[-1].message.role == "user"
                    await turn.answer(DELEGATE if is_first else assistant("ok"))
    return await turn.events()


def test_a_task_is_a_child_with_its_answer_and_usage(store: Store) -> None:
    sent, own = store.start("a", [system("x")]), store.start("a", [system("x")])
    model = lines_of("done")
    events = asyncio.run(drive(own, delegate_to(), model))
    expected = sent.send_sync("q", model=lines_of(DELEGATE, "ok"), tools=[delegate_to_with(model)]).events
    assert told(events) == told(expected)
    (child,) = tasks_of(own)
    assert (child.row.relation, child.path()[-1].message.text) == ("task", "done")
    assert own.usage("tree").calls == sent.usage("tree").calls == 3
    kinds = [fact.kind for fact in own.journal()]
    assert kinds.index("tool_calls_started") < kinds.index("task_started") < kinds.index("turn_ended")
    assert own.verify() == child.verify() == []


def delegate_to_with(model: ScriptedModel) -> Tool:
    @oakleaf.tool(effect="idempotent")
    async def delegate(n: int, ctx: ToolContext) -> str:
        """Let a child do the work."""
        return await ctx.task(f"pay {n}", models=[model])

    return delegate


def test_a_synchronous_turn_awaits_a_tool_with_a_task(session: Session) -> None:
    with session.turn("q", task_models=ScriptedModel(["done"])) as turn:
        (call,) = turn.answer(DELEGATE).calls
        result = asyncio.run(turn.run(call, delegate_to()))
        turn.answer(assistant("ok"))
    assert result.results[0].content[0].text == "done"
    assert len(tasks_of(session)) == 1


def test_without_models_a_task_is_refused_in_words(session: Session) -> None:
    with session.turn("q") as turn:
        (call,) = turn.answer(DELEGATE).calls
        result = asyncio.run(turn.run(call, delegate_to())).results[0]
        turn.answer(assistant("ok"))
    assert result.error
    assert "cannot start a task" in result.content[0].text
    assert tasks_of(session) == []


def test_a_wait_of_a_task_is_the_wait_of_the_turn(store: Store) -> None:
    sent, own = store.start("a", [system("x")]), store.start("a", [system("x")])
    desk, other = Desk(), Desk()
    tool = delegate_to(desk.pay)
    events = asyncio.run(drive(own, tool, lines_of(*PAYS)))
    asking = lines_of(DELEGATE, "ok")

    @oakleaf.tool(effect="idempotent")
    async def delegate(n: int, ctx: ToolContext) -> str:
        """Let a child do the work."""
        return await ctx.task(f"pay {n}", tools=[other.pay], models=[lines_of(*PAYS)])

    expected = sent.send_sync("q", model=asking, tools=[delegate]).events
    assert told(events) == told(expected)
    assert own.row.status == "waiting"
    facts = len(own.journal())
    asyncio.run(drive(own, tool, lines_of(*PAYS), None))
    kinds = [fact.kind for fact in own.journal()[facts:]]
    assert kinds == ["turn_resumed", "turn_left"], "asks nothing again without a decision"
    (pending,) = own.pending_approvals()
    assert pending.call.name == "pay"
    own.approve(pending)
    asyncio.run(drive(own, tool, lines_of(*PAYS), None))
    assert (desk.paid, own.path()[-1].message.text, own.row.status) == ([7], "ok", "idle")
    assert len(tasks_of(own)) == 1
    assert own.verify() == []


def test_an_unsafe_tool_cannot_wait_for_its_task(session: Session) -> None:
    desk = Desk()
    asyncio.run(drive(session, delegate_to(desk.pay, effect="unsafe"), lines_of(*PAYS)))
    (result,) = session.path()[-2].message.results
    assert (result.outcome, desk.paid, session.pending_approvals()) == ("interrupted", [], [])
    assert [child.row.status for child in tasks_of(session)] == ["cancelled"]


def run_until_killed(place: Path, is_killed: bool) -> None:
    """Run an own loop whose task dies with its process inside a tool, or ends."""
    journal = place.with_suffix(".txt")

    @oakleaf.tool(effect="idempotent")
    def pay(n: int) -> str:
        """Pay."""
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid {n}"

    def answer(request: Any) -> Any:
        said = sum(message.role == "assistant" for message in request.messages)
        with journal.open("a") as lines:
            lines.write(f"{said}\n")
        return PAYS[said]

    with oakleaf.open(place) as store:
        session = store.session("ses_own")
        content = None if session.open_tool_calls else "q"
        asyncio.run(drive(session, delegate_to(pay), ScriptedModel(answer), content))


def test_a_killed_task_is_resumed_and_not_started_twice(tmp_path: Path) -> None:
    place, processes = tmp_path / "agent.db", multiprocessing.get_context("fork")
    with oakleaf.open(place) as store:
        store.start("a", [system("x")], session_id="ses_own")
    for is_killed in (True, False):
        process = processes.Process(target=run_until_killed, args=(place, is_killed))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if is_killed else 0)
    with oakleaf.open(place) as store:
        session = store.session("ses_own")
        (child,) = tasks_of(session)
        assert child.path()[-1].message.text == "It is paid."
        assert session.path()[-1].message.text == "ok"
        assert session.verify() == child.verify() == []
        kinds = [fact.kind for fact in session.journal()]
        assert kinds.count("task_started") == 1
    assert place.with_suffix(".txt").read_text().split() == ["0", "1"], "each answer was paid for once"


def test_the_limits_of_the_session_hold_for_its_tasks(session: Session) -> None:
    @oakleaf.tool
    def pay(n: int) -> str:
        """Pay."""
        return f"paid {n}"

    session.set(limits={"rounds": 1})
    with pytest.raises(TurnLimit):
        asyncio.run(drive(session, delegate_to(pay), lines_of(*PAYS)))
    (child,) = tasks_of(session)
    assert child.usage().calls == 1
    assert "(stopped: " in child.path()[-1].message.text


def test_a_task_in_the_trash_is_named_and_goes_on_when_restored(store: Store, session: Session) -> None:
    desk = Desk()
    tool = delegate_to(desk.pay)
    asyncio.run(drive(session, tool, lines_of(*PAYS)))
    (child,) = tasks_of(session)
    store.delete(child.session_id)
    with pytest.raises(TaskTrashed):
        asyncio.run(drive(session, tool, lines_of(*PAYS), None))
    store.restore(child.session_id)
    session.approve(session.pending_approvals()[0])
    asyncio.run(drive(session, tool, lines_of(*PAYS), None))
    assert (desk.paid, session.row.status) == ([7], "idle")


def test_an_earlier_call_is_told_with_its_request(store: Store) -> None:
    @oakleaf.tool
    def pay(n: int) -> str:
        """Pay."""
        return f"paid {n}"

    told_by = []
    for is_own in (True, False):
        session = store.start("a", [system("x")])
        session.send_sync("q", model=ScriptedModel([PAYS[0], "ok"]), tools=[pay])
        session.rewind(to=1)
        if is_own:
            with suppress(ApprovalRequired), session.turn("q", model="scripted:m", tools=[pay]) as turn:
                turn.run(turn.answer(PAYS[0]).calls[0], pay)
            events: Any = turn.events()
        else:
            events = session.send_sync("q", model=ScriptedModel([PAYS[0]]), tools=[pay]).events
        (asked,) = [event for event in events if event.type == "session:approval_requested"]
        told_by.append({**asked.data, "earlier": {**asked.data["earlier"], "at": 0, "session": ""}})
    assert told_by[0] == told_by[1]
