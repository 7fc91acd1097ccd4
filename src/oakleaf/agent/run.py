"""The local engine: a run is a task of this process. So cancelling a run does not end the waiting program.

Who iterates gets events through a queue, and cancels the run by stopping.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from oakleaf.agent.cancellation import is_run_by_task
from oakleaf.agent.events import Emit, Event, RunResult, StopRun, fact_event, run_result
from oakleaf.agent.limits import Limits, check_limits
from oakleaf.agent.loop import Loop, build_loop
from oakleaf.agent.policy import local_run
from oakleaf.agent.tools.sources import ToolLike, for_one_turn, split_tools
from oakleaf.agent.writer import Writer
from oakleaf.core.entries import Effects, Entry, check_effects
from oakleaf.core.facts import CancelRequested, TurnStarted
from oakleaf.core.messages import Message
from oakleaf.core.usage import total
from oakleaf.errors import Fenced, InvalidArgument, InvalidOperation, SessionRunning, StaleLeaf
from oakleaf.log.lease import Hold
from oakleaf.log.log import Log
from oakleaf.log.request import Committed
from oakleaf.log.threads import run_blocking
from oakleaf.models.base import Model, ModelLike
from oakleaf.wire.options import check_options

Cancellation = Literal["cancelled", "requested"]
"""What a cancellation did: the turn is closed, or its runner, in another thread or process, was asked to close it."""


class Run:
    """One run of a session: iterate for events, or await the result."""

    def __init__(
        self,
        loop: Loop,
        content: str | Message | None,
        key: str | None = None,
        previous: Run | None = None,
    ) -> None:
        """Prepare a run. `previous` is the latest run through the same handle. If its events were left, this
        run waits for its end."""
        self._loop, self._content, self._key = loop, content, key
        self._previous = previous
        self._is_left = False
        """Whether the events were dropped before the end."""
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._events: list[Event] = []
        self._numbers = EventNumbers(loop)
        self._is_completing = False
        self._result: RunResult | None = None

    if not TYPE_CHECKING:  # a type checker knows that a run has no result of its own

        def __getattr__(self, name: str) -> Any:
            if name not in RunResult.__struct_fields__ and name not in vars(RunResult):
                raise AttributeError(f"'Run' object has no attribute {name!r}")
            raise InvalidOperation(
                f"a run has no {name} before its end",
                f"await it: (await session.send(…)).{name}; without asyncio: session.send_sync(…).{name}",
            )

        def __iter__(self) -> Any:
            raise InvalidOperation(
                "the events of a run come one by one in asyncio",
                "async for event in session.send(…); without asyncio: session.send_sync(…).events",
            )

    def __del__(self) -> None:
        if self._task is None and not self._is_cancelled:
            warnings.warn(
                f"a run of session {self._loop.log.session_id} was never awaited, so nothing was sent; await "
                "session.send(…), iterate over it, or call session.send_sync(…)",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def result(self) -> RunResult:
        """The result of the ended run."""
        if self._result is None:
            raise InvalidOperation("the run has not ended; iterate over its events to the end, or await it")
        return self._result

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._task is not None and self._task.done()

    @property
    def has_waiting_events(self) -> bool:
        """Whether announced events were not yet yielded."""
        return self._is_completing or not self._queue.empty()

    def cancel(self) -> None:
        """Abort the model call and the tools in flight. The session stays valid and resumable. May be called
        from any thread."""
        self._is_cancelled = True
        if self._task is not None and not self._task.done():
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def stop(self) -> None:
        """Call no model any more. The model call and the tools in flight end, their results are stored, and
        the turn is left interrupted, to be resumed by another process. For a service about to end. May be
        called from any thread."""
        self._loop.stop()

    def _start(self, emit: Emit) -> asyncio.Task[None]:
        if self._task is not None or self._is_cancelled:
            raise InvalidOperation(
                "the events of a run can be iterated over once, and not after a cancellation",
                "await the run for the result, or see the events in result.events",
            )
        self._task = asyncio.create_task(self._run_loop(emit))
        return self._task

    def leave(self) -> None:
        """Cancel the run: nobody iterates over the events any more."""
        if self._task is not None and not self._task.done():
            self._is_left = True
            with suppress(RuntimeError):  # its event loop is closed
                self.cancel()

    async def _settle(self) -> None:
        """Wait for the end of an abandoned run. A run whose event loop stands still never ends: it keeps its
        lease."""
        task = self._task
        if not self._is_left or task is None or task.done():
            return
        loop, here = task.get_loop(), asyncio.get_running_loop()
        if loop is here:
            await asyncio.wait([task])
        elif loop.is_running():
            ended = here.create_future()
            loop.call_soon_threadsafe(task.add_done_callback, lambda _: _wake(ended))
            await ended

    async def _run_loop(self, emit: Emit) -> None:
        try:
            previous, self._previous = self._previous, None
            if previous is not None:
                await previous._settle()
            await self._loop.run(self._content, self._key, emit=emit)
        except asyncio.CancelledError:
            number = self._loop.runner.journal_number or None
            emit(Event("session:turn_completed", {"stop_reason": "cancelled"}, number))
        except StopRun:
            number = self._loop.runner.journal_number
            emit(Event("session:turn_completed", {"stop_reason": "interrupted"}, number))

    def __aiter__(self) -> RunEvents:
        return RunEvents(self)

    async def iterate(self) -> AsyncGenerator[Event, None]:
        """Start the run and yield the events. Cancel the run when the generator is closed early."""
        task = self._start(self._queue.put_nowait)
        # In a callback and not in the task's body: one cancelled before its first step has no body.
        task.add_done_callback(lambda _: self._queue.put_nowait(None))
        try:
            while (item := await self._queue.get()) is not None:
                self._is_completing = True
                for event in await self._numbers.complete(item):
                    self._events.append(event)
                    yield event
                self._is_completing = False
            for event in await self._numbers.rest():
                self._events.append(event)
                yield event
            self._end(task)
        finally:
            await _cancel(task)

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self._run_to_end().__await__()

    async def _run_to_end(self) -> RunResult:
        """Run without a step of the event loop for each event. Events are numbered at the end.

        A run whose events were iterated over has its result then.
        """
        if self._task is not None:
            return await self._ended_result(self._task)
        announced: list[Event] = []
        task = self._start(announced.append)
        try:
            await asyncio.wait([task])
        finally:
            await _cancel(task)
        for event in announced:
            self._events += await self._numbers.complete(event)
        self._events += await self._numbers.rest()
        self._end(task)
        return self.result

    async def _ended_result(self, task: asyncio.Task[None]) -> RunResult:
        """Return the result of a run whose events are, or were, iterated over; an abandoned run is cancelled."""
        await asyncio.wait([task])
        if self._result is None:
            self._events += await self._numbers.rest()
            self._end(task)
        return self.result

    def _end(self, task: asyncio.Task[None]) -> None:
        """Keep the result of the finished run, or raise an error: the run's own, or `TurnLimit` if a limit
        stopped the run."""
        if not task.cancelled():
            task.result()
        spent = total(self._loop.runner.calls.values())
        self._result = run_result(self._loop.log.session_id, self._events, spent)
        if self._result.status == "stopped":
            self._result.raise_for_status()


class RunEvents:
    """The events of a run. Dropping the events early, by `break` or an error, cancels the run at once.

    A generator alone would be told by the event loop, a while later, when the next input may have been sent already.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._events = run, run.iterate()

    def __aiter__(self) -> RunEvents:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Cancel the run and wait for the end."""
        await self._events.aclose()

    def __del__(self) -> None:
        self._run.leave()


def _wake(waiter: asyncio.Future[None]) -> None:
    """Wake a waiter on another event loop. Nothing happens if that loop was closed or the wait cancelled
    meanwhile."""
    with suppress(RuntimeError):
        waiter.get_loop().call_soon_threadsafe(lambda: None if waiter.done() else waiter.set_result(None))


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a running task and wait for the end."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


BOOKKEEPING = ("session:calls_started", "session:task_started")
"""Facts of a run with events of their own."""


class EventNumbers:
    """Completes the events of a run with the facts in between, for numbers without a gap.

    The loop announces what it did with the number of the journal's latest fact. The facts up to that one, those of other
    writers and of the run's bookkeeping, become events of their own before it. They are read only if the run has not
    written all of them itself with its appends.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop, self._log = loop, loop.log
        self._own: dict[int, Event] = {}
        """The events of the run's own appends, by the number of the fact."""
        loop.writer.on_append = partial(_note, self._own)
        self._last = 0
        """The number of the last fact read."""
        self._events: deque[Event] = deque()

    async def complete(self, event: Event) -> list[Event]:
        """Return the events up to and including `event`."""
        if event.journal_number is None or event.type == "session:started":
            return [event]
        await self._read(event.journal_number)
        if event.type in BOOKKEEPING:
            return self._bookkeeping()
        before: list[Event] = []
        while self._events:
            fact = self._events.popleft()
            if fact.type == event.type and (
                event.type != "session:answer" or fact.data.get("seq") == event.data["seq"]
            ):
                return [
                    *before,
                    replace(event, journal_number=fact.journal_number),
                    *self._bookkeeping(),
                ]
            before.append(fact)
        return [*before, replace(event, journal_number=None)]

    def _bookkeeping(self) -> list[Event]:
        """Take the next events without an announcement, to be told at once. Events behind an event that is
        announced later wait for it."""
        events = []
        while self._events and self._events[0].type in BOOKKEEPING:
            events.append(self._events.popleft())
        return events

    async def rest(self) -> list[Event]:
        """Return the events of facts not announced by the loop."""
        await self._read(self._loop.runner.journal_number)
        return list(self._events)

    async def _read(self, until: int) -> None:
        self._last = max(self._last, self._loop.first_number)
        if until <= self._last:
            return
        numbers = range(self._last + 1, until + 1)
        if all(number in self._own for number in numbers):
            self._events += [self._own.pop(number) for number in numbers]
        else:
            self._events += await run_blocking(self._facts, self._last, until)
        self._last = until

    def _facts(self, after: int, until: int) -> list[Event]:
        facts = self._log.store.journal(self._log.session_id, after, until - after)
        for fact in facts:
            self._own.pop(fact.number, None)
        return [fact_event(fact, self._log.appended_entries(fact)) for fact in facts]


