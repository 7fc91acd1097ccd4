"""Replaying: a recorded session executed again on a fork, without effects, to see what becomes different.

Keeps the entries up to the cut, then feeds every later input in order, each through our own loop. The source is
only read. A replay that was cut short, by a cancel or a crash, is a valid session that can be looked at, forked or
deleted; it is not gone on with: replaying anew has no effect either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..agent.limits import Limits
from ..agent.tools.tool import Tool
from ..core.entries import Entry, Settings
from ..core.usage import Totals, total
from ..engines.local import ModelLike, resolve_models, tools_by_name
from ..errors import InvalidReplay
from ..log import fork as forking
from ..log import ledger
from ..log.changes import Cut
from ..log.log import Log
from ..models.model import Model
from ..models.recorded import RecordedModel
from .diff import ComparedPath, compare, read_compared_path
from .fingerprint import fingerprint
from .host_entries import HostEntries
from .incremental_path import IncrementalPath
from .recording import RecordedTurn, Recording
from .replay_loop import ReplayParts, replay_loop
from .report import ReplayReport
from .tool_answers import Mode, OnMiss, ToolAnswers, visible_tools

MODES = ("strict", "recorded", "dry", "live")
ON_MISS = ("stop", "next", "tell")


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """How to replay. docs/replay.md tells each."""

    model: ModelLike | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    tools: str | Iterable[Tool | Callable[..., Any]] = "recorded"
    start: int | None = None
    mode: Mode | None = None
    live: Sequence[str] = ()
    on_miss: OnMiss = "stop"
    limits: Limits | None = None
    progress: Callable[[int, int], None] | None = None

    @property
    def is_changed(self) -> bool:
        return any(given is not None for given in (self.model, self.prompt, self.prompt_patch))


async def replay(source: Log, plan: ReplayPlan) -> ReplayReport:
    """Execute it and compare."""
    return await Replay(source, plan).run()


class Replay:
    def __init__(self, source: Log, plan: ReplayPlan) -> None:
        self.source, self.plan = source, plan
        self.mode: Mode = plan.mode or ("live" if plan.live else "recorded" if plan.is_changed else "strict")
        self.tools = {} if isinstance(plan.tools, str) else tools_by_name(plan.tools)
        _check(plan, self.mode, self.tools)
        self.models = [] if plan.model is None else resolve_models(plan.model)
        self.stopped: str | None = None

    async def run(self) -> ReplayReport:
        before = await asyncio.to_thread(fingerprint, self.source)
        path = (await asyncio.to_thread(self.source.path)).entries
        cut, until = await asyncio.to_thread(self._cut)
        recording = Recording(path, cut.at, until)
        overrides = Settings(
            model=_name(self.models), prompt=self.plan.prompt, prompt_patch=self.plan.prompt_patch
        )
        log = await asyncio.to_thread(forking.fork, self.source, cut, overrides, relation="replay")
        carried = IncrementalPath((await asyncio.to_thread(log.path)).entries)
        parts = self._parts(recording, overrides, carried)
        fed = await self._turns(log, parts)
        await asyncio.to_thread(self._end, log)
        return await asyncio.to_thread(self._report, log, parts, cut, fed, before)

    def _cut(self) -> tuple[Cut, int]:
        """What is kept, never less than the seeds, and how far the source is replayed."""
        seeds = self.source.seed_count_on(self.source.ranges())
        until = self.source.cut(self.source.leaf.seq).at
        asked = seeds if self.plan.start is None else self.plan.start
        return Cut(self.source.cut(max(asked, seeds)).at, asked), until

    def _parts(self, recording: Recording, overrides: Settings, path: IncrementalPath) -> ReplayParts:
        models: list[Model] = self.models or [RecordedModel(recording.path[: recording.until])]
        answers = ToolAnswers(self.mode, self.tools, frozenset(self.plan.live), self.plan.on_miss)
        host_entries = HostEntries(recording, overrides, uses_recorded_answers=not self.models)
        tools = visible_tools(self.tools, recording)
        limits = self._limits(recording)
        return ReplayParts(self.source, recording, tools, answers, host_entries, models, limits, path)

    def _limits(self, recording: Recording) -> Limits:
        """Those handed in; else room for what was recorded. What the recording summarised comes back by itself."""
        rounds = max((turn.answers + 1 for turn in recording.turns), default=0)
        limits = self.plan.limits or Limits(turns=max(50, len(recording.turns)), rounds=max(50, rounds))
        return limits if self.models else replace(limits, context_tokens=None)

    # -- feeding -----------------------------------------------------------------------------------

    async def _turns(self, log: Log, parts: ReplayParts) -> int:
        """Every turn in order; how many were fed."""
        turns = parts.recording.turns
        for n, turn in enumerate(turns, 1):
            if self.plan.progress is not None:
                self.plan.progress(n, len(turns))
            await self._put_in(log, parts, turn.before)
            await self._turn(log, parts, turn)
            if self.stopped is not None:
                return n
        await self._put_in(log, parts, parts.recording.after)
        return len(turns)

    async def _put_in(self, log: Log, parts: ReplayParts, entries: Sequence[Entry]) -> None:
        path = parts.path.path
        drafts = parts.host_entries.drafts(entries, path)
        if drafts:
            path.extend((await asyncio.to_thread(log.append, drafts)).entries)

    async def _turn(self, log: Log, parts: ReplayParts, turn: RecordedTurn) -> None:
        loop, writer = replay_loop(log, parts, turn)
        content = None if turn.input is None else turn.input.message
        error: str | None = None
        async for event in loop.run(content):
            if event.type == "session:turn_completed" and "error" in event.data:
                error = event.data["error"]["message"]
        await self._put_in(log, parts, writer.remaining_host_entries)
        missed = parts.answers.misses
        if error is not None:
            self.stopped = error
        elif missed and self.plan.on_miss == "stop":
            self.stopped = f"{missed[-1]} was not recorded"

    def _end(self, log: Log) -> None:
        """A replay that is through is completed; so one that is not can be told from it."""
        status = "completed" if self.stopped is None else "interrupted"
        ended = {"status": status, "error": self.stopped}
        log.record("ended", data=ended, row={**ended, "completed_at": log.runtime.now()})

    # -- reporting ---------------------------------------------------------------------------------

    def _report(self, log: Log, parts: ReplayParts, cut: Cut, fed: int, before: str) -> ReplayReport:
        recording, answers = parts.recording, parts.answers
        then, now = (
            read_compared_path(self.source, self.source.leaf_at(recording.until)),
            read_compared_path(log, log.leaf),
        )
        found = compare(then, now, kept=cut.at)
        ids = [side.path[-1].entry_id if side.path else b"" for side in (then, now)]
        return ReplayReport(
            source=self.source.session_id,
            replay=log.session_id,
            mode=self.mode,
            cut=cut,
            until=recording.until,
            model_before=found.a.models,
            model_after=tuple(model.model for model in self.models) or found.b.models,
            diff=found,
            is_identical=ids[0] == ids[1],
            turns=fed,
            total_turns=len(recording.turns),
            recorded_results=answers.recorded_results,
            dry_runs=dict(answers.dry_runs),
            reads=dict(answers.reads),
            effects=dict(answers.effects),
            missed_calls=tuple(answers.misses),
            usage_before=self._cost_before(then, cut, recording.turns[:fed]),
            usage_after=total(log.store.calls(log.session_id)),
            source_before=before,
            source_after=fingerprint(self.source),
            stop_reason=self.stopped,
        )

    def _cost_before(self, then: ComparedPath, cut: Cut, turns: Sequence[RecordedTurn]) -> Totals:
        """What the turns that were fed had cost, behind the cut."""
        turn_of = {entry.seq: entry.turn for entry in then.path}
        wanted = {turn.turn for turn in turns}
        calls = ledger.model_calls(self.source, "path", self.source.leaf_at(cut.at))
        return total(
            call
            for call in calls
            if turn_of.get(call.after_seq if call.answer_seq is None else call.answer_seq) in wanted
        )


def _name(models: Sequence[Model]) -> str | None:
    return models[0].model if models else None


def _check(plan: ReplayPlan, mode: Mode, tools: dict[str, Tool]) -> None:
    if mode not in MODES:
        raise InvalidReplay(f"mode {mode!r} is unknown", f"modes are {', '.join(MODES)}")
    if plan.on_miss not in ON_MISS:
        raise InvalidReplay(f"on_miss={plan.on_miss!r} is unknown", f"it takes {', '.join(ON_MISS)}")
    if isinstance(plan.tools, str) and plan.tools != "recorded":
        raise InvalidReplay(f"tools={plan.tools!r} is unknown", 'hand in "recorded" or a list of tools')
    if mode == "strict" and plan.is_changed:
        raise InvalidReplay(
            "strict means the recorded model and prompt",
            "leave out another model (--model) and prompt (--prompt)",
        )
    if plan.model is None and plan.is_changed:
        raise InvalidReplay(
            "recorded answers cannot follow another prompt", "name who answers: model=… (--model)"
        )
    if plan.start is not None and plan.start < 0:
        raise InvalidReplay(
            f"start={plan.start} is invalid", "use 0 to keep only the seeds, or the seq of an entry"
        )
    if plan.live and mode != "live":
        raise InvalidReplay(f"in mode {mode} no tool runs live", "use mode live (--mode live)")
    if mode == "live" and not plan.live:
        raise InvalidReplay(
            "mode live names no tool", "name those that are to run (--live TOOL); all others stay recorded"
        )
    for name in plan.live:
        if name not in tools:
            raise InvalidReplay(
                f"{name} is to run live and was not handed in", "add it to the tools (--tools FILE.py)"
            )
