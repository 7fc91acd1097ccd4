"""A tool that the host runs, recorded as a model's tool call would be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from oakleaf.agent.tools.tool import Tool, ToolContext
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import ToolCallsStarted
from oakleaf.core.messages import Message, ToolCall, ToolResult, assistant, user
from oakleaf.core.turns import ENDED_BY_TOOL
from oakleaf.log.lease import Lease
from oakleaf.log.log import Log


def run_host_tool(log: Log, said: str, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
    """Run a tool for the host, recorded as a model's tool call would be; return its result, which ends the turn.

    The call is durable before the tool runs and its result afterwards, errors included. So context, compaction and
    inspection treat it like a call of the model. `said` is the input. Runs an event loop of its own.
    """
    lease = Lease(log)  # while it runs, no other process resumes its turn as an interrupted one
    lease.take(log.store.session(log.session_id))
    try:
        call = ToolCall(log.runtime.new_id("call"), tool.name, dict(arguments))
        started = ToolCallsStarted(log.leaf.seq + 2, (0,))
        log.append([Draft(user(said)), Draft(assistant(call))], facts=[started], fence=lease.fence)
        context = ToolContext(log.idempotency_key(log.leaf.seq, 0), log.session_id, call, log.state)
        message = asyncio.run(tool.run(context))
        # An error ends the turn as well as a success: no model is called, and none is told so.
        draft = Draft(message, finish=ENDED_BY_TOOL, blobs=tuple(context.blobs))
        stored = log.append([draft], fence=lease.fence).payloads[0]
    finally:
        lease.release()
    assert isinstance(stored, Message)
    return stored.results[0]