def _note(own: dict[int, Event], appended: Committed, entries: list[Entry]) -> None:
    """Add the events of an append. Called on a thread of the log."""
    for fact in appended.facts:
        own[fact.number] = fact_event(fact, () if fact.first is None else entries)


def start_run(
    log: Log,
    content: str | Message | None,
    *,
    model: ModelLike,
    tools: Iterable[ToolLike] = (),
    limits: Limits | None = None,
    one_shot: bool = False,
    key: str | None = None,
    options: Mapping[str, Any] | None = None,
    accept_imported: bool = False,
    about: TurnStarted = TurnStarted(0),
    effects: Effects | None = None,
    previous: Run | None = None,
) -> Run:
    check_effects(effects)
    models = resolve_models(model)
    for one in models:
        check_options(one.provider, options)
    limits = check_limits(limits)
    by_name, sources = split_tools(tools)
    sources = for_one_turn(sources) if one_shot else sources
    policy = local_run(
        models,
        by_name,
        limits,
        options=options,
        sources=sources,
        effects=effects,
        accepts_imported=accept_imported,
        about=about,
    )
    return Run(build_loop(Writer(log, policy, is_one_shot=one_shot), policy), content, key, previous)


def cancel_turn(log: Log) -> Cancellation:
    """Cancel the session's open turn, in this or another process. Return what was done.

    A runner that holds the session finds the request in the journal and aborts what it does, and so does a worker that
    has the turn's task or takes it later. If there is neither, because the runner died or the turn waits for a person, the
    turn is closed here.
    """
    while True:
        row = log.refresh()
        if Hold(row, log.runtime).is_held or is_run_by_task(log, row):
            log.record(CancelRequested(log.cursor.turn))
            return "requested"
        policy = local_run([], {}, Limits())
        loop = build_loop(Writer(log, policy), policy)
        try:
            with ThreadPoolExecutor(1) as thread:  # an event loop may be running in this one
                thread.submit(asyncio.run, loop.close()).result()
            return "cancelled"
        except (SessionRunning, StaleLeaf, Fenced):
            pass  # another process took it in this moment


def resolve_models(model: ModelLike) -> list[Model]:
    """Return the chain of models, with names resolved."""
    chain = [model] if isinstance(model, str) or not isinstance(model, Sequence) else list(model)
    if not chain:
        raise InvalidOperation("a run needs a model; pass one, or a chain of them")
    return [_resolve(item) for item in chain]


def _resolve(model: Model | str) -> Model:
    if not isinstance(model, str):
        if not callable(getattr(model, "stream", None)):
            raise InvalidArgument(
                "model",
                model,
                'a name such as "anthropic:claude-…", an object with `stream`, or a list of them',
            )
        return model
    # Imported late: most programs pass one model object, and tests a scripted one.
    from oakleaf.models.names import model_by_name

    return model_by_name(model)


def collect(run: Run) -> RunResult:
    """Run to the end, for a program without an event loop."""
    if asyncio._get_running_loop() is not None:
        run.cancel()  # this error says already that nothing is sent
        raise InvalidOperation(
            "send_sync() cannot run inside a running event loop (Jupyter, async code); use "
            "`async for event in session.send(…)` or `await session.send(…)`"
        )
    return asyncio.run(run._run_to_end())
