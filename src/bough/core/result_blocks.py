"""Read the content of a tool's result: MCP content blocks, the providers' own media blocks, and base64 within text.

What holds bytes becomes an attachment, so that a model is shown the image and a log holds a handle. Text around the
bytes stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from .messages import Attachment, Media, Text

ResultPart = Text | Media | Attachment

_RESULT_KEYS = {"content", "isError", "structuredContent", "_meta"}
_RUN = re.compile(r'(?:(?<=")|^)[A-Za-z0-9+/]{64,}={0,2}(?=\\?"|$)')
_KEY = re.compile(r'"(?:data|blob|bytes|base64)\\?"\s{0,9}:\s{0,9}\\?"$')
_MIME = re.compile(
    r'(?:mime_?type|media_?type)\\?"\s{0,9}:\s{0,9}\\?"([\w.+-]{1,80}/[\w.+-]{1,80})', re.IGNORECASE
)
_NEAR = 300  # characters around the bytes in which their type is looked for
_FIRST_LETTERS = {
    "iVBORw0KGg": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "JVBERi": "application/pdf",
}


def is_mcp_error(content: object) -> bool:
    """Return whether it is the result of an MCP tool that failed."""
    return _is_mcp_result(content) and content.get("isError") is True


def _is_mcp_result(content: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(content, dict) and "content" in content and content.keys() <= _RESULT_KEYS


def parse_blocks(content: object) -> tuple[ResultPart, ...] | None:
    """Return the parts of an MCP result, or of a list of blocks or a single one; None if there is no media in it."""
    blocks: Any = content
    extra: object = None
    if _is_mcp_result(content):
        blocks, extra = content["content"], content.get("structuredContent")
    blocks = blocks if isinstance(blocks, list) else [blocks]
    if not all(isinstance(block, dict) for block in blocks) or not any(map(_attachment, blocks)):
        return None
    parts: list[ResultPart] = [_attachment(block) or Text(_text(block)) for block in blocks]
    return (*parts, Text(_json(extra))) if extra is not None else tuple(parts)


def _attachment(block: Mapping[str, Any]) -> Attachment | None:
    match block:
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(mime)}:  # MCP
            return _decode(data, mime)
        case {"type": "resource", "resource": {"blob": str(data), **resource}}:  # MCP
            return _decode(
                data, str(resource.get("mimeType", "application/octet-stream")), resource.get("uri")
            )
        case {
            "type": "image" | "document",
            "source": {"type": "base64", "data": str(data), "media_type": str(mime)},
        }:
            return _decode(data, mime, block.get("title"))  # Anthropic
        case {"inlineData": {"data": str(data), "mimeType": str(mime)}}:  # Gemini
            return _decode(data, mime)
    return None


def _text(block: Mapping[str, Any]) -> str:
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
    return _json(block)


def _json(value: object) -> str:
    from .codec import to_json  # it imports messages, which imports this module

    return to_json(value, "tool result").decode()


def split_base64(text: str) -> tuple[ResultPart, ...]:
    """Return text with the base64 of files in it as attachments: whole strings whose type is known or stated beside them."""
    parts: list[ResultPart] = []
    end = 0
    for run in _RUN.finditer(text) if len(text) >= 64 else ():
        mime = _mime(text, run)
        attachment = None if mime is None else _decode(run.group(), mime)
        if attachment is not None:
            if run.start() > end:
                parts.append(Text(text[end : run.start()]))
            parts.append(attachment)
            end = run.end()
    return (*parts, Text(text[end:])) if end < len(text) else tuple(parts)


def _mime(text: str, run: re.Match[str]) -> str | None:
    for letters, mime in _FIRST_LETTERS.items():
        if run.group().startswith(letters):
            return mime
    if run.group().startswith("UklGR"):
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(base64.b64decode(run.group()[:16])[8:12])
    if not _KEY.search(text[max(0, run.start() - 40) : run.start()]):
        return None  # a hash or an id may have the letters of base64 too
    beside = text[max(0, run.start() - _NEAR) : run.start()], text[run.end() : run.end() + _NEAR]
    stated = _MIME.search(beside[1]) or next(reversed(list(_MIME.finditer(beside[0]))), None)
    return None if stated is None else stated[1]


def _decode(data: str, mime: str, name: object = None) -> Attachment | None:
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Attachment(decoded, mime, name if isinstance(name, str) else None) if decoded else None
