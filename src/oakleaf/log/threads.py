"""Run blocking calls of the log and synchronous tools on threads shared by all sessions of the process.

Not on the event loop's own threads: there are few (six on two cores), and the loop resolves the names of
servers there, so blocking tools would hold up other sessions' model calls. Calls of the log and tools do not
share threads: a tool must not keep a result from becoming durable. The log's calls never wait for one
another's coroutines, so a few threads are enough for any number of sessions.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any, TypeVar

R = TypeVar("R")

MAX_THREADS = 24
"""The number of threads. Sessions with simultaneous writes share a commit of the store, so more threads
than cores pay off."""
MANY_ENTRIES = 500
"""A longer history is read, built into a context or written as a request with `run_long` alone."""
FREED_AT_ONCE = 100


class _Pool(ThreadPoolExecutor):
    """A pool with a fallback: without a free system thread, calls wait for the running threads."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except (RuntimeError, MemoryError):
            if not self._threads:
                self._work_queue.get_nowait()  # the caller gets an error, so no later thread may make the call
                raise


_short: _Pool
_long: _Pool


def _open_pools() -> None:
    """Open the pools, also in a forked process: threads are not inherited."""
    global _short, _long
    _short = _Pool(MAX_THREADS, "oakleaf-log")
    _long = _Pool(1, "oakleaf-log-long")


_open_pools()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_pools)


async def run_blocking(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run the function on a thread and raise a cancellation at once.

    The function runs to the end, or never if no thread has taken the call.
    """
    call = partial(_call, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_short, call)


async def run_to_end(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run the function on a thread. A cancellation meanwhile, or several, is raised when the function has ended."""
    return await _run_to_end(_short, function, *args, **kwargs)


async def run_long(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run a long call, such as the read of a long history, to the end on the single long-call thread.

    Computing threads have the interpreter in turns of 5 ms each, and an event loop waits for a turn of each
    thread. With a single long-call thread the loop waits for one turn, and short calls pass.
    """
    return await _run_to_end(_long, function, *args, **kwargs)


async def run_by_size(entries: int, function: Callable[..., R], *args: Any) -> R:
    """Run the function on a thread: on the long-call thread if the function reads many entries."""
    run = run_long if entries > MANY_ENTRIES else run_blocking
    return await run(function, *args)


async def run_tool(function: Callable[..., R], *args: Any) -> R:
    """Run a tool's function on a thread of its own, with the context variables of the caller.

    A cancellation is raised at once; the function runs to the end. No thread of a pool: the interpreter waits
    at its end for the threads of pools, even under a daemon thread, and Python 3.11 ends a process forked on
    a pool's thread with an error.
    """
    outcome: Future[R] = Future()
    work = partial(copy_context().run, _call, function, *args)
    thread = Thread(
        target=_settle, args=(outcome, work), name="oakleaf-tool"
    )  # a daemon where the caller is one
    # A starter waits until the thread runs. On the event loop, 64 sessions at once delayed each other: p99 60-80 ms, now 13-22.
    await run_blocking(thread.start)
    return await asyncio.wrap_future(outcome)


def free_in_pieces(values: list[Any]) -> None:
    """Empty a long list on a thread, a few values at a time. The list has the last references to the values.

    No thread runs while values are freed: 10,000 entries take 15 ms, and sessions that run together end
    together.
    """
    if len(values) > MANY_ENTRIES:
        with suppress(RuntimeError):  # no more threads, or the interpreter ends: the caller frees them
            _long.submit(_empty, values)


def _empty(values: list[Any]) -> None:
    while values:
        del values[-FREED_AT_ONCE:]
        # Lets a thread that waits for the interpreter have it now, not after its switch interval.
        time.sleep(0)


async def _run_to_end(pool: _Pool, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    call = partial(_call, function, *args, **kwargs)
    future = asyncio.get_running_loop().run_in_executor(pool, call)
    cancelled = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()


def _call(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:  # no future can raise it
        raise RuntimeError("the function raised StopIteration") from error


def _settle(outcome: Future[R], work: Callable[[], R]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again where the outcome is awaited
        outcome.set_exception(error)
