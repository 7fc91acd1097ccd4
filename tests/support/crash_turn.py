"""A loop of one's own to kill: keyed turns with unsafe, idempotent and read tools, whose lines always run from the top.

Every commit and every effect is a named point before and after which the process may be killed. It reports its
effects, and what was acknowledged to it, through a pipe to the test, which counts them.
"""

from __future__ import annotations

from contextlib import suppress

import oakleaf
from oakleaf import Session, ToolCall, ToolContext, Turn, assistant, system
from oakleaf.errors import Fenced, SessionRunning

from .crash_agent import KillPoints, add_kill_points

MAILS = ["first", "second"]


def run_loop(path: str, pipe: int, kill_at: int) -> None:
    """Deliver every mail again, as a queue does that was not told which ones were done."""
    kill_points = KillPoints(pipe, kill_at)
    with oakleaf.open(path, synchronous="normal") as plain_store:
        store = add_kill_points(plain_store, kill_points)
        session = store.start("crash", [system("You do as you are told.")], session_id="ses_crash")
        for number, mail in enumerate(MAILS):
            with session.turn(mail, key=f"mail-{number}") as turn:
                kill_points.report(f"acknowledged {mail}")
                loop = by_answer if number % 2 else by_open_calls
                loop(kill_points, session, turn)
    kill_points.report(f"points {kill_points.points}")


def run_unless_running(path: str, pipe: int) -> None:
    """As `run_loop`; a delivery that comes while another is worked on is refused, and will be repeated."""
    with suppress(SessionRunning, Fenced):
        run_loop(path, pipe, 0)


def by_open_calls(kill_points: KillPoints, session: Session, turn: Turn) -> None:
    while not turn.done:
        for call in turn.open_tool_calls:
            turn.run(call, make_tool(kill_points, call.call.name))
            kill_points.report(f"acknowledged result {call.call.id}")
        turn.answer(ask(kill_points, session))


def by_answer(kill_points: KillPoints, session: Session, turn: Turn) -> None:
    while not turn.done:
        answer = turn.recorded_answer() or turn.answer(ask(kill_points, session))
        for call in answer.calls:
            turn.run(call, make_tool(kill_points, call.name))
            kill_points.report(f"acknowledged result {call.id}")


def make_tool(kill_points: KillPoints, name: str) -> oakleaf.Tool:
    effect = name.partition("_")[0]

    def run(n: int, ctx: ToolContext) -> str:
        """Does something."""
        kill_points.effect(f"{effect}:{ctx.call.id}", ctx.key)
        return f"did {n}"

    return oakleaf.tool(effect=effect, name=name)(run)  # type: ignore[call-overload, no-any-return]


def ask(kill_points: KillPoints, session: Session) -> oakleaf.Message:
    """Answer by what is in the history, as a model does: two batches of calls, then a text."""
    kill_points.report("model")
    path = session.path()
    turn = [entry for entry in path if entry.turn == path[-1].turn]
    step = sum(entry.role == "assistant" for entry in turn)
    if step == 2:
        return assistant(f"All done for {turn[0].message.text if turn[0].message else ''}.")
    names = ("unsafe_refund", "idempotent_mail", "read_order")
    calls = [ToolCall(f"t{turn[0].seq}s{step}c{n}", name, {"n": n}) for n, name in enumerate(names)]
    return assistant("On it.", *calls)
