"""Project a context to the messages of OpenAI's Chat Completions.

A tool message holds text only, so media of results follow the whole batch in a user message. The rules a request
must meet are in `rules`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ...core.context import Context
from ...core.messages import Attachment, Media, Part, Text
from ..base import Blobs, Request
from ..media import PDF, LoadedMedia, load_media, media_stub
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

ID_LENGTH = 40
NAME_LENGTH = 64
IMAGE_BYTES = 20 * 1024 * 1024
PDF_BYTES = 32 * 1024 * 1024
MEDIA_LIMITS = dict.fromkeys(("image/png", "image/jpeg", "image/gif", "image/webp"), IMAGE_BYTES) | {
    PDF: PDF_BYTES
}

ERROR = "[error]"


def project(context: Context, blobs: Blobs) -> Request:
    messages = [_text_message("system", prompt) for prompt in context.system if prompt.strip()]
    for paired in pair_results(context.items, ID_LENGTH):
        messages.extend(_write(paired, blobs))
    return {"messages": messages}


def _write(paired: PairedMessage, blobs: Blobs) -> list[dict[str, Any]]:
    message = paired.item.message
    if message.role == "assistant":
        return [*_answer(paired), *_results(paired.pairs, blobs)]
    if message.role == "system":
        return [_text_message("system", message.text)] if message.text.strip() else []
    content = [_content(part, blobs) for part in message.parts if not is_blank(part)]
    if not content:
        return [_text_message("user", EMPTY_MESSAGE)]
    if len(content) == 1 and content[0]["type"] == "text":
        return [_text_message("user", content[0]["text"])]
    return [{"role": "user", "content": content}]


def _answer(paired: PairedMessage) -> list[dict[str, Any]]:
    text = ""
    for part in paired.item.message.parts:
        if isinstance(part, Text):
            text += part.text
        elif isinstance(part, Media | Attachment):
            text += media_stub(part)
    content = text if text.strip() else None
    calls = [_call(pair) for pair in paired.pairs]
    if calls:
        return [{"role": "assistant", "content": content, "tool_calls": calls}]
    return [_text_message("assistant", content)] if content else []


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


def _text_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}
