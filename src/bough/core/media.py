"""Extract bytes from messages before they are stored: a durable part contains handles only.

Knows attachments and data: URLs. An attachment, or a data: URL within text, becomes a Media part; a data: URL inside
JSON (tool arguments, details) or reasoning becomes a short reference, because JSON has no parts and reasoning is signed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from .messages import Attachment, Media, Message, Part, Reasoning, Text, ToolCall, ToolResult

# Bytes that occur in every body with data to extract or with handles: one search instead of a walk.
BASE64_MARK = b";base64,"
ATTACHMENT_MARK = b'{"type":"attachment"'
MEDIA_MARK = b'{"type":"media"'
BLOB_REFERENCE = "bough-blob:"
_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.-]+)*;base64,([A-Za-z0-9+/_-]{64,}={0,2})")

_REFERENCE = re.compile(BLOB_REFERENCE + r"([0-9a-f]{64});[\w.+-]+/[\w.+-]+;\d+(?:;[\w=.-]+)*")


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
            parts.append(_extract_from_call(part, blobs))
        elif isinstance(part, Reasoning):
            parts.append(_extract_from_reasoning(part, blobs))
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


def _extract_from_call(call: ToolCall, blobs: dict[str, Attachment]) -> ToolCall:
    """Extract what `data_url` restores exactly: a tool gets the URL that the model wrote, after a restart too."""
    arguments, references = _extract_exactly(call.arguments, blobs)
    return replace(call, arguments=arguments, placeholders=(*call.placeholders, *references))


def _extract_from_reasoning(reasoning: Reasoning, blobs: dict[str, Attachment]) -> Reasoning:
    """Extract what `restore_reasoning` restores exactly: its issuer has signed the text. Never a reference by itself."""
    if reasoning.placeholders or BLOB_REFERENCE in reasoning.text:
        return reasoning
    text, references = _extract_exactly(reasoning.text, blobs)
    return Reasoning(text, tuple(references)) if references else reasoning


def restore_reasoning(reasoning: Reasoning, read_blob: Callable[[str], bytes | None]) -> Reasoning | None:
    """Return the reasoning as the model wrote it; None if bytes of it are missing."""
    pieces, text = [], reasoning.text
    for reference in reasoning.placeholders:
        before, found, text = text.partition(reference)
        data = read_blob(referenced_digest(reference))
        if data is None or not found:
            return None
        pieces += [before, data_url(reference, data)]
    return Reasoning("".join([*pieces, text])) if pieces else reasoning


def _extract_exactly(value: Any, blobs: dict[str, Attachment]) -> tuple[Any, list[str]]:
    """Extract the data: URLs that `data_url` restores to the letter; return the value and its references."""
    references: list[str] = []

    def extract(match: re.Match[str]) -> str:
        attachment = _decode_url(match)
        if attachment is None:
            return match.group(0)
        reference = _reference(match, attachment)
        if data_url(reference, attachment.data) != match.group(0):
            return match.group(0)
        _add_blob(attachment, blobs)
        references.append(reference)
        return reference

    return _map_urls(value, extract), references


def _extract_from_json(value: Any, blobs: dict[str, Attachment]) -> Any:
    def extract(match: re.Match[str]) -> str:
        attachment = _decode_url(match)
        if attachment is None:
            return match.group(0)
        _add_blob(attachment, blobs)
        return _reference(match, attachment)

    return _map_urls(value, extract)


def _map_urls(value: Any, extract: Callable[[re.Match[str]], str]) -> Any:
    if isinstance(value, dict):
        return {key: _map_urls(item, extract) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_urls(item, extract) for item in value]
    if isinstance(value, str) and ";base64," in value:
        return _URL.sub(extract, value)
    return value


def _reference(match: re.Match[str], attachment: Attachment) -> str:
    """Return what stands for a data URL in JSON, its parameters included."""
    media = media_handle(attachment)
    parameters = match.group(0)[len(f"data:{media.mime}") : match.start(2) - match.start() - len(";base64,")]
    return f"{BLOB_REFERENCE}{media.hash};{media.mime};{media.size}{parameters}"


def referenced_digest(reference: str) -> str:
    """Return the digest of the blob that a reference stands for; "", which no blob has, if it is none of ours."""
    match = _REFERENCE.fullmatch(reference)
    return "" if match is None else match[1]


def data_url(reference: str, data: bytes) -> str:
    """Return the data URL that a reference stands for."""
    _, mime, _, *parameters = reference.split(";")
    return ";".join(["data:" + mime, *parameters, "base64,"]) + base64.b64encode(data).decode()


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
