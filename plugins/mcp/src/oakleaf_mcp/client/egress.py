"""An HTTP client for MCP servers that reaches public addresses only, as `http_request` does.

Every request resolves its host, checks all its addresses and connects to a checked one, redirects included. What is
received is bounded. Does not know MCP.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable

import httpx2

from oakleaf.errors import OutOfScope
from oakleaf.ext import Target, resolve_target
from oakleaf_mcp.client.server import McpServer

Resolver = Callable[[str, int], list[str]]
"""Returns the addresses of a host and port, as text."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CONNECT_SECONDS = 10.0


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends each request to a checked address of the host."""

    def __init__(self, server: McpServer, resolver: Resolver | None = None) -> None:
        self._server, self._resolver = server, resolver
        self._hosts = _allowed_hosts(server)
        # As http_request does: the certificates that the system trusts, or SSL_CERT_FILE.
        verify = ssl.create_default_context() if server.url.startswith("https") else True
        self._inner = httpx2.AsyncHTTPTransport(verify=verify, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            target = await asyncio.to_thread(resolve_target, str(request.url), self._hosts, self._resolver)
        except (OutOfScope, OSError) as error:  # as the client expects a failed connection
            raise httpx2.ConnectError(str(error)) from None
        failure: httpx2.TransportError | None = None
        for address in target.addresses:
            try:
                response = await self._inner.handle_async_request(_with_address(request, target, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
                continue
            return self._bounded(response)
        assert failure is not None
        raise failure

    def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.RemoteProtocolError("the response is compressed, so its length cannot be bounded")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, self._server.max_bytes)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > self._max_bytes:
                raise httpx2.ReadError(f"it sent more than {self._max_bytes:,} bytes in one response")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def http_client(server: McpServer, resolver: Resolver | None = None) -> httpx2.AsyncClient:
    """Return a client for a server. Proxies of the environment are not used: they would resolve the name again."""
    return httpx2.AsyncClient(
        transport=CheckedTransport(server, resolver),
        headers={**server.headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(_CONNECT_SECONDS, read=max(server.timeout, server.connect_timeout) + 5),
        trust_env=False,
    )


def check_address(server: McpServer) -> None:
    """Raise `OutOfScope` if the server's address is not public, before anything is sent."""
    resolve_target(server.url, _allowed_hosts(server))


def _allowed_hosts(server: McpServer) -> frozenset[str]:
    """Return the hosts allowed at a private address: the server's list, and a loopback host in the server's own URL."""
    try:
        parts = httpx2.URL(server.url)
    except httpx2.InvalidURL as error:
        raise OutOfScope(server.url, f"it is not a URL ({error})") from None
    if parts.host not in _LOOPBACK:
        return server.hosts
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return server.hosts | {f"{parts.host}:{port}", f"[{parts.host}]:{port}"}


def _with_address(request: httpx2.Request, target: Target, address: str) -> httpx2.Request:
    """Return the request with an address in place of the host; host header and certificate stay the host's."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": target.host},
    )
