"""HTTP/1.1 as bytes that pass: heads, and where a body ends. Nothing is rewritten on the way.

A parser that turns each chunk into an event costs more than the chunk: a stream of a model is thousands of small ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol, cast

from msgspec import Struct

MAX_HEAD_BYTES = 256 * 1024
MAX_AHEAD_BYTES = 1024 * 1024
"""How much of a message that nobody waits for is read."""
READ_BYTES = 256 * 1024
NO_BODY_STATUSES = (204, 304)


class BadMessage(Exception):
    """Bytes other than an HTTP/1.1 message."""


class _ReadBuffer(threading.local):
    """The shared read buffer of a thread's streams, used one after the other. A fresh buffer for each read
    takes longer than the read.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_read_buffer = _ReadBuffer()


class ByteStream(asyncio.BufferedProtocol):
    """A connection: bytes are read ahead into a buffer, or passed on at once."""

    def __init__(self, on_connect: Callable[[ByteStream], None] | None = None) -> None:
        self.buffer = bytearray()
        self.is_ended = False
        """Whether the other side sends nothing more."""
        self._on_connect = on_connect
        self._transport: asyncio.Transport | None = None
        self._data: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._is_lost = False

    # -- called by the event loop ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._on_connect is not None:
            self._on_connect(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _read_buffer.view

    def buffer_updated(self, count: int) -> None:
        data = bytes(_read_buffer.view[:count])
        if self._sink is not None:
            self._sink(data)
            return
        self.buffer += data
        if len(self.buffer) > MAX_AHEAD_BYTES:
            self.transport.pause_reading()
        _wake(self._data)

    def eof_received(self) -> None:
        self.is_ended = True
        _wake(self._data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_ended = self._is_lost = True
        _wake(self._data)
        _wake(self._drained)

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._drained)
        self._drained = None

    # -- called by the proxy -----------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def is_open(self) -> bool:
        return not self.is_ended and not self.transport.is_closing()

    async def fill(self) -> bool:
        """Wait for more bytes; False at the end."""
        if self.is_ended:
            return False
        self.transport.resume_reading()
        self._data = asyncio.get_running_loop().create_future()
        length = len(self.buffer)
        await self._data
        return len(self.buffer) > length

    async def read_head(self) -> bytes | None:
        """Return the bytes of a head with the blank line; None if the stream ends before a head."""
        start = 0
        while (end := self.buffer.find(b"\r\n\r\n", start)) < 0:
            if len(self.buffer) > MAX_HEAD_BYTES:
                raise BadMessage(f"a head of more than {MAX_HEAD_BYTES:,} bytes")
            start = max(0, len(self.buffer) - 3)
            if not await self.fill():
                if self.buffer:
                    raise BadMessage("the stream ended within a head")
                return None
        return self.take(end + 4)

    def take(self, count: int | None = None) -> bytes:
        """Take read bytes: all, or the given number."""
        count = len(self.buffer) if count is None else count
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait while the other side reads too slowly."""
        if self._drained is not None:
            await self._drained
        if self._is_lost:
            raise ConnectionResetError

    async def pass_to(
        self, target: ByteStream, add: Callable[[bytes], int], is_complete: Callable[[], bool]
    ) -> None:
        """Pass bytes to the target, without a task in between, until the message is complete or the stream
        ends.

        `add` returns how many of the bytes belong to what is passed; the rest stays here.
        """
        loop = asyncio.get_running_loop()
        self._data = loop.create_future()

        def sink(data: bytes) -> None:
            try:
                own = add(data)
            except BadMessage:  # where it ends is not known, so it ends here
                self.abort()
                return
            target.write(data if own == len(data) else data[:own])
            self.buffer += data[own:]
            if is_complete():
                self._sink = None
                _wake(self._data)
            elif target._drained is not None:
                self.transport.pause_reading()
                target._drained.add_done_callback(lambda _: self.transport.resume_reading())

        if self.buffer:
            sink(self.take())
        if not is_complete() and not self.is_ended:
            self._sink = sink
            self.transport.resume_reading()
            try:
                await self._data
            finally:
                self._sink = None

    def abort(self) -> None:
        self.transport.abort()

    def close(self) -> None:
        self.transport.close()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Head(Struct, frozen=True):
    """The first line and the headers of a message, as bytes."""

    first_line: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @staticmethod
    def parse(raw: bytes) -> Head:
        first_line, *lines = raw[:-4].split(b"\r\n")
        if len(first_line.split(b" ")) < 2:
            raise BadMessage("the first line is not of HTTP")
        headers: list[tuple[bytes, bytes]] = []
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or name != name.strip():
                raise BadMessage("a header without a name")
            headers.append((name, value.strip()))
        return Head(first_line, tuple(headers))

    def get(self, name: bytes) -> bytes:
        """Return the values of a header, joined as HTTP allows; empty if there is none."""
        return b", ".join(value for key, value in self.headers if key.lower() == name)

    def encode(self) -> bytes:
        lines = [self.first_line, *(name + b": " + value for name, value in self.headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    @property
    def status(self) -> int:
        return int(self.first_line.split(b" ")[1][:3])

    @property
    def is_closing(self) -> bool:
        """Whether the connection ends with the message."""
        return b"close" in self.get(b"connection").lower() or b"HTTP/1.0" in self.first_line

    @property
    def is_upgrade(self) -> bool:
        """Whether a request asks for a WebSocket."""
        return self.get(b"upgrade").lower() == b"websocket"

    def request_body(self) -> Body:
        if b"chunked" in self.get(b"transfer-encoding").lower():
            return ChunkedBody()
        return LengthBody(_length(self))

    def response_body(self, method: bytes) -> Body:
        if method == b"HEAD" or self.status in NO_BODY_STATUSES:
            return LengthBody(0)
        if b"chunked" in self.get(b"transfer-encoding").lower():
            return ChunkedBody()
        return LengthBody(_length(self)) if self.get(b"content-length") else OpenBody()


def _length(head: Head) -> int:
    value = head.get(b"content-length") or b"0"
    if not value.isdigit() or len(value) > 15:
        raise BadMessage(f"a Content-Length of {value.decode('latin-1')!r}")
    return int(value)


class Body(Protocol):
    """Follows the bytes of a body."""

    pieces: list[bytes]
    """Its bytes as they came, unless they were dropped."""

    @property
    def is_complete(self) -> bool: ...

    @property
    def length(self) -> int:
        """The number of kept bytes."""
        ...

    def content(self) -> bytes:
        """Return the content so far, without framing."""
        ...

    def feed(self, data: bytes) -> int:
        """Return the number of the body's bytes among the given bytes."""
        ...

    def drop(self) -> None:
        """Drop the content so far, and keep nothing later."""
        ...


class _StoredBody:
    """The bytes of a body, as received."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._is_kept = True

    def drop(self) -> None:
        self.pieces, self._is_kept = [], False

    def _keep(self, data: bytes) -> None:
        if self._is_kept:
            self.pieces.append(data)

    @property
    def length(self) -> int:
        return sum(map(len, self.pieces))

    def content(self) -> bytes:
        return b"".join(self.pieces)


class LengthBody(_StoredBody):
    """A body whose length the head tells."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._missing = length

    @property
    def is_complete(self) -> bool:
        return not self._missing

    def feed(self, data: bytes) -> int:
        own = data[: self._missing]
        self._missing -= len(own)
        self._keep(own)
        return len(own)


class OpenBody(_StoredBody):
    """A body up to the end of the connection."""

    is_complete = False

    def feed(self, data: bytes) -> int:
        self._keep(data)
        return len(data)


class ChunkedBody(_StoredBody):
    """A body in chunks, each after a line with the length; the last chunk is empty.

    While it passes, only the lengths are read: a copy of each chunk would take as long as passing it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_complete = False
        self._missing = 0
        """Bytes of the chunk, and of the line end after it, that have not come yet."""
        self._line = b""
        """The beginning of a line that has not ended yet."""
        self._is_trailer = False

    def feed(self, data: bytes) -> int:
        at = self._missing
        length = len(data)
        while at < length and not self.is_complete:
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                at = length
            else:
                at = end + 1 + self._end_line(self._line + data[at:end])
                self._line = b""
            if len(self._line) > MAX_HEAD_BYTES:
                raise BadMessage("a chunk whose length does not end")
        self._missing = max(0, at - length)
        own = min(at, length)
        self._keep(data if own == length else data[:own])
        return own

    def _end_line(self, line: bytes) -> int:
        """Return the number of bytes from a line to the next line."""
        if self._is_trailer:
            self.is_complete = not line.strip()
            return 0
        length = _chunk_length(line)
        self._is_trailer = not length
        return length + 2 if length else 0

    def content(self) -> bytes:
        data = b"".join(self.pieces)
        chunks: list[bytes] = []
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            length = _chunk_length(data[at:end])
            if not length:
                break
            chunks.append(data[end + 1 : end + 1 + length])
            at = end + 3 + length
        return b"".join(chunks)


def _chunk_length(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        length = int(digits, 16)
    except ValueError:
        length = -1
    if length < 0:
        raise BadMessage(f"a chunk of length {digits[:20].decode('latin-1')!r}")
    return length
