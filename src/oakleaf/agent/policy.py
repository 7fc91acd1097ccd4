"""The policy of a run as one frozen value: the sources of answers, the runner of tools, the records, the end.

`local_run` builds the policy of a run that calls models and runs tools of its own. Other engines build policies of their
own from the same parts. Knows no writer, no loop and no recording.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from oakleaf.agent.call_meter import CallMeter
from oakleaf.agent.limits import Limits
from oakleaf.agent.tools.sources import ToolSource
from oakleaf.agent.tools.tool import Tool, ToolContext
from oakleaf.core.drafts import Draft, NewEntry
from oakleaf.core.entries import Effects, Entry, Settings
from oakleaf.core.facts import TurnStarted
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.turns import Cursor, OpenCall
from oakleaf.core.usage import Call
from oakleaf.log.log import Log
from oakleaf.models.base import Model
from oakleaf.stores.base import Effect
from oakleaf.wire import Answer


class RecordedAnswers(Protocol):
    """Answers from a recording, in place of model calls."""

    def has_answer(self, step: int) -> bool:
        """Whether the recording of the turn has an answer at a step. Without an answer the turn ends there."""
        ...

    def answer(self) -> Answer:
        """Return the answer to the history at the leaf; raise `ModelError` if the recording has none."""
        ...


class Answers(Struct, frozen=True, kw_only=True):
    """The source of a run's answers: a chain of models, or a recording."""

    models: Sequence[Model]
    options: Mapping[str, Any] | None = None
    """Options of the model's calls, in force from here on."""
    recording: RecordedAnswers | None = None
    """Answers instead of the models. Options, settings and costs are then part of the recording."""
    meter: CallMeter | None = None
    """Allows each call before the request."""


class ToolBox(Protocol):
    """The runner of a run's tools."""

    @property
    def tools(self) -> Mapping[str, Tool]: ...

    @property
    def sources(self) -> Sequence[ToolSource]:
        """Sources of further tools, added when the loop runs."""
        ...

    @property
    def effects(self) -> Effects | None:
        """The fate of an unsafe call with a twin on an abandoned path, from here on. None: as the path says."""
        ...

    @property
    def looks_back(self) -> bool:
        """Whether an unsafe call is looked for on abandoned paths before the call runs."""
        ...

    def in_force(self, allowed: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """Return the tools in force at the leaf, out of the tools allowed by the session."""
        ...

    def shown(self, tools: Mapping[str, Tool], settings: Settings) -> tuple[list[ToolSpec], dict[str, str]]:
        """Return the definitions shown to a model for the tools in force, and the effects of tools by
        name."""
        ...

    def original(self, log: Log, call: OpenCall) -> ToolCall | None:
        """Return the call with the arguments for the run. None: the arguments are not known any more."""
        ...

    def refusal(self, tool: Tool, call: ToolCall) -> Message | None:
        """Return the result of a refused call. None: the call may run."""
        ...

    async def run(self, tool: Tool, context: ToolContext) -> Message:
        """Return the result of a call."""
        ...


class OwnTools(Struct, frozen=True):
    """Tools of this process, and tools of connected sources."""

    tools: Mapping[str, Tool]
    sources: Sequence[ToolSource] = ()
    effects: Effects | None = None

    @property
    def looks_back(self) -> bool:
        return True

    def in_force(self, allowed: Mapping[str, Tool]) -> Mapping[str, Tool]:
        return allowed

    def shown(self, tools: Mapping[str, Tool], settings: Settings) -> tuple[list[ToolSpec], dict[str, str]]:
        return [tool.spec for tool in tools.values()], effects_of(tools.values())

    def original(self, log: Log, call: OpenCall) -> ToolCall | None:
        return log.original_call(call)

    def refusal(self, tool: Tool, call: ToolCall) -> Message | None:
        return tool.refusal(call)

    async def run(self, tool: Tool, context: ToolContext) -> Message:
        return await tool.run(context)


class HostDrafts(Struct, frozen=True):
    """Entries of the host due within a turn."""

    drafts: tuple[Draft, ...]
    key: str | None = None


class Recorded(Struct, frozen=True, kw_only=True):
    """The records of a run beside answers and results."""

    about: TurnStarted = TurnStarted(0)
    """The caller's part of the turn's start: trigger and policy."""
    bucket: str = "live"
    """The bucket of the ledger charged with the model calls."""
    announces: bool = True
    """Whether a commit before a model call announces the call in the ledger."""
    drafts: bool = True
    """Whether the text of an answer in flight is saved."""
    queue: str | None = None
    """The queue of the task that runs the turn. A decision must wake the task if the turn waits for a
    person."""
    host_entries: Callable[[Cursor], HostDrafts | None] | None = None
    """Returns the due entries of the host. Asked before each model call, and after each commit while calls
    are open, so that the entries follow the stored result."""


EffectOfEntries = Callable[[Sequence[NewEntry]], Effect]
"""Returns the effect of a commit, given the written entries: notes of other writers may come before."""
StepEnd = Callable[[Sequence[Entry], Sequence[Draft], Collection[Call]], EffectOfEntries]
"""Returns the effect of a step's last commit, given the path, the drafts, and the model calls of the turn."""


class GoesOn(Struct, frozen=True, kw_only=True):
    """The conditions to go on with a run, and to end the run."""

    may_call: Callable[[], bool] | None = None
    """Asked by the last commit of a step. If false, the run ends there, and another process goes on with the
    turn."""
    inputs: int | None = None
    """The most queued inputs that are run. None: all."""
    accepts_imported: bool = False
    """Whether open work of an import may run."""
    checks_turn: bool = False
    """Whether the sender of the open turn did not know the limits of this run: then the limits of both hold."""
    watches_cancel: bool = True
    """Whether the run looks for requests to cancel its turn. The worker of a task does so for all of its
    tasks."""
    needs_tools: bool = True
    """Whether a turn is resumed only if the run has the tools of its open calls."""
    cancel: Literal["close", "leave"] = "close"
    """The fate of the open turn in a cancellation: closed, or left as after a crash."""


class RunPolicy(Struct, frozen=True, kw_only=True):
    """The whole policy of a run."""

    answers: Answers
    tools: ToolBox
    limits: Limits
    step_end: StepEnd | None = None
    """The effect of the commit that ends a step: a model call and the results of its tools."""
    recorded: Recorded = Recorded()
    goes_on: GoesOn = GoesOn()


def local_run(
    models: Sequence[Model],
    tools: Mapping[str, Tool],
    limits: Limits,
    *,
    options: Mapping[str, Any] | None = None,
    sources: Sequence[ToolSource] = (),
    effects: Effects | None = None,
    accepts_imported: bool = False,
    about: TurnStarted = TurnStarted(0),
) -> RunPolicy:
    """Return the policy of a run in this process, with models and tools."""
    return RunPolicy(
        answers=Answers(models=models, options=options),
        tools=OwnTools(tools, sources, effects),
        limits=limits,
        recorded=Recorded(about=about),
        goes_on=GoesOn(accepts_imported=accepts_imported),
    )


def effects_of(tools: Iterable[Tool]) -> dict[str, str]:
    """Return the effects of tools by name."""
    return {tool.name: tool.effect for tool in tools}
