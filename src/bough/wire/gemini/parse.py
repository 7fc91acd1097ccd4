"""Parse replies and contents of Google's Gemini API, in the camelCase of REST or the snake_case of the SDK."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.codec import to_json
from ...core.entries import Evidence
from ...core.messages import Attachment, Message, Part, Reasoning, Text, ToolResult
from ...core.usage import Usage, is_count
from ...errors import UnrecognizedReply
from ..base import Answer, HistoryMessage
from ..parsing import content_blocks, parse_base64, parse_tool_call, text_field, to_dict
from . import NAME

_USUAL = str.maketrans("-_", "+/")


def parse_reply(reply: object) -> Answer:
    """Parse a reply, or only its content."""
    data = to_dict(reply)
    candidate: dict[str, Any] = {"content": data}
    if "parts" not in data:
        candidates = data.get("candidates") or []
        if len(candidates) != 1:
            why = _either(data, "prompt_feedback")
            raise UnrecognizedReply(
                f"a reply with {len(candidates)} candidates ({why}); an answer is exactly one"
            )
        candidate = to_dict(candidates[0])
    content = to_dict(candidate.get("content") or {})
    if content.get("role") not in ("model", None):
        raise UnrecognizedReply(f"a content of role {content['role']!r} is not an answer")
    parts, evidence = _parse_parts(content)
    if any(isinstance(part, ToolResult) for part in parts):
        raise UnrecognizedReply("a function response is not an answer")
    usage, finish = _either(data, "usage_metadata"), _either(candidate, "finish_reason")
    return Answer(
        Message("assistant", tuple(parts)),
        None if usage is None else _parse_usage(to_dict(usage)),
        Evidence(NAME, evidence) if evidence else None,
        NAME,
        _either(data, "model_version"),
        getattr(finish, "value", finish),  # the SDK has an enum of it
    )


def _parse_usage(usage: dict[str, Any]) -> Usage:
    return Usage(
        _count(usage, "prompt_token_count", "tool_use_prompt_token_count"),
        _count(usage, "candidates_token_count", "thoughts_token_count"),
        _count(usage, "cached_content_token_count"),
    )


def _count(usage: dict[str, Any], *names: str) -> int | None:
    """Sum the counts: Gemini reports thoughts and tool use separately from answer and prompt."""
    told = [value for name in names if is_count(value := _either(usage, name))]
    return sum(told) if told else None


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    return [ours for content in messages for ours in _parse_content(to_dict(content))]


def _parse_content(content: dict[str, Any]) -> list[HistoryMessage]:
    role = content.get("role")
    parts, evidence = _parse_parts(content)
    results = [part for part in parts if isinstance(part, ToolResult)]
    rest = tuple(part for part in parts if not isinstance(part, ToolResult))
    if role == "model" and not results:
        return [HistoryMessage(Message("assistant", rest), Evidence(NAME, evidence) if evidence else None)]
    if role in ("user", "function", None) and all(isinstance(part, Text | Attachment) for part in rest):
        tools = [HistoryMessage(Message("tool", (result,))) for result in results]
        return [*tools, HistoryMessage(Message("user", rest))] if rest or not tools else tools
    raise UnrecognizedReply(f"a content of role {role!r} with {len(parts)} parts, which is not supported")


def _parse_parts(content: dict[str, Any]) -> tuple[list[Part], dict[str, dict[str, Any]]]:
    """Return the parts, and by index the data Gemini requires back with them."""
    parts: list[Part] = []
    evidence: dict[str, dict[str, Any]] = {}
    # Without ids the n-th call of a name is answered by the n-th response of that name, whenever it is read.
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for piece in content_blocks(content.get("parts")):
        signature = _either(piece, "thought_signature")
        call, result = _either(piece, "function_call"), _either(piece, "function_response")
        proof: dict[str, Any] = {"signature": _encoded(signature)} if signature else {}
        if call is not None:
            data = to_dict(call)
            proof |= {"id": data["id"]} if data.get("id") else {}
            part: Part = parse_tool_call(
                _parse_id(data, calls), text_field(data, "name"), data.get("args") or {}
            )
        elif result is not None:
            part = _parse_response(to_dict(result), results)
        elif piece.get("thought"):
            part, proof = Reasoning(piece.get("text") or ""), {}
        else:
            part = _parse_part(piece)
        if part == Text("") and not proof:
            continue
        if proof:
            evidence[str(len(parts))] = proof
        parts.append(part)
    return parts, evidence


def _parse_id(data: dict[str, Any], seen: Counter[str]) -> str:
    if data.get("id"):
        return text_field(data, "id")
    name = text_field(data, "name")
    seen[name] += 1
    return f"call_{seen[name]}_{name}"


def _parse_response(data: dict[str, Any], seen: Counter[str]) -> ToolResult:
    response = to_dict(data.get("response"))
    key = next(iter(response)) if len(response) == 1 else None
    said = response[key] if key in ("output", "error") else response
    text = said if isinstance(said, str) else to_json(said, "response").decode()
    pieces: list[Text | Attachment] = [Text(text)] if text else []
    pieces.extend(_parse_part(piece) for piece in content_blocks(data.get("parts")))
    return ToolResult(_parse_id(data, seen), tuple(pieces), key == "error")


def _parse_part(piece: dict[str, Any]) -> Text | Attachment:
    data, file = _either(piece, "inline_data"), _either(piece, "file_data")
    if data is not None:
        blob = to_dict(data)
        encoded = _encoded(blob.get("data"))
        # The SDK dumps JSON in the other alphabet of base64.
        usual = encoded.translate(_USUAL) if isinstance(encoded, str) else encoded
        return parse_base64(usual, _either(blob, "mime_type"), _either(blob, "display_name"))
    if file is not None:  # bytes stored elsewhere: keep the link as text
        return Text(f"[file: {_either(to_dict(file), 'file_uri')}]")
    others = [key for key, value in piece.items() if value is not None]
    if piece.get("text") is not None or set(others) <= {"thoughtSignature", "thought_signature", "thought"}:
        return Text(text_field({"text": "", **{key: piece[key] for key in others}}, "text"))
    raise UnrecognizedReply(f"a part with {', '.join(others)}, which is not supported")


def _encoded(data: object) -> object:
    """The SDK's bytes as the REST API writes them."""
    return base64.b64encode(data).decode() if isinstance(data, bytes) else data


def _either(data: Mapping[str, Any], name: str) -> Any:
    """A field by its name in snake_case or in camelCase."""
    head, *rest = name.split("_")
    value = data.get(name)
    return data.get(head + "".join(map(str.capitalize, rest))) if value is None else value
