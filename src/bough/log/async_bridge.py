"""Runs the log's blocking calls for coroutines, on threads that all sessions of the process share.

Not on the event loop's own threads: a tool that blocks them must not keep a result from becoming durable. Only the log's
calls run here, and they never wait for one another's coroutines, so a few threads are enough however many sessions live.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

R = TypeVar("R")

MAX_THREADS = 32
"""Sessions that write at the same time share a commit of the store, so more threads than cores pay off."""


class _Threads:
    """The pool, made on first use and anew in a forked process, which does not inherit threads."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()
        self.bridges: WeakSet[AsyncBridge] = WeakSet()

    def pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="bough-log")
            return self._pool

    def submit(self, function: Callable[[], None]) -> None:
        self.pool().submit(function)

    def forget(self) -> None:
        self._pool, self._lock = None, Lock()
        for bridge in list(self.bridges):
            bridge.forget()


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.forget)


async def run_blocking(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run the function on a thread. A cancellation is raised at once; the function runs to its end."""
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads.pool(), call)


class AsyncBridge:
    """With `in_order`, calls run one after the other in the order in which they were made."""

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order
        self.forget()
        _threads.bridges.add(self)

    def forget(self) -> None:
        """Forget calls under way: after a fork their thread is in the other process."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_draining = False
        self._lock = Lock()

    async def run(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run the function to its end. A cancellation meanwhile is raised when the outcome is known."""
        outcome: Future[R] = Future()
        self._submit(partial(_settle, outcome, partial(function, *args, **kwargs)))
        future = asyncio.wrap_future(outcome)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from future.exception()
        return future.result()

    def _submit(self, call: Callable[[], None]) -> None:
        if not self._in_order:
            _threads.submit(call)
            return
        with self._lock:
            self._waiting.append(call)
            if self._is_draining:
                return
            self._is_draining = True
        _threads.submit(self._drain)

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_draining = False
                    return
                call = self._waiting.popleft()
            call()


def _settle(outcome: Future[R], call: Callable[[], R]) -> None:
    """Run the call; its result, or what it raised, is the outcome."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised again where the outcome is awaited
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
