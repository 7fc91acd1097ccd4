"""A shell command by the host, recorded as the same exchange a model would have made.

The command and the call are durable before it runs, the result when it has: errors are results too. So later
context, compaction and inspection see what they would have seen if the model had chosen the tool itself.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from typing import Any

from ...core.drafts import Draft, ExtraFact
from ...core.messages import ToolCall, assistant, user
from ...errors import InvalidOperation
from ...log.log import Log
from ...log.workspace import Workspace
from .tool import ToolContext
from .workspace import workspace_tools


def run_shell(log: Log, argv: list[str], workspace: Workspace, commands: Iterable[str]) -> str:
    if asyncio._get_running_loop() is not None:
        raise InvalidOperation(
            "session.shell runs an event loop of its own; from asyncio call asyncio.to_thread(session.shell, …)"
        )
    log.raise_if_leased()
    call = ToolCall(log.runtime.new_id("call"), "shell", {"argv": argv})
    started = ExtraFact("calls_started", {"seq": log.leaf.seq + 2, "indexes": [0]})
    log.append([Draft(user(f"$ {shlex.join(argv)}")), Draft(assistant(call))], facts=[started])
    (tool,) = [tool for tool in workspace_tools(log, workspace, commands=commands) if tool.name == "shell"]
    context = ToolContext(log.idempotency_key(log.leaf.seq, 0), log.session_id, call, log.state)
    context.ends_turn = True
    result = asyncio.run(tool.run(context))
    kept = log.append([Draft(_ending(result))]).payloads[0]
    return "".join(getattr(piece, "text", "") for piece in kept.results[0].content)  # type: ignore[union-attr]


def _ending(result: Any) -> Any:
    """An error ends the turn as well as a success: nobody is going to be asked."""
    from msgspec.structs import replace

    return replace(result, parts=(replace(result.results[0], ends_turn=True),))
