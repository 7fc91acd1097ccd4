"""Runs that a limit or a cancel stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oakleaf import RunResult
from oakleaf.errors import TurnLimit


def stopped(send: Callable[..., RunResult], *args: Any, **options: Any) -> RunResult:
    """Send, expect `TurnLimit`, and return the result that it carries."""
    with pytest.raises(TurnLimit) as caught:
        send(*args, **options)
    assert caught.value.result is not None
    return caught.value.result


def run_and_cancel(run: Any, at: str, *after: float) -> list[Any]:
    """Drive a run; from its first event of that type on, cancel it after so many seconds, as often as asked."""

    async def main() -> list[Any]:
        events = []
        async for event in run:
            if event.type == at and at not in [earlier.type for earlier in events]:
                for seconds in after:
                    asyncio.get_running_loop().call_later(seconds, run.cancel)
            events.append(event)
        return events

    return asyncio.run(main())
