"""The loop's collaborators in a replay: writer, model caller and tool runner.

Entries that the host appended during a turn are repeated at the same position. An answer from the recording is not a
model call and has no row in the ledger; a call of a real model is charged to the bucket `replay`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.agent.call_meter import CallMeter, Reservation, reservation_data
from oakleaf.agent.compaction import Compactor
from oakleaf.agent.earlier_calls import find_earlier_call
from oakleaf.agent.events import Emit, Event
from oakleaf.agent.limits import LimitChecker, Limits
from oakleaf.agent.loop import Loop, build_loop
from oakleaf.agent.model_call import ModelCaller, StreamBuffer
from oakleaf.agent.tasks import TaskRunner
from oakleaf.agent.tool_batch import ToolRunner
from oakleaf.agent.tools.tool import Tool, ToolContext
from oakleaf.agent.writer import Append, Record, Writer
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.prompt_path import PromptPath
from oakleaf.core.tool_definitions import ToolSet, define_tools, read_tools
from oakleaf.core.turns import OpenCall
from oakleaf.core.usage import Call
from oakleaf.errors import ModelUnavailable, Overloaded
from oakleaf.log.log import Log
from oakleaf.log.request import Committed
from oakleaf.models.base import Model
from oakleaf.models.recorded import RecordedModel
from oakleaf.replay.host_entries import HostEntries
from oakleaf.replay.incremental_path import IncrementalPath
from oakleaf.replay.position import host_key
from oakleaf.replay.recorded_tasks import recorded_task
from oakleaf.replay.recording import RecordedResult, RecordedTurn, Recording
from oakleaf.replay.tool_answers import ToolAnswers, recorded_tool, replayed_tool
from oakleaf.stores.base import SessionRow


class ReplayParts(Struct, frozen=True, kw_only=True):
    """What all turns of a replay share."""

    source: Log
    recording: Recording
    tools: Sequence[Tool]
    """The tools a model sees; `answers` decides how their calls are answered."""
    answers: ToolAnswers
    host_entries: HostEntries
    models: Sequence[Model]
    limits: Limits
    path: IncrementalPath
    is_resumable: bool = False
    """Whether the same plan continues it after a crash or a cancellation; then these leave its turn open."""
    meter: CallMeter | None = None

    @property
    def uses_recorded_answers(self) -> bool:
        return self.host_entries.uses_recorded_answers


def replay_loop(
    log: Log, parts: ReplayParts, turn: RecordedTurn, host_seq: int = 0
) -> tuple[Loop, ReplayWriter]:
    """Build the loop of one turn of a replay; return it with its writer. The host's entries up to `host_seq` of the
    source were appended by an earlier run."""
    writer = ReplayWriter(log, parts, turn, host_seq)
    limits = LimitChecker(writer, parts.limits)
    tasks = TaskRunner(writer, parts.models, limits, build_loop)
    tool_runner = ReplayToolRunner(writer, tasks)
    caller = ReplayModelCaller(writer, tool_runner, limits)
    loop = ResumableLoop if parts.is_resumable else Loop
    return loop(writer, caller, tool_runner, limits, Compactor(writer, limits), takes_inbox=False), writer


class ResumableLoop(Loop):
    """The loop of a replay that the same plan continues."""

    async def _cancel_turn(self) -> None:
        """Leave the turn open, as a crash does."""
        if not self.writer.is_lost:
            await self.writer.drop_announced_call()

    async def _require_tools(self) -> None:
        """Need no tools: the recording answers their calls."""


class ReplayWriter(Writer):
    """Appends to the replay, and repeats the entries that the host appended in between."""

    def __init__(self, log: Log, parts: ReplayParts, turn: RecordedTurn, host_seq: int) -> None:
        super().__init__(log, parts.models[0], bucket="replay")
        self.parts, self.turn = parts, turn
        # Of the turn's inner entries, how many were handled.
        self._host_entry_count = bisect_right(turn.inner, host_seq, key=lambda entry: entry.seq)

    # -- reading -----------------------------------------------------------------------------------

    def check(self, row: SessionRow) -> None:
        """Accept a replay: this is the one writer that may drive it."""

    async def load(self) -> SessionRow:
        """Use the path of the previous turn; read it again only if another process wrote meanwhile."""
        await self.run_blocking(self.log.refresh)
        row, self.detail = await self.run_blocking(self.log.store.session_with_detail, self.log.session_id)
        cursor = await self.run_blocking(lambda: self.log.cursor)
        if self.parts.path.entry_id != cursor.entry_id:
            self.parts.path.start((await self.run_blocking(self.log.path)).entries)
        self.history = PromptPath(self.parts.path.path)
        return row

    def forget_path(self) -> None:
        """Keep it: it is the path of the next turn, too."""

    def settings(self) -> Settings:
        return self.parts.path.settings()

    def session_limits(self) -> list[Mapping[str, Any]]:
        """None for recorded answers: the effects of limits are part of the recording."""
        return [] if self.parts.uses_recorded_answers else super().session_limits()

    def recorded_result(self, call: OpenCall) -> RecordedResult | None:
        occurrence = self.parts.path.occurrence(call)
        return self.parts.recording.find(self.turn.turn, call.call, occurrence)

    # -- writing -----------------------------------------------------------------------------------

    def announce_next_call(self, drafts: Sequence[Draft]) -> Call | None:
        """Announce no call that is metered: it starts with what is reserved for it."""
        return None if self.parts.meter is not None else super().announce_next_call(drafts)

    async def commit_append(self, append: Append) -> Committed:
        if not self.parts.uses_recorded_answers:
            return await super().commit_append(append)
        appended = await super().commit_append(replace(append, calls=(), replaces_call=False))
        await self._append_host_entries_between_results()
        return appended

    async def record(self, record: Record) -> None:
        if self.parts.uses_recorded_answers and record.calls:
            return  # about a model call, and none was made
        await super().record(record)

    async def append_host_entries(self, step: int) -> None:
        """Append what the host appended in this turn up to that step."""
        await self._append_host_entries(bisect_right(self.turn.inner, step, key=lambda entry: entry.step))

    async def _append_host_entries_between_results(self) -> None:
        """Append notes that were recorded while calls were open, before the result that followed them."""
        results = [self.recorded_result(call) for call in self.log.cursor.open_calls]
        ranks = [result.rank for result in results if result is not None]
        if ranks:
            seq = min(ranks)[0]
            await self._append_host_entries(bisect_left(self.turn.inner, seq, key=lambda entry: entry.seq))

    async def _append_host_entries(self, end: int) -> None:
        due = self.turn.inner[self._host_entry_count : end]
        self._host_entry_count = max(self._host_entry_count, end)
        drafts = self.parts.host_entries.drafts(due, self.path)
        if drafts:
            key = host_key(due) if self.parts.is_resumable else None
            await self.commit_append(Append(tuple(drafts), self.leaf, key=key))

    @property
    def remaining_host_entries(self) -> Sequence[Entry]:
        """The host's entries that were not reached because the turn ended earlier than in the recording."""
        return self.turn.inner[self._host_entry_count :]


