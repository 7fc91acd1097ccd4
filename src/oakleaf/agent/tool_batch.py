"""Run the tool calls of one answer: as many as possible at once, each result durable on arrival.

A call whose task waits for a person has no result yet: what the person is asked is recorded, and the call runs
again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from oakleaf.agent.call_status import CallPosition, CallStatus, read_call_status
from oakleaf.agent.earlier_calls import effects_in_force, find_earlier_call, has_left_paths, reused_result
from oakleaf.agent.events import Emit, Event, ignore
from oakleaf.agent.import_plan import require_accepted
from oakleaf.agent.policy import ToolBox
from oakleaf.agent.tasks import TaskRunner
from oakleaf.agent.tools.sources import Connections
from oakleaf.agent.tools.tool import (
    EarlierCall,
    Happened,
    NeverHappened,
    PendingApproval,
    TaskNeedsApproval,
    Tool,
    ToolContext,
    error_result,
)
from oakleaf.agent.writer import Writer, cancel_all, run_uncancelled
from oakleaf.core.drafts import Blob, Draft
from oakleaf.core.entries import Effects
from oakleaf.core.facts import CallKey, TaskWaits
from oakleaf.core.messages import Message, Outcome, ToolCall, tool_result
from oakleaf.core.state import State
from oakleaf.core.tool_definitions import ToolSet, ToolSpec, changed_tools, define_tools
from oakleaf.core.turns import OpenCall
from oakleaf.errors import Refused
from oakleaf.log.hooks import Watch, WatchedTool, Watching, tool_ending
from oakleaf.log.threads import run_to_end

if TYPE_CHECKING:
    from oakleaf.log.log import Log

UNKNOWN_OUTCOME = "The process ended while this ran. Whether it took effect is unknown; it was not run again."
NO_TOOL = "There is no tool of this name."
ABANDONED = "The turn was abandoned before this had a result. Whether it took effect is unknown."
NOT_RUN = "The turn was abandoned before this was run."
DENIED = "The user denied this call."
HIDDEN = "Not run: its arguments were not stored as they were said, and the process that knew them has ended."
HIDDEN_UNKNOWN = f"{UNKNOWN_OUTCOME} Its arguments were not stored as they were said."


class CallInput(Struct, frozen=True):
    """The input of a call at the start of the batch."""

    original: ToolCall | None
    """The call with the arguments for the run; None if the arguments are not known any more."""
    key: str
    state: State


def _session_key(log: Log) -> object:
    """Return a name of a session, unique in one process over all stores and spaces."""
    where = id(log.store) if log.store.url == "memory:" else log.store.url
    return where, log.store.space, log.session_id


class ToolRunner:
    """Runs the tool calls of a run and appends the results."""

    def __init__(
        self,
        writer: Writer,
        box: ToolBox,
        tasks: TaskRunner,
    ) -> None:
        self.writer, self.runner, self.log = writer, writer.runner, writer.log
        self.box, self.tasks = box, tasks
        self.tools = box.tools
        """All tools of the run, including the tools of connected sources."""
        self._emit: Emit = ignore
        self.connections: Connections | None = None
        """The connections to the sources, if any. Closing them leaves them to the next run of the session, or
        ends them with all processes that they started."""
        self._tool_set: tuple[tuple[list[ToolSpec], dict[str, str]], ToolSet] | None = None
        """The tools last in force, and the definitions."""
        self._has_left_paths: bool | None = None
        self._blobs: dict[CallPosition, list[Blob]] = {}
        """Blobs of the calls in flight, stored with the results."""

    async def connect(self) -> list[Event]:
        """Connect to the sources and add the offered tools. Return warnings about sources that had ended
        since the last run."""
        if not self.box.sources or self.connections is not None:
            return []
        self.connections = Connections(self.box.sources, self.log.runtime.redactor, _session_key(self.log))
        self.tools = await self.connections.open(self.tools)
        about = {"code": "mcp_server_restarted", "session_id": self.log.session_id}
        return [Event("session:warning", about | {"message": why}) for why in self.connections.restarts]

    def allowed(self) -> Mapping[str, Tool]:
        """Return the tools in force at this leaf: tools of the run, named by the session and allowed by the
        settings."""
        names = self.writer.allowed_tools()
        if names is None:
            return self.box.in_force(self.tools)
        return self.box.in_force({name: self.tools[name] for name in names if name in self.tools})

    def tool_set(self) -> ToolSet | None:
        """Return the definitions of the tools in force. None: the path has the definitions already."""
        settings = self.writer.settings()
        specs, effects = self.box.shown(self.allowed(), settings)
        if self._tool_set is None or (specs, effects) != self._tool_set[0]:
            definitions = define_tools(specs, self.log.runtime.redactor, effects)
            self._tool_set = (specs, effects), definitions
        return changed_tools(self._tool_set[1], settings.tool_definitions)

    async def call_status(self) -> CallStatus:
        """Return the status of the open calls, from this run's memory or else from the journal."""
        status = self._own_status()
        return await self.writer.run_blocking(read_call_status, self.log) if status is None else status

    def _own_status(self) -> CallStatus | None:
        """Return the status without the journal. Known if there are no open calls, or if all of them started
        with an answer of this run and none has waited for a person since."""
        open_calls, runner = self.log.cursor.open_calls, self.runner
        if not open_calls:
            return CallStatus()
        started = frozenset((call.seq, call.index) for call in open_calls)
        if open_calls[0].seq not in runner.answers or not started <= runner.starts:
            return None
        return CallStatus(started, has_recorded_starts=True)

    async def run(
        self,
        open_calls: Sequence[OpenCall],
        started: frozenset[CallPosition],
        status: CallStatus,
        emit: Emit,
    ) -> None:
        self._emit = self.tasks.emit = emit
        if status.needing_acceptance(open_calls, self.allowed()):
            await self.writer.run_blocking(require_accepted, self.log, self.allowed(), inputs=False)
        earlier = await self._find_earlier_calls(open_calls, status)
        reused = await self._reuse_results(open_calls, earlier, emit) if earlier else set[CallPosition]()
        open_calls = [call for call in open_calls if (call.seq, call.index) not in reused]
        requested = status.needing_request(open_calls, self.tools)
        for call in open_calls:
            if call in requested or (call.seq, call.index) in earlier:
                emit(await self._request_approval(call, earlier.get((call.seq, call.index))))
        ready = [
            call
            for call in open_calls
            if not status.is_waiting(call, self.tools) and (call.seq, call.index) not in earlier
        ]
        inputs = await self._read_inputs(ready)
        running = [
            asyncio.ensure_future(self._settle(call, each, (call.seq, call.index) in started, status))
            for call, each in zip(ready, inputs, strict=True)
        ]
        stored: set[CallPosition] = set()
        try:
            for finished in asyncio.as_completed(running):
                call, result = await finished
                while self.tasks.warnings:
                    emit(self.tasks.warnings.pop(0))
                if isinstance(result, Message):
                    stored.add((call.seq, call.index))
                    emit(await self._store_result(call, result))
                    continue
                for approval in result:
                    if approval not in status.task_approvals.get((call.seq, call.index), ()):
                        emit(await self._store_approval(call, approval))
        except asyncio.CancelledError:
            await run_uncancelled(self._store_finished(running, stored))
            raise
        finally:
            if not all(task.done() for task in running):
                await run_uncancelled(cancel_all(running))

    async def has_left_paths(self) -> bool:
        """Whether unsafe calls may have been left behind on other paths. Read once in a run."""
        if not self.box.looks_back:
            return False
        if self._has_left_paths is None:
            self._has_left_paths = await self.writer.run_blocking(has_left_paths, self.log)
        return self._has_left_paths

    async def _find_earlier_calls(
        self, open_calls: Sequence[OpenCall], status: CallStatus
    ) -> dict[CallPosition, EarlierCall]:
        """Return the same calls on abandoned paths, for unsafe calls without a request or decision so far."""
        allowed, known = self.allowed(), status.decided | status.approval_requested
        calls = [
            call
            for call in open_calls
            if call.call.name in allowed and is_unsafe(allowed[call.call.name], call)
            if (call.seq, call.index) not in known
        ]
        if not calls or not await self.has_left_paths():
            return {}

        def find() -> dict[CallPosition, EarlierCall]:
            places = ((call, find_earlier_call(self.log, call.call)) for call in calls)
            earlier = {(call.seq, call.index): found for call, found in places if found is not None}
            return earlier if earlier and self._effects_in_force() != "repeat" else {}

        return await self.writer.run_blocking(find)

    def _effects_in_force(self) -> Effects:
        return self.box.effects or effects_in_force(self.log)

    async def _reuse_results(
        self, open_calls: Sequence[OpenCall], earlier: Mapping[CallPosition, EarlierCall], emit: Emit
    ) -> set[CallPosition]:
        """Append the results of the same calls on another path, if the path says so. Return these calls."""
        if await self.writer.run_blocking(self._effects_in_force) != "reuse":
            return set()
        reused: set[CallPosition] = set()
        for call in open_calls:
            found = earlier.get((call.seq, call.index))
            message = None if found is None else reused_result(call.call, found)
            if message is not None:
                emit(await self._store_result(call, message))
                reused.add((call.seq, call.index))
        return reused

    async def _request_approval(self, call: OpenCall, earlier: EarlierCall | None) -> Event:
        """Record a request for approval. The request names the earlier call, if there is one."""
        about = call_data(call)
        if earlier is not None:
            about["earlier"] = earlier_data(earlier)
        reference = None if earlier is None else earlier.reference
        tool = self.tools.get(call.call.name)
        is_named = tool is not None and tool.approval == "named"
        await self.writer.write(self.runner.request_approval, call, reference, named=is_named)
        return Event("session:approval_requested", about, self.runner.journal_number)

    async def _store_result(self, call: OpenCall, message: Message) -> Event:
        blobs = self._blobs.pop((call.seq, call.index), ())
        appended = await self.writer.write(self.runner.store_result, call.call, message, blobs)
        stored = appended.payloads[0]
        assert isinstance(stored, Message)
        result = stored.results[0]
        data = {
            **call_data(call),
            "content": msgspec.to_builtins(list(result.content)),
            "error": result.error,
            "outcome": result.outcome,
        }
        return Event("session:tool_result", data, self.runner.journal_number)

    async def _store_approval(self, call: OpenCall, approval: PendingApproval) -> Event:
        """Record the wait of a call: the session and the call for the person to decide."""
        waits = TaskWaits(call.seq, call.index, approval.session_id, call_key(approval))
        await self.writer.write(self.runner.record_task_wait, waits)
        data = {**call_data(approval), "session_id": approval.session_id, "task_of": asdict(call_key(call))}
        if approval.earlier is not None:
            data["earlier"] = earlier_data(approval.earlier)
        return Event("session:approval_requested", data, self.runner.journal_number)

    async def _store_finished(
        self, running: Sequence[asyncio.Future[Any]], stored: set[CallPosition]
    ) -> None:
        """Append the results of the calls finished before a cancellation."""
        for task in running:
            if task.done() and not task.cancelled() and task.exception() is None:
                call, result = task.result()
                if isinstance(result, Message) and (call.seq, call.index) not in stored:
                    await self._store_result(call, result)

    async def _settle(
        self, call: OpenCall, call_input: CallInput, was_started: bool, status: CallStatus
    ) -> tuple[OpenCall, Message | list[PendingApproval]]:
        """Return the result of one call: run the call, or find out the outcome of a call started before a
        crash. Or return what its tasks wait for."""
        tool = self.allowed().get(call.call.name)
        if tool is None and was_started and call.seq not in self.runner.answers:
            return call, tool_result(call.call.id, UNKNOWN_OUTCOME, error=True, outcome="unknown")
        if tool is None:
            return call, error_result(call.call, NO_TOOL)
        if (refusal := self.box.refusal(tool, call.call)) is not None:
            return call, refusal
        if (call.seq, call.index) in status.denied and not was_started:
            return call, tool_result(call.call.id, DENIED, error=True, outcome="denied")
        if call_input.original is None:
            return call, hidden_result(call.call, may_have_run=was_started and tool.effect != "read")
        is_repeated = was_started and call.seq not in self.runner.answers
        context = ToolContext(
            call_input.key,
            self.log.session_id,
            call_input.original,
            call_input.state,
            self.tasks.run,
            is_repeated=is_repeated,
        )
        self._blobs[call.seq, call.index] = context.blobs
        if is_repeated and tool.effect == "unsafe":
            outcome = await tool.check_outcome(context)
            if isinstance(outcome, Happened):
                return call, tool.result(context, outcome.value)
            if not isinstance(outcome, NeverHappened):
                return call, tool_result(call.call.id, UNKNOWN_OUTCOME, error=True, outcome="unknown")
        if not was_started:
            # Not part of the answer's commit: it needed an approval, or another process made the answer.
            await self.writer.write(self.runner.start, call)
            self._emit(Event("session:calls_started", {}, self.runner.journal_number))
        return call, await self._run(tool, context, call)

    async def _read_inputs(self, calls: Sequence[OpenCall]) -> list[CallInput]:
        if self.log.is_call_input_known and not any(call.call.is_hidden for call in calls):
            return [self._read_input(call) for call in calls]
        return await self.writer.run_blocking(lambda: [self._read_input(call) for call in calls])

    def _read_input(self, call: OpenCall) -> CallInput:
        key = self.log.idempotency_key(call.seq, call.index)
        return CallInput(self.box.original(self.log, call), key, self.log.state)

    async def _run(self, tool: Tool, context: ToolContext, call: OpenCall) -> Message | list[PendingApproval]:
        if not self.box.looks_back:  # a replay decides whether a tool runs
            return await self._run_or_wait(tool, context)
        try:
            async with Watching(watch_tool(self.log, call, context), run_to_end) as watch:
                result = await self._run_or_wait(tool, context)
                watch.ending = tool_ending(result)
                return result
        except Refused as refused:
            return refused_result(call.call, refused)

    async def _run_or_wait(self, tool: Tool, context: ToolContext) -> Message | list[PendingApproval]:
        try:
            return await self.box.run(tool, context)
        except TaskNeedsApproval:
            return await self.tasks.settle_wait(tool, context)

    async def abandoned_results(self) -> list[Draft]:
        """Return the results for the open calls of an interrupted turn, before a new input. Their tasks end."""
        status = await self.call_status()
        results = [
            Draft(tool_result(call.call.id, ABANDONED, error=True, outcome="unknown"))
            if (call.seq, call.index) in status.started
            else Draft(tool_result(call.call.id, NOT_RUN, error=True, outcome="interrupted"))
            for call in self.log.cursor.open_calls
        ]
        if results:
            await self.tasks.cancel(status.tasks)
        return results

    def cancelled_result(self, call: OpenCall, started: frozenset[CallPosition]) -> Message:
        """Return the result of a cancelled call. A thread cannot be stopped, so an unsafe tool may still take
        effect."""
        if (call.seq, call.index) not in started:
            return tool_result(call.call.id, NOT_RUN, error=True, outcome="interrupted")
        tool = self.tools.get(call.call.name)
        if tool is None or tool.effect == "unsafe":
            why = "cancelled while it ran; whether it took effect is unknown"
            return tool_result(call.call.id, why, error=True, outcome="unknown")
        return tool_result(call.call.id, "cancelled while it ran", error=True, outcome="interrupted")


