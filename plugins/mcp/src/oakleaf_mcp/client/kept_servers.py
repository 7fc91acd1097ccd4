"""Connections to MCP servers that outlive a turn: a thread with an event loop of its own holds them.

A program may run each turn in another event loop, as `send_sync` does, and a connection must be used by the loop that
opened it. So all connections belong to one thread of the process, and runs reach it from whichever loop they are in.

A command that a turn has used is kept for the next turn of the same session, and of no other: it may remember what it was
told. It ends after its idle time, when too many wait, and with the process, however that ends. Does not know MCP.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

MAX_KEPT = 16
"""Connections that wait for their next turn; the one that waited longest ends first."""
CLOSE_SECONDS = 10.0
"""How long the process waits for its servers when it ends. What is left then is killed by its supervisor."""

log = logging.getLogger("oakleaf.mcp")


class Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class KeptServers:
    """The thread of the connections, and the connections kept for the next turn."""

    def __init__(self) -> None:
        self._abandoned: list[object] = []
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._waiting: dict[Closable, tuple[object, asyncio.TimerHandle]] = {}
        """By connection, oldest first: its key, and what ends it when its time is over."""
        self._ending: set[asyncio.Task[None]] = set()

    def forget(self) -> None:
        """In a forked process: drop the parent's connections. The loop is not closed, which would close the
        parent's.
        """
        if self._loop is not None:
            self._abandoned.append((self._loop, self._thread, self._waiting, self._ending))
        self._forget()

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the thread. If the caller is cancelled, so is the work; it may still be ending on return."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._start()))

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="oakleaf-mcp", daemon=True)
                self._thread.start()
            return self._loop

    # -- on the thread -----------------------------------------------------------------------------

    def take(self, key: object, kind: type[C]) -> C | None:
        """Return the connection kept under the key, if any."""
        for connection, (own_key, timer) in list(self._waiting.items()):
            if own_key == key and isinstance(connection, kind):
                timer.cancel()
                del self._waiting[connection]
                return connection
        return None

    def keep(self, key: object, connection: Closable, seconds: float) -> None:
        """Keep a connection for the given seconds, for the next run."""
        timer = asyncio.get_running_loop().call_later(seconds, self._end, connection)
        self._waiting[connection] = key, timer
        while len(self._waiting) > MAX_KEPT:
            self._end(next(iter(self._waiting)))

    def _end(self, connection: Closable) -> None:
        _, timer = self._waiting.pop(connection)
        timer.cancel()
        task = asyncio.ensure_future(connection.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # -- at the end of the process -----------------------------------------------------------------

    def close(self) -> None:
        """End all kept connections, and the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        # After Ctrl-C too: what is not ended here is killed once the process is gone.
        with suppress(TimeoutError, KeyboardInterrupt):
            asyncio.run_coroutine_threadsafe(self._close(), loop).result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(1)
        if not thread.is_alive():
            loop.close()
        self._forget()

    async def _close(self) -> None:
        for connection in list(self._waiting):
            self._end(connection)
        if self._ending:
            await asyncio.wait(self._ending)


kept_servers = KeptServers()
atexit.register(kept_servers.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=kept_servers.forget)
