"""The proxy itself: one task per connection, bytes both ways, a copy of the calls of models to a listener.

Knows sockets and HTTP. Does not know what the bytes say.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from time import time_ns
from typing import Literal

from msgspec import Struct

from oakleaf_record.credentials import request_secrets
from oakleaf_record.http_stream import MAX_AHEAD_BYTES, BadMessage, Body, ByteStream, Head
from oakleaf_record.upstreams import Upstream, call_provider
from oakleaf_record.web_page import is_cross_site, is_loopback_host

CONNECT_SECONDS = 30.0
KEPT_CONNECTION_SECONDS = 1.0
"""A kept connection that fails sooner was closed before the request came; later, the upstream may have worked on it."""
MAX_COPY_BYTES = 64 * 1024 * 1024
"""A call whose request and response are longer together passes, but is not recorded."""
MAX_COPIES_BYTES = 256 * 1024 * 1024
"""What the copies of all calls under way may take. A call on top of it passes unrecorded."""
MAX_RESENT_BYTES = 16 * 1024 * 1024
"""What is kept of an upload for the case that a kept connection turns out closed."""
_READABLE_ENCODINGS = (b"gzip", b"deflate", b"identity")


class ApiCall(Struct):
    """A model call in passing: the request, and the response so far."""

    number: int
    """Its own among the calls of a proxy."""
    provider: str
    upstream_host: str
    path_model: str | None
    """The model, if the path names it."""
    client: str
    """The program that called, by its own words."""
    started_at: int
    secrets: tuple[str, ...] = ()
    """What the request proved itself with: stored nowhere, whoever repeats it."""
    request: bytes = b""
    request_encoding: str = ""
    status: int = 0
    content_type: str = ""
    content_encoding: str = ""
    body: Body | None = None
    """The response as far as it came, with its framing."""
    end: Literal["", "complete", "cancelled", "cut", "unreachable", "too long"] = ""
    ended_at: int = 0
    error: str = ""

    @property
    def response(self) -> bytes:
        """The response without framing; taken apart on reading, not during the transfer."""
        return b"" if self.body is None else self.body.content()


class Listener:
    """Gets a copy of each call, on the event loop: must return at once and never raise."""

    def request_sent(self, call: ApiCall) -> None: ...
    def call_ended(self, call: ApiCall) -> None: ...
    def passed_through(self, path: str) -> None: ...
    def refused(self, path: str) -> None: ...


class Proxy:
    """Listens on loopback and forwards to the upstreams."""

    def __init__(
        self, upstreams: tuple[Upstream, ...], listener: Listener, allowed_origins: Sequence[str] = ()
    ) -> None:
        """Refuse requests from pages of other sites, except `allowed_origins`."""
        self.upstreams, self.listener, self.allowed_origins = upstreams, listener, allowed_origins
        self.room_for_copies = MAX_COPIES_BYTES
        self.call_numbers = count(1)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> str:
        """Listen; return the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ByteStream(self._accept), "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Cut open connections and stop listening."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, client: ByteStream) -> None:
        if self._server is None or not self._server.is_serving():  # it came in the moment of the end
            client.abort()
            return
        task = asyncio.ensure_future(self._serve(ClientConnection(self, client)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            with suppress(ConnectionError):
                await connection.run()
        except asyncio.CancelledError:
            connection.abort()  # a client that reads nothing more would keep a closing connection open
        finally:
            connection.close()


class _Refusal(Exception):
    """Answered by the proxy itself."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientConnection:
    """A connection of a program, and the connection to the upstream."""

    def __init__(self, proxy: Proxy, client: ByteStream) -> None:
        self._proxy, self._client = proxy, client
        self._server: tuple[Upstream, ByteStream] | None = None
        self._has_response_begun = False
        self._is_client_gone = False
        self._is_tunnel = False
        self._download: Download | None = None
        """The response on its way; whole before this connection's task knows it, so a task that is cancelled ends with it."""

    def close(self) -> None:
        for stream in self._streams():
            stream.close()

    def abort(self) -> None:
        for stream in self._streams():
            stream.abort()

    def _streams(self) -> list[ByteStream]:
        return [self._client] if self._server is None else [self._client, self._server[1]]

    async def run(self) -> None:
        """Forward request after request, until a side closes."""
        try:
            while (raw := await self._client.read_head()) is not None:
                head = Head.parse(raw)
                if not await self._forward(head):
                    return
        except BadMessage as error:
            await self._refuse(_Refusal("400 Bad Request", f"the proxy cannot read this request: {error}"))
        except _Refusal as refusal:
            await self._refuse(refusal)

    async def _refuse(self, refusal: _Refusal) -> None:
        if self._has_response_begun:
            return  # closing is all that can be said now
        body = json.dumps({"error": {"type": "oakleaf_proxy", "message": str(refusal)}}).encode()
        head = (
            f"HTTP/1.1 {refusal.status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        self._client.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await self._client.drain()

    # -- one request -------------------------------------------------------------------------------

    async def _forward(self, head: Head) -> bool:
        """Forward a request and the response; return whether the connection stays open."""
        self._has_response_begun = self._is_client_gone = False
        method, target, *_ = head.first_line.split(b" ")
        upstream, path = self._route(head, target.decode("latin-1"))
        if head.is_upgrade and head.get(b"originator").startswith(b"codex") and call_provider(path):
            raise _Refusal(
                "426 Upgrade Required", "calls over WebSocket are not recorded; send them over HTTP"
            )
        call = self._begin_call(head, method, upstream, path)
        copy = CallCopy(self._proxy, is_wanted=call is not None)
        upload = Upload(_for_upstream(head, method, upstream, path), copy.of(head.request_body()), copy)
        self._download = None
        try:
            download = await self._exchange(upload, upstream, method, call)
        except _Refusal as refusal:
            if call is not None:
                call.end, call.error = "unreachable", str(refusal)
            raise
        finally:
            if copy.is_too_long and call is not None:
                call.end = "too long"
            self._end_call(call, self._download)
            copy.release()
        is_whole = upload.body.is_complete and download.is_complete
        return is_whole and not (head.is_closing or download.head.is_closing)

    def _route(self, head: Head, target: str) -> tuple[Upstream, str]:
        host = head.get(b"host").decode("latin-1")
        if not is_loopback_host(host):
            raise _Refusal("403 Forbidden", f"this proxy answers on 127.0.0.1 only, not as {host!r}")
        self._refuse_other_sites(head, host)
        for upstream in self._proxy.upstreams:
            if target == upstream.prefix or target.startswith((upstream.prefix + "/", upstream.prefix + "?")):
                account = head.get(b"chatgpt-account-id")
                return upstream.serving(account), target.removeprefix(upstream.prefix)
        path = target.partition("?")[0]
        self._proxy.listener.refused(path)
        bases = ", ".join(f"http://{host}{upstream.prefix}" for upstream in self._proxy.upstreams)
        raise _Refusal("404 Not Found", f"no upstream for {path}; set the base URL to one of {bases}")

    def _refuse_other_sites(self, head: Head, host: str) -> None:
        """Refuse requests made by pages of other sites: such requests would call models, and fill the store."""
        origin, site = (head.get(name).decode("latin-1") or None for name in (b"origin", b"sec-fetch-site"))
        if origin in self._proxy.allowed_origins or not is_cross_site(origin, site, host):
            return
        who = "a page of another site" if origin is None else f"a page of {origin}"
        hint = "" if origin is None else f"; if it may, start the proxy with --allow-origin {origin}"
        raise _Refusal(
            "403 Forbidden", f"this proxy takes requests of programs, and {who} sent this one{hint}"
        )

    def _begin_call(self, head: Head, method: bytes, upstream: Upstream, path: str) -> ApiCall | None:
        wire = call_provider(path) if method == b"POST" else None
        if wire is None:
            way = " over WebSocket" if head.is_upgrade else ""
            self._proxy.listener.passed_through(f"{method.decode('latin-1')} {path.partition('?')[0]}{way}")
            return None
        provider, model = wire
        client = head.get(b"user-agent").decode("latin-1")
        encoding = head.get(b"content-encoding").decode("latin-1").lower()
        number, now = next(self._proxy.call_numbers), time_ns() // 1000
        secrets = request_secrets(head, path)
        return ApiCall(
            number, provider, upstream.host, model, client, now, secrets, request_encoding=encoding
        )

    def _end_call(self, call: ApiCall | None, download: Download | None) -> None:
        if call is None:
            return
        call.ended_at = time_ns() // 1000
        if download is not None:
            call.status = download.head.status
            call.content_type = download.head.get(b"content-type").decode("latin-1")
            call.content_encoding = download.head.get(b"content-encoding").decode("latin-1").lower()
            call.body = download.body
            if not call.end and download.is_complete:
                call.end = "complete"
        call.end = call.end or ("cancelled" if self._is_client_gone else "cut")
        self._proxy.listener.call_ended(call)

    async def _exchange(
        self, upload: Upload, upstream: Upstream, method: bytes, call: ApiCall | None
    ) -> Download:
        """Send the request and pass the response on. A kept connection that turns out closed is opened anew, once."""
        is_kept = self._server is not None and self._server[0] == upstream and self._server[1].is_open
        upload.can_be_resent = is_kept
        server = await self._connect(upstream)
        loop = asyncio.get_running_loop()
        latest = loop.time() + KEPT_CONNECTION_SECONDS
        try:
            return await self._pass(upload, server, method, call)
        except (ConnectionError, EOFError):
            if self._is_client_gone:
                raise ConnectionResetError from None
            if not upload.can_be_resent or self._has_response_begun or loop.time() > latest:
                hint = "" if upstream.is_tls else "; if it speaks TLS, its address begins with https://"
                raise _Refusal(
                    "502 Bad Gateway", f"{upstream.display_url} closed the connection without an answer{hint}"
                ) from None
        self._drop_server()
        return await self._pass(upload, await self._connect(upstream), method, call)

    async def _connect(self, upstream: Upstream) -> ByteStream:
        if self._server is not None:
            if self._server[0] == upstream and self._server[1].is_open:
                return self._server[1]
            self._drop_server()
        tls = await asyncio.to_thread(_tls_context) if upstream.is_tls else None
        try:
            loop = asyncio.get_running_loop()
            opening = loop.create_connection(ByteStream, upstream.host, upstream.port, ssl=tls)
            _, stream = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            raise _Refusal("502 Bad Gateway", f"{upstream.display_url} {_explain(error)}") from None
        self._server = upstream, stream
        return stream

    def _drop_server(self) -> None:
        if self._server is not None:
            self._server[1].abort()
            self._server = None

    async def _pass(
        self, upload: Upload, server: ByteStream, method: bytes, call: ApiCall | None
    ) -> Download:
        sending = asyncio.ensure_future(self._send(upload, server, call))
        try:
            download = await self._receive(server, method, upload.copy)
        finally:
            sending.cancel()
            await asyncio.wait(
                [sending]
            )  # and not the task itself: its cancellation would hide that of this one
        if not download.is_complete:
            self._drop_server()
        return download

    async def _send(self, upload: Upload, server: ByteStream, call: ApiCall | None) -> None:
        """Send the request on arrival, then watch for a client that leaves."""
        with suppress(ConnectionError, BadMessage):
            await self._send_all(upload, server, call)

    async def _send_all(self, upload: Upload, server: ByteStream, call: ApiCall | None) -> None:
        client, body = self._client, upload.body
        server.write(upload.head + b"".join(upload.sent))
        while not body.is_complete:
            data = client.take()
            if data:
                own = body.feed(data)
                client.buffer[:0] = data[own:]
                upload.add(data[:own])
                server.write(data[:own])
                await server.drain()
            elif not await client.fill():
                self._is_client_gone = True
                server.abort()
                return
        if call is not None and not call.request and not upload.copy.is_too_long:
            call.request = body.content()
            self._proxy.listener.request_sent(call)
        while await client.fill():
            if self._is_tunnel:
                server.write(client.take())
                await server.drain()
            elif len(client.buffer) > MAX_AHEAD_BYTES:
                return  # the next requests came already, and wait
        self._is_client_gone = True
        server.abort()

    async def _receive(self, server: ByteStream, method: bytes, copy: CallCopy) -> Download:
        """Pass the response on as received."""
        client = self._client
        raw = await server.read_head()
        while raw is not None and 100 <= (head := Head.parse(raw)).status < 200 and head.status != 101:
            client.write(raw)  # an interim answer, such as 100 Continue
            raw = await server.read_head()
        if raw is None:
            raise EOFError
        self._has_response_begun = True
        client.write(raw)
        self._download = download = Download(head, copy.of(head.response_body(method)), copy)
        if head.status == 101:  # another protocol, such as WebSocket, until one side closes
            self._is_tunnel = True
            server.write(self._client.take())
        await server.pass_to(client, download.add, lambda: download.body.is_complete)
        download.is_ended = server.is_ended
        return download


class CallCopy:
    """The copy of a call: the request and the response, unless too long or with too many calls under way.

    Whether there is one makes no difference to what passes.
    """

    def __init__(self, proxy: Proxy, *, is_wanted: bool) -> None:
        self._proxy, self._is_wanted = proxy, is_wanted
        self._bodies: list[Body] = []
        self._length = 0
        self.is_too_long = False

    def of(self, body: Body) -> Body:
        """Return the body, which keeps the content as long as a copy exists."""
        self._bodies.append(body)
        if not self._is_wanted:
            body.drop()
        return body

    def count(self, length: int) -> None:
        """Count received bytes; drop the copy if too large."""
        if not self._is_wanted:
            return
        self._length += length
        self._proxy.room_for_copies -= length
        if self._length > MAX_COPY_BYTES or self._proxy.room_for_copies < 0:
            self.is_too_long, self._is_wanted = True, False
            for body in self._bodies:
                body.drop()
            self.release()

    def release(self) -> None:
        """Give back the copy's room; the recorded part waits elsewhere."""
        self._proxy.room_for_copies += self._length
        self._length = 0


class Upload:
    """A request on the way, with the sent part: a new connection gets the part again."""

    def __init__(self, head: bytes, body: Body, copy: CallCopy) -> None:
        self.head, self.body, self.copy = head, body, copy
        self.sent: list[bytes] = []
        self._length = 0
        self.can_be_resent = False
        """Whether `sent` is all that was sent: only of what is not too long, on a connection that was kept."""

    def add(self, data: bytes) -> None:
        """Take sent bytes."""
        self.copy.count(len(data))
        self._length += len(data)
        self.can_be_resent &= self._length <= MAX_RESENT_BYTES
        if self.can_be_resent:
            self.sent.append(data)
        else:
            self.sent.clear()


class Download:
    """A response on the way."""

    def __init__(self, head: Head, body: Body, copy: CallCopy) -> None:
        self.head, self.body, self._copy = head, body, copy
        self.is_ended = False
        """Whether the upstream closed the connection."""

    def add(self, data: bytes) -> int:
        own = self.body.feed(data)
        self._copy.count(own)
        return own

    @property
    def is_complete(self) -> bool:
        """Whether the whole body came; a body without a length ends with the connection."""
        has_length = self.head.get(b"content-length") or self.head.get(b"transfer-encoding")
        return self.body.is_complete or (self.is_ended and not has_length)


def _for_upstream(head: Head, method: bytes, upstream: Upstream, path: str) -> bytes:
    """Return the head for the upstream: with the upstream's path and name, and with readable encodings only."""
    headers: list[tuple[bytes, bytes]] = []
    for name, value in head.headers:
        if name.lower() == b"host":
            value = upstream.host_header
        elif name.lower() == b"accept-encoding":
            codings = [coding.strip() for coding in value.split(b",")]
            value = (
                b", ".join(c for c in codings if c.partition(b";")[0] in _READABLE_ENCODINGS) or b"identity"
            )
        headers.append((name, value))
    first_line = b" ".join([method, upstream.target(path).encode("latin-1"), b"HTTP/1.1"])
    return Head(first_line, tuple(headers)).encode()


_NAME_MISMATCHES = (62, 64)
"""OpenSSL's codes for a certificate of another host name or address."""


def _explain(error: OSError) -> str:
    """Say the reason for a missing connection, and the remedy."""
    match error:
        case ssl.SSLCertVerificationError(verify_code=code, verify_message=reason):
            hint = "set SSL_CERT_FILE to the certificate of its authority"
            if code in _NAME_MISMATCHES:
                hint = "write its address with the name that its certificate has"
            return f"has a certificate that is not trusted: {reason.rstrip('.')}; {hint}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "does not speak TLS; if it is meant to be reached without, its address begins with http://"
        case TimeoutError():
            why = f"no connection within {CONNECT_SECONDS:.0f} s"
        case socket.gaierror():
            why = "its host has no address"
        case OSError() if "Connect call failed" in str(
            error
        ):  # one error for several addresses has no number
            why = "nothing listens there"
        case _:
            why = error.strerror or str(error)
    return f"cannot be reached: {why}; check that it runs, or name another with --upstream NAME=URL"


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()
