"""Read LangChain messages from the fields its stores keep, in any of the wrappers it has used.

LangGraph checkpoints and LangChain chat histories both hold them. This module does not know where they were stored.
"""

from __future__ import annotations

import re
from typing import Any

from oakleaf.core.entries import Evidence
from oakleaf.core.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.usage import Usage
from oakleaf.ingest.records import EntryRecord, LossReport, unknown_note
from oakleaf.wire.parsing import parse_base64, parse_tool_call
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    as_list,
    first_text,
    known_texts,
    required_text,
    text_or_none,
    token_counts,
)

Fields = dict[str, Any]
Proof = dict[str, Any]
"""The signatures and ids a provider expects back with a part."""

ROLES = {
    **dict.fromkeys(("human", "HumanMessage", "HumanMessageChunk", "user"), "user"),
    **dict.fromkeys(("ai", "AIMessage", "AIMessageChunk", "assistant"), "assistant"),
    **dict.fromkeys(("system", "SystemMessage", "SystemMessageChunk", "developer"), "system"),
    **dict.fromkeys(("tool", "ToolMessage", "ToolMessageChunk"), "tool"),
}
PROVIDERS = {"google_genai": "gemini", "google_vertexai": "gemini"}
TOOL_CALL_BLOCKS = {
    "tool_use",
    "tool_call",
    "input_json_delta",
    "tool_call_chunk",
    "invalid_tool_call",
    "function_call",
}
"""Content blocks that repeat what `tool_calls` holds."""
CACHE_WRITES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
"""Anthropic's cache writes by how long they are kept. If there are any, LangChain sets `cache_creation` to 0."""
DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)


def message_fields(value: object) -> Fields | None:
    """Return the fields of a message without the wrapper; None for anything but a message."""
    if not isinstance(value, dict):
        return None
    if value.get("lc") and isinstance(value.get("kwargs"), dict):
        class_path = value.get("id")
        name = class_path[-1] if isinstance(class_path, list) and class_path else None
        return {"type": name, **value["kwargs"]}
    if isinstance(value.get("data"), dict) and "content" not in value:
        return {"type": value.get("type"), **value["data"]}
    return value if "content" in value and ("type" in value or "role" in value) else None


def read_message(message: Fields, losses: LossReport) -> EntryRecord | None:
    """Convert one message, or a note for an unknown type; None without content."""
    kind = message.get("type", message.get("role"))
    role = ROLES.get(kind) if isinstance(kind, str) else None
    if role is None:
        return EntryRecord(unknown_note("langchain", kind, message, losses))
    if role == "assistant":
        return _read_answer(message, losses)
    parts = [part for part, _ in read_content(message.get("content"), losses)]
    if role == "tool":
        return _read_result(message, parts, losses)
    allowed = Text if role == "system" else Text | Attachment
    content = tuple(part for part in parts if isinstance(part, allowed))
    return EntryRecord(Message(role, content)) if content else None  # type: ignore[arg-type]


def _read_answer(message: Fields, losses: LossReport) -> EntryRecord | None:
    metadata = as_dict(message.get("response_metadata"))
    provider = first_text(metadata, "model_provider")
    reasoning = first_text(as_dict(message.get("additional_kwargs")), "reasoning_content")
    parts: list[Part] = [Reasoning(reasoning)] if reasoning else []
    proofs: dict[str, Proof] = {}
    for part, proof in read_content(message.get("content"), losses):
        if proof:
            proofs[str(len(parts))] = proof
        parts.append(part)
    parts.extend(_read_calls(message, losses))
    if not parts:
        return None
    return EntryRecord(
        Message("assistant", tuple(parts)),
        model=first_text(metadata, "model_name", "model"),
        provider=PROVIDERS.get(provider or "", provider),
        finish=first_text(metadata, "finish_reason", "stop_reason"),
        evidence=Evidence(provider, proofs) if provider in ("anthropic", "openai") and proofs else None,
        usage=read_usage(message.get("usage_metadata")),
        units=read_units(message.get("usage_metadata")),
    )


