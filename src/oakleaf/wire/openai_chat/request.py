"""Project a context to the messages of OpenAI's Chat Completions.

A tool message holds text only, so media of results follow the whole batch in a user message. Reasoning goes back only to
the server that wrote it, in the field it had, and only with tool calls: DeepSeek and Kimi refuse calls without it, others
refuse the field. The rules a request must meet are in `rules`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from oakleaf.core.context import Context, Item, endpoint_of
from oakleaf.core.entries import Endpoint
from oakleaf.core.messages import Attachment, Media, Part, ProviderBlock, Reasoning, Text, ToolCall
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.wire.base import Blobs, HistoryPart, Request
from oakleaf.wire.media import PDF, LoadedMedia, load_content, load_media, media_stub, with_reasoning
from oakleaf.wire.offered_tools import OfferedTools, offered_tools
from oakleaf.wire.openai_chat import NAME
from oakleaf.wire.openai_chat.parse import REASONING_FIELDS, link_text
from oakleaf.wire.options import request_fields
from oakleaf.wire.tool_pairs import (
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

SOUND_FORMATS = {"audio/wav": "wav", "audio/mp3": "mp3"}
SOUND_LIMITS = dict.fromkeys((*SOUND_FORMATS, "audio/mpeg"), IMAGE_BYTES)

ERROR = "[error]"
HOST = "api.openai.com"
LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
"""OpenAI's newer models refuse the first name, other servers do not know the second one."""
CHOICE_FIELDS = ("tool_choice", "parallel_tool_calls")
NO_REASONING = " "
"""For an answer without reasoning, on a demanding server: Kimi refuses an empty text."""


def project(context: Context, blobs: Blobs, part: HistoryPart | None = None) -> Request:
    part, endpoint = part or HistoryPart(), endpoint_of(context.settings, NAME)
    issuer = issuer_of(endpoint.host)
    messages = [_text_message("system", prompt) for prompt in context.system if prompt.strip()]
    items = [_without_foreign_evidence(item, issuer) for item in context.items]
    for paired in pair_results(items, ID_LENGTH, part):
        messages.extend(_with_reasoning(message, endpoint) for message in _write(paired, blobs))
    request: Request = {}
    tools = offered_tools(context, blobs, part, _name)
    if tools.specs:
        request["tools"] = [_tool(tool) for tool in tools.specs]
    fields = choose_tools(_fields(context.settings.options, endpoint), tools)
    return {**request, "messages": messages, **fields}


def choose_tools(fields: dict[str, Any], tools: OfferedTools) -> dict[str, Any]:
    """Return the options with the choice of tools: none if calls are forbidden, no choice if there are no tools."""
    if tools.are_forbidden:
        return {**fields, "tool_choice": "none"}
    return fields if tools.specs else {name: fields[name] for name in fields if name not in CHOICE_FIELDS}


def _fields(options: Mapping[str, Any] | None, endpoint: Endpoint) -> dict[str, Any]:
    """Return the options in the server's fields. A name that the user chose stays until the server refuses it."""
    limit = endpoint.token_limit
    if limit is None and endpoint.host is not None and (options or {}).get("max_tokens") is not None:
        limit = "max_tokens"
    fields = request_fields(NAME, options)
    return {limit if limit and name in LIMIT_FIELDS else name: value for name, value in fields.items()}


def issuer_of(host: str | None) -> str:
    """Return the issuer name of a server's evidence."""
    return f"{NAME}@{host or HOST}"


def _without_foreign_evidence(item: Item, issuer: str) -> Item:
    """Return an item without another server's evidence: this server would refuse the evidence."""
    other = item.evidence.issuer if item.evidence is not None else issuer
    is_foreign = other != issuer and other.startswith(f"{NAME}@")
    return replace(item, evidence=None) if is_foreign else item


