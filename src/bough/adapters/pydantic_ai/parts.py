"""Parts of Pydantic AI's messages, as its type adapter dumps them, and parts of ours: reading and rendering.

A part is rendered as the framework dumps it when nothing else is said of it; whoever keeps it keeps the difference.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from ...core.codec import from_json, to_json
from ...core.messages import Attachment, Media, Outcome, Part, Reasoning, Role, Text, ToolCall, ToolResult
from ...wire import Blobs
from ...wire.shapes import parse_tool_call

Dumped = dict[str, Any]

_OUTCOMES: dict[str, Outcome] = {"denied": "denied", "interrupted": "interrupted"}


def _templates() -> dict[str, Dumped]:
    """Messages and parts as the framework dumps them when nothing is said of them, by their kind."""
    asked = ModelRequest([SystemPromptPart(""), UserPromptPart(""), ToolReturnPart("", "", "")])
    said = ModelResponse([TextPart(""), ThinkingPart(""), ToolCallPart("", "", "")])
    dumped = ModelMessagesTypeAdapter.dump_python([asked, said], mode="json")
    found: dict[str, Dumped] = {}
    for message in dumped:
        found |= {
            part["part_kind"]: part | ({"timestamp": None} if "timestamp" in part else {})
            for part in message["parts"]
        }
        found[message["kind"]] = message | {"parts": [], "timestamp": None}
    return found


TEMPLATES = _templates()


# -- reading ---------------------------------------------------------------------------------


def read_request(part: Dumped) -> tuple[Role | None, tuple[Part, ...], str | None]:
    """Its role and parts of ours, and the form if it is not the usual one; no role: it is kept whole."""
    content = part.get("content")
    match part.get("part_kind"):
        case "system-prompt" if isinstance(content, str):
            return "system", (Text(content),), None
        case "user-prompt" if isinstance(content, str):
            return "user", (Text(content),), None
        case "user-prompt" if isinstance(content, list):
            pieces = tuple(_read_content(piece) for piece in content)
            return "user", pieces, "list" if len(pieces) == 1 and isinstance(pieces[0], Text) else None
        case "retry-feedback":
            said = content if isinstance(content, str) else to_json(content, "feedback").decode()
            return "user", (Text(said),), "retry-feedback"
        case "tool-return":
            is_text = isinstance(content, str)
            said = content if isinstance(content, str) else to_json(content, "tool return").decode()
            outcome = str(part.get("outcome"))
            result = ToolResult(
                str(part.get("tool_call_id")),
                (Text(said),),
                error=outcome in ("failed", "retried", "denied", "interrupted"),
                outcome=_OUTCOMES.get(outcome, "done"),
            )
            return "tool", (result,), None if is_text else "json"
    return None, (), None


def _read_content(piece: object) -> Text | Attachment:
    if isinstance(piece, str):
        return Text(piece)
    assert isinstance(piece, dict)
    match piece:
        case {"kind": "binary", "data": str() as data, "media_type": str() as mime}:
            return Attachment(urlsafe_b64decode(data), mime)
        case {"kind": kind, "url": url}:
            return Text(f"[{kind}: {url}]")
        case {"kind": "text-content", "content": str() as text}:
            return Text(text)
    return Text(f"[{piece.get('kind')}]")


def read_said(part: Dumped) -> tuple[Part, str | None]:
    match part.get("part_kind"):
        case "text":
            return Text(part["content"]), None
        case "thinking":
            return Reasoning(part["content"]), None
        case "tool-call":
            written = part.get("args")
            call = parse_tool_call(
                part["tool_call_id"], part["tool_name"], {} if written is None else written
            )
            return call, _call_form(call, written)
        case "file" if part["content"].get("data"):
            content = part["content"]
            return Attachment(urlsafe_b64decode(content["data"]), content["media_type"]), None
    return Reasoning(f"[{part.get('part_kind')}]"), "whole"


def _call_form(call: ToolCall, written: object) -> str | None:
    if isinstance(written, dict):
        return "object"
    return "spaced" if written != _compact(call) and written == json.dumps(call.arguments) else None


# -- rendering -------------------------------------------------------------------------------


def render_request(role: str, parts: Sequence[Part], form: str | None, blobs: Blobs) -> Dumped:
    match list(parts):
        case [ToolResult() as result]:
            text = "".join(piece.text for piece in result.content if isinstance(piece, Text))
            content = from_json(text) if form == "json" else text
            return TEMPLATES["tool-return"] | {"tool_call_id": result.call_id, "content": content}
        case [Text(text=text)] if form == "retry-feedback":
            return {"part_kind": form, "content": text}
        case [Text(text=text)] if form != "list":
            kind = "system-prompt" if role == "system" else "user-prompt"
            return TEMPLATES[kind] | {"content": text}
    return TEMPLATES["user-prompt"] | {"content": [_content(part, blobs) for part in parts]}


def _content(part: Part, blobs: Blobs) -> str | Dumped:
    if not isinstance(part, Media | Attachment):
        return part.text if isinstance(part, Text) else ""
    data = part.data if isinstance(part, Attachment) else blobs(part.hash) or b""
    encoded = urlsafe_b64encode(data).decode()
    return {"data": encoded, "media_type": part.mime, "vendor_metadata": None, "kind": "binary"}


def render_said(part: Part, form: str | None, blobs: Blobs) -> Dumped:
    match part:
        case Text(text=text):
            return TEMPLATES["text"] | {"content": text}
        case Reasoning(text=text) if form != "whole":
            return TEMPLATES["thinking"] | {"content": text}
        case ToolCall(arguments=arguments):
            written = arguments if form == "object" else json.dumps(arguments) if form else _compact(part)
            return TEMPLATES["tool-call"] | {"tool_name": part.name, "tool_call_id": part.id, "args": written}
        case Media() | Attachment():
            beside = {"id": None, "provider_name": None, "provider_details": None, "part_kind": "file"}
            return {"content": _content(part, blobs), **beside}
    return {}


def _compact(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else msgspec.json.encode(call.arguments).decode()


def no_blob(_: str) -> None:
    """Bytes on their way in are still with their part."""
