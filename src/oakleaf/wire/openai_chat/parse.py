"""Parse completions and messages of OpenAI's Chat Completions API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from oakleaf.core.messages import (
    Attachment,
    Part,
    ProviderBlock,
    Reasoning,
    Text,
    ToolResult,
    check_message,
)
from oakleaf.core.usage import MICROCENTS_PER_DOLLAR, STATED_COST, Usage, is_count
from oakleaf.errors import InvalidMessage, UnrecognizedReply
from oakleaf.wire.base import Answer, HistoryMessage, Proof, history_message
from oakleaf.wire.openai_chat import NAME
from oakleaf.wire.parsing import (
    content_blocks,
    int_field,
    parse_base64,
    parse_tool_call,
    result_parts,
    text_field,
    to_dict,
    to_plain,
)
from oakleaf.wire.shapes import shape_around

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
    # The SDK joins the role that some servers repeat in each chunk of a stream, and leaves it null if none names it.
    if (message.get("role") or "assistant").replace("assistant", ""):
        raise UnrecognizedReply(f"a chat message of role {message['role']!r} is not an answer")
    usage = data.get("usage") or choice.get("usage")
    parsed = _parse_assistant(message, is_sent_back=False)
    return Answer(
        parsed.message,
        None if usage is None else parse_usage(to_dict(usage)),
        parsed.evidence,
        NAME,
        data.get("model"),
        choice.get("finish_reason") or None,
        None if usage is None else _stated_cost(to_dict(usage)),
    )


def _stated_cost(usage: dict[str, Any]) -> dict[str, int] | None:
    """Return the cost as OpenRouter states it; with a key of the caller's own, what the key was charged comes on top."""
    details = usage.get("cost_details")
    own = to_dict(details).get("upstream_inference_cost") if usage.get("is_byok") and details else 0
    try:
        dollars = Decimal(str(usage["cost"])) + Decimal(str(own or 0))
    except (KeyError, ArithmeticError):
        return None
    microcents = int((dollars * MICROCENTS_PER_DOLLAR).to_integral_value()) if dollars.is_finite() else -1
    return {STATED_COST: microcents} if is_count(microcents) else None


def parse_usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = None if details is None else int_field(to_dict(details), "cached_tokens")
    for key in ("cached_tokens", "prompt_cache_hit_tokens"):  # Kimi, DeepSeek
        cached = int_field(usage, key) if cached is None else cached
    written = None if details is None else int_field(to_dict(details), "cache_write_tokens")
    return Usage(int_field(usage, "prompt_tokens"), int_field(usage, "completion_tokens"), cached, written)


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    return [_parse_message(to_dict(message)) for message in messages]


def _parse_message(message: dict[str, Any]) -> HistoryMessage:
    role = text_field(message, "role")
    plain = to_plain(message)
    if role == "assistant":
        return _parse_assistant(message, is_sent_back=True)
    parsed_parts = [_parse_part(part) for part in content_blocks(message.get("content"))]
    if role in ("user", "system", "developer"):
        shape = shape_around(plain, "role", "content")
        if role == "developer":
            shape = {**(shape or {"content": None}), "role": role}
        return _checked(history_message(NAME, "user" if role == "user" else "system", parsed_parts, shape))
    if role in ("tool", "function"):
        key = "tool_call_id" if role == "tool" else "name"
        content, proof = result_parts(parsed_parts)
        if shape := shape_around(plain, "role", "content", "tool_call_id") if role == "tool" else None:
            proof["shape"] = shape
        return history_message(
            NAME, "tool", [(ToolResult(_parse_id(message.get(key), role), content), proof)]
        )
    raise UnrecognizedReply(f"a chat message of role {role!r}, which is not supported")


