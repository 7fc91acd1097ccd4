"""A process that runs a session and waits inside its tool: `python runner_process.py URL SESSION loop|turn|asked|async|resume`.

It prints `inside` once the tool runs, goes on when it reads a line, and prints how its run ended. With `resume` it
continues what another one left. With `async` its tool waits on the event loop, with `asked` for a cancellation.
"""

from __future__ import annotations

import asyncio
import sys
import time

import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant, errors


def charge() -> str:
    print("inside", flush=True)
    sys.stdin.readline()
    return "charged"


def charge_until_asked(turn: oakleaf.Turn) -> str:
    print("inside", flush=True)
    while not turn.is_cancel_requested:
        time.sleep(0.01)
    return "charged"


async def charge_slowly() -> str:
    print("inside", flush=True)
    await asyncio.sleep(3_600)
    return "charged"


async def run_turn(session: oakleaf.Session) -> None:
    async with session.turn("charge it") as turn:
        (call,) = (await turn.answer(assistant(ToolCall("c", "charge")))).calls
        await turn.run(call, charge_slowly)


def main(url: str, session_id: str, how: str) -> None:
    with oakleaf.open(url) as store:
        session = store.session(session_id)
        try:
            if how == "resume":
                print(session.resume_sync(model=ScriptedModel(["resumed"]), tools=[charge]).text, flush=True)
                return
            if how == "loop":
                model = ScriptedModel([assistant(ToolCall("c", "charge")), "done"])
                session.send_sync("charge it", model=model, tools=[charge])
            elif how == "async":
                asyncio.run(run_turn(session))
            else:
                with session.turn("charge it") as turn:
                    (call,) = turn.answer(assistant(ToolCall("c", "charge"))).calls
                    turn.run(call, charge if how == "turn" else lambda: charge_until_asked(turn))
                    turn.answer(assistant("done"))
            print("done", flush=True)
        except errors.OakleafError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
