"""Messages of LangChain, as its stores keep them: the fields of its classes, in any of the wrappers it has used.

Knows its kinds of messages and content. Does not know where they were kept; LangGraph's checkpoints and LangChain's chat
histories both hold them.
"""

from __future__ import annotations

import re
from typing import Any

from ..core.entries import Evidence
from ..core.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResult
from ..core.usage import Usage
from ..wire.shapes import parse_base64, parse_tool_call
from .jsonl import UNEXPECTED_SHAPE, text_or_none, token_counts
from .records import EntryRecord, LossReport

Fields = dict[str, Any]

ROLES = {
    **dict.fromkeys(("human", "HumanMessage", "HumanMessageChunk", "user"), "user"),
    **dict.fromkeys(("ai", "AIMessage", "AIMessageChunk", "assistant"), "assistant"),
    **dict.fromkeys(("system", "SystemMessage", "SystemMessageChunk", "developer"), "system"),
    **dict.fromkeys(("tool", "ToolMessage", "ToolMessageChunk"), "tool"),
}
PROVIDERS = {"google_genai": "gemini", "google_vertexai": "gemini"}
REPEATED = {
    "tool_use",
    "tool_call",
    "input_json_delta",
    "tool_call_chunk",
    "invalid_tool_call",
    "function_call",
}
"""Blocks that tell again what `tool_calls` tells."""
DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)


def message_fields(found: object) -> Fields | None:
    """The fields of a message, out of what they are wrapped in; None if it is none."""
    if not isinstance(found, dict):
        return None
    if found.get("lc") and isinstance(found.get("kwargs"), dict):
        names = found.get("id")
        name = names[-1] if isinstance(names, list) and names else None
        return {"type": name, **found["kwargs"]}
    if isinstance(found.get("data"), dict) and "content" not in found:
        return {"type": found.get("type"), **found["data"]}
    return found if "content" in found and ("type" in found or "role" in found) else None


def read_message(message: Fields, losses: LossReport) -> EntryRecord | None:
    """One message; None, and counted, if it is of no kind we know."""
    kind = message.get("type", message.get("role"))
    role = ROLES.get(kind) if isinstance(kind, str) else None
    if role is None:
        losses.add("a message of a kind we do not know", str(kind))
        return None
    if role == "assistant":
        return _answer(message, losses)
    parts = [part for part, _ in _parts(message.get("content"), losses)]
    if role == "tool":
        return _result(message, parts, losses)
    shown = tuple(part for part in parts if isinstance(part, Text if role == "system" else Text | Attachment))
    return EntryRecord(Message(role, shown)) if shown else None  # type: ignore[arg-type]


def _answer(message: Fields, losses: LossReport) -> EntryRecord | None:
    about = message.get("response_metadata")
    about = about if isinstance(about, dict) else {}
    provider = text_or_none(about.get("model_provider"))
    more = message.get("additional_kwargs")
    thought = text_or_none(more.get("reasoning_content")) if isinstance(more, dict) else None
    parts: list[Part] = [Reasoning(thought)] if thought else []
    proofs: dict[str, dict[str, Any]] = {}
    for part, proof in _parts(message.get("content"), losses):
        if proof:
            proofs[str(len(parts))] = proof
        parts.append(part)
    parts.extend(_calls(message, losses))
    if not parts:
        return None
    return EntryRecord(
        Message("assistant", tuple(parts)),
        model=text_or_none(about.get("model_name")) or text_or_none(about.get("model")),
        provider=PROVIDERS.get(provider or "", provider),
        finish=text_or_none(about.get("finish_reason")) or text_or_none(about.get("stop_reason")),
        evidence=Evidence(provider, proofs) if provider in ("anthropic", "openai") and proofs else None,
        usage=_usage(message.get("usage_metadata")),
    )


def _calls(message: Fields, losses: LossReport) -> list[ToolCall]:
    found: list[ToolCall] = []
    for name in ("tool_calls", "invalid_tool_calls"):
        made = message.get(name)
        for number, call in enumerate(made if isinstance(made, list) else ()):
            about = call if isinstance(call, dict) else {}
            if isinstance(about.get("name"), str):
                call_id = text_or_none(about.get("id")) or f"{message.get('id')} {number}"
                found.append(parse_tool_call(call_id, about["name"], about.get("args")))
            else:
                losses.add("a call without a name", str(about.get("id")))
    return found


def _result(message: Fields, parts: list[Part], losses: LossReport) -> EntryRecord | None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        losses.add("a result that names no call", str(message.get("name")))
        return None
    if message.get("artifact") is not None:
        losses.add("what a tool kept for the program beside its result", call_id)
    content = tuple(part for part in parts if isinstance(part, Text | Attachment))
    return EntryRecord(Message("tool", (ToolResult(call_id, content, message.get("status") == "error"),)))


def _parts(content: object, losses: LossReport) -> list[tuple[Part, dict[str, Any]]]:
    """The parts of a content, each with what its issuer wants back."""
    if isinstance(content, str):
        return [(Text(content), {})] if content else []
    found: list[tuple[Part, dict[str, Any]]] = []
    for block in content if isinstance(content, list) else ():
        try:
            made = (Text(block), {}) if isinstance(block, str) else _part(block)
        except UNEXPECTED_SHAPE as error:
            losses.add("a part of a message of no shape we know", str(error))
            continue
        if made is not None:
            found.append(made)
    return found


def _part(block: Fields) -> tuple[Part, dict[str, Any]] | None:
    kind = block["type"]
    if kind in ("text", "output_text", "input_text"):
        proof = {"id": block["id"]} if text_or_none(block.get("id")) else {}
        return (Text(_words(block["text"])), proof) if block["text"] else None
    if kind in ("thinking", "redacted_thinking"):
        proof = {key: block[key] for key in ("signature", "data") if text_or_none(block.get(key))}
        return Reasoning(_words(block.get("thinking") or "")), proof
    if kind == "reasoning":
        summary = block.get("summary") or []
        said = block.get("reasoning") or "\n\n".join(_words(piece["text"]) for piece in summary)
        proof = {key: block[key] for key in ("id", "encrypted_content") if text_or_none(block.get(key))}
        return Reasoning(_words(said)), proof if len(proof) == 2 else {}
    if kind in ("image_url", "input_image"):
        about = block["image_url"]
        return _link(_words(about["url"] if isinstance(about, dict) else about)), {}
    if kind in ("image", "audio", "file", "video"):
        return _media(kind, block), {}
    if kind in REPEATED:
        return None
    raise ValueError(f"a block of type {kind!r}")


def _words(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where words belong")
    return value


def _media(kind: str, block: Fields) -> Text | Attachment:
    """Bytes in the block, in either of LangChain's shapes or in Anthropic's; or the words that lead to them."""
    source = block.get("source")
    about = source if isinstance(source, dict) else block
    data = about.get("base64") or about.get("data")
    if isinstance(data, str):
        return parse_base64(data, about.get("mime_type") or about.get("media_type"), block.get("filename"))
    return Text(f"[{kind}: {_words(about.get('url') or about.get('file_id') or about.get('id'))}]")


def _link(url: str) -> Text | Attachment:
    found = DATA_URL.fullmatch(url)
    return parse_base64(found[2], found[1]) if found else Text(f"[image: {url}]")


def _usage(usage: object) -> Usage | None:
    found = token_counts(usage, ("input_tokens", "output_tokens"))
    if found is None or not isinstance(usage, dict):
        return None
    details = token_counts(usage.get("input_token_details"), ("cache_read", "cache_creation"))
    return Usage(*found, *details) if details else Usage(*found)
