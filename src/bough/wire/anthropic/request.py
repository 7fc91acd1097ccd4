"""Project a context to a request of Anthropic's Messages API.

Each message is written independently and only then joined with a neighbour of the same role: later messages never
change how an earlier one is written, so the provider's cache stays warm. The rules a request must meet are in
`rules`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...core.context import Context
from ...core.messages import (
    Attachment,
    Media,
    Part,
    Reasoning,
    Text,
    ToolCall,
)
from ..base import Blobs, Request
from ..media import PDF, LoadedMedia, load_media, media_stub, with_reasoning
from ..tool_pairs import (
    EMPTY_MESSAGE,
    MEDIA_HEADING,
    PairedMessage,
    ToolPair,
    is_blank,
    legal_name,
    pair_results,
    result_content,
)
from . import NAME

ID_LENGTH = 64
NAME_LENGTH = 128
IMAGE_BYTES = 5 * 1024 * 1024 * 3 // 4  # the API counts its 5 MB on the base64, a third longer
PDF_BYTES = 22 * 1024 * 1024  # a request may have 32 MB in all, base64 and everything else included
MEDIA_LIMITS = dict.fromkeys(("image/png", "image/jpeg", "image/gif", "image/webp"), IMAGE_BYTES) | {
    PDF: PDF_BYTES
}
OPENING = "(the conversation goes on from here)"

Block = dict[str, Any]


def project(context: Context, blobs: Blobs) -> Request:
    messages: list[dict[str, Any]] = []
    for paired in pair_results(context.items, ID_LENGTH):
        for role, content in _write(paired, blobs):
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"].extend(content)
            elif content:
                messages.append({"role": role, "content": content})
    if messages and messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": [_text(OPENING)]})
    system = [_text(prompt) for prompt in context.system if prompt.strip()]
    return {"system": system, "messages": messages} if system else {"messages": messages}


def _write(paired: PairedMessage, blobs: Blobs) -> list[tuple[str, list[Block]]]:
    message = paired.item.message
    if message.role == "assistant":
        answer = ("assistant", _answer(paired, blobs))
        return [answer, ("user", _results(paired.pairs, blobs))] if paired.pairs else [answer]
    if message.role == "system":
        # The list has no system role; the tag tells the model that this is not the user.
        text = message.text.strip()
        return [("user", [_text(f"<system>\n{text}\n</system>")])] if text else []
    content = [_content(part, blobs) for part in message.parts if not is_blank(part)]
    return [("user", content or [_text(EMPTY_MESSAGE)])]


def _answer(paired: PairedMessage, blobs: Blobs) -> list[Block]:
    evidence, message = paired.item.evidence, with_reasoning(paired.item.message, blobs)
    is_signed = evidence is not None and evidence.issuer == NAME and message is not None
    signed = evidence.parts if evidence is not None and is_signed else {}
    ids = iter(paired.pairs)
    content: list[Block] = []
    for index, part in enumerate((message or paired.item.message).parts):
        if isinstance(part, ToolCall):
            content.append(_call(next(ids)))
        elif isinstance(part, Reasoning):
            content.extend(_thinking(part, signed.get(str(index), {})))
        elif isinstance(part, Media | Attachment):
            content.append(_text(media_stub(part)))
        elif isinstance(part, Text) and not is_blank(part):
            content.append(_text(part.text))
    while content and content[-1]["type"] in ("thinking", "redacted_thinking"):
        content.pop()
    _trim(content)
    return content


def _trim(content: list[Block]) -> None:
    """Cut trailing blanks: refused only in the last message, but cut everywhere so that no prefix changes."""
    last = next((block for block in reversed(content) if block["type"] == "text"), None)
    if last is not None:
        last["text"] = last["text"].rstrip()


def _thinking(part: Reasoning, signed: Mapping[str, Any]) -> list[Block]:
    """Thinking is accepted only with its signature, which may come without text."""
    signature, data = signed.get("signature"), signed.get("data")
    if isinstance(signature, str) and signature:
        return [{"type": "thinking", "thinking": part.text, "signature": signature}]
    if isinstance(data, str) and data:
        return [{"type": "redacted_thinking", "data": data}]
    return []


def _call(pair: ToolPair) -> Block:
    call = pair.call
    arguments = call.arguments if call.malformed is None else {"malformed_arguments": call.malformed}
    name = legal_name(call.name, NAME_LENGTH)
    return {"type": "tool_use", "id": pair.wire_id, "name": name, "input": arguments}


def _results(pairs: Iterable[ToolPair], blobs: Blobs) -> list[Block]:
    results: list[Block] = []
    below: list[Block] = []
    for pair in pairs:
        content = [_content(piece, blobs) for piece in result_content(pair.result)]
        if pair.is_error:  # an error may hold text only: its media follow the results
            content, media = _split_media(content)
            below.extend(media)
        result: Block = {"type": "tool_result", "tool_use_id": pair.wire_id, "content": content}
        results.append(result | {"is_error": True} if pair.is_error else result)
    return [*results, _text(MEDIA_HEADING), *below] if below else results


def _split_media(content: list[Block]) -> tuple[list[Block], list[Block]]:
    texts = [block if block["type"] == "text" else _text("[media: shown below]") for block in content]
    return texts, [block for block in content if block["type"] != "text"]


def _content(part: Part, blobs: Blobs) -> Block:
    if isinstance(part, Text):
        return _text(part.text)
    assert isinstance(part, Media | Attachment)
    shown = load_media(part, blobs, MEDIA_LIMITS)
    if not isinstance(shown, LoadedMedia):
        return _text(shown)
    kind = "document" if shown.mime == PDF else "image"
    return {"type": kind, "source": {"type": "base64", "media_type": shown.mime, "data": shown.base64}}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}
