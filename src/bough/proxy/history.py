"""Digests of histories: equal digests mean that a request continues a conversation that is known.

What a program sends back is not byte for byte what it got: reasoning is left out, blanks at the ends are trimmed, ids
are made anew. Only what was said, called and returned counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec

from ..core.messages import Attachment, Media, Message, Part, Text, ToolCall, ToolResult


def history_digests(messages: Iterable[Message], start: bytes) -> Iterator[bytes]:
    """Yield after each message the digest of the history up to it; `start` is the one before the first."""
    digest = start
    for message in messages:
        for content in _contents(message):
            digest = sha256(digest + sha256(content).digest()).digest()
        yield digest


def _contents(message: Message) -> Iterator[bytes]:
    """Yield what a message contributes: its joined text, then calls, results and media."""
    text = "".join(part.text for part in message.parts if isinstance(part, Text)).strip()
    if text:
        yield f"{message.role} {text}".encode("utf-8", "replace")
    for part in message.parts:
        if isinstance(part, ToolCall):
            arguments = part.arguments if part.malformed is None else part.malformed
            yield b"call " + part.name.encode() + msgspec.json.encode(arguments, order="deterministic")
        elif isinstance(part, ToolResult):
            texts = "".join(piece.text for piece in part.content if isinstance(piece, Text)).strip()
            yield b"result " + texts.encode("utf-8", "replace")
            yield from filter(None, map(_media, part.content))
        elif media := _media(part):
            yield media


def _media(part: Part | Attachment) -> bytes | None:
    if isinstance(part, Attachment):
        return b"media " + sha256(part.data).hexdigest().encode()
    return b"media " + part.hash.encode() if isinstance(part, Media) else None
