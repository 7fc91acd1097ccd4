"""Bring your own loop: a session that survives kill -9 in the middle of a turn.

Run it with `python examples/own_loop.py`. It needs no key, network or server: the "model" is a function. Everything Oakleaf does
is real: the SQLite file, the processes, the SIGKILL, the fork, the verification.

    1  a process starts a session and is killed with kill -9 while a tool runs
    2  a new process opens the file and continues the same turn
    3  the session is forked before the answer, with another prompt
    4  the session is rewound, continued on a branch, and its tree is printed
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import oakleaf
from oakleaf import Message, Session, ToolCall, ToolContext, Usage, assistant, draw_tree, system

PROMPT = "You help customers of a small shop. Look up an order before you answer."


def model(session: Session) -> Message:
    """Replaces client.messages.create(messages=session.messages("anthropic"), …)."""
    history = session.messages("anthropic")
    results = [block for m in history for block in m["content"] if block["type"] == "tool_result"]
    if not results:
        return assistant("Let me look.", ToolCall("call_1", "lookup_order", {"order": 41}))
    return assistant(f"Your order: {results[-1]['content'][0]['text']}")


@oakleaf.tool(effect="read")  # so it may run again after a crash; an unsafe one, the default, never does
def lookup_order(order: int, ctx: ToolContext) -> dict[str, object]:
    """Look up an order."""
    if len(sys.argv) > 1:
        print("tool is running", flush=True)
        time.sleep(60)  # the process is killed here
    ctx.update(looked_up=order)
    return {"order": order, "status": "on its way"}


def run_turn(session: Session, text: str | None) -> None:
    """The complete loop. Every call is durable when it returns; without text it continues the open turn."""
    with session.turn(text) as turn:
        while not turn.done:
            for call in turn.open_tool_calls:
                turn.run(
                    call, lookup_order
                )  # its start is durable before it runs, its result when it returns
            reply = model(session)
            turn.answer(reply, usage=Usage(120, 20), provider="anthropic", model="claude-opus-4-5")


def worker(path: str) -> None:
    with oakleaf.open(path) as store:
        session = store.start("support", [system(PROMPT)], session_id="ses_demo", title="Where is order 41?")
        run_turn(session, "Where is order 41?")


def show(step: str) -> None:
    print(f"\n\033[1m{step}\033[0m" if sys.stdout.isatty() else f"\n{step}")


def die(path: str) -> None:
    show("1. A process starts a session. While its tool runs, it is killed with kill -9.")
    with subprocess.Popen([sys.executable, __file__, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    print(f"   pid {process.pid} was killed by {signal.Signals(-process.returncode).name}")


def resume(session: Session) -> None:
    show("2. A new process opens the file. Nothing is lost, and the turn is still open:")
    print(draw_tree(session, width=90))
    waiting = [call.call.name for call in session.open_tool_calls]
    print(f"   status {session.row.status}; waiting for {waiting}; problems found: {len(session.verify())}")
    before = session.messages("anthropic")
    run_turn(session, None)
    same = session.messages("anthropic")[: len(before) - 1] == before[:-1]
    print(f"   … and it runs to the end. The earlier part of the prompt is unchanged: {same}")


def fork_session(session: Session) -> Session:
    show("3. Fork before the answer and try another prompt. No entry is copied:")
    started = time.perf_counter()
    fork = session.fork(at=2, prompt="You are brief.")
    took = (time.perf_counter() - started) * 1_000
    with fork.turn() as turn:
        turn.answer(assistant("It is on its way."), usage=Usage(60, 5))
    print(f"   forked at message 2 in {took:.1f} ms; its own cost so far: {fork.usage().calls} call")
    return fork


def look(store: oakleaf.Store, session: Session, fork: Session) -> None:
    show("4. Rewind, answer differently, and print the tree:")
    session.rewind(to=4)
    with session.turn() as turn:
        turn.answer(assistant("On its way, due Friday."), usage=Usage(140, 9))
    print(draw_tree(session, width=90))
    show("   and the fork, which shares its first two entries:")
    print(draw_tree(fork, width=90))
    totals = session.usage()
    print(f"\n   verify: {len(list(store.verify()))} problems; calls {totals.calls}, ", end="")
    print(f"tokens {totals.input_tokens}+{totals.output_tokens}")
    print(f"   public transcript: {[entry.text for entry in session.transcript() if entry.message]}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "agent.db")
        die(path)
        with oakleaf.open(path) as store:
            session = store.session("ses_demo")
            resume(session)
            look(store, session, fork_session(session))
    print("\nNext: python examples/support_agent.py (killed inside a refund), README.md, docs/concepts.md.")


if __name__ == "__main__":
    worker(sys.argv[1]) if len(sys.argv) > 1 else main()
