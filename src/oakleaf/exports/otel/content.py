"""Write messages as the GenAI semantic conventions put them into attributes: JSON text of roles and parts.

Media are named by their handle; their bytes are not exported. Does not know spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oakleaf.core.entries import Entry
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    Part,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from oakleaf.exports.values import result_text

_MODALITIES = ("image", "audio", "video")


def input_messages(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the attributes of a model's input."""
    messages = [_message(entry.message) for entry in entries if entry.message is not None]
    return _attribute("gen_ai.input.messages", messages)


def output_messages(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the attributes of a model's answers, each with the finish reason."""
    messages = [
        {**_message(entry.message), "finish_reason": entry.finish or "stop"}
        for entry in entries
        if entry.message is not None
    ]
    return _attribute("gen_ai.output.messages", messages)


def instructions(seeds: Sequence[Entry]) -> dict[str, str]:
    """Return the attributes for the system prompt a session began with."""
    systems = [entry.message for entry in seeds if entry.message is not None and entry.role == "system"]
    parts = [_part(part) for message in systems for part in message.parts]
    return _attribute("gen_ai.system_instructions", parts)


def _attribute(name: str, values: list[dict[str, Any]]) -> dict[str, str]:
    return {name: msgspec.json.encode(values).decode()} if values else {}


def _message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "parts": [_part(part) for part in message.parts]}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "content": text}
        case Reasoning(text=text):
            return {"type": "reasoning", "content": text}
        case ProviderBlock(text=text):
            return {"type": part.kind, "content": text}
        case ToolCall(malformed=malformed):
            written = part.arguments if malformed is None else malformed
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": written}
        case ToolResult():
            return {"type": "tool_call_response", "id": part.call_id, "response": result_text(part)}
        case Media():
            return _media(part)
        case Attachment():
            raise TypeError("an attachment is not stored; the log stores a media handle instead")


def _media(media: Media) -> dict[str, Any]:
    kind = media.mime.partition("/")[0]
    modality = kind if kind in _MODALITIES else "document"
    uri = f"media://sha256-{media.hash}"
    return {"type": "uri", "modality": modality, "mime_type": media.mime, "uri": uri}
