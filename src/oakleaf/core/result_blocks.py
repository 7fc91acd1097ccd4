"""Read the content of a tool's result: MCP content blocks, the providers' own media blocks, and base64 within text.

What holds bytes becomes an attachment, so that a model is shown the image and a log holds a handle. Text around the
bytes stays as it is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypeGuard

from oakleaf.core.media import find_inline_bytes
from oakleaf.core.messages import Attachment, Media, Text

ResultPart = Text | Media | Attachment

_RESULT_KEYS = {"content", "isError", "structuredContent", "_meta"}


def is_mcp_error(content: object) -> bool:
    """Return whether a value is the result of a failed MCP tool."""
    return _is_mcp_result(content) and content.get("isError") is True


def _is_mcp_result(content: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(content, dict) and "content" in content and content.keys() <= _RESULT_KEYS


def parse_blocks(content: object) -> tuple[ResultPart, ...] | None:
    """Return the parts of an MCP result, of a list of blocks or of a block; None without media."""
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
    from oakleaf.core.codec import to_json  # it imports messages, which imports this module

    return to_json(value, "tool result").decode()


def split_base64(text: str) -> tuple[ResultPart, ...]:
    """Return text with attachments for base64 of files: whole strings of a known or stated type."""
    parts: list[ResultPart] = []
    end = 0
    for inline in find_inline_bytes(text):
        if inline.start > end:
            parts.append(Text(text[end : inline.start]))
        parts.append(inline.attachment)
        end = inline.end
    return (*parts, Text(text[end:])) if end < len(text) else tuple(parts)


def _decode(data: str, mime: str, name: object = None) -> Attachment | None:
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Attachment(decoded, mime, name if isinstance(name, str) else None) if decoded else None
