"""Extract bytes from messages before they are stored: a durable part contains handles only.

Knows attachments and data: URLs. An attachment, or a data: URL within text, becomes a Media part; a data: URL inside
JSON (tool arguments, details) becomes a short reference, because JSON has no parts.
"""

from __future__ import annotations

import base64
import binascii
import re
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from .messages import Attachment, Media, Message, Part, Text, ToolCall, ToolResult

# Bytes that occur in every body with data to extract or with handles: one search instead of a walk.
BASE64_MARK = b";base64,"
ATTACHMENT_MARK = b'{"type":"attachment"'
MEDIA_MARK = b'{"type":"media"'
_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.-]+)*;base64,([A-Za-z0-9+/_-]{64,}={0,2})")


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def media_handle(attachment: Attachment) -> Media:
    return Media(digest(attachment.data), attachment.mime, len(attachment.data), attachment.name)


def extract_blobs(message: Message) -> tuple[Message, dict[str, Attachment], list[int]]:
    """Return the message with handles in place of bytes, the attachments by their digest, and where parts come from.

    The last is for each part the index of the one it was made of: a text with a data: URL becomes several.
    """
    blobs: dict[str, Attachment] = {}
    parts: list[Part] = []
    origins: list[int] = []
    for index, part in enumerate(message.parts):
        if isinstance(part, Text | Attachment):
            parts.extend(_extract_from_part(part, blobs))
        elif isinstance(part, ToolResult):
            content = tuple(
                piece for original in part.content for piece in _extract_from_part(original, blobs)
            )
            parts.append(replace(part, content=content, details=_extract_from_json(part.details, blobs)))
        elif isinstance(part, ToolCall):
            parts.append(replace(part, arguments=_extract_from_json(part.arguments, blobs)))
        else:
            parts.append(part)
        origins += [index] * (len(parts) - len(origins))
    extracted = replace(message, parts=tuple(parts), details=_extract_from_json(message.details, blobs))
    return extracted, blobs, origins


def _extract_from_part(
    piece: Text | Media | Attachment, blobs: dict[str, Attachment]
) -> list[Text | Media | Attachment]:
    if isinstance(piece, Attachment):
        return [_add_blob(piece, blobs)]
    if isinstance(piece, Media) or ";base64," not in piece.text:
        return [piece]
    pieces: list[Text | Media | Attachment] = []
    end = 0
    for match in _URL.finditer(piece.text):
        attachment = _decode_url(match)
        if attachment is None:
            continue
        if match.start() > end:
            pieces.append(Text(piece.text[end : match.start()]))
        pieces.append(_add_blob(attachment, blobs))
        end = match.end()
    if end < len(piece.text):
        pieces.append(Text(piece.text[end:]))
    return pieces


def _extract_from_json(value: Any, blobs: dict[str, Attachment]) -> Any:
    if isinstance(value, dict):
        return {key: _extract_from_json(item, blobs) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_extract_from_json(item, blobs) for item in value]
    if isinstance(value, str) and ";base64," in value:
        return _URL.sub(lambda match: _reference(match, blobs), value)
    return value


def _reference(match: re.Match[str], blobs: dict[str, Attachment]) -> str:
    attachment = _decode_url(match)
    if attachment is None:
        return match.group(0)
    media = _add_blob(attachment, blobs)
    return f"bough-blob:{media.hash};{media.mime};{media.size}"


def _decode_url(match: re.Match[str]) -> Attachment | None:
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


def _add_blob(attachment: Attachment, blobs: dict[str, Attachment]) -> Media:
    media = media_handle(attachment)
    blobs[media.hash] = attachment
    return media
