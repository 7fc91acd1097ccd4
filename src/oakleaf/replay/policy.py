"""The policy of a replay: the recording answers model calls and tool calls.

Entries that the host appended during a turn are repeated at the same position. An answer from the recording is not a
model call and has no row in the ledger; a call of a real model is charged to the bucket `replay`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from msgspec import Struct

from oakleaf.agent.call_meter import CallMeter
from oakleaf.agent.earlier_calls import find_earlier_call
from oakleaf.agent.limits import Limits
from oakleaf.agent.loop import Loop, build_loop
from oakleaf.agent.policy import Answers, GoesOn, HostDrafts, Recorded, RunPolicy, effects_of
from oakleaf.agent.tools.tool import Tool, ToolContext
from oakleaf.agent.writer import Writer
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.tool_definitions import ToolSpec, read_callable_tools
from oakleaf.core.turns import Cursor, OpenCall
from oakleaf.log.log import Log
from oakleaf.log.threads import run_blocking
from oakleaf.models.base import Model
from oakleaf.models.recorded import RecordedModel
from oakleaf.replay.host_entries import HostEntries
from oakleaf.replay.incremental_path import IncrementalPath
from oakleaf.replay.position import host_key
from oakleaf.replay.recorded_tasks import recorded_task
from oakleaf.replay.recording import RecordedResult, RecordedTurn, Recording
from oakleaf.replay.tool_answers import ToolAnswers, recorded_tool, without_effect
from oakleaf.wire import Answer


class ReplayParts(Struct, frozen=True, kw_only=True):
    """The shared parts of all turns of a replay."""

    source: Log
    recording: Recording
    tools: Sequence[Tool]
    """The model's tools; `answers` decides about answers to calls."""
    answers: ToolAnswers
    host_entries: HostEntries
    models: Sequence[Model]
    recorded_model: RecordedModel | None
    """The recording as a model of answers; None: real models are called."""
    limits: Limits
    path: IncrementalPath
    is_resumable: bool = False
    """Whether the same plan can continue the replay; then a crash or a cancellation leaves the turn open."""
    meter: CallMeter | None = None


class ReplayedTurn:
    """One turn of a replay: the recorded turn at the leaf of the replay."""

    def __init__(self, log: Log, parts: ReplayParts, turn: RecordedTurn, host_seq: int = 0) -> None:
        """The host's entries up to `host_seq` of the source were appended by an earlier run."""
        self.log, self.parts, self.turn = log, parts, turn
        # Of the turn's inner entries, how many were handled.
        self._host_entry_count = bisect_right(turn.inner, host_seq, key=lambda entry: entry.seq)

    def loop(self) -> Loop:
        """Return the loop for the turn."""
        policy = replayed_run(self)
        return build_loop(Writer(self.log, policy, history=self.parts.path.prompt), policy)

    # -- answers -----------------------------------------------------------------------------------

    def has_answer(self, step: int) -> bool:
        return step < self.turn.answers

    def answer(self) -> Answer:
        """Return the recorded answer, looked up by the incremental history without a request."""
        assert self.parts.recorded_model is not None
        return self.parts.recorded_model.answer(self.parts.path.history())

    def result(self, call: OpenCall) -> RecordedResult | None:
        """Return the recorded result of an open call."""
        occurrence = self.parts.path.occurrence(call)
        return self.parts.recording.find(self.turn.turn, call.call, occurrence)

    # -- the host's entries ------------------------------------------------------------------------

    def host_entries(self, cursor: Cursor) -> HostDrafts | None:
        """Return the host's due entries of the turn.

        Up to the step; while calls are open, up to the next recorded result.
        """
        inner = self.turn.inner
        if not cursor.open_calls:
            return self._take(bisect_right(inner, cursor.step, key=lambda entry: entry.step))
        if self.parts.recorded_model is None:
            return None
        results = [self.result(call) for call in cursor.open_calls]
        ranks = [result.rank for result in results if result is not None]
        if not ranks:
            return None
        return self._take(bisect_left(inner, min(ranks)[0], key=lambda entry: entry.seq))

    def _take(self, end: int) -> HostDrafts | None:
        due = self.turn.inner[self._host_entry_count : end]
        self._host_entry_count = max(self._host_entry_count, end)
        drafts = self.parts.host_entries.drafts(due, self.parts.path.entries)
        key = host_key(due) if drafts and self.parts.is_resumable else None
        return HostDrafts(tuple(drafts), key) if drafts else None

    @property
    def remaining_host_entries(self) -> Sequence[Entry]:
        """The host's entries not reached before the end of the turn."""
        return self.turn.inner[self._host_entry_count :]


