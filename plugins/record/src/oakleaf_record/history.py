"""Digests of histories: equal digests mean that a request continues a conversation that is known.

What a program sends back is not byte for byte what it got: reasoning is left out, blanks at the ends are trimmed, ids
are made anew. Only what was said, called and returned counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import msgspec

from oakleaf.core.messages import Attachment, Media, Message, Part, ProviderBlock, Text, ToolCall, ToolResult
from oakleaf.wire.base import HistoryMessage


def history_digests(history: Iterable[HistoryMessage], start: bytes) -> Iterator[bytes]:
    """Yield after each message the digest of the history so far; `start` is the digest before the first message."""
    digest = start
    for item in history:
        for content in (*_contents(item.message), *_links(item)):
            digest = sha256(digest + sha256(content).digest()).digest()
        yield digest


def _contents(message: Message) -> Iterator[bytes]:
    """Yield a message's contribution: the joined text, then calls, results and media."""
    text = "".join(part.text for part in message.parts if isinstance(part, Text)).strip()
    if text:
        yield f"{message.role} {text}".encode("utf-8", "replace")
    for part in message.parts:
        if isinstance(part, ToolCall):
            arguments = part.arguments if part.malformed is None else part.malformed
            yield b"call " + part.name.encode() + msgspec.json.encode(arguments, order="deterministic")
        elif isinstance(part, ToolResult):
            texts = part.text.strip()
            yield b"result " + texts.encode("utf-8", "replace")
            yield from filter(None, map(_media, part.content))
        elif media := _media(part):
            yield media


def _links(item: HistoryMessage) -> Iterator[bytes]:
    """Yield the external references of a user's message, such as an image's address."""
    if item.message.role != "user":
        return  # a program may leave out what a provider's own tools did
    proofs = item.evidence.parts if item.evidence is not None else {}
    for index, part in enumerate(item.message.parts):
        if isinstance(part, ProviderBlock):
            block = _without_cache_marks(proofs.get(str(index), {}).get("block") or part.text)
            yield b"link " + msgspec.json.encode(block, order="deterministic")


def _without_cache_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_cache_marks(item) for key, item in value.items() if key != "cache_control"}
    return [_without_cache_marks(item) for item in value] if isinstance(value, list) else value


def _media(part: Part | Attachment) -> bytes | None:
    if isinstance(part, Attachment):
        return b"media " + sha256(part.data).hexdigest().encode()
    return b"media " + part.hash.encode() if isinstance(part, Media) else None
