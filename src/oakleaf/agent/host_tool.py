"""A tool run by the host, recorded like the tool call of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from oakleaf.agent.start_facts import turn_start
from oakleaf.agent.tools.tool import Tool, ToolContext
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import TurnStarted
from oakleaf.core.messages import Message, ToolCall, ToolResult, assistant, user
from oakleaf.core.turns import ENDED_BY_TOOL
from oakleaf.log.log import Log
from oakleaf.turn.runner import Runner


def run_host_tool(log: Log, said: str, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
    """Run a tool for the host, record the call like a model's, and return the result. The result ends the
    turn.

    The call is durable before the tool runs and its result afterwards, errors included. So context, compaction and
    inspection treat it like a call of the model. `said` is the input. Runs an event loop of its own.
    """
    runner = Runner(log)  # while it holds the lease, no other process resumes its turn as an interrupted one
    about = turn_start(TurnStarted(0), runner.look(), runner.detail)
    call = ToolCall(log.runtime.new_id("call"), tool.name, dict(arguments))
    try:
        runner.open([Draft(user(said)), Draft(assistant(call))], about, {}, starts=[0])
        context = ToolContext(log.idempotency_key(log.leaf.seq, 0), log.session_id, call, log.state)
        message = asyncio.run(tool.run(context))
        # An error ends the turn as well as a success: no model is called, and none is told so.
        draft = Draft(message, finish=ENDED_BY_TOOL, blobs=tuple(context.blobs))
        stored = runner.append_result(draft).payloads[0]
    finally:
        runner.release()
    assert isinstance(stored, Message)
    return stored.results[0]
