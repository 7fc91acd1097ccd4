"""A whole reply from the body of a response: JSON, or the events of a stream put together.

A stream that was cut gives what came of it, marked as incomplete. Of several answers to one request it is the first.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from msgspec import Struct

from oakleaf.core.json_repair import INVALID_JSON, decode_repaired
from oakleaf.errors import UnrecognizedReply
from oakleaf.providers.base import StreamFailure
from oakleaf.providers.gemini import GeminiReplyBuilder
from oakleaf.providers.openai_chat import ReplyBuilder
from oakleaf.providers.sse import EventReader, ServerEvent
from oakleaf.wire.parsing import to_dict

MAX_DECODED_BYTES = 256 * 1024 * 1024


class StreamReply(Struct):
    """A provider's reply as its API would have returned it at once; None if nothing came."""

    data: dict[str, Any] | None
    is_complete: bool
    error: str = ""
    response_id: str | None = None


def read_reply(provider: str, content_type: str, encoding: str, body: bytes) -> StreamReply:
    body = decompress(body, encoding)
    if provider == "openai-chat":
        return _read_chat(body)
    if "event-stream" not in content_type and not body.lstrip().startswith((b"data:", b"event:")):
        return _read_json(provider, body)
    builder = _BUILDERS[provider]()
    for event in map(_decode_event, _events(body)):
        if event is None:
            break  # the stream was cut within this event
        if "error" in event and event.get("type", "error") == "error":
            builder.error = _error_text(event["error"])
        else:
            builder.add(event)
    return builder.reply()


def _read_chat(body: bytes) -> StreamReply:
    """Read a completion in whatever shape a compatible server gives it."""
    builder, reader, error = ReplyBuilder(only_first=True), EventReader(), ""
    try:
        for event in chain(reader.feed(body), reader.close()):
            builder.add_event(event)
        builder.close(reader.body)
    except StreamFailure as failure:
        error = _error_text(failure.body.get("error") or failure.body)
    except UnrecognizedReply as unread:
        error = unread.problem
    if builder.is_empty:
        return StreamReply(None, False, error)
    data = builder.reply()
    return StreamReply(data, data["choices"][0]["finish_reason"] is not None and not error, error)


def _error_text(error: object) -> str:
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def _read_json(provider: str, body: bytes) -> StreamReply:
    try:
        data = decode_repaired(body)
    except INVALID_JSON:
        return StreamReply(None, False, body[:400].decode("utf-8", "replace"))
    if provider == "gemini" and isinstance(data, list):  # a stream without `alt=sse` is one array
        builder = _BUILDERS["gemini"]()
        for chunk in data:
            builder.add(to_dict(chunk))
        return builder.reply()
    data = to_dict(data)
    if data.get("error"):
        return StreamReply(None, False, _error_text(data["error"]))
    if isinstance(candidates := data.get("candidates"), list):
        data["candidates"] = candidates[:1]
    return StreamReply(data, True, response_id=_text(data.get("id")))