class ReplayModelCaller(ModelCaller):
    """Answers from the recording, or by calling another model."""

    writer: ReplayWriter

    def __init__(self, writer: ReplayWriter, tool_runner: ToolRunner, limits: LimitChecker) -> None:
        super().__init__(writer, writer.parts.models, tool_runner, limits)

    async def prepare(self) -> Event | None:
        """Append the host's entries of this step; end the turn where the recording has no further answer."""
        writer, step = self.writer, self.log.cursor.step
        await writer.append_host_entries(step)
        if not writer.parts.uses_recorded_answers or step < writer.turn.answers:
            return None
        status = {"status": "interrupted"}
        await writer.record(Record("turn_ended", status, status))
        return Event("session:turn_completed", {"stop_reason": "unanswered"}, writer.journal_number)

    def check_options(self) -> None:
        """Recorded answers need no check: no provider is sent the options."""
        if not self.writer.parts.uses_recorded_answers:
            super().check_options()

    def changed_settings(self) -> list[Draft]:
        """None for recorded answers: the settings are part of the recording."""
        return [] if self.writer.parts.uses_recorded_answers else super().changed_settings()

    async def call(self, model: Model, emit: Emit) -> None:
        """Append the recorded answer, looked up by the incremental history without a request, or call the model."""
        parts = self.writer.parts
        if parts.uses_recorded_answers and isinstance(model, RecordedModel):
            await self.append_answer(model, model.answer(parts.path.history()))
            return
        if parts.meter is None:
            await super().call(model, emit)
            return
        reserved = await parts.meter.reserve(model, self.request())
        cost: int | None = None
        try:
            await self._start(model, reserved)
            await super().call(model, emit)
            cost = self._latest_cost()
        except (Overloaded, ModelUnavailable):  # refused, so it was not charged
            cost = 0
            raise
        finally:
            await parts.meter.settle(reserved, cost)

    async def _start(self, model: Model, reserved: Reservation) -> None:
        """Make durable what the call may cost before it is made: after a crash nothing else tells."""
        call = self.writer.announce_call(model)
        await self.writer.record(Record("call_started", reservation_data(call, reserved), calls=[call]))

    def _latest_cost(self) -> int | None:
        call = next(reversed(self.writer.model_calls.values()))
        return None if call.price is None else call.price.microcents

    async def _save(self, buffer: StreamBuffer) -> None:
        """Save no text in flight: it was not shown, and a continued replay asks again."""
        buffer.mark_saved(self.log.runtime.now())


