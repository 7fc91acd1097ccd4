"""Parse replies and messages of Anthropic's Messages API.

A block that Oakleaf has no part for, of a tool that Anthropic runs or of a newer API, becomes a `ProviderBlock`; the block
itself is evidence, to be sent back as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from oakleaf.core.entries import Evidence
from oakleaf.core.messages import Part, ProviderBlock, Reasoning, Text, ToolResult, check_message
from oakleaf.core.usage import Usage
from oakleaf.errors import InvalidMessage, UnrecognizedReply
from oakleaf.wire.anthropic import NAME
from oakleaf.wire.base import Answer, HistoryMessage, Proof, history_message
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

_ID_KEYS = {"use": "id", "result": "tool_use_id"}
_LINKS = {"url": "url", "file": "file_id", "content": "type"}

Block = dict[str, Any]

_HELD = {
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
}
"""The fields of a block that its part and the proof hold; the others are its shape."""
_PROOF = {"thinking": "signature", "redacted_thinking": "data"}


def parse_reply(reply: object) -> Answer:
    data = to_dict(reply)
    if data.get("role", "assistant") != "assistant" or "content" not in data:
        raise UnrecognizedReply(
            f"a dict with {', '.join(map(str, data)) or 'nothing'} is not an Anthropic answer"
        )
    parsed = parse_answer(data["content"])
    message, evidence = parsed.message, parsed.evidence
    if data.get("container") is not None and evidence is not None:
        container = {"id": text_field(to_dict(data["container"]), "id")}
        evidence = Evidence(NAME, {**evidence.parts, "container": container})
    details = data.get("stop_details")
    explanation = None if details is None else to_dict(details).get("explanation")
    if data.get("stop_reason") == "refusal" and isinstance(explanation, str) and explanation:
        refusal = ProviderBlock("refusal", explanation)
        message = msgspec.structs.replace(message, parts=(*message.parts, refusal))
    usage, units = (None, None) if data.get("usage") is None else parse_usage(to_dict(data["usage"]))
    return Answer(message, usage, evidence, NAME, data.get("model"), data.get("stop_reason"), units)


def parse_usage(usage: dict[str, Any]) -> tuple[Usage, dict[str, int] | None]:
    """Return the tokens, and the units with a price of their own."""
    fresh = int_field(usage, "input_tokens")
    read, written = (
        int_field(usage, "cache_read_input_tokens"),
        int_field(usage, "cache_creation_input_tokens"),
    )
    # Anthropic reports cache reads and writes separately from the input; our count includes them.
    total = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(total, int_field(usage, "output_tokens"), read, written), _parse_units(usage)


def _parse_units(usage: dict[str, Any]) -> dict[str, int] | None:
    """Return the searches, and the dearer cache writes for an hour."""
    if not usage.get("server_tool_use") and not usage.get("cache_creation"):
        return None
    tools, written = (to_dict(usage.get(key) or {}) for key in ("server_tool_use", "cache_creation"))
    units = {
        "web_searches": int_field(tools, "web_search_requests"),
        "cache_write_1h_tokens": int_field(written, "ephemeral_1h_input_tokens"),
    }
    return {name: count for name, count in units.items() if count} or None


def parse_answer(content: object) -> HistoryMessage:
    """Return the message of an answer's content."""
    return _checked_message("assistant", [_parse_block(block) for block in content_blocks(content)])


def parse_history(messages: Iterable[object]) -> list[HistoryMessage]:
    return [ours for message in messages for ours in _parse_message(to_dict(message))]


def _parse_message(message: dict[str, Any]) -> list[HistoryMessage]:
    role = text_field(message, "role")
    if role == "assistant":
        return [parse_answer(message.get("content"))]
    tools: list[HistoryMessage] = []
    rest: list[tuple[Part, Proof]] = []
    for block in content_blocks(message.get("content")):
        part, proof = _parse_block(block)
        if isinstance(part, ToolResult):
            tools.append(history_message(NAME, "tool", [(part, proof)]))
        else:
            rest.append((part, proof))
    if role != "user" and tools:
        raise UnrecognizedReply(f"a tool_result in a message of role {role!r}")
    if tools and not rest:
        return tools
    return [*tools, _checked_message(role, rest)]


def parse_system(system: object) -> list[HistoryMessage]:
    """Return a message for each block of a system prompt."""
    return [history_message(NAME, "system", [_parse_block(block)]) for block in content_blocks(system)]


def _checked_message(role: str, parsed: Sequence[tuple[Part, Proof]]) -> HistoryMessage:
    shape = {"role": None, "content": None} if role == "system" else None
    history = history_message(NAME, role, parsed, shape)  # type: ignore[arg-type]  # checked on the next line
    try:
        check_message(history.message)
    except InvalidMessage as error:
        raise UnrecognizedReply(str(error)) from None
    return history


