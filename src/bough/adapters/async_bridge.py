"""The way of a framework's coroutines to the log, which is not asynchronous: threads of its own, and a known outcome.

Not the framework's threads: tools that block must not keep a result from becoming durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

R = TypeVar("R")


class Crossing:
    """`threads=1` does one piece of work after the other, in the order it was asked for."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="bough-adapter")

    async def __call__(self, work: Callable[..., R], *given: Any) -> R:
        """Whoever is cancelled meanwhile hears of it when the outcome is known."""
        done = asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given))
        cancelled: asyncio.CancelledError | None = None
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from done.exception()
        return done.result()
