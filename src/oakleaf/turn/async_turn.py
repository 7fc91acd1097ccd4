"""One turn of your own loop in asyncio: the verbs of `Turn`, each awaitable and durable on return.

No read or write of the store runs on the event loop, so many sessions of one process share the loop. Verbs of
one turn run one after the other, however many tasks await them; tools run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from oakleaf import wire
from oakleaf.agent.blocking import Awaited, awaited
from oakleaf.core.fit import Budget
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.turns import OpenCall
from oakleaf.errors import TurnCancelled
from oakleaf.log.prompt import GrowingPrompt, read_context
from oakleaf.log.threads import MANY_ENTRIES, free_in_pieces, run_long, run_to_end
from oakleaf.turn.turn import Turn, weak_call

if TYPE_CHECKING:
    from oakleaf.agent.tools.tool import Tool

P = ParamSpec("P")
R = TypeVar("R")


class AsyncTurn(Awaited[Turn]):
    """Opened by `async with session.turn("…") as turn`; the loop of `Turn` with `await` before each verb:

    while not turn.done:
        await asyncio.gather(*(turn.run(call, TOOLS[call.call.name]) for call in turn.open_tool_calls))
        if not turn.done:
            request = await turn.request("anthropic")
            await turn.answer(await client.messages.create(**request, …))
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._prompt: GrowingPrompt | None = None
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        """The task of the block, which a cancellation from elsewhere cancels."""
        self._cancelling = 0
        """How often the task was cancelled before the block."""
        self._is_done = False
        self._open_calls: tuple[OpenCall, ...] = ()

    async def _call(
        self, verb: Callable[Concatenate[Turn, P], R], reads_all: bool, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self._run_blocking(verb, self._turn, *args, **kwargs)

    async def _run_blocking(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a verb to the end on a thread, after all earlier verbs."""

        def run() -> R:
            try:
                return work(*args, **kwargs)
            finally:
                self._note_position()

        async with self._lock:
            return await run_to_end(copy_context().run, run)  # a hook sees the span of the caller

    def _note_position(self) -> None:
        """Keep the values of the properties. A property must not read the store on the event loop."""
        self._is_done = self._turn.done
        if not self._turn.is_repeating:
            self._open_calls = self._turn.open_tool_calls

    async def enter(self) -> None:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._turn.interrupt = weak_call(self._cancel_task)
        try:
            await self._run_blocking(self._turn.__enter__)
            self._turn.watch.enter()  # in the context of the block
        except asyncio.CancelledError as error:
            if self._turn.is_entered:  # it was opened meanwhile, and nobody else leaves it
                await self.exit(type(error), error, None)
            raise

    async def exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._turn.watch.leave()
        try:
            async with self._lock:
                await run_to_end(self._turn.__exit__, kind, error, traceback)
            if self._prompt is not None:
                free_in_pieces(self._prompt.forget())
        finally:
            task, self._task = self._task, None
        if self.is_cancel_requested and task is not None and task.cancelling() > self._cancelling:
            task.uncancel()
            if kind is None or issubclass(kind, asyncio.CancelledError):
                raise TurnCancelled(self._turn.log.session_id) from error

    def _cancel_task(self) -> None:
        """Cancel the task of the block. Called on the thread of the lease."""

        def cancel() -> None:
            if self._task is not None and not self._turn.done:
                self._task.cancel()

        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(cancel)

    @property
    def done(self) -> bool:
        """Whether the turn has ended: by an answer without tool calls, or by a tool."""
        return self._is_done

    @property
    def open_tool_calls(self) -> tuple[OpenCall, ...]:
        """The tool calls without a result, in call order, with the model's arguments.

        See `Turn.open_tool_calls`.
        """
        # The next question decides where a repeated keyed turn continues.
        if self._turn.is_repeating:
            return self._turn.open_tool_calls
        return self._open_calls

    @property
    def is_cancel_requested(self) -> bool:
        """Whether `session.cancel()` or `oakleaf cancel` ends the turn. The task of the block is cancelled then."""
        return self._turn.is_cancel_requested

    @property
    def text(self) -> str:
        """The text of this turn's final answer; empty before the answer. See `Turn.text`."""
        return self._turn.text

    events = awaited(Turn.events)
    recorded_answer = awaited(Turn.recorded_answer)
    answer = awaited(Turn.answer)
    failed = awaited(Turn.failed)
    result = awaited(Turn.result)
    started = awaited(Turn.started)

    async def request(self, provider: str, budget: Budget | None = None) -> dict[str, Any]:
        """Return the history in the provider's request format, like `session.request`."""
        async with self._lock:
            run = run_long if self._turn.log.leaf.seq > MANY_ENTRIES and budget is None else run_to_end
            return await run(self._request, provider, budget)

    def _request(self, provider: str, budget: Budget | None) -> dict[str, Any]:
        log = self._turn.log
        if budget is not None:
            context = read_context(log, log.leaf, budget)
        else:
            self._prompt = self._prompt or GrowingPrompt(log)
            context = self._prompt.context()
        return wire.find_provider(provider).project(context, log.read_blob)

    async def messages(self, provider: str, budget: Budget | None = None) -> list[dict[str, Any]]:
        """Only the messages of `request()`."""
        request = await self.request(provider, budget)
        messages: list[dict[str, Any]] = request[wire.find_provider(provider).history]
        return messages

    async def run(
        self,
        call: ToolCall | OpenCall,
        function: Tool | Callable[..., Coroutine[Any, Any, Any]] | Callable[..., Any],
    ) -> Message:
        """Run a tool call once and append the result, like `Turn.run`.

        A synchronous function runs in a thread.
        """
        return await self._turn.run_async(call, function, self._run_blocking)
