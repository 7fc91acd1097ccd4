"""Who answers a tool call in a replay: the recording, a dry run, a tool named live, or nobody.

The one place from which a replay could have an effect. Deny is the default: a call that nothing here answers gets
a result that says so, and is a miss. Knows tools and the recording; does not know models or the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from ..agent.tools.tool import RunTask, Tool, ToolContext
from ..core.messages import Message, ToolCall, tool_result
from ..errors import InvalidReplay
from ..models.model import ToolSpec
from .recording import RecordedResult, Recording

Mode = Literal["strict", "recorded", "dry", "live"]
OnMiss = Literal["stop", "next", "tell"]


_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class ReplayedTool(Tool, frozen=True, kw_only=True):
    """A tool as the loop of a replay has it: the same to the model, and its calls are answered elsewhere."""

    answer: Callable[[ToolContext], Awaitable[Message]]

    def refusal(self, call: ToolCall) -> Message | None:
        """A call that could not be run has its recorded result like any other."""
        return None

    async def run(self, context: ToolContext) -> Message:
        return await self.answer(context)


class NoArguments(Struct):
    """The arguments of a tool that is known by its recorded calls alone and never run."""


class ToolAnswers:
    def __init__(self, mode: Mode, tools: Mapping[str, Tool], live: frozenset[str], on_miss: OnMiss) -> None:
        self.mode, self.tools, self.live, self.on_miss = mode, tools, live, on_miss
        self.recorded_results = 0
        self.dry_runs: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.misses: list[str] = []
        """The calls nobody answered, by name."""

    async def answer(
        self, context: ToolContext, recorded: RecordedResult | None, *, is_allowed: bool, task: RunTask
    ) -> Message:
        call = context.call
        tool = self.tools.get(call.name) if is_allowed else None
        if tool is not None and self._is_live(tool, recorded):
            return await self._run(tool, context, task)
        if recorded is not None:
            self.recorded_results += 1
            return recorded.as_result_of(call)
        if self.mode == "dry" and tool is not None and tool.dry_run is not None:
            self.dry_runs[tool.name] += 1
            return await tool.run_dry(_with(context, task))
        if self.mode == "dry" and tool is not None and tool.effect == "read" and not tool.approval:
            return await self._run(tool, context, task)
        return self._missed(call)

    def _is_live(self, tool: Tool, recorded: RecordedResult | None) -> bool:
        """A recorded approval counts for the same call; nothing waits for a new one."""
        if tool.name not in self.live:
            return False
        return recorded.result.outcome != "denied" if recorded is not None else not tool.approval

    async def _run(self, tool: Tool, context: ToolContext, task: RunTask) -> Message:
        """For real. Counted before it runs: what fails half-way may have had its effect."""
        (self.reads if tool.effect == "read" else self.effects)[tool.name] += 1
        return await tool.run(_with(context, task))

    def _missed(self, call: ToolCall) -> Message:
        self.misses.append(call.name)
        why = (
            f"{call.name} was not called with these arguments in this turn of the recording; nothing was done"
        )
        ends = self.on_miss != "tell"
        return tool_result(call.id, why, error=True, outcome="not_recorded", ends_turn=ends)


def visible_tools(tools: Mapping[str, Tool], recording: Recording) -> list[Tool]:
    """The tools a model is told of; without any handed in, those that were called, by their recorded arguments."""
    if tools:
        return list(tools.values())
    return [_recorded_tool(name, calls) for name, calls in _by_name(recording.calls()).items()]


def replayed_tool(
    tool: Tool, answer: Callable[[ToolContext], Awaitable[Message]], *, is_live: bool = False
) -> ReplayedTool:
    """Waits for nobody and does nothing by itself: what becomes of a call is for `ToolAnswers` to say."""
    effect = tool.effect if is_live else "read"
    return ReplayedTool(tool.spec, tool.function, tool.arguments, tool.context_name, effect, answer=answer)


def unknown_tool(name: str) -> Tool:
    """A tool nobody told the model of; it was called all the same."""
    return _recorded_tool(name, [])


def _recorded_tool(name: str, calls: list[ToolCall]) -> Tool:
    """As much of a tool as its calls show: the names and kinds of its arguments."""
    kinds: dict[str, set[str]] = {}
    for call in calls:
        for key, value in call.arguments.items():
            kinds.setdefault(key, set()).add(_TYPES[type(value)])
    properties = {key: {"type": min(found)} if len(found) == 1 else {} for key, found in kinds.items()}
    spec = ToolSpec(name, name.replace("_", " "), {"type": "object", "properties": properties})
    return Tool(spec, _never, NoArguments)


def _never() -> None:
    raise InvalidReplay(
        "a tool known by its recorded calls alone cannot run", "hand it in: replay(tools=[…])"
    )


def _by_name(calls: Iterable[ToolCall]) -> dict[str, list[ToolCall]]:
    found: dict[str, list[ToolCall]] = {}
    for call in calls:
        found.setdefault(call.name, []).append(call)
    return found


def _with(context: ToolContext, task: RunTask) -> ToolContext:
    """The same context, its tasks answered from the recording too."""
    return ToolContext(context.key, context.session_id, context.call, context.state, task)
