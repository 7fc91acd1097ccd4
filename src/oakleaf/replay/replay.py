"""Replay: run a recorded session again on a fork, without effects, and compare.

Keeps the entries up to the cut, then sends every later input through our own loop, in order. The source is
only read. An interrupted replay is a valid session and can be read, forked or deleted. A plan with a named
session (`ReplayTarget`) can also continue the replay, and asks for no stored answer again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.agent.call_meter import CallMeter
from oakleaf.agent.events import Event
from oakleaf.agent.limits import LIMIT_CODE, Limits
from oakleaf.agent.run import resolve_models
from oakleaf.agent.tools.sources import Connections, ToolLike, split_tools
from oakleaf.agent.tools.tool import Tool
from oakleaf.agent.writer import run_uncancelled
from oakleaf.core.context import fold_settings
from oakleaf.core.entries import Effects, Entry, Note, Settings, check_effects
from oakleaf.core.facts import SessionEnded, Status
from oakleaf.core.tool_definitions import ToolSpec, read_tools
from oakleaf.core.usage import Totals, total
from oakleaf.errors import InvalidReplay, NotFound, plural
from oakleaf.log import fork as forking
from oakleaf.log import ledger
from oakleaf.log.log import Log
from oakleaf.log.request import Cut, Place
from oakleaf.models.base import Model, ModelLike
from oakleaf.models.names import is_model_name, stored_model
from oakleaf.models.recorded import RecordedModel
from oakleaf.replay.compared_path import PathSide
from oakleaf.replay.diff import compare
from oakleaf.replay.host_entries import HostEntries
from oakleaf.replay.incremental_path import IncrementalPath
from oakleaf.replay.policy import ReplayedTurn, ReplayParts
from oakleaf.replay.position import ReplayPosition, host_key, read_position
from oakleaf.replay.recording import RecordedTurn, Recording
from oakleaf.replay.report import ReplayReport
from oakleaf.replay.tool_answers import Mode, OnMiss, ToolAnswers, visible_tools
from oakleaf.wire.options import check_options

MODES = ("strict", "recorded", "dry", "live")
ON_MISS = ("stop", "next", "continue")


class ReplayTarget(Struct, frozen=True):
    """The session for the replay. If it exists, the replay continues in it."""

    session_id: str
    tags: Mapping[str, str] = {}


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """The options of a replay; docs/replay.md describes each."""

    model: ModelLike | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    options: Mapping[str, Any] | None = None
    tools: str | Iterable[ToolLike] = "recorded"
    start: int | None = None
    mode: Mode | None = None
    live: Sequence[str] = ()
    on_miss: OnMiss = "stop"
    effects: Effects = "ask"
    limits: Limits | None = None
    progress: Callable[[int, int], None] | None = None
    target: ReplayTarget | None = None
    meter: CallMeter | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the plan changes the recorded model, prompt or options."""
        return any(value is not None for value in (self.model, self.prompt, self.prompt_patch, self.options))


async def replay(source: Log, plan: ReplayPlan) -> ReplayReport:
    """Replay a session by a plan and compare the replay with the recording."""
    return await Replay(source, plan).run()