class ReplayToolRunner(ToolRunner):
    """Answers tool calls by `ToolAnswers`, recorded results in the order of the recording."""

    writer: ReplayWriter

    def __init__(self, writer: ReplayWriter, tasks: TaskRunner) -> None:
        answers = writer.parts.answers
        tools = {
            tool.name: replayed_tool(tool, self.answer_call, is_live=tool.name in answers.live)
            for tool in writer.parts.tools
        }
        super().__init__(writer, tools, tasks)
        self._arrived: dict[tuple[int, int], asyncio.Event] = {}

    def allowed(self) -> Mapping[str, Tool]:
        """Return the tools in force at this leaf, and any other that was called: the recording may have its result."""
        allowed = super().allowed()
        called = {call.call.name for call in self.log.cursor.open_calls}
        others = {
            name: replayed_tool(recorded_tool(name), self.answer_call) for name in called.difference(allowed)
        }
        return {**allowed, **others}

    def tool_set(self) -> ToolSet | None:
        """Return those that the recording has at this position; those of the tools that were passed, if any were; else
        those that follow from the recorded calls."""
        settings = self.writer.settings()
        recorded = read_tools(settings.tool_definitions, self.log.read_blob)
        if recorded is None or self.writer.parts.host_entries.has_own_tools:
            return super().tool_set()
        names = self.writer.allowed_tools()
        allowed = [tool for tool in recorded if names is None or tool.name in names]
        repeatable = () if settings.tool_definitions is None else settings.tool_definitions.repeatable
        return define_tools(allowed, self.log.runtime.redactor, repeatable)

    async def has_left_paths(self) -> bool:
        """False: nobody can be asked. `answer_call` looks for what was done before."""
        return False

    def repeatable_tools(self) -> set[str]:
        return {tool.name for tool in self.writer.parts.tools if tool.effect != "unsafe"}

    def _original(self, call: OpenCall) -> ToolCall:
        """A call whose arguments are hidden still gets its recorded result; `ToolAnswers` runs no tool on it."""
        return super()._original(call) or call.call

    async def answer_call(self, context: ToolContext) -> Message:
        call = next(call for call in self.log.cursor.open_calls if call.call.id == context.call.id)
        recorded = self.writer.recorded_result(call)
        parts = self.writer.parts
        task = recorded_task(parts.source, recorded)
        is_allowed = call.call.name in super().allowed()
        await self._wait_for_earlier(call, recorded)
        earlier = None
        if parts.answers.may_repeat(call.call.name):
            earlier = await self.writer.run_blocking(find_earlier_call, self.log, call.call)
        try:
            return await parts.answers.answer(
                context, recorded, is_allowed=is_allowed, task=task, earlier=earlier
            )
        finally:
            self._arrival(call).set()

    async def _wait_for_earlier(self, call: OpenCall, recorded: RecordedResult | None) -> None:
        """Keep the recorded order of results, so that equal histories have equal ids."""
        if recorded is None:
            return
        for other in self.log.cursor.open_calls:
            earlier = self.writer.recorded_result(other)
            if other.seq == call.seq and earlier is not None and earlier.rank < recorded.rank:
                await self._arrival(other).wait()

    def _arrival(self, call: OpenCall) -> asyncio.Event:
        return self._arrived.setdefault((call.seq, call.index), asyncio.Event())