def _read_calls(message: Fields, losses: LossReport) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for field in ("tool_calls", "invalid_tool_calls"):
        for number, call in enumerate(map(as_dict, as_list(message.get(field)))):
            if isinstance(call.get("name"), str):
                call_id = text_or_none(call.get("id")) or f"{message.get('id')} {number}"
                calls.append(parse_tool_call(call_id, call["name"], call.get("args")))
            else:
                losses.add("a tool call without a name", str(call.get("id")))
    return calls


def _read_result(message: Fields, parts: list[Part], losses: LossReport) -> EntryRecord | None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        losses.add("a tool result without a call id", str(message.get("name")))
        return None
    if message.get("artifact") is not None:
        losses.add("the artifact of a tool result", call_id)
    content = tuple(part for part in parts if isinstance(part, Text | Attachment))
    return EntryRecord(Message("tool", (ToolResult(call_id, content, message.get("status") == "error"),)))


def read_content(content: object, losses: LossReport) -> list[tuple[Part, Proof]]:
    """Return the parts of a message's content, each with the fields the provider expects back."""
    if isinstance(content, str):
        return [(Text(content), {})] if content else []
    parts: list[tuple[Part, Proof]] = []
    for block in as_list(content):
        try:
            part = (Text(block), {}) if isinstance(block, str) else _read_block(block)
        except UNEXPECTED_SHAPE as error:
            losses.misread("a part of a message of unknown shape", str(error))
            continue
        if part is not None:
            parts.append(part)
    return parts


def _read_block(block: Fields) -> tuple[Part, Proof] | None:
    kind = block["type"]
    if kind in ("text", "output_text", "input_text"):
        proof = known_texts(id=block.get("id"))
        return (Text(_string(block["text"])), proof) if block["text"] else None
    if kind in ("thinking", "redacted_thinking"):
        proof = known_texts(signature=block.get("signature"), data=block.get("data"))
        return Reasoning(_string(block.get("thinking") or "")), proof
    if kind == "reasoning":
        summary = block.get("summary") or []
        text = block.get("reasoning") or "\n\n".join(_string(piece["text"]) for piece in summary)
        proof = known_texts(id=block.get("id"), encrypted_content=block.get("encrypted_content"))
        return Reasoning(_string(text)), proof if len(proof) == 2 else {}
    if kind in ("image_url", "input_image", "image", "audio", "file", "video"):
        data, mime, url = media_source(block)
        if isinstance(data, str):
            return parse_base64(data, mime, block.get("filename")), {}
        return Text(f"[{'image' if 'image' in kind else kind}: {_string(url)}]"), {}
    if kind in TOOL_CALL_BLOCKS:
        return None
    raise ValueError(f"a block of type {kind!r}")


def _string(value: object) -> str:
    return required_text(value, f"{type(value).__name__} instead of a string")


def media_source(block: Fields) -> tuple[object, object, object]:
    """Return the base64, media type and URL of a block in any notation of LangChain, Anthropic or OpenAI."""
    image = block.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    match = DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if match:
        return match[2], match[1], url
    nested = block.get("source")
    source = nested if isinstance(nested, dict) else block
    if "image_url" not in block:
        url = source.get("url") or source.get("file_id") or source.get("id")
    mime = source.get("mime_type") or source.get("media_type")
    return source.get("base64") or source.get("data"), mime, url


def read_usage(usage: object) -> Usage | None:
    """Convert `usage_metadata`, with input tokens that include the cached tokens."""
    tokens = token_counts(usage, ("input_tokens", "output_tokens"))
    if tokens is None:
        return None
    details = _cache_details(usage)
    cached = token_counts(details, ("cache_read", "cache_creation", *CACHE_WRITES)) if details else None
    read, written = (cached[0], sum(cached[1:])) if cached else (None, None)
    return Usage(tokens[0], tokens[1], read, written)


def read_units(usage: object) -> dict[str, int] | None:
    """Return the cache writes kept for an hour at a higher price."""
    details = _cache_details(usage)
    (hour,) = token_counts(details, (CACHE_WRITES[1],)) or (0,)
    return {"cache_write_1h_tokens": hour} if hour else None


def _cache_details(usage: object) -> Fields:
    """Return the known counts of cached tokens: a client writes null for unreported counts."""
    details = as_dict(as_dict(usage).get("input_token_details"))
    return {name: count for name, count in details.items() if count is not None}