class Replay:
    """One replay of one session."""

    def __init__(self, source: Log, plan: ReplayPlan) -> None:
        self.source, self.plan = source, plan
        self.mode: Mode = plan.mode or ("live" if plan.live else "recorded" if plan.is_changed else "strict")
        self.tools, self.sources = split_tools(() if isinstance(plan.tools, str) else plan.tools)
        _check_plan(plan, self.mode)
        self.models = self._resolve_models()
        self.stop_reason: str | None = None
        """Why the replay ended before the last input."""
        self.error_code: str | None = None
        """The code of the final error: a model gave no answer or a limit forbade to ask."""

    def _resolve_models(self) -> list[Model]:
        """Return the models for the answers: the plan's, or the recorded model for any other change.

        Empty without a change.
        """
        if self.plan.model is not None:
            return resolve_models(self.plan.model)
        if not self.plan.is_changed:
            return []
        row = self.source.store.session(self.source.session_id)
        path = self.source.store.control_entries(row.session_id, leaf=self.source.leaf)
        names = (row.model, fold_settings(path).model)
        name = next((name for name in names if name and is_model_name(name)), None)
        if name is None:
            raise InvalidReplay(
                f"another prompt or option needs a model, and the recorded one ({row.model or 'unknown'}) cannot be called "
                "by its name",
                "name a model: model=…",
                "name one with --model",
            )
        return [stored_model(name, row.session_id)]

    async def run(self) -> ReplayReport:
        """Replay all turns. Sources of tools are connected only in a mode that may run their tools."""
        if not self.sources or self.mode not in ("dry", "live"):
            return await self._run()
        connections = Connections(self.sources, self.source.runtime.redactor)
        try:
            self.tools, self.sources = await connections.open(self.tools), ()
            return await self._run()
        finally:
            await run_uncancelled(connections.close())

    async def _run(self) -> ReplayReport:
        _check_live(self.plan.live, self.tools)
        source_before = await asyncio.to_thread(fingerprint, self.source)
        path = (await asyncio.to_thread(self.source.path)).entries
        place, until = await asyncio.to_thread(self._find_place)
        cut = place.cut
        recording = Recording(path, cut.at, until)
        self._check_options(path[: cut.at])
        await asyncio.to_thread(self._check_attachments, path[cut.at : until])
        limits = self.plan.limits if self.models else None
        overrides = Settings(
            model=self.models[0].model if self.models else None,
            prompt=self.plan.prompt,
            prompt_patch=self.plan.prompt_patch,
            options=None if self.plan.options is None else dict(self.plan.options),
            max_messages=None if limits is None else limits.max_messages,
        )
        log = await asyncio.to_thread(self._open_log, place, overrides)
        replay_path = IncrementalPath((await asyncio.to_thread(log.path)).entries)
        parts = await asyncio.to_thread(self._build_parts, recording, overrides, replay_path)
        position = ReplayPosition()
        if self.plan.target is not None:
            position = await asyncio.to_thread(read_position, log, replay_path.entries, cut.at)
        if not position.is_ended:
            turns = await self._replay_turns(log, parts, position)
            await asyncio.to_thread(self._record_end, log)
        else:
            turns = position.turns
            self.stop_reason = position.stop_reason
        return await asyncio.to_thread(self._build_report, log, parts, cut, turns, source_before)

    def _check_options(self, path: Sequence[Entry]) -> None:
        """Raise `InvalidOption` if a model of the replay lacks an option of the plan."""
        for model in self.models:
            check_options(model.provider, self.plan.options, fold_settings(path).options)

    def _check_attachments(self, entries: Sequence[Entry]) -> None:
        """Raise `InvalidReplay` if an attachment is missing. A bundle holds attachments only on request."""
        digests = {media.hash for entry in entries if entry.message for media in entry.message.media}
        missing = sum(self.source.store.blob(digest) is None for digest in digests)
        if missing:
            raise InvalidReplay(
                f"{plural(missing, 'attachment')} of the recording "
                f"{'is' if missing == 1 else 'are'} not in this store",
                "export or promote the session again with redact=False, blobs=True",
                "export or promote the session again with --no-redact --blobs",
            )

    def _open_log(self, place: Place, overrides: Settings) -> Log:
        """Return the log of the replay: a new fork, or an earlier run's target."""
        source, target = self.source, self.plan.target
        if target is None:
            return forking.fork(source, place, overrides, relation="replay")
        with suppress(NotFound):
            return Log(source.store, source.store.session(target.session_id), source.runtime)
        name, tags = target.session_id, target.tags
        return forking.fork(source, place, overrides, relation="replay", session_id=name, tags=tags)

    def _find_place(self) -> tuple[Place, int]:
        """Return the place of the cut, at or after the seeds, and the last entry to replay."""
        seeds = self._opening_count()
        until = self.source.place(self.source.leaf.seq).at
        requested = seeds if self.plan.start is None else self.plan.start
        place = self.source.place(max(requested, seeds))
        return replace(place, cut=Cut(place.at, requested)), until

    def _opening_count(self) -> int:
        """Return how many entries the session started with: the seeds, and the note with the initial state."""
        seeds = self.source.seed_count_on(self.source.ranges())
        source = self.source
        read = source.store.path(source.session_id, leaf=source.leaf, first=seeds + 1, last=seeds + 1)
        after = read.entries[0] if read.entries else None
        if after is None or after.turn or not isinstance(after.payload, Note):
            return seeds
        return seeds if after.payload.state is None else seeds + 1

    def _build_parts(self, recording: Recording, overrides: Settings, path: IncrementalPath) -> ReplayParts:
        models, recorded_model = self.models, None
        if not models:
            recorded_model = RecordedModel(recording.path[: recording.until])
            models = [recorded_model]
        answers = ToolAnswers(
            self.mode, self.tools, frozenset(self.plan.live), self.plan.on_miss, self.plan.effects
        )
        host_entries = HostEntries(
            recording, overrides, uses_recorded_answers=not self.models, has_own_tools=bool(self.tools)
        )
        tools = visible_tools(
            self.tools, recording, self._recorded_tools(recording), adds_recorded=bool(self.sources)
        )
        limits = self._limits(recording)
        return ReplayParts(
            source=self.source,
            recording=recording,
            tools=tools,
            answers=answers,
            host_entries=host_entries,
            models=models,
            recorded_model=recorded_model,
            limits=limits,
            path=path,
            is_resumable=self.plan.target is not None,
            meter=self.plan.meter,
        )

    def _recorded_tools(self, recording: Recording) -> list[ToolSpec]:
        """Return the model's tools from all definitions on the path; for each name the latest definition."""
        settings = (entry.payload for entry in recording.path if isinstance(entry.payload, Settings))
        definitions = dict.fromkeys(each.tool_definitions for each in settings)
        sets = [read_tools(each, self.source.read_blob) for each in definitions]
        return list({tool.name: tool for tools in sets for tool in tools or ()}.values())

    def _limits(self, recording: Recording) -> Limits:
        """Return the plan's limits, or by default enough for the recording.

        Recorded answers need no compaction: the recorded summaries are repeated.
        """
        rounds = max((turn.answers + 1 for turn in recording.turns), default=0)
        limits = self.plan.limits or Limits(turns=max(50, len(recording.turns)), rounds=max(50, rounds))
        return limits if self.models else replace(limits, context_tokens=None, context_window=None)

    # -- turns -------------------------------------------------------------------------------------

    async def _replay_turns(self, log: Log, parts: ReplayParts, position: ReplayPosition) -> int:
        """Replay every turn in order, from an earlier run's position. Return the number of replayed turns."""
        turns = parts.recording.turns
        parts.answers.misses += position.misses
        for number, turn in enumerate(turns, 1):
            if number < position.turns:
                continue
            if self.plan.progress is not None:
                self.plan.progress(number, len(turns))
            if number == position.turns:
                await self._continue_turn(log, parts, turn, position)
            else:
                await self._append_host_entries(log, parts, turn.before, position)
                await self._replay_turn(log, parts, turn, position)
            if self.stop_reason is not None:
                return number
        await self._append_host_entries(log, parts, parts.recording.after, position)
        return len(turns)

    async def _continue_turn(
        self, log: Log, parts: ReplayParts, turn: RecordedTurn, position: ReplayPosition
    ) -> None:
        """Continue the last turn of an earlier run."""
        if position.is_turn_open:
            await self._replay_turn(log, parts, replace(turn, input=None), position)
            return
        remaining = [entry for entry in turn.inner if entry.seq > position.host_seq]
        await self._append_host_entries(log, parts, remaining, position)
        if position.stop_reason is not None:
            self.stop_reason, self.error_code = position.stop_reason, LIMIT_CODE
        self._stop_at_miss(parts)

    async def _append_host_entries(
        self, log: Log, parts: ReplayParts, entries: Sequence[Entry], position: ReplayPosition
    ) -> None:
        prompt = parts.path.prompt
        entries = [entry for entry in entries if entry.seq > position.host_seq]
        drafts = parts.host_entries.drafts(entries, prompt.entries)
        if drafts:
            key = host_key(entries) if parts.is_resumable else None
            prompt.extend((await asyncio.to_thread(log.append, drafts, key=key)).entries)

    async def _replay_turn(
        self, log: Log, parts: ReplayParts, turn: RecordedTurn, position: ReplayPosition
    ) -> None:
        replayed = ReplayedTurn(log, parts, turn, position.host_seq)
        content = None if turn.input is None else turn.input.message
        error: dict[str, str] | None = None

        def note(event: Event) -> None:
            nonlocal error
            if event.type == "session:turn_completed":
                error = event.data.get("error", error)

        await replayed.loop().run(content, emit=note)
        await self._append_host_entries(log, parts, replayed.remaining_host_entries, position)
        if error is not None:
            self.stop_reason, self.error_code = error["message"], error["code"]
        else:
            self._stop_at_miss(parts)

    def _stop_at_miss(self, parts: ReplayParts) -> None:
        misses = parts.answers.misses
        if misses and self.plan.on_miss == "stop" and self.stop_reason is None:
            is_repeat = misses[-1] in parts.answers.refused_repeats
            self.stop_reason = f"{misses[-1]} {'would be repeated' if is_repeat else 'was not recorded'}"

    def _record_end(self, log: Log) -> None:
        """Mark the replay as completed or interrupted."""
        is_miss = self.stop_reason is not None and self.error_code is None
        status: Status = "completed" if self.stop_reason is None else "interrupted"
        row = {"status": status, "error": self.stop_reason, "completed_at": log.runtime.now()}
        log.record(SessionEnded(status, self.stop_reason, missed_call=is_miss), row=row)

    # -- the report --------------------------------------------------------------------------------

    def _build_report(
        self, log: Log, parts: ReplayParts, cut: Cut, turns: int, source_before: str
    ) -> ReplayReport:
        recording, answers = parts.recording, parts.answers
        # Recorded answers end where open calls begin; other steps of another model are a difference.
        leaf = self.source.leaf if self.models else self.source.leaf_at(recording.until)
        recorded = PathSide(self.source, leaf)
        replayed = PathSide(log, log.leaf)
        diff = compare(recorded, replayed, after=cut.at)
        last_ids = [side.entry_id(side.leaf.seq) if side.leaf.seq else b"" for side in (recorded, replayed)]
        return ReplayReport(
            source=self.source.session_id,
            replay=log.session_id,
            mode=self.mode,
            cut=cut,
            until=recording.until,
            model_before=diff.a.models,
            model_after=tuple(model.model for model in self.models) or diff.b.models,
            diff=diff,
            is_identical=last_ids[0] == last_ids[1],
            turns=turns,
            total_turns=len(recording.turns),
            recorded_results=answers.recorded_results,
            dry_runs=dict(answers.dry_runs),
            reads=dict(answers.reads),
            effects=dict(answers.effects),
            missed_calls=tuple(answers.misses),
            usage_before=self._recorded_usage(recorded, cut, recording.turns[:turns]),
            usage_after=total(log.store.calls(log.session_id)),
            source_before=source_before,
            source_after=fingerprint(self.source),
            stop_reason=self.stop_reason,
            is_unanswered=self.error_code is not None,
            error_code=self.error_code,
        )

    def _recorded_usage(self, recorded: PathSide, cut: Cut, turns: Sequence[RecordedTurn]) -> Totals:
        """Return the recorded cost of the replayed turns after the cut."""
        turn_of = {entry.seq: entry.turn for entry in recorded.read(cut.at + 1, recorded.leaf.seq)}
        numbers = {turn.turn for turn in turns}
        calls = ledger.model_calls(self.source, "path", self.source.leaf_at(cut.at))
        return total(call for call in calls if turn_of.get(call.seq) in numbers)


