"""Parse responses and input items of OpenAI's Responses API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from ...core.entries import Evidence
from ...core.messages import Attachment, Message, Part, Reasoning, Text, ToolResult
from ...core.usage import Usage
from ...errors import UnrecognizedReply
from ..base import Answer, HistoryMessage
from ..parsing import content_blocks, int_field, parse_base64, parse_tool_call, text_field, to_dict
from . import NAME

Proof = dict[str, Any]

_PROOF = {"message": ("id", "status", "phase"), "function_call": ("id", "namespace")}
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def parse_reply(reply: object) -> Answer:
    """A whole response, or only an item of one."""
    data = to_dict(reply)
    is_response = data.get("object") == "response"
    if is_response and (data.get("status") == "failed" or data.get("error")):
        raise UnrecognizedReply(f"a response that failed: {data.get('error')!r}")
    parsed = _parse_answer(content_blocks(data.get("output")) if is_response else [data])
    usage = data.get("usage")
    return Answer(
        parsed.message,
        None if usage is None else _parse_usage(to_dict(usage)),
        parsed.evidence,
        NAME,
        data.get("model"),
        _parse_finish(data) if is_response else None,
    )


def _parse_finish(response: dict[str, Any]) -> str | None:
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        return (None if details is None else to_dict(details).get("reason")) or "incomplete"
    return status if status in ("completed", "cancelled") else None


def _parse_usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("input_tokens_details")
    cached = {} if details is None else to_dict(details)
    read, written = int_field(cached, "cached_tokens"), int_field(cached, "cache_write_tokens")
    return Usage(int_field(usage, "input_tokens"), int_field(usage, "output_tokens"), read, written)


def _parse_output_item(item: dict[str, Any]) -> Iterator[tuple[Part, Proof]]:
    """Yield the parts of an output item, each with the data OpenAI requires back with it."""
    kind = item.get("type") or "message"
    proof = {key: item[key] for key in _PROOF.get(kind, ()) if item.get(key)}
    if kind == "function_call":
        yield (
            parse_tool_call(text_field(item, "call_id"), text_field(item, "name"), item.get("arguments")),
            proof,
        )
    elif kind == "reasoning":
        yield _parse_reasoning(item)
    elif kind == "message" and item.get("role") == "assistant":
        for part in content_blocks(item.get("content")):
            said = _parse_part(part)
            if said != Text(""):
                yield said, proof
    else:
        raise UnrecognizedReply(
            f"an item of type {kind!r} and role {item.get('role')!r}, which is not supported"
        )


def _parse_reasoning(item: dict[str, Any]) -> tuple[Part, Proof]:
    """Keep encrypted content to send back; without it the id is useless for a stateless client."""
    shown = content_blocks(item.get("summary")) or content_blocks(item.get("content"))
    proof = {key: item[key] for key in ("id", "encrypted_content") if item.get(key)}
    return Reasoning("\n\n".join(text_field(piece, "text") for piece in shown)), proof if len(
        proof
    ) == 2 else {}


def _parse_answer(items: Iterable[dict[str, Any]]) -> HistoryMessage:
    parts: list[Part] = []
    evidence: dict[str, Proof] = {}
    for item in items:
        for part, proof in _parse_output_item(item):
            if proof:
                evidence[str(len(parts))] = proof
            parts.append(part)
    return HistoryMessage(Message("assistant", tuple(parts)), Evidence(NAME, evidence) if evidence else None)


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    """Parse input items; consecutive output of the model is one answer."""
    parsed: list[HistoryMessage] = []
    for is_output, items in groupby(map(to_dict, messages), _is_output):
        if is_output:
            parsed.append(_parse_answer(items))
        else:
            parsed.extend(HistoryMessage(_parse_item(item.get("type") or "message", item)) for item in items)
    return parsed


def _is_output(item: dict[str, Any]) -> bool:
    return item.get("type") in ("reasoning", "function_call") or item.get("role") == "assistant"


def _parse_item(kind: str, item: dict[str, Any]) -> Message:
    if kind == "function_call_output":
        pieces = tuple(_parse_part(part) for part in content_blocks(item.get("output")))
        return Message("tool", (ToolResult(text_field(item, "call_id"), pieces),))
    if kind != "message":
        raise UnrecognizedReply(f"an item of type {kind!r}, which is not supported")
    role = text_field(item, "role")
    parts = tuple(_parse_part(part) for part in content_blocks(item.get("content")))
    if role == "user":
        return Message("user", parts)
    if role in ("system", "developer") and all(isinstance(part, Text) for part in parts):
        return Message("system", parts)
    raise UnrecognizedReply(f"an item of role {role!r} with {len(parts)} parts, which is not supported")


def _parse_part(part: dict[str, Any]) -> Text | Attachment:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return Text(text_field(part, "text"))
    if kind == "refusal":
        return Text(text_field(part, "refusal"))
    if kind == "input_image":
        return _parse_link("image", part, "image_url")
    if kind == "input_file":
        return _parse_link("file", part, "file_data" if part.get("file_data") else "file_url")
    if kind == "input_audio":
        audio = to_dict(part.get("input_audio"))
        return parse_base64(audio.get("data"), _AUDIO.get(str(audio.get("format"))))
    raise UnrecognizedReply(f"a content part of type {kind!r}, which is not supported")


def _parse_link(kind: str, part: dict[str, Any], key: str) -> Text | Attachment:
    """Keep a link to bytes stored elsewhere as text."""
    link = text_field(part, key if part.get(key) else "file_id")
    data = _DATA_URL.fullmatch(link)
    return parse_base64(data[2], data[1], part.get("filename")) if data else Text(f"[{kind}: {link}]")
