"""The lease: the right to drive a session. Thrift, not safety: the fence and the compare-and-swap are that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..log.log import LEASE_MICROSECONDS, Log


def take(log: Log, holder: str) -> int:
    """The fence of a lease taken now. A holder known to be dead has lost it at once, whatever its lease says."""
    row = log.store.session(log.session_id)
    now = log.runtime.now()
    is_dead = row.holder is not None and log.runtime.is_gone(row.holder.partition("#")[0])
    at = max(now, row.lease_until or 0) if is_dead else now
    return log.store.lease(log.session_id, holder, now + LEASE_MICROSECONDS, at)


async def keep(log: Log, holder: str, run_blocking: Callable[..., Awaitable[Any]]) -> None:
    """Renew it every third of its time, until cancelled; across threads that no tool keeps busy."""
    while True:
        await asyncio.sleep(LEASE_MICROSECONDS / 3_000_000)
        now = log.runtime.now()
        until = now + LEASE_MICROSECONDS
        await run_blocking(log.store.lease, log.session_id, holder, until, now)
