"""An agent to kill: four turns, twenty tools, parallel batches, approvals, tasks in tasks and a compaction.

Every commit and every effect is a named point before and after which the process may be killed. It reports its
effects through a pipe to the test, which counts them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import oakleaf
from oakleaf import Happened, Limits, ScriptedModel, Session, ToolCall, ToolContext, assistant, system
from oakleaf.errors import ContextOverflow
from oakleaf.models.base import Request
from oakleaf.stores.sqlite.store import SqliteStore

INPUTS = ["look around", "do it", "ask somebody", "and now at length"]
EFFECTS = ("read", "idempotent", "unsafe")
LIMITS = Limits(pause=lambda failures: 0.0)


class KillPoints:
    """The number of points passed so far, the one to be killed at, and the pipe to the test that counts effects."""

    def __init__(self, pipe: int, kill_at: int) -> None:
        self.pipe, self.kill_at, self.points = pipe, kill_at, 0

    def point(self, name: str) -> None:
        self.points += 1
        if self.points == self.kill_at:
            self.report(f"killed {name}")
            os.kill(os.getpid(), signal.SIGKILL)

    def report(self, line: str) -> None:
        os.write(self.pipe, f"{line}\n".encode())

    def effect(self, name: str, key: str) -> None:
        self.point(f"before {name}")
        self.report(f"effect {name} {key}")
        self.point(f"after {name}")


def add_kill_points(store: oakleaf.Store, kill_points: KillPoints) -> oakleaf.Store:
    """Add a point before and after each write of the store."""

    class Guarded(SqliteStore):
        pass

    for verb in ("commit", "create", "lease", "release"):

        def write(self: Any, *args: Any, verb: str = verb, **kwargs: Any) -> Any:
            kill_points.point(f"before {verb}")
            result = getattr(SqliteStore, verb)(self, *args, **kwargs)
            kill_points.point(f"after {verb}")
            return result

        setattr(Guarded, verb, write)
    store.backend.__class__ = Guarded
    return store


def make_tools(kill_points: KillPoints, depth: int = 0) -> list[oakleaf.Tool]:
    """Return the tools; 8 and 20 need approval, and 20 is called by a task nested `depth` tasks deep."""

    def make_tool(n: int) -> oakleaf.Tool:
        effect = EFFECTS[n % 3]

        def run(n: int, ctx: ToolContext) -> str:
            """Does something."""
            kill_points.effect(f"{effect}:{ctx.call.name}", ctx.key)
            ctx.update(**{ctx.call.name: True})
            return f"did {n}"

        verify = (lambda n: Happened(f"did {n}")) if n == 5 else None
        return oakleaf.tool(effect=effect, name=f"tool_{n}", approval=n in (8, 20), verify=verify)(run)

    return [*(make_tool(n) for n in range(19)), delegate_tool(kill_points, make_tool(20), depth)]


def delegate_tool(kill_points: KillPoints, inmost: oakleaf.Tool, depth: int) -> oakleaf.Tool:
    @oakleaf.tool(effect="idempotent")
    async def delegate(task: str, ctx: ToolContext) -> str:
        """Delegate to a child task, which delegates further; the innermost one needs approval."""
        below = inmost if depth == 1 else delegate_tool(kill_points, inmost, depth - 1)
        arguments = {"n": 20} if depth == 1 else {"task": task}
        lines = [assistant("Asking.", ToolCall("d", below.name, arguments))] if depth else []
        model = ScriptedModel(answer_in_order(kill_points, [*lines, "I thought."]))
        return await ctx.task(task, agent="child", models=[model], tools=[below])

    return delegate


def answer_in_order(kill_points: KillPoints, lines: list[Any]) -> Callable[[Request], Any]:
    def answer(request: Request) -> Any:
        kill_points.report("model")
        return lines[sum(message.role == "assistant" for message in request.messages)]

    return answer


def script(kill_points: KillPoints) -> Callable[[Request], Any]:
    """Answer by the number of answers in this turn, never by the results of the tools."""

    def answer(request: Request) -> Any:
        kill_points.report("model")
        items = [item for item in request.context.items if not item.pinned]
        turn = [item for item in items if item.turn == items[-1].turn]
        answers = sum(item.message.role == "assistant" for item in turn)
        text = turn[0].message.text
        if text == INPUTS[3] and not any(item.pinned for item in request.context.items):
            return ContextOverflow("scripted", "too long")
        lines: dict[str, list[Any]] = {
            INPUTS[0]: [batch(0, 1, 2), batch(3), "I looked."],
            INPUTS[1]: [batch(4, 5, 6, 7), batch(8, 9), batch(10, 11, 12), "I did it."],
            INPUTS[2]: [assistant("Asking.", ToolCall("d", "delegate", {"task": "think"})), "I asked."],
            INPUTS[3]: [batch(13, 14, 15, 16), batch(17, 18), "All said."],
        }
        return lines[text][answers]

    return answer


def batch(*numbers: int) -> Any:
    return assistant("On it.", *(ToolCall(f"c{n}", f"tool_{n}", {"n": n}) for n in numbers))


def run_agent(path: str, pipe: int, kill_at: int) -> None:
    """Continue from where the last process died and run to the end."""
    runtime = KillPoints(pipe, kill_at)
    with oakleaf.open(path, synchronous="normal") as plain_store:
        store = add_kill_points(plain_store, runtime)
        session = store.start("crash", [system("You do as you are told.")], session_id="ses_crash")
        tools = make_tools(runtime, depth=2)
        model = ScriptedModel(script(runtime))
        while step(session, model, tools):
            pass
    runtime.report(f"points {runtime.points}")


def step(session: Session, model: ScriptedModel, tools: list[oakleaf.Tool]) -> bool:
    session.refresh()
    if session.log.cursor.turn:
        for approval in session.pending_approvals():
            session.approve(approval)
        session.resume_sync(model=model, tools=tools, limits=LIMITS)
        return True
    if session.row.turns == len(INPUTS):
        return False
    session.send_sync(INPUTS[session.row.turns], model=model, tools=tools, limits=LIMITS)
    return True


def run_again(path: str, pipe: int, kill_at: int) -> None:
    """Pay, take the turn back, and have it paid again: continue from where the last process died until a person is asked."""
    runtime = KillPoints(pipe, kill_at)

    @oakleaf.tool
    def pay(order: int, ctx: ToolContext) -> str:
        """Pays."""
        runtime.effect("unsafe:pay", ctx.key)
        return "paid"

    def answer(request: Request) -> Any:
        last = request.messages[-1]
        return "Paid." if last.role == "tool" else assistant(ToolCall("c", "pay", {"order": 41}))

    with oakleaf.open(path, synchronous="normal") as plain_store:
        session = add_kill_points(plain_store, runtime).start("crash", session_id="ses_crash")
        while not session.pending_approvals():
            if session.log.cursor.turn:
                session.resume_sync(model=ScriptedModel(answer), tools=[pay], limits=LIMITS)
            elif session.row.turns == 1 and not any(fact.kind == "moved" for fact in session.journal()):
                session.undo()
            else:
                session.send_sync("Pay order 41.", model=ScriptedModel(answer), tools=[pay], limits=LIMITS)
            session.refresh()
    runtime.report(f"points {runtime.points}")
