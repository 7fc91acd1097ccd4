"""A real server on a loopback port in a thread, a client for it, and a model controlled by the test.

Everything is closed at the end of the `with` block."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import socket
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import httpx

from oakleaf import assistant
from oakleaf.core.usage import Usage
from oakleaf.models.base import Delta, Request
from oakleaf.store import Store
from oakleaf.wire import Answer
from oakleaf_server import app
from oakleaf_server.auth import AccessSettings
from oakleaf_server.context import ServerAgent, ServerContext
from oakleaf_server.metrics import Metrics
from oakleaf_server.uvicorn_server import open_listener
from support.processes import wait_until

CHANGE_HEADERS = {"x-oakleaf": "1", "content-type": "application/json"}
NO_CERTIFICATES = False
"""Reading the certificates of the system takes a client longer than most tests of a plain address."""

_stopped_servers: defaultdict[int, list[app.Server]] = defaultdict(list)
"""By the largest body they accept, which their routes know."""


def _create_server(context: ServerContext) -> app.Server:
    """Create a server with the routes of one that has stopped, if there is one: building them takes most of a test."""
    if not _stopped_servers[context.access.max_body_bytes]:
        return app.create_server(context)
    stopped = _stopped_servers[context.access.max_body_bytes].pop()
    routes, config = stopped._app, stopped.config
    routes.state = app._state(context, routes.state.viewer)
    config.app, config.loaded = app._with_middleware(routes, context), False
    return app.Server(config, routes, context)


class LocalServer:
    def __init__(
        self,
        sessions: Store,
        agent: ServerAgent = ServerAgent(),
        metrics: Metrics | None = None,
        **access: Any,
    ) -> None:
        self.sessions = sessions
        self.context = ServerContext(sessions, AccessSettings(**access), agent, metrics)
        self._listener = open_listener("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = _create_server(self.context)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))
        self.client = httpx.Client(base_url=self.url, timeout=30, verify=NO_CERTIFICATES)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop within 20 s"
        self._listener.close()
        _stopped_servers[self.context.access.max_body_bytes].append(self._server)

    # -- requests ----------------------------------------------------------------------------------

    def get(self, path: str, status: int = 200, token: str | None = None, **query: Any) -> Any:
        reply = self.client.get(path, params=query or None, headers=bearer(token))
        assert reply.status_code == status, reply.text
        assert len(reply.content) <= 1_000_000, (path, len(reply.content))
        return reply.json()

    def change(
        self, method: str, path: str, body: Any = None, status: int = 200, token: str | None = None
    ) -> Any:
        headers = {**CHANGE_HEADERS, **bearer(token)}
        content = json.dumps({} if body is None else body)
        reply = self.client.request(method, path, content=content, headers=headers)
        assert reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    def post(self, path: str, body: Any = None, status: int = 200, token: str | None = None) -> Any:
        return self.change("POST", path, body, status, token)

    def watch(self, path: str, after: int | None = None, token: str | None = None) -> Stream:
        return Stream(self.url, path, after, token)


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


class Stream:
    """Server-sent events, read in a thread."""

    def __init__(self, url: str, path: str, after: int | None = None, token: str | None = None) -> None:
        self.events: list[tuple[str, int | None, Any]] = []
        self.comments = 0
        self._client = httpx.Client(base_url=url, timeout=30, verify=NO_CERTIFICATES)
        headers = bearer(token) | ({} if after is None else {"last-event-id": str(after)})
        self._reply = self._client.send(self._client.build_request("GET", path, headers=headers), stream=True)
        assert self._reply.status_code == 200, self._reply.read()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        name, number = "", None
        try:
            for line in self._reply.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    number = int(value)
                elif field == "data":
                    self.events.append((name, number, json.loads(value)))
                    name, number = "", None
                elif line.startswith(":"):
                    self.comments += 1
        except (httpx.HTTPError, httpx.StreamError, ValueError, OSError):
            return  # closed on purpose, by either side

    def facts(self) -> list[int]:
        return [fact["number"] for fact in self.data_of("fact")]

    def data_of(self, kind: str) -> list[Any]:
        """The data of the events of a type; `fact` stands for all that have a number."""
        events = list(self.events)
        if kind == "fact":
            return [data for name, number, data in events if number is not None and name != "session:resync"]
        return [data for name, _, data in events if name.removeprefix("session:") == kind]

    def wait(self, condition: Callable[[], object]) -> None:
        wait_until(condition)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the server may have ended it
            self._reply.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._reply.close()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ManualModel:
    """A model whose deltas and end the test sends."""

    provider, model = "scripted", "prompter"

    def __init__(self) -> None:
        self.deltas: queue.Queue[str | None] = queue.Queue()

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        text = ""
        while True:
            try:
                delta = self.deltas.get_nowait()
            except queue.Empty:
                await asyncio.sleep(0.01)
                continue
            if delta is None:
                break
            text += delta
            yield Delta(delta)
        yield Answer(assistant(text), Usage(10, 5, 0, 0), None, self.provider, self.model, "stop")

    def send(self, *deltas: str) -> None:
        for delta in deltas:
            self.deltas.put(delta)

    def finish(self) -> None:
        self.deltas.put(None)
