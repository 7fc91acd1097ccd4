"""Parse completions and messages of OpenAI's Chat Completions API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from oakleaf.core.messages import Attachment, Message, Part, Reasoning, Text, ToolResult
from oakleaf.core.usage import Usage
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire.base import Answer, HistoryMessage, Proof, history_message
from oakleaf.wire.openai_chat import NAME
from oakleaf.wire.parsing import content_blocks, int_field, parse_base64, parse_tool_call, text_field, to_dict

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where compatible servers have the reasoning: DeepSeek, Kimi and llama.cpp the first; OpenRouter, Groq and vLLM the second."""
DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_SOUND = {
    b"RIFF": "audio/wav",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
}


def parse_reply(reply: object) -> Answer:
    """Parse a completion, or only the message of a completion."""
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
        message = {"role": "assistant", **to_dict(choice.get("message"))}
    if text_field(message, "role") != "assistant":
        raise UnrecognizedReply(f"a chat message of role {message['role']!r} is not an answer")
    usage = data.get("usage") or choice.get("usage")
    parsed = _parse_assistant(message)
    return Answer(
        parsed.message,
        None if usage is None else parse_usage(to_dict(usage)),
        parsed.evidence,
        NAME,
        data.get("model"),
        choice.get("finish_reason") or None,
    )


def parse_usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = None if details is None else int_field(to_dict(details), "cached_tokens")
    for key in ("cached_tokens", "prompt_cache_hit_tokens"):  # Kimi, DeepSeek
        cached = int_field(usage, key) if cached is None else cached
    return Usage(int_field(usage, "prompt_tokens"), int_field(usage, "completion_tokens"), cached)


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    return [_parse_message(to_dict(message)) for message in messages]


def _parse_message(message: dict[str, Any]) -> HistoryMessage:
    role = text_field(message, "role")
    if role == "assistant":
        return _parse_assistant(message)
    parsed = [_parse_part(part) for part in content_blocks(message.get("content"))]
    parts = tuple(part for part, _ in parsed)
    if role == "user":
        return history_message(NAME, "user", parsed)
    texts = tuple(part for part in parts if isinstance(part, Text))
    if role in ("system", "developer", "tool", "function") and len(texts) == len(parts):
        if role in ("tool", "function"):
            call_id = message.get("tool_call_id") if role == "tool" else message.get("name")
            return HistoryMessage(Message("tool", (ToolResult(_parse_id(call_id, role), texts),)))
        return HistoryMessage(Message("system", texts))
    raise UnrecognizedReply(
        f"a chat message of role {role!r} with {len(parts)} parts, which is not supported"
    )


def _parse_assistant(message: dict[str, Any]) -> HistoryMessage:
    """Return reasoning, then text, then calls: the order in which a model writes.

    A server that demands its reasoning back demands it with tool calls; so only with them the field is evidence.
    """
    calls = [to_dict(call) for call in message.get("tool_calls") or ()]
    old_call = to_dict(message["function_call"]) if message.get("function_call") else None
    if old_call and old_call.get("name") not in [to_dict(c.get("function") or {}).get("name") for c in calls]:
        calls.append({"id": old_call.get("name"), "function": old_call})
    parsed: list[tuple[Part, Proof]] = []
    for field in REASONING_FIELDS:
        if isinstance(reasoning := message.get(field), str) and reasoning and not parsed:
            parsed.append((Reasoning(reasoning), {"field": field} if calls else {}))
    for part in (*content_blocks(message.get("content")), *content_blocks(message.get("images"))):
        parsed.append(
            (Reasoning(_thinking(part)), {}) if part.get("type") == "thinking" else _parse_part(part)
        )
    if message.get("refusal"):
        parsed.append((Text(text_field(message, "refusal")), {}))
    if message.get("audio"):
        parsed.extend((part, {}) for part in _parse_audio(to_dict(message["audio"])))
    parsed.extend(_parse_call(call, number) for number, call in enumerate(calls))
    return history_message(NAME, "assistant", [pair for pair in parsed if pair[0] != Text("")])


def _thinking(block: dict[str, Any]) -> str:
    """Mistral's reasoning is part of the content."""
    thinking = block.get("thinking")
    return "".join(text_field(piece, "text") for piece in content_blocks(thinking))


def _parse_audio(audio: dict[str, Any]) -> Iterator[Part]:
    """Return the words and the sound of a spoken answer. Its id is not kept, for it expires within the hour."""
    if audio.get("transcript"):
        yield Text(text_field(audio, "transcript"))
    if audio.get("data"):
        sound = parse_base64(audio["data"], "audio/pcm")
        mime = next((mime for head, mime in _SOUND.items() if sound.data.startswith(head)), sound.mime)
        yield replace(sound, mime=mime)


def _parse_call(call: dict[str, Any], number: int) -> tuple[Part, Proof]:
    if (call.get("type") or "function") != "function":
        raise UnrecognizedReply(f"a tool call of type {call['type']!r}, which is not supported", call)
    function = to_dict(call.get("function"))
    call_id = call.get("id")
    call_id = f"call_{number}" if call_id in (None, "") else _parse_id(call_id, "tool call")
    proof = {"extra_content": call["extra_content"]} if call.get("extra_content") else {}
    return parse_tool_call(call_id, text_field(function, "name"), function.get("arguments")), proof


def _parse_id(value: object, what: str) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise UnrecognizedReply(f"the id of a {what} is {type(value).__name__}, not text")


def _parse_part(part: dict[str, Any]) -> tuple[Text | Attachment, Proof]:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return Text(text_field(part, str(kind))), {}
    if kind == "input_audio":
        audio = to_dict(part.get("input_audio"))
        sound = parse_base64(audio.get("data"), AUDIO_TYPES.get(str(audio.get("format"))))
        return sound, {"format": audio["format"]}
    if kind == "reference":  # Mistral's, to a document
        return Text(f"[reference: {', '.join(map(str, part.get('reference_ids') or ()))}]"), {}
    link = link_text(part)
    if link is not None:
        return Text(link), {"data": part}
    if kind == "image_url":
        return _parse_data_url("image", text_field(to_dict(part.get("image_url")), "url"), None), {}
    if kind == "file":
        file = to_dict(part.get("file"))
        return _parse_data_url("file", text_field(file, "file_data"), file.get("filename")), {}
    raise UnrecognizedReply(f"a content part of type {kind!r}, which is not supported", part)


def link_text(part: Mapping[str, Any]) -> str | None:
    """Return the text for linked media, an image by URL or a file by id; None for other parts."""
    kind = part.get("type")
    target = part.get(str(kind))
    if isinstance(target, str) and kind == "image_url":  # Mistral
        target = {"url": target}
    if not isinstance(target, Mapping):
        return None
    if kind == "image_url" and isinstance(url := target.get("url"), str) and not url.startswith("data:"):
        return f"[image: {url}]"
    if kind == "file" and isinstance(file_id := target.get("file_id"), str) and not target.get("file_data"):
        return f"[file: {file_id}]"
    return None


def _parse_data_url(kind: str, url: str, name: object) -> Text | Attachment:
    data = DATA_URL.fullmatch(url)
    return parse_base64(data[2], data[1], name) if data else Text(f"[{kind}: {url}]")