def _held(message: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of an answer that its parts hold."""
    yield from ("role", "tool_calls") if message.get("content") == [] else ("role", "content", "tool_calls")
    yield from ("refusal",) if message.get("refusal") else ()
    yield from [field for field in REASONING_FIELDS if _is_text(message.get(field))][:1]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _checked(parsed: HistoryMessage) -> HistoryMessage:
    try:
        check_message(parsed.message)
    except InvalidMessage as error:
        raise UnrecognizedReply(str(error)) from None
    return parsed


def _parse_assistant(message: dict[str, Any], *, is_sent_back: bool) -> HistoryMessage:
    """Return reasoning, then text, then calls: the order in which a model writes.

    A server that demands its reasoning back demands it with tool calls; so of a reply the field is evidence only with
    them. What a program sends back itself, it sends back again.
    """
    calls = [to_dict(call) for call in message.get("tool_calls") or ()]
    old_call = to_dict(message["function_call"]) if message.get("function_call") else None
    if old_call and old_call.get("name") not in [to_dict(c.get("function") or {}).get("name") for c in calls]:
        calls.append({"id": old_call.get("name"), "function": old_call})
    parsed: list[tuple[Part, Proof]] = []
    for field in REASONING_FIELDS:
        if _is_text(reasoning := message.get(field)) and not parsed:
            parsed.append((Reasoning(str(reasoning)), {"field": field} if calls or is_sent_back else {}))
    for part in (*content_blocks(message.get("content")), *content_blocks(message.get("images"))):
        if part.get("type") == "thinking":
            parsed.append((Reasoning(_thinking(part)), {"block": to_plain(part)} if is_sent_back else {}))
        else:
            read, proof = _parse_part(part)
            if isinstance(read, ProviderBlock) and not (read.text or is_sent_back):
                kind = part.get("type")
                raise UnrecognizedReply(f"a content part of type {kind!r}, which is not supported", part)
            parsed.append((read, proof))
    if message.get("refusal"):
        parsed.append((Text(text_field(message, "refusal")), {"refusal": True}))
    if message.get("audio"):
        parsed.extend((part, {}) for part in _parse_audio(to_dict(message["audio"])))
    parsed.extend(_parse_call(call, number) for number, call in enumerate(calls))
    shape = None
    if is_sent_back or message.get("reasoning_details"):
        plain = to_plain(message)
        if not is_sent_back:  # OpenRouter's, which it asks to have back
            plain = {key: plain[key] for key in (*_held(message), "reasoning_details") if key in plain}
        shape = shape_around(plain, *_held(message))
    return history_message(NAME, "assistant", [pair for pair in parsed if pair[0] != Text("")], shape)


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
    shape = shape_around(to_plain(call), "id", "type", "function")
    proof: Proof = {} if shape is None else {"shape": shape}
    return parse_tool_call(call_id, text_field(function, "name"), function.get("arguments")), proof


def _parse_id(value: object, what: str) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise UnrecognizedReply(f"the id of a {what} is {type(value).__name__}, not text")


def _parse_part(part: dict[str, Any]) -> tuple[Text | Attachment | ProviderBlock, Proof]:
    """Return a part of content; of a type unknown here a block for its server, with a text for others."""
    kind, plain = part.get("type"), to_plain(part)
    shape: dict[str, Any] | None = None
    if kind == "text":
        shape = shape_around(plain, "text")
        return Text(text_field(part, "text")), {} if shape is None else {"shape": shape}
    if kind == "refusal":
        return Text(text_field(part, "refusal")), {"shape": {"type": kind, "refusal": None}}
    if kind == "input_audio":
        audio = to_dict(part.get("input_audio"))
        sound = parse_base64(audio.get("data"), AUDIO_TYPES.get(str(audio.get("format"))))
        shape = shape_around(plain, "input_audio")
        return sound, {"format": audio["format"]} | ({} if shape is None else {"shape": shape})
    link = link_text(part)
    if link is None and kind in ("image_url", "file"):
        file = to_dict(part.get(str(kind)))
        key = "url" if kind == "image_url" else "file_data"
        name = file.get("filename")
        if data := DATA_URL.fullmatch(text_field(file, key)):
            shape = _media_shape(plain, str(kind), key)
            return parse_base64(data[2], data[1], name), {} if shape is None else {"shape": shape}
    if kind == "reference":  # Mistral's, to a document
        link = f"[reference: {', '.join(map(str, part.get('reference_ids') or ()))}]"
    return ProviderBlock(text_field(part, "type"), (link or "").strip("[]")), {"block": plain}


def _media_shape(part: dict[str, Any], kind: str, key: str) -> dict[str, Any] | None:
    """Return the shape of a part with inline media, if it says more than they do."""
    inner = part[kind]
    known = {key, "filename"}
    if inner.keys() <= known and part.keys() <= {"type", kind}:
        return None
    return {**part, kind: {name: None if name in known else value for name, value in inner.items()}}


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
