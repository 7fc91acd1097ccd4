"""Parse completions and messages of OpenAI's Chat Completions API."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ...core.messages import Attachment, Message, Part, Reasoning, Text, ToolResult
from ...core.usage import Usage
from ...errors import UnrecognizedReply
from ..base import Answer, HistoryMessage
from ..parsing import content_blocks, int_field, parse_base64, parse_tool_call, text_field, to_dict
from . import NAME

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def parse_reply(reply: object) -> Answer:
    """Parse a completion, or only its message."""
    data = to_dict(reply)
    choice: dict[str, Any] = {}
    message = data
    if "choices" in data:
        choices = data["choices"]
        if not isinstance(choices, list) or len(choices) != 1:
            raise UnrecognizedReply(
                f"a completion with {len(choices or ())} choices; an answer is exactly one"
            )
        choice = to_dict(choices[0])
        message = to_dict(choice.get("message"))
    if text_field(message, "role") != "assistant":
        raise UnrecognizedReply(f"a chat message of role {message['role']!r} is not an answer")
    usage = data.get("usage")
    return Answer(
        _parse_assistant(message),
        None if usage is None else _parse_usage(to_dict(usage)),
        None,
        NAME,
        data.get("model"),
        choice.get("finish_reason"),
    )


def _parse_usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = None if details is None else int_field(to_dict(details), "cached_tokens")
    return Usage(int_field(usage, "prompt_tokens"), int_field(usage, "completion_tokens"), cached)


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    return [HistoryMessage(_parse_message(to_dict(message))) for message in messages]


def _parse_message(message: dict[str, Any]) -> Message:
    role = text_field(message, "role")
    if role == "assistant":
        return _parse_assistant(message)
    parts = tuple(_parse_part(part) for part in content_blocks(message.get("content")))
    if role == "user":
        return Message("user", parts)
    texts = tuple(part for part in parts if isinstance(part, Text))
    if role in ("system", "developer", "tool") and len(texts) == len(parts):
        if role == "tool":
            return Message("tool", (ToolResult(text_field(message, "tool_call_id"), texts),))
        return Message("system", texts)
    raise UnrecognizedReply(
        f"a chat message of role {role!r} with {len(parts)} parts, which is not supported"
    )


def _parse_assistant(message: dict[str, Any]) -> Message:
    """Reasoning first, then text, then calls: the order in which a model produces them."""
    for key in ("function_call", "audio"):
        if message.get(key):
            raise UnrecognizedReply(f"a chat message with {key!r}, which is not supported")
    thought = message.get("reasoning_content") or message.get("reasoning")
    parts: list[Part] = [Reasoning(thought)] if isinstance(thought, str) else []
    parts.extend(_parse_part(part) for part in content_blocks(message.get("content")))
    if message.get("refusal"):
        parts.append(Text(text_field(message, "refusal")))
    parts.extend(_parse_call(to_dict(call)) for call in message.get("tool_calls") or ())
    return Message("assistant", tuple(part for part in parts if part != Text("")))


def _parse_call(call: dict[str, Any]) -> Part:
    if call.get("type", "function") != "function":
        raise UnrecognizedReply(f"a tool call of type {call['type']!r}, which is not supported")
    function = to_dict(call.get("function"))
    return parse_tool_call(text_field(call, "id"), text_field(function, "name"), function.get("arguments"))


def _parse_part(part: dict[str, Any]) -> Text | Attachment:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return Text(text_field(part, str(kind)))
    if kind == "image_url":
        return _parse_url("image", text_field(to_dict(part.get("image_url")), "url"), None)
    if kind == "file":
        file = to_dict(part.get("file"))
        if file.get("file_data"):
            return _parse_url("file", text_field(file, "file_data"), file.get("filename"))
        return Text(f"[file: {text_field(file, 'file_id')}]")
    if kind == "input_audio":
        audio = to_dict(part.get("input_audio"))
        return parse_base64(audio.get("data"), _AUDIO.get(str(audio.get("format"))))
    raise UnrecognizedReply(f"a content part of type {kind!r}, which is not supported")


def _parse_url(kind: str, url: str, name: object) -> Text | Attachment:
    data = _DATA_URL.fullmatch(url)
    return parse_base64(data[2], data[1], name) if data else Text(f"[{kind}: {url}]")