def replayed_run(turn: ReplayedTurn) -> RunPolicy:
    """Return the policy for the run of one turn."""
    parts = turn.parts
    is_recorded = parts.recorded_model is not None
    return RunPolicy(
        answers=Answers(
            models=parts.models,
            recording=turn if is_recorded else None,
            meter=parts.meter,
        ),
        tools=ReplayedTools(turn),
        limits=parts.limits,
        recorded=Recorded(
            bucket="replay",
            announces=not is_recorded and parts.meter is None,  # a metered call starts with a reservation
            drafts=False,  # no text was shown, and a continued replay asks again
            host_entries=turn.host_entries,
        ),
        goes_on=GoesOn(
            inputs=0,
            needs_tools=False,
            cancel="leave" if parts.is_resumable else "close",
        ),
    )


class ReplayedTools:
    """The tools of a replayed turn.

    `ToolAnswers` answers the calls, recorded results in the order of the recording.
    """

    sources = ()
    effects = None
    looks_back = False
    """Nobody can be asked; `run` looks for earlier calls."""

    def __init__(self, turn: ReplayedTurn) -> None:
        self._turn, self._parts, self._log = turn, turn.parts, turn.log
        live = self._parts.answers.live
        self.tools: Mapping[str, Tool] = {
            tool.name: without_effect(tool, is_live=tool.name in live) for tool in self._parts.tools
        }
        self._arrived: dict[tuple[int, int], asyncio.Event] = {}

    def in_force(self, allowed: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """Return also every other called tool. The recording may have a result."""
        called = {call.call.name for call in self._log.cursor.open_calls}
        others = {name: without_effect(recorded_tool(name)) for name in called.difference(allowed)}
        return {**allowed, **others}

    def shown(self, tools: Mapping[str, Tool], settings: Settings) -> tuple[list[ToolSpec], dict[str, str]]:
        """Return the recorded definitions at the present position.

        With tools passed by the caller, return their definitions; without either, definitions derived from
        the recorded calls.
        """
        definitions = settings.tool_definitions
        recorded = read_callable_tools(definitions, self._log.read_blob)
        if recorded is None or definitions is None or self._parts.host_entries.has_own_tools:
            return [tool.spec for tool in tools.values()], effects_of(self._parts.tools)
        specs = [tool for tool in recorded if settings.tools is None or tool.name in settings.tools]
        effects = {
            name: "read" if name in definitions.reads else "idempotent" for name in definitions.repeatable
        }
        return specs, effects

    def original(self, log: Log, call: OpenCall) -> ToolCall | None:
        """Return the call, even with hidden arguments.

        The recorded result answers a hidden call: `ToolAnswers` runs no tool on it.
        """
        return log.original_call(call) or call.call

    def refusal(self, tool: Tool, call: ToolCall) -> Message | None:
        """Return None. A malformed call has a recorded result like any other call."""
        return None

    async def run(self, tool: Tool, context: ToolContext) -> Message:
        call = next(call for call in self._log.cursor.open_calls if call.call.id == context.call.id)
        recorded, answers = self._turn.result(call), self._parts.answers
        task = recorded_task(self._parts.source, recorded)
        names = self._parts.path.prompt.settings().tools
        is_allowed = tool.name in self.tools and (names is None or tool.name in names)
        await self._wait_for_earlier(call, recorded)
        earlier = None
        if answers.may_repeat(tool.name):
            earlier = await run_blocking(find_earlier_call, self._log, call.call)
        try:
            return await answers.answer(context, recorded, is_allowed=is_allowed, task=task, earlier=earlier)
        finally:
            self._arrival(call).set()

    async def _wait_for_earlier(self, call: OpenCall, recorded: RecordedResult | None) -> None:
        """Keep the recorded order of results: equal histories have equal ids."""
        if recorded is None:
            return
        for other in self._log.cursor.open_calls:
            earlier = self._turn.result(other)
            if other.seq == call.seq and earlier is not None and earlier.rank < recorded.rank:
                await self._arrival(other).wait()

    def _arrival(self, call: OpenCall) -> asyncio.Event:
        return self._arrived.setdefault((call.seq, call.index), asyncio.Event())
