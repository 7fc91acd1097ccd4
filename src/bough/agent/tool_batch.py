"""Running the calls of one answer: all that may run at once, each result durable as it lands.

A call whose task waits for a person has no result yet: who is asked is made durable, and it is run again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..core.drafts import Draft
from ..core.messages import Message, Part, ToolCall, assistant, tool_result
from ..core.turns import OpenCall
from ..errors import BoughError, Fenced, SessionTrashed, StaleLeaf
from .approvals import PendingApproval, TaskNeedsApproval
from .call_status import CallPosition, CallStatus, read_call_status
from .cancellation import cancel_all, run_uncancelled
from .events import Event
from .tasks import cancel_tasks, run_task, task_id
from .tools.tool import Happened, NeverHappened, Tool, ToolContext, error_result

if TYPE_CHECKING:
    from .loop import Loop

UNKNOWN = "The process ended while this ran. Whether it took effect is unknown; it was not run again."
NO_TOOL = "There is no tool of this name."
LEFT = "The turn was left before this had a result. Whether it took effect is unknown."
NOT_RUN = "The turn was left before this was run."
DENIED = "The user denied this call."
CANNOT_WAIT = (
    "has a task that needs an approval, and cannot wait for it: to go on it would be run again, and an unsafe tool "
    'never is. The task was cancelled. If it may be run again declare it @tool(effect="idempotent"), or give it a '
    "verify function that says what happened."
)


async def run_batch(
    loop: Loop, waiting: Sequence[OpenCall], started: frozenset[CallPosition], calls: CallStatus
) -> AsyncIterator[Event]:
    for call in calls.needing_request(waiting, loop.tools):
        await loop.record("approval_asked", data={"seq": call.seq, "index": call.index}, only_at_leaf=True)
        yield Event("session:approval_requested", told(call), loop.n)
    running = [
        asyncio.ensure_future(_settle(loop, call, (call.seq, call.index) in started, calls))
        for call in waiting
        if not calls.is_waiting(call, loop.tools)
    ]
    kept: set[CallPosition] = set()
    try:
        for landed in asyncio.as_completed(running):
            call, result = await landed
            while loop.warnings:
                yield loop.warnings.pop(0)
            if isinstance(result, Message):
                kept.add((call.seq, call.index))
                yield await _keep(loop, call, result)
                continue
            for one in result:
                if one not in calls.task_approvals.get((call.seq, call.index), ()):
                    yield await _keep_asked(loop, call, one)
    except asyncio.CancelledError:
        await run_uncancelled(_keep_finished(loop, running, kept))
        raise
    finally:
        await run_uncancelled(cancel_all(running))


async def _keep(loop: Loop, call: OpenCall, result: Message) -> Event:
    """Make the result durable; one that cannot be kept is told as an error, for the effect has happened."""
    try:
        await loop.append(Draft(result))
    except (Fenced, StaleLeaf, SessionTrashed):
        raise
    except BoughError as error:
        result = error_result(call.call, f"{call.call.name} returned what cannot be kept: {error}")
        await loop.append(Draft(result))
    outcome = {"error": result.results[0].error, "outcome": result.results[0].outcome}
    return Event("session:tool_result", {**told(call), **outcome}, loop.n)


async def _keep_asked(loop: Loop, call: OpenCall, asked: PendingApproval) -> Event:
    """Make durable what the call waits for, by the session and the call that the person is asked about."""
    loop.mine.discard(call.seq)  # from now on it is as if a process before had started it
    waits = {"seq": call.seq, "index": call.index, "session": asked.session_id, "asked": told(asked)}
    await loop.record("task_waits", data=waits, only_at_leaf=True)
    about = {**told(asked), "session_id": asked.session_id, "task_of": told(call)}
    return Event("session:approval_requested", about, loop.n)


async def _keep_finished(loop: Loop, running: Sequence[asyncio.Future[Any]], kept: set[CallPosition]) -> None:
    """Cancelled: what had finished by then keeps its result."""
    for task in running:
        if task.done() and not task.cancelled() and task.exception() is None:
            call, result = task.result()
            if isinstance(result, Message) and (call.seq, call.index) not in kept:
                await _keep(loop, call, result)


async def _settle(
    loop: Loop, call: OpenCall, was_started: bool, calls: CallStatus
) -> tuple[OpenCall, Message | list[PendingApproval]]:
    """The result of one call: run it, or say what became of it before a crash. Or what its tasks wait for."""
    tool = loop.allowed().get(call.call.name)
    if tool is None:
        return call, error_result(call.call, NO_TOOL)
    if (refusal := tool.refusal(call.call)) is not None:
        return call, refusal
    if (call.seq, call.index) in calls.denied and not was_started:
        return call, tool_result(call.call.id, DENIED, error=True, outcome="denied")
    key = await loop.run_blocking(loop.log.idempotency_key, call.seq, call.index)
    context = ToolContext(key, loop.log.session_id, call.call, loop.log.state, partial(run_task, loop))
    if was_started and call.seq not in loop.mine and tool.effect == "unsafe":
        settled = await tool.check_outcome(context)
        if isinstance(settled, Happened):
            return call, tool.result(context, settled.value)
        if not isinstance(settled, NeverHappened):
            return call, tool_result(call.call.id, UNKNOWN, error=True, outcome="unknown")
    if not was_started:
        # It could not ride with the answer: an approval stood between, or another made the answer.
        await loop.record("calls_started", data={"seq": call.seq, "indexes": [call.index]})
    return call, await _run(loop, tool, context)


async def _run(loop: Loop, tool: Tool, context: ToolContext) -> Message | list[PendingApproval]:
    try:
        return await tool.run(context)
    except (TaskNeedsApproval, BaseExceptionGroup):
        asked = context.pending_approvals
        if not asked:
            raise
    if tool.effect != "unsafe" or tool.verify is not None:
        return asked
    # To go on it would be run again from its beginning, and nobody knows what it did before its task.
    children = [
        await loop.run_blocking(task_id, loop.log, key, loop.log.batch_since) for key in context.task_keys
    ]
    await cancel_tasks(loop, children)
    why = f"{tool.name} {CANNOT_WAIT}"
    about = {"session_id": loop.log.session_id, "call_id": context.call.id, "name": tool.name}
    loop.warnings.append(Event("session:warning", {"code": "cannot_wait", "message": why, **about}))
    return tool_result(context.call.id, why, error=True, outcome="interrupted")


async def settle_open(loop: Loop) -> None:
    """A new input while a broken turn is open: what it had said and called is closed with words first."""
    calls = await loop.run_blocking(read_call_status, loop.log)
    drafts = [
        Draft(tool_result(call.call.id, LEFT, error=True, outcome="unknown"))
        if (call.seq, call.index) in calls.started
        else Draft(tool_result(call.call.id, NOT_RUN, error=True, outcome="interrupted"))
        for call in loop.log.cursor.open_calls
    ]
    if drafts:
        await cancel_tasks(loop, calls.tasks)
        await loop.append(*drafts, calls=[])
    said = (
        await loop.run_blocking(loop.log.store.draft, loop.log.session_id) if loop.log.cursor.turn else None
    )
    if said is not None:
        await loop.append(Draft(assistant(said), finish="interrupted"))


def stopped_result(loop: Loop, call: OpenCall, started: frozenset[CallPosition]) -> Message:
    """The result of a call that was cancelled. A thread cannot be stopped, so an unsafe one may still take effect."""
    if (call.seq, call.index) not in started:
        return tool_result(call.call.id, NOT_RUN, error=True, outcome="interrupted")
    tool = loop.tools.get(call.call.name)
    if tool is None or tool.effect == "unsafe":
        why = "cancelled while it ran; whether it took effect is unknown"
        return tool_result(call.call.id, why, error=True, outcome="unknown")
    return tool_result(call.call.id, "cancelled while it ran", error=True, outcome="interrupted")


def with_own_ids(message: Message) -> Message:
    """An id for each call: a result is paired by id, and two calls of one id would get each other's."""
    seen: set[str] = set()
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            name, n = part.id, 1
            while name in seen:
                n += 1
                name = f"{part.id}-{n}"
            seen.add(name)
            part = part if name == part.id else replace(part, id=name)
        parts.append(part)
    return replace(message, parts=tuple(parts))


def told(call: OpenCall) -> dict[str, Any]:
    return {"seq": call.seq, "index": call.index, "call_id": call.call.id, "name": call.call.name}