def _with_reasoning(message: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.reasoning == "demanded" and message["role"] == "assistant":
        return {"reasoning_content": message.get("reasoning", NO_REASONING), **message}
    if endpoint.reasoning != "refused":
        return message
    return {key: value for key, value in message.items() if key not in REASONING_FIELDS}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _name(raw: str) -> str:
    return legal_name(raw, NAME_LENGTH)


def _write(paired: PairedMessage, blobs: Blobs) -> list[dict[str, Any]]:
    message = paired.item.message
    if message.role == "assistant":
        return [*_answer(paired, blobs), *_results(paired.pairs, blobs)]
    if message.role == "system":
        return [_text_message("system", message.text)] if message.text.strip() else []
    proofs = _proofs(paired)
    content = [
        _user_content(part, proofs.get(str(index), {}), blobs)
        for index, part in enumerate(message.parts)
        if not is_blank(part)
    ]
    if not content:
        return [_text_message("user", EMPTY_MESSAGE)]
    if len(content) == 1 and content[0]["type"] == "text":
        return [_text_message("user", content[0]["text"])]
    return [{"role": "user", "content": content}]


def _answer(paired: PairedMessage, blobs: Blobs) -> list[dict[str, Any]]:
    text = ""
    for part in paired.item.message.parts:
        if isinstance(part, Text):
            text += part.text
        elif isinstance(part, Media | Attachment):
            text += media_stub(part)
        elif isinstance(part, ProviderBlock):
            text += f"\n{part.stub}\n"
    content = text if text.strip() else None
    proofs = _proofs(paired)
    calls = [index for index, part in enumerate(paired.item.message.parts) if isinstance(part, ToolCall)]
    tool_calls = [
        _call(pair, proofs.get(str(index), {})) for index, pair in zip(calls, paired.pairs, strict=True)
    ]
    if tool_calls:
        reasoning = _reasoning(paired, proofs, blobs)
        return [{"role": "assistant", "content": content, **reasoning, "tool_calls": tool_calls}]
    return [_text_message("assistant", content)] if content else []


def _proofs(paired: PairedMessage) -> dict[str, dict[str, Any]]:
    """Return the evidence for a server of this format. Which one, its client knows: issuers are NAME or NAME@server."""
    evidence = paired.item.evidence
    return {} if evidence is None or evidence.issuer.partition("@")[0] != NAME else evidence.parts


def _reasoning(paired: PairedMessage, proofs: dict[str, dict[str, Any]], blobs: Blobs) -> dict[str, str]:
    message = with_reasoning(paired.item.message, blobs)
    fields: dict[str, str] = {}
    for index, part in enumerate(message.parts if message is not None else ()):
        field = proofs.get(str(index), {}).get("field")
        if isinstance(part, Reasoning) and field in REASONING_FIELDS and part.text:
            fields[field] = fields.get(field, "") + part.text
    return fields


def _call(pair: ToolPair, proof: dict[str, Any]) -> dict[str, Any]:
    # vLLM and llama-server parse the arguments of the whole history: one that is not JSON fails every later request.
    # Keys keep their order: the text is the same bytes whenever it is written.
    written = msgspec.json.encode(pair.arguments).decode()
    function = {"name": _name(pair.call.name), "arguments": written}
    extra = {"extra_content": proof["extra_content"]} if isinstance(proof.get("extra_content"), dict) else {}
    return {"id": pair.wire_id, "type": "function", "function": function, **extra}


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


def _user_content(part: Part, proof: dict[str, Any], blobs: Blobs) -> dict[str, Any]:
    """Return linked media and sound in the form of this format; other formats know neither."""
    link = proof.get("data")
    if isinstance(part, Text) and isinstance(link, dict) and link_text(link) == part.text:
        return link
    if isinstance(part, Media | Attachment) and proof.get("format"):
        sound = load_media(part, blobs, SOUND_LIMITS)
        if isinstance(sound, LoadedMedia):
            audio = {"data": sound.base64, "format": SOUND_FORMATS[sound.mime]}
            return {"type": "input_audio", "input_audio": audio}
    return _content(part, blobs)


def _content(part: Part, blobs: Blobs) -> dict[str, Any]:
    media = load_content(part, blobs, MEDIA_LIMITS)
    if isinstance(media, str):
        return {"type": "text", "text": media}
    url = f"data:{media.mime};base64,{media.base64}"
    if media.mime == PDF:
        return {"type": "file", "file": {"filename": media.name or "document.pdf", "file_data": url}}
    return {"type": "image_url", "image_url": {"url": url}}


def _text_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}
