"""Parse responses and input items of OpenAI's Responses API.

An item that Oakleaf has no part for, of a tool that OpenAI runs or of a newer API, becomes a `ProviderBlock`; the item
itself is evidence, to be sent back as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from oakleaf.core.messages import Attachment, Part, ProviderBlock, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.usage import Usage
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire.base import Answer, HistoryMessage, Proof, history_message
from oakleaf.wire.openai_chat.parse import AUDIO_TYPES, DATA_URL
from oakleaf.wire.openai_responses import NAME
from oakleaf.wire.parsing import (
    compact_json,
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

_PROOF = {
    "message": ("id", "status", "phase"),
    "function_call": ("id", "namespace", "caller"),
    "custom_tool_call": ("type", "id", "namespace", "caller"),
}
_STATUSES = ("completed", "incomplete", "in_progress")
_OF_THE_MODEL = ("program_output", "tool_search_output", "shell_call_output")
"""Outputs of OpenAI's own tools, sent by OpenAI."""


def parse_reply(reply: object) -> Answer:
    """Parse a whole response, or only an item of a response."""
    data = to_dict(reply)
    is_response = data.get("object") == "response"
    if is_response and (data.get("status") == "failed" or data.get("error")):
        raise UnrecognizedReply(f"a response that failed: {data.get('error')!r}")
    items = content_blocks(data.get("output")) if is_response else [data]
    parsed = _parse_answer(items, _parse_output_item)
    usage = data.get("usage")
    searches = sum(map(_is_search, items))
    return Answer(
        parsed.message,
        None if usage is None else _parse_usage(to_dict(usage)),
        parsed.evidence,
        NAME,
        data.get("model"),
        _parse_finish(data) if is_response else None,
        {"web_searches": searches} if searches else None,
    )


def _is_search(item: dict[str, Any]) -> bool:
    """Whether an item is a billed search; opening a page is free."""
    action = item.get("action")
    kind = to_dict(action).get("type", "search") if action is not None else "search"
    return item.get("type") == "web_search_call" and kind == "search"


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


def _parse_output_item(item: dict[str, Any], *, is_sent: bool = False) -> Iterator[tuple[Part, Proof]]:
    """Yield the parts of an output item, each with the data that OpenAI requires back."""
    kind = item.get("type") or "message"
    proof = {key: to_plain(item[key]) for key in _PROOF.get(kind, ()) if item.get(key)}
    if proof.get("status", "completed") not in _STATUSES:  # of another version; OpenAI would refuse it
        del proof["status"]
    if kind == "custom_tool_call":  # a tool of ours that takes free text
        arguments = {"input": text_field(item, "input")}
        yield parse_tool_call(text_field(item, "call_id"), text_field(item, "name"), arguments), proof
    elif kind == "function_call":
        yield (
            parse_tool_call(text_field(item, "call_id"), text_field(item, "name"), item.get("arguments")),
            proof,
        )
    elif kind == "reasoning":
        yield _parse_reasoning(item)
    elif kind == "message" and item.get("role") == "assistant":
        for piece in content_blocks(item.get("content")):
            part, described = _parse_part(piece)
            yield part, proof | described
    elif kind == "message":
        raise UnrecognizedReply(f"an item of role {item.get('role')!r} is not an answer")
    elif kind == "image_generation_call" and item.get("result"):
        yield _parse_image(to_plain(item))
    else:
        plain = to_plain(item)
        if not is_sent:
            text_field(plain, "id")
        yield ProviderBlock(text_field({"type": kind}, "type"), _describe(plain)), {"block": plain}


def _parse_sent_item(item: dict[str, Any]) -> Iterator[tuple[Part, Proof]]:
    """Yield the parts of an item of an answer that the program sends, which goes back as it was sent."""
    kind, plain = item.get("type") or "message", to_plain(item)
    for number, (part, proof) in enumerate(_parse_output_item(item, is_sent=True)):
        sent: Proof = {"sent": True}
        if isinstance(part, Reasoning):
            sent["block"] = plain
        elif isinstance(part, ToolCall):
            key = "input" if kind == "custom_tool_call" else "arguments"
            sent["shape"] = shape_around(plain, "call_id", "name", key) or {}
        elif isinstance(part, Text):
            content = plain["content"]
            is_list = isinstance(content, list)
            piece: dict[str, Any] = content[number] if is_list else {"type": "output_text", "text": content}
            sent["shape"] = {key: None if key in ("text", "refusal") else piece[key] for key in piece}
            sent["message"] = {key: None if key == "content" else value for key, value in plain.items()}
            sent["is_first"] = number == 0
        yield part, proof | sent


