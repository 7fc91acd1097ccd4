"""The socket to listen on, and a uvicorn server that ends on a signal."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn


class SignalledServer(uvicorn.Server):
    """Ends on SIGINT and SIGTERM without raising the signals again: stopping a server is no failure."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None = None) -> None:
        """`ready` is called once, when requests are accepted."""
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket. Port 0 picks a free port; a port in use raises OSError before anything starts."""
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # With its protocol, or asyncio leaves Nagle on: 40 ms per response.
    listener = socket.socket(*address[:3])
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address[4])
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