def decompress(body: bytes, encoding: str) -> bytes:
    """Return the bytes of a body; what came of it, if it was cut. A gzip body may have several members."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnrecognizedReply(f"a body in the encoding {encoding!r}")
    pieces, room = [], MAX_DECODED_BYTES
    while body and room:
        decoder = zlib.decompressobj(_window_bits(body, encoding))
        try:
            pieces.append(decoder.decompress(body, room))
        except zlib.error as error:
            if pieces:  # bytes after the last member say nothing
                break
            raise UnrecognizedReply(f"a body that is not {encoding}: {error}") from None
        room -= len(pieces[-1])
        body = decoder.unused_data
    return b"".join(pieces)


def _window_bits(body: bytes, encoding: str) -> int:
    """Return how zlib reads the body: with the header it has, or without one, as some servers understand `deflate`."""
    has_header = body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    return -zlib.MAX_WBITS if encoding == "deflate" and not has_header else zlib.MAX_WBITS | 32


def _events(body: bytes) -> Iterator[ServerEvent]:
    reader = EventReader()
    yield from reader.feed(body)
    yield from reader.close()


def _decode_event(event: ServerEvent) -> dict[str, Any] | None:
    """Return the JSON of an event; None if it is not whole."""
    try:
        data = decode_repaired(event.data.encode("utf-8", "replace"))
    except INVALID_JSON:
        return None
    return data if isinstance(data, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class _AnthropicReplyBlocks:
    """Puts the events of an Anthropic stream together."""

    def __init__(self) -> None:
        self.error = ""
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._is_complete = False

    def add(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self._message = dict(event.get("message") or {})
            case "content_block_start":
                self._blocks[event["index"]] = dict(event.get("content_block") or {})
            case "content_block_delta":
                self._add_delta(event["index"], event.get("delta") or {})
            case "message_delta":
                self._message.update(event.get("delta") or {})
                usage = event.get("usage") or {}
                self._message["usage"] = {**(self._message.get("usage") or {}), **_without_none(usage)}
            case "message_stop":
                self._is_complete = True

    def _add_delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        for name in ("text", "thinking", "signature"):
            if isinstance(delta.get(name), str):
                block[name] = (block.get(name) or "") + delta[name]
        if isinstance(delta.get("partial_json"), str):
            self._json[index] = self._json.get(index, "") + delta["partial_json"]
        if "citation" in delta:
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]

    def reply(self) -> StreamReply:
        blocks = [self._block(index) for index in sorted(self._blocks)]
        if not self._is_complete:  # half a call is not a call
            blocks = [block for block in blocks if block.get("type") != "tool_use"]
        data = {**self._message, "content": blocks} if self._message else None
        return StreamReply(
            data, self._is_complete and not self.error, self.error, _text(self._message.get("id"))
        )

    def _block(self, index: int) -> dict[str, Any]:
        block, text = self._blocks[index], self._json.get(index)
        if text is None:
            return block
        try:
            return {**block, "input": decode_repaired(text.encode("utf-8", "replace"))}
        except INVALID_JSON:
            return {**block, "input": text}


def _without_none(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if value is not None}


class _ResponsesReplyItems:
    """The last event of an OpenAI Responses stream has the whole response; before it only the text is put together."""

    def __init__(self) -> None:
        self.error = ""
        self._response: dict[str, Any] | None = None
        self._is_complete = False
        self._id: str | None = None
        self._text = ""

    def add(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        response = event.get("response")
        if isinstance(response, dict):
            self._id = _text(response.get("id")) or self._id
        if kind in ("response.completed", "response.incomplete") and isinstance(response, dict):
            self._response, self._is_complete = response, True
        elif kind == "response.failed" and isinstance(response, dict):
            self.error = str((response.get("error") or {}).get("message") or "the response failed")
        elif kind == "error":
            self.error = str(event.get("message") or "the stream failed")
        elif kind == "response.output_text.delta":
            self._text += str(event.get("delta") or "")

    def reply(self) -> StreamReply:
        data = self._response
        if data is None and self._text:
            content = [{"type": "output_text", "text": self._text}]
            data = {
                "object": "response",
                "output": [{"type": "message", "role": "assistant", "content": content}],
            }
        return StreamReply(data, self._is_complete and not self.error, self.error, self._id)


class _GeminiReplyChunks:
    """Puts the chunks of a Gemini stream together, as the client of the same API does."""

    def __init__(self) -> None:
        self.error = ""
        self._builder = GeminiReplyBuilder()
        self._is_finished = False

    def add(self, chunk: dict[str, Any]) -> None:
        chunk = _snake_case(chunk)
        if isinstance(candidates := chunk.get("candidates"), list):
            first = [_snake_case(to_dict(one)) for one in candidates if not to_dict(one).get("index")]
            chunk["candidates"] = first
            self._is_finished |= any(candidate.get("finish_reason") for candidate in first)
        self._builder.add(chunk)

    def reply(self) -> StreamReply:
        data = self._builder.reply() if self._builder.has_begun else None
        return StreamReply(data, self._is_finished and not self.error, self.error)


def _snake_case(fields: dict[str, Any]) -> dict[str, Any]:
    """Return Gemini's fields as its SDK names them."""
    return {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in fields.items()}


_BUILDERS: dict[str, Callable[[], _AnthropicReplyBlocks | _ResponsesReplyItems | _GeminiReplyChunks]] = {
    "anthropic": _AnthropicReplyBlocks,
    "openai": _ResponsesReplyItems,
    "gemini": _GeminiReplyChunks,
}
