"""Runs the log's blocking calls, and tools that are not async, for coroutines: on threads that all sessions of the process
share.

Not on the event loop's own threads. Those are few (six on two cores), and the loop resolves the names of servers there, so
that tools that block would hold up other sessions' model calls. Nor do the two share threads: a tool must not keep a result
from becoming durable. The log's calls never wait for one another's coroutines, so a few threads are enough for them however
many sessions live.

A crossing costs 5 µs of CPU in a crowd of 64 and 40 alone, where a thread pool's futures took 35 and 72: a call is a
queued function and a future of the event loop, and outcomes that come together wake the loop once.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

R = TypeVar("R")
Work = Callable[[], object]

MAX_THREADS = 24
"""Sessions that write at the same time share a commit of the store, so more threads than cores pay off. The event loop waits
for its turn among them: 32 write a twentieth more messages, and the longest stall is 15–25 ms instead of 13–18."""
MAX_TOOL_THREADS = 512
"""A tool mostly waits for something else. Measured: a thread that waits takes 22 kB of memory."""
MANY_ENTRIES = 500
"""Entries of a history that are not read, built into a context or written as a request but with `run_long`."""

CANNOT_START = (RuntimeError, MemoryError)
"""What starting a thread raises if the system allows no more: a container limits them, or memory does."""
LONG_TURN_SECONDS = 0.001
"""How long such a call may keep the interpreter from other threads; Python's own 5 ms made an event loop stall for 25 to 80."""


class _Threads:
    """The threads, started as they are needed and anew in a forked process, which does not inherit any."""

    _threads: list[Thread]
    _queue: SimpleQueue[Work | None]
    _lock: Lock

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self.lanes: WeakSet[_Lane] = WeakSet()
        self._forget_threads()

    def submit(self, work: Work) -> None:
        with self._lock:
            self._unfinished += 1
            queue = self._queue
            thread = None if self._threads else self._new_thread()
        if thread is not None:
            try:
                self._start(thread)
            except CANNOT_START:
                with self._lock:
                    self._unfinished -= 1
                raise
        queue.put(work)

    def _new_thread(self) -> Thread:
        # Daemons: the interpreter waits for other threads before `finish` tells these to end.
        thread = Thread(target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        return thread

    def _start(self, thread: Thread) -> None:
        try:
            thread.start()
        except CANNOT_START:
            with self._lock:
                if thread in self._threads:
                    self._threads.remove(thread)
            raise

    def _start_spare(self) -> None:
        """Start another thread if none is idle. A thread does it that has taken a call: who starts one waits until it
        runs, which took an event loop up to half a second when many sessions began."""
        if len(self._threads) >= self._most:
            return
        with self._lock:
            is_needed = len(self._threads) <= self._unfinished and len(self._threads) < self._most
            thread = self._new_thread() if is_needed and not self._is_ending else None
        if thread is not None:
            with suppress(*CANNOT_START):  # then calls wait for the threads there are
                self._start(thread)

    def _run(self) -> None:
        queue, lock = self._queue, self._lock
        while (work := queue.get()) is not None:
            self._start_spare()
            work()
            del work  # else it keeps its arguments until the next call
            with lock:
                self._unfinished -= 1

    def finish(self) -> None:
        """Before the interpreter ends: run what was submitted.

        What a daemon thread submits from now on goes to a queue and threads of its own, and is not waited for: a thread
        that took the end of another would leave that one, and the program, waiting for ever.
        """
        with self._lock:
            threads, self._threads = self._threads, []
            queue, self._queue = self._queue, SimpleQueue()
            self._is_ending = True
        for _ in threads:
            queue.put(None)
        for thread in threads:
            if thread.is_alive():
                thread.join()

    def forget(self) -> None:
        self._forget_threads()
        for lane in list(self.lanes):
            lane.forget()

    def _forget_threads(self) -> None:
        self._queue = SimpleQueue()
        self._lock = Lock()
        self._threads = []
        self._is_ending = False
        self._unfinished = 0
        """Calls that are queued or running."""
        self._outcomes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Outcomes] = WeakKeyDictionary()

    def outcomes(self, loop: asyncio.AbstractEventLoop) -> _Outcomes:
        outcomes = self._outcomes.get(loop)
        if outcomes is None:
            outcomes = self._outcomes[loop] = _Outcomes()
        return outcomes


class _Outcomes:
    """What calls returned or raised, on the way to one event loop, which is woken once for all that wait."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_waking = False

    def add(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        """Called on any thread. It is added before the flag is read, and delivered after the flag is cleared."""
        self._waiting.append((future, result, error))
        if not self._is_waking:
            self._is_waking = True
            try:
                future.get_loop().call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop was closed meanwhile: nothing waits for the outcome
                self._waiting.clear()

    def _deliver(self) -> None:
        self._is_waking = False
        while self._waiting:
            future, result, error = self._waiting.popleft()
            if future.done():  # cancelled
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


_threads = _Threads("oakleaf-log", MAX_THREADS)
_tool_threads = _Threads("oakleaf-tool", MAX_TOOL_THREADS)
_daemon_tool_threads = _Threads("oakleaf-daemon-tool", MAX_TOOL_THREADS)
"""For tools of runs on daemon threads. No interpreter waits for a daemon thread, so none waits for its tools."""
for _each in (_threads, _tool_threads):
    atexit.register(_each.finish)
for _each in (_threads, _tool_threads, _daemon_tool_threads):
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_each.forget)


class _Lane:
    """Runs calls one after the other, in the order in which they were made."""

    def __init__(self) -> None:
        self.forget()
        _threads.lanes.add(self)

    def forget(self) -> None:
        """Forget calls under way: after a fork their thread is in the other process."""
        self._waiting: deque[Work] = deque()
        self._is_draining = False
        self._lock = Lock()

    def submit(self, work: Work) -> None:
        with self._lock:
            self._waiting.append(work)
            if self._is_draining:
                return
            self._is_draining = True
        try:
            _threads.submit(self._drain)
        except CANNOT_START:
            with self._lock:
                self._waiting.remove(work)
                self._is_draining = False
            raise

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_draining = False
                    return
                work = self._waiting.popleft()
            work()


_long = _Lane()


class _Uncancelled(asyncio.Future[R]):
    """Cannot be cancelled: the task that awaits it gets its cancellation when the outcome is known."""

    def cancel(self, msg: object = None) -> bool:
        return False


async def run_blocking(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run the function on a thread. A cancellation is raised at once; the function runs to its end."""
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    _threads.submit(_work(future, function, args, kwargs))
    return await future