def _parse_image(item: dict[str, Any]) -> tuple[Part, Proof]:
    """Store the image like any other; the item for OpenAI refers to the image."""
    format_ = item.get("output_format") or "png"
    image = parse_base64(item["result"], "image/svg+xml" if format_ == "svg" else f"image/{format_}")
    return image, {"block": item | {"result": None}}


def _parse_reasoning(item: dict[str, Any]) -> tuple[Part, Proof]:
    """Keep encrypted content to send back; alone the id is useless for a stateless client."""
    summary, content = content_blocks(item.get("summary")), content_blocks(item.get("content"))
    text = "\n\n".join(text_field(piece, "text") for piece in summary or content)
    proof = {key: item[key] for key in ("id", "encrypted_content") if item.get(key)}
    if len(proof) < 2:
        return Reasoning(text), {}
    if len(summary) > 1 or content:  # it cannot be told from the text
        plain = to_plain(item)
        proof["block"] = {key: plain[key] for key in ("summary", "content") if plain.get(key) is not None}
    return Reasoning(text), proof


def _parse_answer(
    items: Iterable[dict[str, Any]],
    parse_item: Callable[[dict[str, Any]], Iterable[tuple[Part, Proof]]],
) -> HistoryMessage:
    parsed = [pair for item in items for pair in parse_item(item) if pair[0] != Text("")]
    return history_message(NAME, "assistant", parsed)


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    """Parse input items; consecutive output of the model becomes a single answer."""
    parsed: list[HistoryMessage] = []
    for is_output, items in groupby(map(to_dict, messages), _is_output):
        if is_output:
            parsed.append(_parse_answer(items, _parse_sent_item))
        else:
            parsed.extend(_parse_item(item.get("type") or "message", item) for item in items)
    return parsed


def _is_output(item: dict[str, Any]) -> bool:
    """Whether the model or OpenAI made the item; items of unknown types count too."""
    kind = item.get("type") or "message"
    if kind == "message":
        return item.get("role") == "assistant"
    is_input = str(kind).endswith(("_output", "_response", "_reference"))
    return kind in _OF_THE_MODEL or not is_input


def _parse_item(kind: str, item: dict[str, Any]) -> HistoryMessage:
    if kind in ("function_call_output", "custom_tool_call_output"):
        return _parse_output(item)
    if kind == "item_reference":
        raise UnrecognizedReply(
            "an item_reference; Oakleaf stores nothing at OpenAI, so append the item itself"
        )
    if kind != "message":
        plain = to_plain(item)
        block = ProviderBlock(kind, _describe(plain))
        return history_message(NAME, "user", [(block, {"item": plain})])
    role = text_field(item, "role")
    parsed = [_parse_part(piece) for piece in content_blocks(item.get("content"))]
    shape = shape_around(to_plain(item), "role", "content")
    if role == "user":
        return history_message(NAME, "user", parsed, shape)
    if role in ("system", "developer") and all(isinstance(part, Text) for part, _ in parsed):
        shape = (shape or {"content": None}) | {"role": role}
        return history_message(NAME, "system", parsed, shape)
    raise UnrecognizedReply(f"an item of role {role!r} with {len(parsed)} parts, which is not supported")


def _parse_output(item: dict[str, Any]) -> HistoryMessage:
    content, proof = result_parts(map(_parse_part, content_blocks(item.get("output"))))
    if shape := shape_around(to_plain(item), "type", "call_id", "output"):
        proof["shape"] = shape
    return history_message(NAME, "tool", [(ToolResult(text_field(item, "call_id"), content), proof)])