def watch_tool(
    log: Log, call: OpenCall, context: ToolContext | None = None, *, may_refuse: bool = True
) -> Watch:
    """Return the hooks around a tool call; without a context, of a tool run by the host."""

    def watched() -> WatchedTool:
        return WatchedTool(
            session_id=log.session_id,
            turn=log.cursor.turn,
            at=log.runtime.now(),
            call=call.call if context is None else context.call,
            key=log.idempotency_key(call.seq, call.index) if context is None else context.key,
        )

    return Watch(log, "tool", call.call.name, watched, may_refuse=may_refuse)


def refused_result(call: ToolCall, refused: Refused) -> Message:
    """Return the result of a call refused by a hook. The model sees the reason."""
    return tool_result(call.id, f"Refused: {refused.reason}", error=True, outcome="denied")


def hidden_result(call: ToolCall, *, may_have_run: bool) -> Message:
    """Return the result of a call with a forgotten secret in the arguments. The call cannot be run."""
    outcome: Outcome = "unknown" if may_have_run else "interrupted"
    text = HIDDEN_UNKNOWN if may_have_run else HIDDEN
    hidden = f"{text} Hidden: {', '.join(dict.fromkeys(call.placeholders))}"
    return tool_result(call.id, hidden, error=True, outcome=outcome)


def call_key(call: OpenCall) -> CallKey:
    return CallKey(call.seq, call.index, call.call.id, call.call.name)


def is_unsafe(tool: Tool, call: OpenCall) -> bool:
    """Whether the call would run, and needs a decision after the same call on another path."""
    return tool.effect == "unsafe" and tool.refusal(call.call) is None


def earlier_data(call: EarlierCall) -> dict[str, Any]:
    """Return a call of another path as event data, with place and result."""
    result = call.result
    known = {
        "content": msgspec.to_builtins(list(result.content)) if result else [],
        "error": result is not None and result.error,
        "outcome": "unknown" if result is None else result.outcome,
    }
    return {
        **asdict(call.reference),
        "name": call.call.name,
        "arguments": call.call.arguments,
        "at": call.at,
        **known,
    }


def call_data(call: OpenCall) -> dict[str, Any]:
    """Return a call as event data."""
    return {**asdict(call_key(call)), "arguments": call.call.arguments}
