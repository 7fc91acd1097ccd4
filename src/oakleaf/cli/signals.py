"""Handling signals while an event loop runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Callbacks = dict[signal.Signals, Callable[[], None]]


@contextmanager
def signal_handlers(loop: asyncio.AbstractEventLoop, callbacks: Callbacks) -> Iterator[None]:
    """Call the handlers in the event loop on the signals, until the block ends."""
    before = {number: signal.getsignal(number) for number in callbacks}
    try:
        for number, callback in callbacks.items():
            _handle(loop, number, callback)
        yield
    finally:
        for number, handler in before.items():
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _handle(loop: asyncio.AbstractEventLoop, number: signal.Signals, callback: Callable[[], None]) -> None:
    try:
        loop.add_signal_handler(number, callback)
    except NotImplementedError:
        # Windows: the handler runs between two steps of the loop, which has to be woken.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback) and None)