def _check_plan(plan: ReplayPlan, mode: Mode) -> None:
    if mode not in MODES:
        raise InvalidReplay(f"mode={mode!r} is invalid", f"use {', '.join(MODES)}")
    if plan.on_miss not in ON_MISS:
        raise InvalidReplay(f"on_miss={plan.on_miss!r} is invalid", f"use {', '.join(ON_MISS)}")
    check_effects(plan.effects)
    if plan.effects != "ask" and mode != "live":
        raise InvalidReplay(
            f"effects={plan.effects!r} has no meaning in mode {mode}, in which no unsafe tool runs",
            "leave it out, or name tools to run with live=[…]",
            "leave out --set effects, or name tools to run with --live TOOL",
        )
    if isinstance(plan.tools, str) and plan.tools != "recorded":
        raise InvalidReplay(f"tools={plan.tools!r} is invalid", 'use "recorded" or a list of tools')
    if mode == "strict" and plan.is_changed:
        raise InvalidReplay(
            "mode strict uses the recorded model, prompt and options",
            "leave out model=, prompt= and options=, or use another mode",
            "leave out --model, --prompt and --set, or use another mode",
        )
    if plan.start is not None and plan.start < 0:
        raise InvalidReplay(
            f"start={plan.start} is invalid", "use 0 to keep only the seeds, or the seq of an entry"
        )
    if plan.live and mode != "live":
        raise InvalidReplay(f"tools cannot run live in mode {mode}", 'use mode="live"', "use --mode live")
    if mode == "live" and not plan.live:
        raise InvalidReplay(
            "mode live needs the names of the tools to run",
            "name them with live=[…]; all others are answered by the recording",
            "name them with --live TOOL; all others are answered by the recording",
        )


def _check_live(names: Sequence[str], tools: Mapping[str, Tool]) -> None:
    for name in names:
        if name not in tools:
            raise InvalidReplay(
                f"live tool {name} was not passed", "add it to tools=[…]", "add it with --agent FILE.py"
            )


def fingerprint(log: Log) -> str:
    """Hash row, details, branches, entries, journal and ledger in their present form."""
    store, session_id = log.store, log.session_id
    digest = sha256()
    for part in (store.session(session_id), store.detail(session_id), store.branches(session_id)):
        digest.update(msgspec.json.encode(part))
    for rows in (store.entries(session_id), store.journal(session_id), store.calls(session_id)):
        for row in rows:
            digest.update(msgspec.json.encode(row))
    return digest.hexdigest()
