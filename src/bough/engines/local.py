"""The local engine: a run is a task of this process.

Events reach the caller through a queue, so that cancelling ends the run and not the program that watches it.
Whoever stops watching cancels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from ..agent.events import Event
from ..agent.limits import Limits
from ..agent.loop import Loop
from ..agent.tools.tool import Tool, tool
from ..core.messages import Message
from ..errors import InvalidOperation, InvalidTool
from ..log.log import Log
from ..models.model import Model

ModelLike = Model | str | Sequence[Model | str]


class Run:
    """One run of a session; iterate over it for its events."""

    def __init__(self, loop: Loop, content: str | Message | None) -> None:
        self._loop, self._content = loop, content
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Abort the model call and the tools in flight; the session stays valid and resumable. From any thread."""
        self._is_cancelled = True
        if self._task is not None and not self._task.done():
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def _pump(self) -> None:
        try:
            async for event in self._loop.run(self._content):
                self._events.put_nowait(event)
        except asyncio.CancelledError:
            self._events.put_nowait(Event("session:turn_completed", {"stop_reason": "cancelled"}))

    async def __aiter__(self) -> AsyncIterator[Event]:
        if self._task is not None or self._is_cancelled:
            raise InvalidOperation("a run is iterated over once, and not after it was cancelled; send again")
        self._task = asyncio.create_task(self._pump())
        # By the task's end and not in its body: one cancelled before its first step has no body.
        self._task.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            if not self._task.cancelled():
                await self._task
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])


def start_run(
    log: Log,
    content: str | Message | None,
    *,
    model: ModelLike,
    tools: Iterable[Tool | Callable[..., Any]] = (),
    limits: Limits | None = None,
    one_shot: bool = False,
) -> Run:
    loop = Loop(log, resolve_models(model), tools_by_name(tools), limits or Limits(), is_one_shot=one_shot)
    return Run(loop, content)


def tools_by_name(tools: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Tools by their names; plain functions are made tools."""
    known: dict[str, Tool] = {}
    for given in tools:
        made = given if isinstance(given, Tool) else tool(given)
        if made.name in known:
            raise InvalidTool(made.name, "another tool has the same name")
        known[made.name] = made
    return known


def resolve_models(model: ModelLike) -> list[Model]:
    """The chain of models; those given by name are found."""
    chain = [model] if isinstance(model, str) or not isinstance(model, Sequence) else list(model)
    if not chain:
        raise InvalidOperation("a run needs a model; hand in one, or a chain of them")
    return [_model(one) for one in chain]


def _model(given: Model | str) -> Model:
    if not isinstance(given, str):
        return given
    from ..models.names import model_by_name

    return model_by_name(given)


def collect(run: Run) -> list[Event]:
    """The whole run, for a program without an event loop of its own."""

    async def gather() -> list[Event]:
        return [event async for event in run]

    return asyncio.run(gather())
