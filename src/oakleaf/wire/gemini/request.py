"""Project a context to a request of Google's Gemini API.

Writes the JSON of the REST API, in camelCase and base64, which the SDK accepts too. A call and its response are
matched by their order: an id is written only where Gemini sent one, because Vertex has no such field. The rules a
request must meet are in `rules`, which shares no code with this module.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from oakleaf.core.context import Context
from oakleaf.core.messages import Attachment, Media, Part, ProviderBlock, Reasoning, Text, ToolCall
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.wire.base import Blobs, HistoryPart, Request
from oakleaf.wire.gemini import NAME
from oakleaf.wire.media import PDF, load_content, media_stub
from oakleaf.wire.offered_tools import OfferedTools, offered_tools
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
)

ID_LENGTH = 64
NAME_LENGTH = 64
INLINE_BYTES = 14 * 1024 * 1024  # a request may have 20 MB in all, base64 and everything else included
IMAGES = ("image/png", "image/jpeg", "image/webp")
AUDIO = ("audio/wav", "audio/x-wav", "audio/mp3", "audio/mpeg", "audio/ogg", "audio/flac")
MEDIA_LIMITS = dict.fromkeys((*IMAGES, PDF, *AUDIO), INLINE_BYTES)
OPENING = "(the conversation goes on from here)"
CALLING = "functionCallingConfig"
UNSIGNED = "skip_thought_signature_validator"
"""Google's documented value for calls of other models: from Gemini 3 on a call without a signature is refused."""

Piece = dict[str, Any]

_SIGNATURE = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_ILLEGAL_NAME = re.compile(r"[^a-zA-Z0-9_.:-]")


def project(context: Context, blobs: Blobs, part: HistoryPart | None = None) -> Request:
    part = part or HistoryPart()
    contents: list[dict[str, Any]] = []
    for paired in pair_results(context.items, ID_LENGTH, part):
        for role, parts in _write(paired, blobs):
            if contents and contents[-1]["role"] == role:
                contents[-1]["parts"].extend(parts)
            elif parts:
                contents.append({"role": role, "parts": parts})
    if part.is_start and contents and contents[0]["role"] == "model":
        contents.insert(0, {"role": "user", "parts": [_text(OPENING)]})
    request: Request = {}
    if system := [_text(prompt) for prompt in context.system if prompt.strip()]:
        request["systemInstruction"] = {"parts": system}
    tools = offered_tools(context, blobs, part, _name, NAME)
    if tools.specs:
        request["tools"] = write_tools(tools.specs)
    fields = _choose_tools(request_fields(NAME, context.settings.options), tools)
    return {**request, "contents": contents, **fields}


def _choose_tools(fields: dict[str, Any], tools: OfferedTools) -> dict[str, Any]:
    """Return the options with the mode of function calls: none if calls are forbidden, no mode if there are no tools."""
    if tools.specs and tools.are_callable:
        return fields
    chosen = {key: value for key, value in fields.get("toolConfig", {}).items() if key != CALLING}
    if tools.specs:
        chosen[CALLING] = {"mode": "NONE"}
    rest = {key: value for key, value in fields.items() if key != "toolConfig"}
    return {**rest, "toolConfig": chosen} if chosen else rest


def write_tools(tools: Iterable[ToolSpec]) -> list[Piece]:
    """Return the tools with the functions that stand together in one object."""
    written: list[Piece] = []
    for tool in tools:
        if tool.hosted:
            written.append(dict(tool.shape or {}))
        elif written and "functionDeclarations" in written[-1]:
            written[-1]["functionDeclarations"].append(_declaration(tool))
        else:
            written.append({"functionDeclarations": [_declaration(tool)]})
    return written


def _declaration(tool: ToolSpec) -> Piece:
    described = {"description": tool.description} if tool.description else {}
    key = "parameters" if "parameters" in (tool.shape or {}) else "parametersJsonSchema"
    return fill(tool.shape, {"name": tool.name, **described, key: tool.parameters})


def _write(paired: PairedMessage, blobs: Blobs) -> list[tuple[str, list[Piece]]]:
    message, proofs = paired.item.message, proofs_of(paired.item.evidence, NAME)
    if message.role == "assistant":
        answer = ("model", _answer(paired, proofs, blobs))
        return [answer, ("user", _responses(paired, proofs, blobs))] if paired.pairs else [answer]
    if message.role == "system":
        # The list has no system role; the tag tells the model that this is not the user.
        text = message.text.strip()
        return [("user", [_text(f"<system>\n{text}\n</system>")])] if text else []
    parts = [
        _content(part, blobs, proofs.get(str(index), {}).get("block"))
        for index, part in enumerate(message.parts)
        if not is_blank(part)
    ]
    return [("user", parts or [_text(EMPTY_MESSAGE)])]


