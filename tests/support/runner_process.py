"""A process that runs a session and waits inside its tool: `python runner_process.py URL SESSION loop|turn|resume`.

It prints `inside` once the tool runs, goes on when it reads a line, and prints how its run ended. With `resume` it
continues what another one left.
"""

from __future__ import annotations

import sys

import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant, errors


def charge() -> str:
    print("inside", flush=True)
    sys.stdin.readline()
    return "charged"


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
            else:
                with session.turn("charge it") as turn:
                    (call,) = turn.answer(assistant(ToolCall("c", "charge"))).calls
                    turn.run(call, charge)
                    turn.answer(assistant("done"))
            print("done", flush=True)
        except errors.OakleafError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
