"""Parse replies and messages of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...core.entries import Evidence
from ...core.messages import (
    Attachment,
    Message,
    Part,
    Reasoning,
    Text,
    ToolResult,
    check_message,
)
from ...core.usage import Usage
from ...errors import InvalidMessage, UnrecognizedReply
from ..base import Answer, HistoryMessage
from ..parsing import content_blocks, int_field, parse_base64, parse_tool_call, text_field, to_dict
from . import NAME


def parse_reply(reply: object) -> Answer:
    data = to_dict(reply)
    if data.get("role", "assistant") != "assistant" or "content" not in data:
        raise UnrecognizedReply(
            f"a dict with {', '.join(map(str, data)) or 'nothing'} is not an Anthropic answer"
        )
    parsed = _parse_answer(data["content"])
    return Answer(
        parsed.message,
        _parse_usage(data.get("usage")),
        parsed.evidence,
        NAME,
        data.get("model"),
        data.get("stop_reason"),
    )


def _parse_usage(usage: object) -> Usage | None:
    if usage is None:
        return None
    data = to_dict(usage)
    fresh = int_field(data, "input_tokens")
    read, written = (
        int_field(data, "cache_read_input_tokens"),
        int_field(data, "cache_creation_input_tokens"),
    )
    # Anthropic reports cache reads and writes separately from the input; our count includes them.
    total = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(total, int_field(data, "output_tokens"), read, written)


def _parse_answer(content: object) -> HistoryMessage:
    parts: list[Part] = []
    evidence: dict[str, dict[str, Any]] = {}
    for block in content_blocks(content):
        proof = {key: block[key] for key in ("signature", "data") if block.get(key)}
        if proof and block.get("type") in ("thinking", "redacted_thinking"):
            evidence[str(len(parts))] = proof
        parts.append(_parse_block(block))
    return HistoryMessage(_message("assistant", parts), Evidence(NAME, evidence) if evidence else None)


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    return [ours for message in messages for ours in _parse_message(to_dict(message))]


def _parse_message(message: dict[str, Any]) -> list[HistoryMessage]:
    role = text_field(message, "role")
    if role == "assistant":
        return [_parse_answer(message.get("content"))]
    data = [_parse_block(block) for block in content_blocks(message.get("content"))]
    results = [part for part in data if isinstance(part, ToolResult)]
    rest = [part for part in data if not isinstance(part, ToolResult)]
    if role != "user" and results:
        raise UnrecognizedReply(f"a tool_result in a message of role {role!r}")
    tools = [HistoryMessage(Message("tool", (result,))) for result in results]
    return [*tools, HistoryMessage(_message(role, rest))] if rest or not tools else tools


def _message(role: str, parts: Sequence[Part]) -> Message:
    message = Message(role, tuple(parts))  # type: ignore[arg-type]  # checked on the next line
    try:
        check_message(message)
    except InvalidMessage as error:
        raise UnrecognizedReply(str(error)) from None
    return message


def _parse_block(block: dict[str, Any]) -> Part:
    kind = block.get("type")
    if kind == "text":
        return Text(text_field(block, "text"))
    if kind == "thinking":
        return Reasoning(text_field(block, "thinking"))
    if kind == "redacted_thinking":
        return Reasoning()
    if kind == "tool_use":
        return parse_tool_call(text_field(block, "id"), text_field(block, "name"), block.get("input"))
    if kind == "tool_result":
        content = [_parse_block(piece) for piece in content_blocks(block.get("content"))]
        kept = tuple(piece for piece in content if isinstance(piece, Text | Attachment))
        if len(kept) == len(content):
            return ToolResult(text_field(block, "tool_use_id"), kept, bool(block.get("is_error")))
    if kind in ("image", "document"):
        return _parse_source(str(kind), to_dict(block.get("source")), block.get("title"))
    raise UnrecognizedReply(f"an Anthropic block of type {kind!r}, which is not supported")


def _parse_source(kind: str, source: dict[str, Any], title: object) -> Text | Attachment:
    how = source.get("type")
    if how == "base64":
        return parse_base64(source.get("data"), source.get("media_type"), title)
    if how == "text":
        return Text(text_field(source, "data"))
    if how in ("url", "file"):  # bytes stored elsewhere: keep the link as text
        return Text(f"[{kind}: {text_field(source, 'url' if how == 'url' else 'file_id')}]")
    raise UnrecognizedReply(f"a source of type {how!r} of an Anthropic {kind}")
