"""Lifting bytes out of what is to be written: a durable part holds handles only.

Knows attachments and data: URLs. An attachment, or a data: URL within text, becomes a Media part; a
data: URL inside JSON (tool arguments, details) becomes a short reference, for JSON has no parts.
"""

from __future__ import annotations

import base64
import binascii
import re
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from .messages import Attachment, Media, Message, Part, Text, ToolCall, ToolResult

# What a body that needs lifting, or names blobs, cannot but contain: one look at the bytes instead of a walk.
BASE64_MARK = b";base64,"
ATTACHMENT_MARK = b'{"type":"attachment"'
MEDIA_MARK = b'{"type":"media"'
_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.-]+)*;base64,([A-Za-z0-9+/_-]{64,}={0,2})")


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def media_handle(attachment: Attachment) -> Media:
    return Media(digest(attachment.data), attachment.mime, len(attachment.data), attachment.name)


def extract_blobs(message: Message) -> tuple[Message, dict[str, Attachment]]:
    """The same message with handles in place of bytes, and the bytes by their digest."""
    found: dict[str, Attachment] = {}
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, Text | Attachment):
            parts.extend(_lift_piece(part, found))
        elif isinstance(part, ToolResult):
            content = tuple(piece for whole in part.content for piece in _lift_piece(whole, found))
            parts.append(replace(part, content=content, details=_lift_json(part.details, found)))
        elif isinstance(part, ToolCall):
            parts.append(replace(part, arguments=_lift_json(part.arguments, found)))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts), details=_lift_json(message.details, found)), found


def _lift_piece(
    piece: Text | Media | Attachment, found: dict[str, Attachment]
) -> list[Text | Media | Attachment]:
    if isinstance(piece, Attachment):
        return [_keep(piece, found)]
    if isinstance(piece, Media) or ";base64," not in piece.text:
        return [piece]
    pieces: list[Text | Media | Attachment] = []
    end = 0
    for match in _URL.finditer(piece.text):
        attachment = _decoded(match)
        if attachment is None:
            continue
        if match.start() > end:
            pieces.append(Text(piece.text[end : match.start()]))
        pieces.append(_keep(attachment, found))
        end = match.end()
    if end < len(piece.text):
        pieces.append(Text(piece.text[end:]))
    return pieces


def _lift_json(value: Any, found: dict[str, Attachment]) -> Any:
    if isinstance(value, dict):
        return {key: _lift_json(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lift_json(item, found) for item in value]
    if isinstance(value, str) and ";base64," in value:
        return _URL.sub(lambda match: _reference(match, found), value)
    return value


def _reference(match: re.Match[str], found: dict[str, Attachment]) -> str:
    attachment = _decoded(match)
    if attachment is None:
        return match.group(0)
    media = _keep(attachment, found)
    return f"bough-blob:{media.hash};{media.mime};{media.size}"


def _decoded(match: re.Match[str]) -> Attachment | None:
    text = match.group(2)
    try:
        data = base64.b64decode(
            text + "=" * (-len(text) % 4),
            altchars=b"-_" if "-" in text or "_" in text else None,
            validate=True,
        )
    except (binascii.Error, ValueError):
        return None
    return Attachment(data, match.group(1))


def _keep(attachment: Attachment, found: dict[str, Attachment]) -> Media:
    media = media_handle(attachment)
    found[media.hash] = attachment
    return media
