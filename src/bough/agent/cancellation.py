"""Work that is finished although the run that does it is cancelled, once or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

GRACE_SECONDS = 5.0
"""How long a tool that was cancelled may take to clean up; one that does not want to end is not waited for."""


async def run_uncancelled(work: Coroutine[Any, Any, Any]) -> None:
    """Wait for it whatever comes: a second cancel must not find the first one half written. It is heard afterwards."""
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            is_cancelled = True
    task.result()
    if is_cancelled:
        raise asyncio.CancelledError


async def cancel_all(running: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel them, and wait until they have cleaned up: a child session among them closes its own turn."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=GRACE_SECONDS)
    for task in running:
        if task.done() and not task.cancelled():
            task.exception()  # looked at, so that nobody is told that nobody did
