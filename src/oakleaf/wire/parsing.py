"""Helpers to parse what providers send: SDK objects and dicts, content blocks, tool calls, base64.

Knows no provider. SDK objects are pydantic models; they are dumped to dicts, their packages never imported.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec

from oakleaf.core.codec import is_storable, json_text
from oakleaf.core.messages import Attachment, Part, ProviderBlock, Text, ToolCall
from oakleaf.core.usage import is_count
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire.base import Proof

_PLAIN = frozenset([str, int, float, bool, type(None)])


def to_dict(value: object) -> dict[str, Any]:
    """Return a dict or an SDK object as a dict; values inside may still be objects."""
    if isinstance(value, dict):  # most are; asking an abstract class takes three times as long
        return value.copy()
    if isinstance(value, Mapping):
        return dict(value)
    dump = getattr(value, "model_dump", None)
    # Without the fields that the provider did not send: it may refuse a null that it never wrote.
    dumped = (
        dump(warnings=False, exclude_unset=True) if callable(dump) and not isinstance(value, type) else None
    )
    if isinstance(dumped, dict):
        return dumped
    raise UnrecognizedReply(f"{type(value).__name__} is not a provider's message")


def content_blocks(content: object) -> list[dict[str, Any]]:
    """Return content as a list of blocks, from text, a list or None."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) or (
        isinstance(content, Iterable) and not isinstance(content, Mapping | bytes)
    ):
        return [to_dict(block) for block in content]
    raise UnrecognizedReply(f"content is {type(content).__name__}, not text or a list of blocks")


def text_field(block: Mapping[str, Any], key: str) -> str:
    """Return a field of text."""
    value = block.get(key)
    if isinstance(value, str):
        return value
    what = block.get("type") or block.get("role") or "message"
    raise UnrecognizedReply(f"{key!r} of a {what} is {type(value).__name__}, not text")


def to_plain(value: object) -> Any:
    """Return a value of an SDK as the provider's JSON."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return to_plain(to_dict(value)) if callable(getattr(value, "model_dump", None)) else value


def compact_json(value: object) -> str:
    """Return a value as JSON text, for people."""
    return json_text(to_plain(value))


def int_field(usage: Mapping[str, Any], key: str) -> int | None:
    """Return a count; a server's -1 means unknown."""
    value = usage.get(key)
    return value if is_count(value) else None


def parse_tool_call(call_id: str, name: str, arguments: object) -> ToolCall:
    """Return the call; arguments stay raw text if no store could keep the arguments unchanged."""
    value, raw = arguments, arguments
    if isinstance(raw, str):
        # A call without arguments streams no text.
        value = _decode(raw) if raw.strip() else {}
    if isinstance(value, dict) and is_storable(value):
        return ToolCall(call_id, name, value)
    return ToolCall(call_id, name, {}, raw if isinstance(raw, str) else json_text(raw))


def result_parts(
    parsed: Iterable[tuple[Part, Proof]],
) -> tuple[tuple[Text | Attachment, ...], dict[str, Any]]:
    """Return a tool result's content, and by index the evidence of its pieces."""
    content: list[Text | Attachment] = []
    pieces: dict[str, Any] = {}
    for part, proof in parsed:
        if proof:
            pieces[str(len(content))] = proof
        if isinstance(part, ProviderBlock):
            is_unknown = not part.text and "block" in proof
            part = Text(json_text(proof["block"]) if is_unknown else part.stub)
        elif not isinstance(part, Text | Attachment):
            raise UnrecognizedReply(f"a {type(part).__name__} in a tool_result")
        content.append(part)
    return tuple(content), {"pieces": pieces} if pieces else {}


def parse_base64(data: object, mime: object, name: object = None) -> Attachment:
    """Decode base64 of a message to an attachment."""
    try:
        decoded = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded or not isinstance(mime, str):
        raise UnrecognizedReply(f"inline media of type {mime!r} is not valid base64")
    return Attachment(decoded, mime, name if isinstance(name, str) else None)


def parse_data_url(url: object, name: object = None) -> Attachment | None:
    """Return the bytes of a base64 `data:` URL; None for anything else."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    head, _, data = url[len("data:") :].partition(",")
    mime, *options = head.split(";")
    if "base64" not in options:
        return None
    try:
        return parse_base64(data, mime or "application/octet-stream", name)
    except UnrecognizedReply:
        return None


def _decode(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