def _answer(paired: PairedMessage, proofs: Mapping[str, Mapping[str, Any]], blobs: Blobs) -> list[Piece]:
    pairs = iter(paired.pairs)
    parts: list[Piece] = []
    is_first = True
    for index, part in enumerate(paired.item.message.parts):
        proof = proofs.get(str(index), {})
        signature = proof.get("signature")
        is_signed = isinstance(signature, str) and _SIGNATURE.fullmatch(signature)
        signed = {"thoughtSignature": signature} if is_signed else {}
        if isinstance(part, ToolCall):
            # Calls made together share one signature, on the first of them.
            signed = signed or ({"thoughtSignature": UNSIGNED} if is_first else {})
            is_first = False
            parts.append(_call(next(pairs), proof) | signed)
        elif isinstance(part, Reasoning):
            # Thoughts are not read again, but Gemini wants its signature back on the part that had it.
            parts.extend([{"text": part.text, "thought": True} | signed] if signed else [])
        elif "block" in proof:
            parts.append(_content(part, blobs, proof["block"]))
        elif isinstance(part, ProviderBlock):
            parts.extend([] if "metadata" in proof else [_text(part.stub)])
        elif isinstance(part, Media | Attachment):
            parts.append(_text(media_stub(part)))
        elif isinstance(part, Text) and (signed or not is_blank(part)):
            parts.append(_text(part.text) | signed)
    return parts


def _call(pair: ToolPair, proof: Mapping[str, Any]) -> Piece:
    return {"functionCall": {"name": _name(pair.call.name), "args": pair.arguments} | _id(pair, proof)}


def _responses(paired: PairedMessage, proofs: Mapping[str, Mapping[str, Any]], blobs: Blobs) -> list[Piece]:
    parts = paired.item.message.parts
    call_proofs = [
        proofs.get(str(index), {}) for index, part in enumerate(parts) if isinstance(part, ToolCall)
    ]
    responses: list[Piece] = []
    below: list[Piece] = []
    for pair, proof in zip(paired.pairs, call_proofs, strict=True):
        own = pair.proof_for(NAME)
        content = [_content(piece, blobs, one.get("block")) for piece, one in pair.pieces(NAME)]
        within: list[Piece] = []
        if own.get("has_parts"):
            is_said = bool(content) and content[0].keys() == {"text"}
            content, within = content[:is_said], content[is_said:]
        below.extend(piece for piece in content if "text" not in piece)
        text = "\n".join(piece.get("text", "[media: shown below]") for piece in content)
        response = _response(text, own.get("json"), is_error=pair.is_error)
        named = fill(own.get("shape"), {"name": _name(pair.call.name), "response": response})
        named |= {"parts": within} if within else {}
        responses.append({"functionResponse": named | _id(pair, proof)})
    return [*responses, _text(MEDIA_HEADING), *below] if below else responses


def _response(text: str, key: object, *, is_error: bool) -> Any:
    """Return the text of a result as the object that it was; `key` is the name of the value, or "" for all of it."""
    if isinstance(key, str):
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(text)
            return {key: value} if key else value
    return {"error" if is_error else "output": text}


def _id(pair: ToolPair, proof: Mapping[str, Any]) -> Piece:
    return {"id": pair.wire_id} if proof.get("id") else {}


def _name(raw: str) -> str:
    name = legal_name(raw, NAME_LENGTH, _ILLEGAL_NAME)
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"[:NAME_LENGTH]


def _content(part: Part, blobs: Blobs, block: Piece | None) -> Piece:
    if isinstance(block, dict):
        return _original(part, blobs, block)
    media = load_content(part, blobs, MEDIA_LIMITS)
    if isinstance(media, str):
        return _text(media)
    return {"inlineData": {"mimeType": media.mime, "data": media.base64}}


def _original(part: Part, blobs: Blobs, block: Piece) -> Piece:
    """Return a part in the original form, with the text or the bytes from the store."""
    if isinstance(part, Text) and "text" in block:
        return {**block, "text": part.text}
    if not isinstance(part, Media | Attachment):
        return dict(block)
    data = part.data if isinstance(part, Attachment) else blobs(part.hash)
    if data is None:
        return _text(media_stub(part, "is missing"))
    return {**block, "inlineData": {**block["inlineData"], "data": base64.b64encode(data).decode()}}


def _text(text: str) -> Piece:
    return {"text": text}
