"""A proxy between a store and its PostgreSQL server: a transaction pooler that can also lose requests and answers.

Knows only the frames of the protocol: a request ends with Query or Sync, an answer with ReadyForQuery. Each client
has several server connections and gets the next one after every transaction, so no session state survives.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

SOCKET = ".s.PGSQL.5432"


class ConnectionCut(Exception):
    """The proxy closes the connection."""


class PostgresProxy:
    def __init__(self, folder: Path, upstreams: int = 1) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="oakleaf-wire-", dir="/tmp"))
        self._to, self._upstreams = folder / SOCKET, upstreams
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / SOCKET))
        self._listener.listen(64)
        self._armed: tuple[bytes, bool] | None = None
        self.loss_count = self.request_count = 0
        self.on_loss: Callable[[], object] = lambda: None
        self.is_silent = False
        """Whether it swallows every request, and keeps the connections."""
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, database: str, user: str, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@/{database}?host={quote(str(self.folder), safe='')}{more}"

    def lose_answer(self, marker: bytes) -> None:
        """Drop the answer to the next request that contains the marker, after the server has executed it."""
        self._armed = (marker, True)

    def lose_request(self, marker: bytes) -> None:
        """Drop the next request that contains the marker before it reaches the server."""
        self._armed = (marker, False)

    def close(self) -> None:
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        servers: list[socket.socket] = []
        with contextlib.suppress(OSError, ConnectionCut, struct.error), contextlib.closing(client):
            try:
                self._greet(client, servers)
                while True:
                    request = _until(client, b"QSX")
                    self.request_count += 1
                    if self.is_silent:
                        continue
                    is_lost, has_answer = self._is_lost(request)
                    if is_lost and not has_answer:
                        raise ConnectionCut
                    servers[0].sendall(request)
                    answer = _until(servers[0], b"Z")
                    if is_lost:
                        self.on_loss()
                        raise ConnectionCut
                    client.sendall(answer)
                    if answer[-1:] == b"I":
                        servers.append(servers.pop(0))
            finally:
                for server in servers:
                    server.close()

    def _greet(self, client: socket.socket, servers: list[socket.socket]) -> None:
        while True:
            size = _exactly(client, 4)
            startup = size + _exactly(client, struct.unpack("!i", size)[0] - 4)
            if struct.unpack("!i", startup[4:8])[0] in (
                80877103,
                80877104,
            ):  # requests for TLS and GSS, which the proxy refuses
                client.sendall(b"N")
                continue
            break
        for _ in range(self._upstreams):
            server = socket.socket(socket.AF_UNIX)
            servers.append(server)
            server.connect(str(self._to))
            server.sendall(startup)
            greeting = _until(server, b"ZE")
        client.sendall(greeting)

    def _is_lost(self, request: bytes) -> tuple[bool, bool]:
        if self._armed is None or self._armed[0] not in request:
            return False, False
        _, has_answer = self._armed
        self._armed = None
        self.loss_count += 1
        return True, has_answer


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = source.recv(count - len(data))
        if not piece:
            raise ConnectionCut
        data += piece
    return data


def _until(source: socket.socket, kinds: bytes) -> bytes:
    """Read complete frames up to the first one of these kinds."""
    data = b""
    for frame in _frames(source):
        data += frame
        if frame[:1] in kinds:
            return data
    raise ConnectionCut


def _frames(source: socket.socket) -> Iterator[bytes]:
    while True:
        head = _exactly(source, 5)
        yield head + _exactly(source, struct.unpack("!i", head[1:])[0] - 4)
