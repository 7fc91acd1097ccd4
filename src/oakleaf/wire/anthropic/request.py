"""Project a context to a request of Anthropic's Messages API.

Each message is written independently and only then joined with a neighbour of the same role: later messages never
change how an earlier one is written, so the provider's cache stays warm. The rules a request must meet are in
`rules`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from oakleaf.core.context import Context, Item
from oakleaf.core.messages import Attachment, Media, Part, ProviderBlock, Reasoning, Text, ToolCall
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.wire.anthropic import NAME
from oakleaf.wire.anthropic.parse import describe
from oakleaf.wire.base import MESSAGE, Blobs, HistoryPart, Request
from oakleaf.wire.media import PDF, load_content, media_stub, with_reasoning
from oakleaf.wire.offered_tools import offered_tools
from oakleaf.wire.options import request_fields
from oakleaf.wire.shapes import fill
from oakleaf.wire.tool_pairs import (
    EMPTY_MESSAGE,
    MEDIA_HEADING,
    PairedMessage,
    ToolPair,
    is_blank,
    legal_name,
    pair_results,
    proofs_of,
    system_prompts,
)

ID_LENGTH = 64
NAME_LENGTH = 128
IMAGE_BYTES = 5 * 1024 * 1024 * 3 // 4  # the API counts its 5 MB on the base64, a third longer
PDF_BYTES = 22 * 1024 * 1024  # a request may have 32 MB in all, base64 and everything else included
MEDIA_LIMITS = dict.fromkeys(("image/png", "image/jpeg", "image/gif", "image/webp"), IMAGE_BYTES) | {
    PDF: PDF_BYTES
}
MAX_CACHE_MARKS = 4
OPENING = "(the conversation goes on from here)"

Block = dict[str, Any]


def project(context: Context, blobs: Blobs, part: HistoryPart | None = None) -> Request:
    part = part or HistoryPart()
    messages: list[dict[str, Any]] = []
    for paired in pair_results(context.items, ID_LENGTH, part, resumes=NAME):
        for role, content in _write(paired, blobs):
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"].extend(content)
            elif content:
                messages.append({"role": role, "content": content})
    _replace_unpaired(messages, part)
    if part.is_start and messages and messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": [_text(OPENING)]})
    request: Request = {}
    prompts = system_prompts(context, NAME)
    if system := [fill(proofs.get("0", {}).get("shape"), _text(prompt)) for prompt, proofs in prompts]:
        request["system"] = system
    tools = offered_tools(context, blobs, part, _name, NAME)
    if tools.specs:
        request["tools"] = write_tools(tools.specs)
    request["messages"] = messages
    container = _pending_container(context.items) if part.is_end else {}
    fields = request_fields(NAME, context.settings.options)
    if not tools.specs:
        fields.pop("tool_choice", None)
    request |= container | fields | ({"tool_choice": {"type": "none"}} if tools.are_forbidden else {})
    _limit_cache_marks(request)
    return request


def _limit_cache_marks(request: Request) -> None:
    """Keep the marks of the tools and the prompt, and the newest of the messages: Anthropic refuses more than four."""
    marked = [*_marked(request.get("tools")), *_marked(request.get("system"))]
    marked += list(_marked(request["messages"]))[::-1]
    for block in marked[MAX_CACHE_MARKS - ("cache_control" in request) :]:
        del block["cache_control"]


def _marked(value: object) -> Iterator[Block]:
    """Yield the blocks with a mark, in order."""
    if isinstance(value, dict):
        if "cache_control" in value:
            yield value
        if value.get("type", "tool_result") == "tool_result":  # or a message
            yield from _marked(value.get("content"))
    elif isinstance(value, list):
        for item in value:
            yield from _marked(item)


def _pending_container(items: Sequence[Item]) -> dict[str, str]:
    """Return the container of waiting code: code waits for results of calls, or for a paused answer to continue."""
    last = next((item for item in reversed(items) if item.message.role == "assistant"), None)
    later = items[items.index(last) + 1 :] if last is not None else ()
    if last is None or last.evidence is None or any(item.message.role == "user" for item in later):
        return {}
    proofs = last.evidence.parts
    callers = (proof.get("shape", {}).get("caller") or {} for proof in proofs.values())
    calls_by_code = any("tool_id" in caller for caller in callers)
    is_waiting = last.evidence.issuer == NAME and (last.paused or calls_by_code)
    return {"container": proofs["container"]["id"]} if is_waiting and "container" in proofs else {}


def write_tools(tools: Iterable[ToolSpec]) -> list[Block]:
    return [fill(tool.shape, _tool(tool)) for tool in tools]


def _tool(tool: ToolSpec) -> Block:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "input_schema": tool.parameters}


def _name(raw: str) -> str:
    return legal_name(raw, NAME_LENGTH)


def _write(paired: PairedMessage, blobs: Blobs) -> list[tuple[str, list[Block]]]:
    message = paired.item.message
    if message.role == "assistant":
        answer = ("assistant", _answer(paired, blobs))
        return [answer, ("user", _results(paired.pairs, blobs))] if paired.pairs else [answer]
    proofs = proofs_of(paired.item.evidence, NAME)
    if message.role == "system" and MESSAGE not in proofs:
        # Not every model takes the system's role here; the tag tells the model that this is not the user.
        text = message.text.strip()
        return [("user", [_text(f"<system>\n{text}\n</system>")])] if text else []
    content = [
        _content(part, blobs, proofs.get(str(index), {}))
        for index, part in enumerate(message.parts)
        if not is_blank(part)
    ]
    return [("system" if message.role == "system" else "user", content or [_text(EMPTY_MESSAGE)])]


def _answer(paired: PairedMessage, blobs: Blobs) -> list[Block]:
    message = with_reasoning(paired.item.message, blobs)
    signed = {} if message is None else proofs_of(paired.item.evidence, NAME)
    ids = iter(paired.pairs)
    content: list[Block] = []
    for index, part in enumerate((message or paired.item.message).parts):
        proof = signed.get(str(index), {})
        if isinstance(part, ToolCall):
            content.append(_call(next(ids), proof))
        elif isinstance(part, Reasoning):
            content.extend(_thinking(part, proof))
        elif isinstance(part, ProviderBlock):
            content.append(_content(part, blobs, proof))
        elif isinstance(part, Media | Attachment):
            content.append(_text(media_stub(part)))
        elif isinstance(part, Text) and not is_blank(part):
            content.append(_content(part, blobs, proof))
    while content and content[-1]["type"] in ("thinking", "redacted_thinking"):
        content.pop()
    _trim(content)
    return content


def _trim(content: list[Block]) -> None:
    """Cut trailing blanks everywhere, so that no prefix changes; only the last message is refused with blanks."""
    if content and content[-1]["type"] == "text":
        content[-1]["text"] = content[-1]["text"].rstrip()


def _replace_unpaired(messages: list[dict[str, Any]], part: HistoryPart) -> None:
    """Write unpaired calls and results of Anthropic's own tools as text: Anthropic refuses a call without a result.

    A call may wait for its result as long as nothing but results of tools follows: Anthropic continues it. A result that
    comes after the next input is none of it.
    """
    inputs = list(accumulate(_is_input(message) for message in messages))
    last_results = {
        (inputs[number], block["tool_use_id"]): (number, index)
        for number, message in enumerate(messages)
        for index, block in enumerate(message["content"])
        if _is_hosted_result(block)
    }
    call_ids = part.used_calls
    waiting: set[str] = set()
    for number, message in enumerate(messages):
        if _is_input(message):
            waiting.clear()
        may_wait = part.is_end and inputs[number] == inputs[-1]
        for index, block in enumerate(message["content"]):
            if _is_hosted_call(block):
                call_id = block["id"]
                has_result = last_results.get((inputs[number], call_id), (-1, 0)) > (number, index)
                if call_id not in call_ids and (has_result or may_wait):
                    call_ids.add(call_id)
                    waiting.add(call_id)
                    continue
            elif not _is_hosted_result(block):
                continue
            elif block["tool_use_id"] in waiting:
                waiting.remove(block["tool_use_id"])
                continue
            message["content"][index] = _text(f"[{describe(block['type'], block)}]")


def _is_hosted_call(block: Block) -> bool:
    return block["type"] in ("server_tool_use", "mcp_tool_use") and isinstance(block.get("id"), str)


def _is_hosted_result(block: Block) -> bool:
    return block["type"].endswith("_tool_result") and isinstance(block.get("tool_use_id"), str)


def _is_input(message: dict[str, Any]) -> bool:
    return message["role"] == "user" and any(block["type"] != "tool_result" for block in message["content"])


def _thinking(part: Reasoning, signed: Mapping[str, Any]) -> list[Block]:
    """Thinking is accepted only with a signature; the signature may come without text."""
    signature, data = signed.get("signature"), signed.get("data")
    shape = signed.get("shape")
    if isinstance(signature, str) and signature:
        return [fill(shape, {"type": "thinking", "thinking": part.text, "signature": signature})]
    if isinstance(data, str) and data:
        return [fill(shape, {"type": "redacted_thinking", "data": data})]
    return []


def _call(pair: ToolPair, proof: Mapping[str, Any]) -> Block:
    name, arguments = _name(pair.call.name), pair.arguments
    return fill(
        proof.get("shape"), {"type": "tool_use", "id": pair.wire_id, "name": name, "input": arguments}
    )


def _results(pairs: Iterable[ToolPair], blobs: Blobs) -> list[Block]:
    results: list[Block] = []
    below: list[Block] = []
    for pair in pairs:
        content = [_content(piece, blobs, proof) for piece, proof in pair.pieces(NAME)]
        if pair.is_error:  # an error may hold text only: its media follow the results
            content, media = _split_media(content)
            below.extend(media)
        result: Block = {"type": "tool_result", "tool_use_id": pair.wire_id, "content": content}
        result |= {"is_error": True} if pair.is_error else {}
        results.append(fill(pair.proof_for(NAME).get("shape"), result))
    return [*results, _text(MEDIA_HEADING), *below] if below else results


def _split_media(content: list[Block]) -> tuple[list[Block], list[Block]]:
    texts = [block if block["type"] == "text" else _text("[media: shown below]") for block in content]
    return texts, [block for block in content if block["type"] != "text"]


def _content(part: Part, blobs: Blobs, proof: Mapping[str, Any]) -> Block:
    block = proof.get("block")
    if isinstance(part, Text) and not isinstance(block, dict):
        return fill(proof.get("shape"), _text(part.text))
    if isinstance(part, Text | ProviderBlock) and isinstance(block, dict):
        is_plain_text = block["type"] == "document" and block["source"].get("type") == "text"
        return fill(
            block, {"source": {"data": part.text}} if is_plain_text and isinstance(part, Text) else {}
        )
    media = load_content(part, blobs, MEDIA_LIMITS)
    if isinstance(media, str):
        return _text(media)
    kind = "document" if media.mime == PDF else "image"
    source = {"type": "base64", "media_type": media.mime, "data": media.base64}
    return {**block, "source": source} if isinstance(block, dict) else {"type": kind, "source": source}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}
