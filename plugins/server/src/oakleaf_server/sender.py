"""How responses leave the server: with the security headers, compressed if the client accepts it, without a body for HEAD.

Streams are passed on chunk by chunk, uncompressed: an event must not wait for the next one.
"""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

from litestar.types import Message, Send

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
MIN_SIZE = 1_000
"""Bytes: a smaller body fits one packet anyway."""
LARGE = 50_000
"""Bytes: compressing more takes over a millisecond, and is left to a thread."""
LEVEL = 4
COMPRESSED_TYPES = (b"application/json", b"application/problem+json", b"text/")


class ResponseSender:
    """Sends the response to a request."""

    def __init__(self, send: Send, headers: dict[str, str], *, is_api: bool, is_head: bool) -> None:
        self._send, self._is_api, self._is_head = send, is_api, is_head
        self._accepts_gzip = "gzip" in headers.get("accept-encoding", "")
        self._start: Any = None
        self._has_ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = {**message, "headers": self._with_defaults(message["headers"])}
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._is_head:
            await self._end_without_body()
        elif self._start is None:
            await self._send(message)
        else:
            await self._send_first(message)

    def _with_defaults(self, headers: Any) -> list[tuple[bytes, bytes]]:
        present = {name.lower() for name, _ in headers}
        extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        if self._is_api:
            extra.append((b"cache-control", b"no-store"))
        return [*headers, *(pair for pair in extra if pair[0] not in present)]

    async def _end_without_body(self) -> None:
        if self._has_ended:
            return  # more of a stream, which ends when its generator notices the disconnect
        self._has_ended = True
        await self._send(self._start)
        end: Any = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(end)

    async def _send_first(self, message: Any) -> None:
        start, self._start = self._start, None
        body = message.get("body", b"")
        if not message.get("more_body") and self._is_compressed(start, body):
            is_large = len(body) > LARGE
            body = await asyncio.to_thread(_compress, body) if is_large else _compress(body)
            others = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
            added = [(b"content-encoding", b"gzip"), (b"content-length", str(len(body)).encode())]
            start = {**start, "headers": [*others, *added, (b"vary", b"accept-encoding")]}
            message = {**message, "body": body}
        await self._send(start)
        await self._send(message)

    def _is_compressed(self, start: Any, body: bytes) -> bool:
        headers = {name.lower(): value for name, value in start["headers"]}
        is_text = headers.get(b"content-type", b"").startswith(COMPRESSED_TYPES)
        return self._accepts_gzip and is_text and len(body) >= MIN_SIZE and b"content-encoding" not in headers


def _compress(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)