def _parse_part(part: dict[str, Any]) -> tuple[Text | Attachment | ProviderBlock, Proof]:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        annotations = to_plain(part.get("annotations"))
        proof: Proof = {"annotations": annotations} if isinstance(annotations, list) and annotations else {}
        if kind == "input_text" and (shape := shape_around(to_plain(part), "text")):
            proof["shape"] = shape
        return Text(text_field(part, "text")), proof
    if kind == "refusal":
        return Text(text_field(part, "refusal")), {"refusal": True}
    if kind == "input_image":
        return _parse_link("image", part, "image_url")
    if kind == "input_file":
        return _parse_link("file", part, "file_data" if part.get("file_data") else "file_url")
    if kind == "input_audio":
        audio = to_dict(part.get("input_audio"))
        attachment = parse_base64(audio.get("data"), AUDIO_TYPES.get(str(audio.get("format"))))
        return attachment, {"block": to_plain(part) | {"input_audio": audio | {"data": ""}}}
    return ProviderBlock(text_field(part, "type")), {"block": to_plain(part)}


def _parse_link(kind: str, part: dict[str, Any], key: str) -> tuple[Text | Attachment | ProviderBlock, Proof]:
    """Bytes become an attachment. What OpenAI fetches or keeps itself is a block of its own, with a text for others."""
    link = text_field(part, key if part.get(key) else "file_id")
    data = DATA_URL.fullmatch(link)
    if data:
        attachment = parse_base64(data[2], data[1], part.get("filename"))
        known = {"type", key, "filename"} if data[1] == "application/pdf" else {"type", key}
        is_usual = (data[1] == "application/pdf" or kind == "image") and part.keys() <= known
        return attachment, {} if is_usual else {"block": to_plain(part) | {key: link[: data.start(2)]}}
    return ProviderBlock(text_field(part, "type"), f"{kind}: {link}"), {"block": to_plain(part)}


# -- for people ------------------------------------------------------------------------------------


def _describe(item: Mapping[str, Any]) -> str:
    """Describe an item in a few words."""
    match item:
        case {"type": "web_search_call", "action": {"type": "open_page", "url": str(url)}}:
            return f"opened {url}"
        case {
            "type": "web_search_call",
            "action": {"type": "find_in_page", "url": str(url), "pattern": str(pattern)},
        }:
            return f"searched {url}: {pattern}"
        case {"type": "web_search_call"}:
            action = to_dict(item.get("action") or {})
            sources = [str(to_dict(source).get("url")) for source in action.get("sources") or ()]
            queries = action.get("queries") or [action.get("query") or ""]
            return "\n".join([f"searched the web: {'; '.join(map(str, queries))}", *sources])
        case {"type": "file_search_call", "queries": [*queries]}:
            results = [r for r in item.get("results") or () if isinstance(r, dict)]
            lines = [f"{result.get('filename')}: {result.get('text')}" for result in results]
            return "\n".join([f"searched files: {'; '.join(map(str, queries))}", *lines])
        case {"type": "code_interpreter_call", "code": str(code)}:
            outputs = [o for o in item.get("outputs") or () if isinstance(o, dict)]
            return "\n".join([f"ran code:\n{code}", *(str(o["logs"]) for o in outputs if "logs" in o)])
        case {"type": "mcp_call", "name": str(name)}:
            output = item.get("output") or item.get("error")
            output = output if isinstance(output, str) else compact_json(output)
            return f"called {item.get('server_label')} {name}: {item.get('arguments')}\n{output}"
        case {"type": "mcp_list_tools", "tools": [*tools]}:
            names = ", ".join(str(tool.get("name")) for tool in tools if isinstance(tool, dict))
            return f"tools of {item.get('server_label')}: {names}"
        case {"type": "mcp_approval_request", "name": str(name)}:
            return f"asks to call {item.get('server_label')} {name}: {item.get('arguments')}"
        case {"type": "mcp_approval_response", "approve": bool(approves)}:
            return f"{'approved' if approves else 'denied'} {item.get('approval_request_id')}"
        case {"type": "image_generation_call"}:
            return f"image: {item.get('status')}"
    return ""
