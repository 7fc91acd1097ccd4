"""OpenAI's Chat Completions, and everybody who speaks it: a context as its messages, and back.

A tool message holds text only, so media of results follow the whole batch in a user message. The rules
this must meet are in `openai_chat_rules`, which shares no code with this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ...core.context import Context
from ...core.messages import Attachment, Media, Message, Part, Reasoning, Text, ToolResult
from ...core.usage import Usage
from ...errors import UnrecognizedReply
from ..media import PDF, LoadedMedia, load_media, media_stub
from ..pairs import (
    EMPTY_MESSAGE,
    MEDIA_HEADING,
    PairedMessage,
    ToolPair,
    is_blank,
    legal_name,
    pair_results,
    result_content,
)
from ..shapes import (
    Answer,
    Blobs,
    Request,
    content_blocks,
    int_field,
    parse_base64,
    parse_tool_call,
    text_field,
    to_dict,
)

NAME = "openai-chat"
ID_LENGTH = 40
NAME_LENGTH = 64
IMAGE_BYTES = 20 * 1024 * 1024
PDF_BYTES = 32 * 1024 * 1024
MEDIA_LIMITS = dict.fromkeys(("image/png", "image/jpeg", "image/gif", "image/webp"), IMAGE_BYTES) | {
    PDF: PDF_BYTES
}

ERROR = "[error]"

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def project(context: Context, blobs: Blobs) -> Request:
    messages = [_says("system", prompt) for prompt in context.system if prompt.strip()]
    for step in pair_results(context.items, ID_LENGTH):
        messages.extend(_write(step, blobs))
    return {"messages": messages}


def _write(step: PairedMessage, blobs: Blobs) -> list[dict[str, Any]]:
    message = step.item.message
    if message.role == "assistant":
        return [*_answer(step), *_results(step.pairs, blobs)]
    if message.role == "system":
        return [_says("system", message.text)] if message.text.strip() else []
    content = [_content(part, blobs) for part in message.parts if not is_blank(part)]
    if not content:
        return [_says("user", EMPTY_MESSAGE)]
    if len(content) == 1 and content[0]["type"] == "text":
        return [_says("user", content[0]["text"])]
    return [{"role": "user", "content": content}]


def _answer(step: PairedMessage) -> list[dict[str, Any]]:
    text = ""
    for part in step.item.message.parts:
        if isinstance(part, Text):
            text += part.text
        elif isinstance(part, Media | Attachment):
            text += media_stub(part)
    content = text if text.strip() else None
    calls = [_call(pair) for pair in step.pairs]
    if calls:
        return [{"role": "assistant", "content": content, "tool_calls": calls}]
    return [_says("assistant", content)] if content else []


def _call(pair: ToolPair) -> dict[str, Any]:
    call = pair.call
    # Keys keep their order: the text is the same bytes whenever it is written.
    written = msgspec.json.encode(call.arguments).decode() if call.malformed is None else call.malformed
    function = {"name": legal_name(call.name, NAME_LENGTH), "arguments": written}
    return {"id": pair.wire_id, "type": "function", "function": function}


def _results(pairs: Iterable[ToolPair], blobs: Blobs) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    below: list[dict[str, Any]] = []
    for pair in pairs:
        content = [_content(piece, blobs) for piece in result_content(pair.result)]
        below.extend(piece for piece in content if piece["type"] != "text")
        texts = [ERROR] if pair.is_error else []  # there is no field for it
        texts.extend(piece.get("text", "[media: shown below]") for piece in content)
        results.append({"role": "tool", "tool_call_id": pair.wire_id, "content": "\n".join(texts)})
    if below:
        results.append({"role": "user", "content": [{"type": "text", "text": MEDIA_HEADING}, *below]})
    return results


def _content(part: Part, blobs: Blobs) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    assert isinstance(part, Media | Attachment)
    shown = load_media(part, blobs, MEDIA_LIMITS)
    if not isinstance(shown, LoadedMedia):
        return {"type": "text", "text": shown}
    url = f"data:{shown.mime};base64,{shown.base64}"
    if shown.mime == PDF:
        return {"type": "file", "file": {"filename": shown.name or "document.pdf", "file_data": url}}
    return {"type": "image_url", "image_url": {"url": url}}


def _says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def parse_reply(reply: object) -> Answer:
    """A whole completion, or only the message of one."""
    found = to_dict(reply)
    choice: dict[str, Any] = {}
    message = found
    if "choices" in found:
        choices = found["choices"]
        if not isinstance(choices, list) or len(choices) != 1:
            raise UnrecognizedReply(
                f"a completion with {len(choices or ())} choices; an answer is exactly one"
            )
        choice = to_dict(choices[0])
        message = to_dict(choice.get("message"))
    if text_field(message, "role") != "assistant":
        raise UnrecognizedReply(f"a chat message of role {message['role']!r} is no answer")
    usage = found.get("usage")
    return Answer(
        _read_assistant(message),
        None if usage is None else _read_usage(to_dict(usage)),
        None,
        NAME,
        found.get("model"),
        choice.get("finish_reason"),
    )


def _read_usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = None if details is None else int_field(to_dict(details), "cached_tokens")
    return Usage(int_field(usage, "prompt_tokens"), int_field(usage, "completion_tokens"), cached)


def parse_messages(messages: Iterable[object]) -> list[Message]:
    return [_read_message(to_dict(message)) for message in messages]


def _read_message(message: dict[str, Any]) -> Message:
    role = text_field(message, "role")
    if role == "assistant":
        return _read_assistant(message)
    parts = tuple(_read_part(part) for part in content_blocks(message.get("content")))
    if role == "user":
        return Message("user", parts)
    texts = tuple(part for part in parts if isinstance(part, Text))
    if role in ("system", "developer", "tool") and len(texts) == len(parts):
        if role == "tool":
            return Message("tool", (ToolResult(text_field(message, "tool_call_id"), texts),))
        return Message("system", texts)
    raise UnrecognizedReply(f"a chat message of role {role!r} with {len(parts)} parts, which is not kept")


def _read_assistant(message: dict[str, Any]) -> Message:
    """Reasoning first, then what it said, then what it calls: the order a model makes them in."""
    for key in ("function_call", "audio"):
        if message.get(key):
            raise UnrecognizedReply(f"a chat message with {key!r}, which is not kept")
    thought = message.get("reasoning_content") or message.get("reasoning")
    parts: list[Part] = [Reasoning(thought)] if isinstance(thought, str) else []
    parts.extend(_read_part(part) for part in content_blocks(message.get("content")))
    if message.get("refusal"):
        parts.append(Text(text_field(message, "refusal")))
    parts.extend(_read_call(to_dict(call)) for call in message.get("tool_calls") or ())
    return Message("assistant", tuple(part for part in parts if part != Text("")))


def _read_call(call: dict[str, Any]) -> Part:
    if call.get("type", "function") != "function":
        raise UnrecognizedReply(f"a tool call of type {call['type']!r}, which is not kept")
    function = to_dict(call.get("function"))
    return parse_tool_call(text_field(call, "id"), text_field(function, "name"), function.get("arguments"))


def _read_part(part: dict[str, Any]) -> Text | Attachment:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return Text(text_field(part, str(kind)))
    if kind == "image_url":
        return _read_url("image", text_field(to_dict(part.get("image_url")), "url"), None)
    if kind == "file":
        file = to_dict(part.get("file"))
        if file.get("file_data"):
            return _read_url("file", text_field(file, "file_data"), file.get("filename"))
        return Text(f"[file: {text_field(file, 'file_id')}]")
    if kind == "input_audio":
        audio = to_dict(part.get("input_audio"))
        return parse_base64(audio.get("data"), _AUDIO.get(str(audio.get("format"))))
    raise UnrecognizedReply(f"a content part of type {kind!r}, which is not kept")


def _read_url(kind: str, url: str, name: object) -> Text | Attachment:
    found = _DATA_URL.fullmatch(url)
    return parse_base64(found[2], found[1], name) if found else Text(f"[{kind}: {url}]")
