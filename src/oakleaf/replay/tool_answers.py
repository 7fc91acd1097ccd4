"""Answer the tool calls of a replay: from the recording, by a dry run, or by a live tool.

The only place where a replay can have an effect. By default nothing runs: a call without an answer gets a result that
says so, and counts as a miss. Knows tools and the recording; does not know models or the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from oakleaf.agent.earlier_calls import reused_result
from oakleaf.agent.tools.tool import EarlierCall, RunTask, Tool, ToolContext
from oakleaf.core.entries import Effects
from oakleaf.core.messages import Message, ToolCall, tool_result
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.errors import InvalidReplay
from oakleaf.replay.recording import RecordedResult, Recording

Mode = Literal["strict", "recorded", "dry", "live"]
OnMiss = Literal["stop", "next", "continue"]


_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class NoArguments(Struct):
    """The arguments of a tool known only from recorded calls: the tool never runs."""


class ToolAnswers:
    """Decides how each call is answered, and counts how."""

    def __init__(
        self,
        mode: Mode,
        tools: Mapping[str, Tool],
        live: frozenset[str],
        on_miss: OnMiss,
        repeats: Effects = "ask",
    ) -> None:
        self.mode, self.tools, self.live, self.on_miss, self.repeats = mode, tools, live, on_miss, repeats
        self.recorded_results = 0
        self.dry_runs: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.misses: list[str] = []
        """The names of the calls without an answer."""
        self.refused_repeats: set[str] = set()
        """The names of missed calls refused as a repeat."""

    def may_repeat(self, name: str) -> bool:
        """Whether a run of the tool could repeat an effect without anybody's decision."""
        tool = self.tools.get(name)
        return name in self.live and tool is not None and tool.effect == "unsafe" and self.repeats != "repeat"

    async def answer(
        self,
        context: ToolContext,
        recorded: RecordedResult | None,
        *,
        is_allowed: bool,
        task: RunTask,
        earlier: EarlierCall | None = None,
    ) -> Message:
        """Return the result of a call.

        `earlier` is the same call on a path left behind, given if it must not be repeated.
        """
        call = context.call
        tool = self.tools.get(call.name) if is_allowed and not call.is_hidden else None
        if tool is not None and self._is_live(tool, recorded):
            if earlier is None:
                return await self._run(tool, context, task)
            reused = reused_result(call, earlier) if self.repeats == "reuse" else None
            if reused is None:
                self.refused_repeats.add(call.name)
                return self._miss(call, _repeat_text(call, earlier))
            self.recorded_results += 1
            return reused
        if recorded is not None:
            self.recorded_results += 1
            return recorded.as_result_of(call)
        if self.mode == "dry" and tool is not None and tool.dry_run is not None:
            self.dry_runs[tool.name] += 1
            return await tool.run_dry(_with_task(context, task))
        if self.mode == "dry" and tool is not None and tool.effect == "read" and not tool.approval:
            return await self._run(tool, context, task)
        why = (
            f"this turn of the recording has no result of {call.name} with these arguments; nothing was done"
        )
        return self._miss(call, why)

    def _is_live(self, tool: Tool, recorded: RecordedResult | None) -> bool:
        """Whether the tool runs. A recorded approval applies to the same call; without one, such a tool does not run."""
        if tool.name not in self.live:
            return False
        return recorded.result.outcome != "denied" if recorded is not None else not tool.approval

    async def _run(self, tool: Tool, context: ToolContext, task: RunTask) -> Message:
        """Run the tool. Counted first: a run that fails half-way may have had its effect."""
        (self.reads if tool.effect == "read" else self.effects)[tool.name] += 1
        return await tool.run(_with_task(context, task))

    def _miss(self, call: ToolCall, reason: str) -> Message:
        self.misses.append(call.name)
        ends_turn = self.on_miss != "continue"
        return tool_result(call.id, reason, error=True, outcome="not_recorded", ends_turn=ends_turn)


def _repeat_text(call: ToolCall, earlier: EarlierCall) -> str:
    return (
        f"{call.name} was called with these arguments before, in {earlier.session_id} at {earlier.seq}, and nobody can be "
        'asked in a replay; nothing was done. Replay with effects="repeat" to run it once more, or with effects="reuse" to '
        "answer with that result"
    )


def visible_tools(
    tools: Mapping[str, Tool],
    recording: Recording,
    recorded: Iterable[ToolSpec],
    *,
    adds_recorded: bool = False,
) -> list[Tool]:
    """Return the model's tools: `tools`, or by default the recorded tools.

    Recorded are the tools with definitions, and called tools without definitions, described by their
    arguments. `adds_recorded` adds the recorded tools to `tools`.
    """
    if tools and not adds_recorded:
        return list(tools.values())
    by_name = {spec.name: Tool(spec, _refuse_to_run, NoArguments) for spec in recorded}
    called = {name: recorded_tool(name, calls) for name, calls in _by_name(recording.calls()).items()}
    others = {name: tool for name, tool in called.items() if name not in by_name}
    return list({**by_name, **others, **tools}.values())


def without_effect(tool: Tool, *, is_live: bool = False) -> Tool:
    """Return the tool without approval, and unless live without effect.

    `ToolAnswers` decides about each call.
    """
    return Tool(
        tool.spec, tool.function, tool.arguments, tool.context_name, tool.effect if is_live else "read"
    )


def recorded_tool(name: str, calls: Iterable[ToolCall] = ()) -> Tool:
    """Return a stand-in for a tool without a definition.

    The calls show the names and types of the arguments.
    """
    kinds: dict[str, set[str]] = {}
    for call in calls:
        for key, value in call.arguments.items():
            kinds.setdefault(key, set()).add(_TYPES[type(value)])
    properties = {key: {"type": min(types)} if len(types) == 1 else {} for key, types in kinds.items()}
    spec = ToolSpec(name, name.replace("_", " "), {"type": "object", "properties": properties})
    return Tool(spec, _refuse_to_run, NoArguments)


def _refuse_to_run() -> None:
    raise InvalidReplay(
        "a tool that is only known from recorded calls cannot run", "pass it: replay(tools=[…])"
    )


def _by_name(calls: Iterable[ToolCall]) -> dict[str, list[ToolCall]]:
    by_name: dict[str, list[ToolCall]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call)
    return by_name


def _with_task(context: ToolContext, task: RunTask) -> ToolContext:
    """Return the context with tasks answered from the recording."""
    return ToolContext(context.key, context.session_id, context.call, context.state, task)
