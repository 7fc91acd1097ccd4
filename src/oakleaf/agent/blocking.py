"""Call an async verb from a script, and a blocking verb from asyncio. A verb is written once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

BATCH_SECONDS = 0.02
"""The time of one read of items: a crossing between threads for each item would cost more than the item."""


def blocking(verb: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Return a function for scripts. The function runs the async `verb` to the end and returns the result."""

    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        import asyncio  # imported late: importing it takes longer than opening a store

        return asyncio.run(verb(*args, **kwargs))

    call.__name__, call.__qualname__ = f"{verb.__name__}_sync", f"{verb.__qualname__}_sync"
    call.__doc__ = f"`{verb.__name__}` for scripts."
    return call


class Awaited(Generic[S]):
    """The base of a class with verbs of `S` to be awaited."""

    def __init__(self, blocking: S) -> None:
        self._blocking = blocking

    def _reads_much(self) -> bool:
        """Whether a verb that reads everything reads long enough for the single long-call thread."""
        return False

    async def _call(
        self, verb: Callable[Concatenate[S, P], R], reads_all: bool, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        from oakleaf.log.threads import run_long, run_to_end

        run = run_long if reads_all and self._reads_much() else run_to_end
        return await run(verb, self._blocking, *args, **kwargs)


def awaited(
    verb: Callable[Concatenate[S, P], R], *, reads_all: bool = False
) -> Callable[Concatenate[Awaited[S], P], Coroutine[Any, Any, R]]:
    """Return a coroutine function that runs a blocking verb to the end on a thread.

    A cancellation is raised when the verb has ended. `reads_all` is for a verb that reads a whole history.
    """

    @wraps(verb)
    async def call(self: Awaited[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(verb, reads_all, *args, **kwargs)

    return call


def streamed(
    verb: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[Awaited[S], P], AsyncGenerator[R]]:
    """Return an asynchronous generator function that reads the items of a blocking verb on a thread."""

    @wraps(verb)
    async def call(self: Awaited[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R]:
        from oakleaf.log.threads import run_to_end

        items = await self._call(verb, False, *args, **kwargs)
        while batch := await run_to_end(_next_batch, items):
            for item in batch:
                yield item

    return call


def _next_batch(items: Iterator[R]) -> list[R]:
    """Return the next items, at least one unless there are no more."""
    batch, until = [], time.monotonic() + BATCH_SECONDS
    for item in items:
        batch.append(item)
        if time.monotonic() > until:
            break
    return batch
