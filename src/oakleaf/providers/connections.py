"""The HTTP connections of one event loop to vendors, which its model calls share.

Knows the HTTP library that the SDKs have in common, and nothing of what is sent by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextvars import Context, ContextVar
from functools import lru_cache
from typing import Any

from msgspec import Struct

TIMEOUT_SECONDS = 600.0
"""How long a vendor may send nothing."""
KEPT_SECONDS = 30.0
"""How long a connection that no call uses is kept. One that its server has closed before is replaced."""
ROUND_TRIP_SECONDS = 1.0
"""How long after a request a kept connection may end for it to have been closed before the server saw the request. Later,
the server may have died over the request, which is told and counted as a failed call."""


_KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")
_PLAIN_HEADERS = (
    "host",
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "transfer-encoding",
    "user-agent",
    "anthropic-version",
)


class VendorConnection(Struct, frozen=True):
    """A call's access to a vendor: the SDK, the HTTP library, the key and the URL."""

    sdk: Any
    http: Any
    key: str
    base_url: str | None
    takes_environment: bool = True
    """Whether the SDK may add headers of the environment, such as ANTHROPIC_CUSTOM_HEADERS or OPENAI_ORG_ID."""

    def __repr__(self) -> str:
        return f"VendorConnection({self.sdk.__name__})"  # without the key

    @property
    def tls(self) -> Any:
        return _tls_context(self.http)


class HttpClient:
    """An HTTP client with at most `MAX_CONNECTIONS` connections, kept for the next calls.

    A connection to a vendor takes two or three round trips. A client looks at all of its connections before each request:
    that took 32 sessions with one client a sixth of their time.
    """

    MAX_CONNECTIONS = 8

    def __init__(self, connection: VendorConnection) -> None:
        client_class = getattr(connection.sdk, "DefaultAsyncHttpxClient", connection.http.AsyncClient)
        self.client = _resending(client_class)(
            verify=connection.tls,
            timeout=TIMEOUT_SECONDS,
            limits=connection.http.Limits(keepalive_expiry=KEPT_SECONDS),
        )
        self.calls = 0
        """How many calls use it now."""
        self._idle_since = 0.0

    def add_call(self) -> None:
        self.calls += 1

    def remove_call(self) -> None:
        self.calls -= 1
        self._idle_since = asyncio.get_running_loop().time()

    def is_idle_since(self, time: float) -> bool:
        return not self.calls and self._idle_since <= time


class LoopClients:
    """The HTTP clients of an event loop, by vendor, server and key.

    One that no call has used for `KEPT_SECONDS` is closed: calls have many keys, or come in crowds. When the loop ends, all
    are.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clients: dict[object, list[HttpClient]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._end = self._close_at_end()

    @classmethod
    async def open(cls) -> LoopClients:
        """Return the clients of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in _loop_clients:
            for other in list(_loop_clients):
                if other.is_closed():  # it was not asked to close its generators
                    _loop_clients.pop(other, None)
            _loop_clients[loop] = clients = cls()
            await anext(clients._end)
        return _loop_clients[loop]

    async def _close_at_end(self) -> AsyncGenerator[None, None]:
        """Close the clients at the loop's end: an ending event loop closes unfinished generators."""
        try:
            yield
        finally:
            _loop_clients.pop(self._loop, None)
            if self._timer is not None:
                self._timer.cancel()
            await _close([client for clients in self._clients.values() for client in clients])

    def find(self, connection: VendorConnection) -> HttpClient:
        """Return the first free client for a call; consecutive calls share a connection."""
        for client in self._clients.get(_owner(connection), ()):
            if client.calls < client.MAX_CONNECTIONS:
                return client
        return self.add(connection)

    def add(self, connection: VendorConnection) -> HttpClient:
        """Add a client without connections, preferred by later calls."""
        if self._timer is None:
            self._start_timer()
        client = HttpClient(connection)
        self._clients.setdefault(_owner(connection), []).insert(0, client)
        return client

    def _start_timer(self) -> None:
        # In a context of its own: the caller's would keep what the call sends.
        self._timer = self._loop.call_later(KEPT_SECONDS, self._close_idle, context=Context())

    def _close_idle(self) -> None:
        before, idle = self._loop.time() - KEPT_SECONDS, list[HttpClient]()
        for owner, clients in list(self._clients.items()):
            idle += [client for client in clients if client.is_idle_since(before)]
            self._clients[owner] = [client for client in clients if not client.is_idle_since(before)]
            if not self._clients[owner]:
                del self._clients[owner]
        self._timer = None
        if idle:
            self._closing = self._loop.create_task(_close(idle))
        if self._clients:
            self._start_timer()