def _parse_block(block: Block) -> tuple[Part, Proof]:
    """Return the part of a block, and the evidence for Anthropic."""
    kind = str(block.get("type"))
    if kind == "tool_result":
        return _parse_result(block)
    if kind in ("image", "document"):
        return _parse_media(block)
    if kind not in _HELD:
        return _parse_provider_block(text_field(block, "type"), block)
    plain = _plain(block)
    key = _PROOF.get(kind, "")
    proof: Proof = {key: plain[key]} if plain.get(key) else {}
    if unread := plain.pop("unread_deltas", None):
        proof["raw"] = unread
    if shape := shape_around(plain, *_HELD[kind]):
        proof["shape"] = shape
    if kind == "text":
        return Text(text_field(block, "text")), proof
    if kind == "thinking":
        return Reasoning(text_field(block, "thinking")), proof
    if kind == "redacted_thinking":
        return Reasoning(), proof
    return parse_tool_call(text_field(block, "id"), text_field(block, "name"), block.get("input")), proof


def _plain(block: Block) -> Block:
    """Return a block as JSON, without the fields that say nothing."""
    return {key: value for key, value in to_plain(block).items() if value is not None}


def _parse_result(block: Block) -> tuple[Part, Proof]:
    content, proof = result_parts(map(_parse_block, content_blocks(block.get("content"))))
    plain = _plain(block)
    held = [key for key in ("tool_use_id", "content", "is_error") if plain.get(key)]
    if shape := shape_around(plain, *held):
        proof["shape"] = shape
    return ToolResult(text_field(block, "tool_use_id"), content, bool(block.get("is_error"))), proof


def _parse_media(block: Block) -> tuple[Part, Proof]:
    """Bytes become an attachment. What Anthropic fetches or keeps itself is a block of its own, with a text for others."""
    source = to_dict(block.get("source"))
    plain = _plain(block)
    if source.get("type") == "base64":
        attachment = parse_base64(source.get("data"), source.get("media_type"), block.get("title"))
        is_described = plain.keys() - {"type", "source"}
        return attachment, {
            "block": plain | {"source": plain["source"] | {"data": None}}
        } if is_described else {}
    if source.get("type") == "text":
        text = Text(text_field(source, "data"))
        return text, {"block": plain | {"source": plain["source"] | {"data": None}}}
    if source.get("type") not in _LINKS:
        raise UnrecognizedReply(f"a source of type {source.get('type')!r} of an Anthropic {block['type']}")
    link = _text_of(plain["source"].get("content")) or text_field(source, _LINKS[source["type"]])
    return ProviderBlock(str(block["type"]), f"{block['type']}: {link}"), {"block": plain}


def _parse_provider_block(kind: str, block: Block) -> tuple[Part, Proof]:
    plain = _plain(block)
    if "_tool_" in kind:  # a call and its result belong together
        text_field(plain, _ID_KEYS.get(kind.rpartition("_")[2], "type"))
    is_whole = "unread_deltas" not in plain  # else pieces of a stream of a newer API
    if is_whole and isinstance(plain.get("input"), str):  # as it was streamed
        try:
            plain["input"] = msgspec.json.decode(plain["input"] or "{}")
        except msgspec.DecodeError:  # the token limit cut it off
            is_whole = False
    # What is raw is kept, but not to be sent back.
    return ProviderBlock(kind, describe(kind, plain)), {"block" if is_whole else "raw": plain}


# -- for people ------------------------------------------------------------------------------------


def describe(kind: str, block: Mapping[str, Any]) -> str:
    """Describe a block in a few words."""
    if kind in ("server_tool_use", "mcp_tool_use"):
        return _describe_use(block)
    if kind.endswith("_tool_result"):
        return _describe_result(kind, block.get("content"))
    if kind == "container_upload":
        return f"file: {block.get('file_id')}"
    if kind == "search_result":
        return f"search result: {_titles([block])}\n{_text_of(block.get('content'))}".rstrip()
    return ""


def _describe_use(block: Mapping[str, Any]) -> str:
    name, arguments = str(block.get("name")), block.get("input")
    match name, arguments:
        case "web_search", {"query": str(query)}:
            return f"searched the web: {query}"
        case "web_fetch", {"url": str(url)}:
            return f"fetched {url}"
        case "code_execution", {"code": str(code)}:
            return f"ran code:\n{code}"
        case "bash_code_execution", {"command": str(command)}:
            return f"ran: {command}"
    server = f"{block['server_name']} " if block.get("server_name") else ""
    return f"called {server}{name}: {arguments if isinstance(arguments, str) else compact_json(arguments)}"


def _describe_result(kind: str, content: object) -> str:
    name = kind.removesuffix("_tool_result").replace("_", " ")
    match content:
        case {"error_code": str(code)}:
            return f"{name} failed: {code}"
        case {"stdout": str(out), "stderr": str(err)}:
            return f"{name} output:\n{out}{err}".rstrip()
        case {"url": str(url)}:
            return f"{name}: {url}"
        case str():
            return f"{name} result: {content}"
        case [{"type": "text"}, *_]:
            return f"{name} result: {_text_of(content)}"
        case list():
            return f"{name} results: {_titles(content)}"
    return f"{name} result"


def _text_of(content: object) -> str:
    """Return the text of a content: a string, or the text of the blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))


def _titles(results: Iterable[object]) -> str:
    pairs = [
        (str(r.get("title", "")), str(r.get("url", r.get("source", ""))))
        for r in results
        if isinstance(r, dict)
    ]
    return "".join(f"\n{title} {url}".rstrip() for title, url in pairs) or "none"