async def run_tool(function: Callable[..., R], *args: Any) -> R:
    """Run a tool's function on a thread, with the context variables of the caller. A cancellation is raised at once; the
    function runs to its end, or never if it waited for a thread."""
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    work = _work(future, copy_context().run, (function, *args), {})
    threads = _daemon_tool_threads if current_thread().daemon else _tool_threads
    threads.submit(lambda: None if future.cancelled() else work())
    return await future


async def run_to_end(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run the function on a thread. A cancellation meanwhile, or several, is raised when the function has ended."""
    future: _Uncancelled[R] = _Uncancelled(loop=asyncio.get_running_loop())
    _threads.submit(_work(future, function, args, kwargs))
    return await _outcome(future)


async def run_long(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run what takes long, such as reading a long history, one after the other with all others that do, to its end.

    Threads that compute at the same time have the interpreter in turns of 5 ms, and an event loop that wants it back waits
    for a turn of each. It waits for one instead, and short calls pass.
    """
    future: _Uncancelled[R] = _Uncancelled(loop=asyncio.get_running_loop())
    _long.submit(_work(future, _run_beside, (function, args, kwargs), {}))
    return await _outcome(future)


async def run_by_size(entries: int, function: Callable[..., R], *args: Any) -> R:
    """Run the function, which reads so many entries, on a thread: as a long call if they are many."""
    run = run_long if entries > MANY_ENTRIES else run_blocking
    return await run(function, *args)


def _run_beside(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    """Call the function so that the event loop's thread waits for it as little as can be."""
    _interpreter.yield_often()
    try:
        return function(*args, **kwargs)
    finally:
        _interpreter.restore()


class _Interpreter:
    """How the interpreter runs during a long call.

    It changes hands after `LONG_TURN_SECONDS`. There are no garbage collections: no thread runs during one, and those that
    the values of a long history set off look at all objects of the process. What they would free is freed by the next one.
    Both hold for all threads; calls that do this run one after the other.
    """

    _usual: tuple[float, bool] | None = None

    def yield_often(self) -> None:
        turn = sys.getswitchinterval()
        self._usual = turn, gc.isenabled()
        sys.setswitchinterval(min(turn, LONG_TURN_SECONDS))
        gc.disable()

    def restore(self) -> None:
        """Run as before; also in a process that was forked during a long call, which does not end there."""
        if self._usual is None:
            return
        (turn, is_collecting), self._usual = self._usual, None
        sys.setswitchinterval(turn)
        if is_collecting:
            _make_old()
            gc.enable()


_interpreter = _Interpreter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_interpreter.restore)


FREED_AT_ONCE = 100


def free_in_pieces(values: list[Any]) -> None:
    """Empty a long list, which has the last references to what it contains, on a thread and a few values at a time.

    No thread runs while values are freed: 10,000 entries take 15 ms, and sessions that run together end together.
    """
    if len(values) > MANY_ENTRIES:
        _long.submit(partial(_empty, values))


def _empty(values: list[Any]) -> None:
    while values:
        del values[-FREED_AT_ONCE:]
        # Lets a thread that waits for the interpreter have it now, not after its switch interval.
        time.sleep(0)


def _make_old() -> None:
    """Let the next collections of young objects pass over what was made: thousands of values, none of them in a cycle.

    Freezing and unfreezing moves all objects to the oldest generation without looking at them. A program that has frozen
    objects of its own keeps them frozen.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


async def _outcome(future: _Uncancelled[R]) -> R:
    try:
        return await future
    except asyncio.CancelledError as cancelled:
        raised = future.exception()
        raise cancelled from None if raised is cancelled else raised


def _work(
    future: asyncio.Future[R], function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Work:
    outcomes = _threads.outcomes(future.get_loop())
    return partial(_settle, outcomes, future, function, args, kwargs)


def _settle(
    outcomes: _Outcomes,
    future: asyncio.Future[R],
    function: Callable[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Call the function; its result, or what it raised, is the outcome."""
    try:
        result = function(*args, **kwargs)
    except StopIteration as error:  # no future can raise it
        stopped = RuntimeError("the function raised StopIteration")
        stopped.__cause__ = error
        outcomes.add(future, None, stopped)
    except BaseException as error:  # noqa: BLE001 - raised again where the outcome is awaited
        outcomes.add(future, None, error)
    else:
        outcomes.add(future, result, None)


class AsyncBridge:
    """With `in_order`, calls run one after the other in the order in which they were made."""

    def __init__(self, *, in_order: bool = False) -> None:
        self._lane = _Lane() if in_order else None

    async def run(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run the function to its end. A cancellation meanwhile is raised when the outcome is known."""
        if self._lane is None:
            return await run_to_end(function, *args, **kwargs)
        future: _Uncancelled[R] = _Uncancelled(loop=asyncio.get_running_loop())
        self._lane.submit(_work(future, function, args, kwargs))
        return await _outcome(future)