def _owner(connection: VendorConnection) -> tuple[str, str | None, str]:
    return connection.sdk.__name__, connection.base_url, connection.key


async def _close(clients: Iterable[HttpClient]) -> None:
    for client in clients:
        await client.client.aclose()


_loop_clients: dict[asyncio.AbstractEventLoop, LoopClients] = {}
"""Not by weak references: the connections of a client refer to its loop."""


class HttpExchange:
    """The requests and responses of a call by a shared HTTP client; enter around the call."""

    http: HttpClient

    def __init__(self, connection: VendorConnection) -> None:
        self._connection = connection
        self._responses: list[Any] = []
        self._is_new_connection = False
        self._sent_at = 0.0
        """When the latest request was sent."""
        self._has_resent = False

    async def __aenter__(self) -> HttpExchange:
        self._clients = await LoopClients.open()
        self.http = self._clients.find(self._connection)
        self.http.add_call()
        _exchange.set(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the SDK's leftovers of a caller or parser that stopped reading: else the connection is not free."""
        _exchange.set(None)
        try:
            for response in self._responses:
                await response.aclose()
        finally:
            self.http.remove_call()
            # Cancelled timers of the call keep its context, and so this object, for as long as they would have run.
            self._responses.clear()

    async def send(
        self, send: Callable[..., Awaitable[Any]], request: Any, options: Mapping[str, Any]
    ) -> Any:
        """Send a request. One that meets a connection which its server has closed is sent once more, on a new one."""
        self._is_new_connection = False
        request.extensions["trace"] = self.note_progress
        if not self._connection.takes_environment:
            _remove_added_headers(request, self._connection.key)
        try:
            response = await send(request, **options)
        except self._connection.http.TransportError as error:
            if self._has_resent or not self._was_closed_before(error):
                raise
            self._has_resent = True
            self.http.remove_call()
            self.http = self._clients.add(self._connection)
            self.http.add_call()
            return await self.http.client.send(request, **options)
        self._responses.append(response)
        return response

    def _was_closed_before(self, error: Exception) -> bool:
        """Whether the connection was kept from another call and ended before the head of a response, as after
        a close by the server. Browsers and proxies send such a request again too.
        """
        http = self._connection.http
        is_end = isinstance(error, http.ReadError | http.WriteError) or (
            isinstance(error, http.RemoteProtocolError) and str(error).startswith("Server disconnected")
        )
        seconds = asyncio.get_running_loop().time() - self._sent_at
        return is_end and not self._is_new_connection and seconds < ROUND_TRIP_SECONDS

    async def note_progress(self, event: str, _: Mapping[str, Any]) -> None:
        """Called by the HTTP library with each step of a request."""
        if event.endswith(("connect_tcp.started", "connect_unix_socket.started")):
            self._is_new_connection = True
        elif event == "http11.receive_response_headers.started":
            self._sent_at = asyncio.get_running_loop().time()


_exchange: ContextVar[HttpExchange | None] = ContextVar("oakleaf_http_exchange", default=None)
"""That of the call that the present task makes."""


def _remove_added_headers(request: Any, key: str) -> None:
    """Leave only the required headers, with the given key in the key's headers."""
    for name in list(request.headers):
        if name in _KEY_HEADERS:
            request.headers[name] = f"Bearer {key}" if name == "authorization" else key
        # The SDKs themselves read those of Stainless, their generator, again.
        elif name not in _PLAIN_HEADERS and not name.startswith("x-stainless-"):
            del request.headers[name]


def _present_exchange() -> HttpExchange:
    exchange = _exchange.get()
    assert exchange is not None
    return exchange


@lru_cache
def _resending(client_class: type[Any]) -> type[Any]:
    """Return the SDK's class of HTTP clients, with requests sent by the present exchange."""

    class ResendingClient(client_class):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            return await _present_exchange().send(super().send, request, options)

    return ResendingClient


@lru_cache(maxsize=1)
def _tls_context(http: Any) -> Any:
    """Made once: reading the certificates takes 35 ms, a hundred times as long as the rest of a client."""
    return http.create_ssl_context()
