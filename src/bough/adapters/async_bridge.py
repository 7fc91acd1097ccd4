"""Runs the log's blocking calls for a framework's coroutines, on threads that belong to the adapter.

Not on the framework's own threads: a tool that blocks them must not keep a result from becoming durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

R = TypeVar("R")


class AsyncBridge:
    """With `threads=1`, calls run one after the other in the order in which they were made."""

    def __init__(self, threads: int | None = 1) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="bough-adapter")

    async def run(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run the function to its end. A cancellation meanwhile is raised when the outcome is known."""
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, partial(function, *args, **kwargs)
        )
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from future.exception()
        return future.result()
