"""Project a context to the messages of OpenAI's Chat Completions.

A tool message holds text only, so media of results follow the whole batch in a user message. Reasoning goes back only to
the server that wrote it, in the field it had, and only with tool calls: DeepSeek and Kimi refuse calls without it, others
refuse the field. The rules a request must meet are in `rules`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import replace

from oakleaf.core.context import Context, Item, endpoint_of
from oakleaf.core.entries import Endpoint, Evidence, TokenLimit
from oakleaf.core.messages import Attachment, Media, Part, ProviderBlock, Reasoning, Text, ToolCall, system
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.wire.base import MESSAGE, Blobs, HistoryPart, Request
from oakleaf.wire.media import PDF, LoadedMedia, load_content, load_media, media_stub, with_reasoning
from oakleaf.wire.offered_tools import OfferedTools, offered_tools
from oakleaf.wire.openai_chat import NAME
from oakleaf.wire.openai_chat.parse import REASONING_FIELDS
from oakleaf.wire.options import request_fields
from oakleaf.wire.shapes import Shape, fill
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
LIMIT_FIELDS: tuple[TokenLimit, TokenLimit] = ("max_tokens", "max_completion_tokens")
"""OpenAI's newer models refuse the first name, other servers do not know the second one."""
CHOICE_FIELDS = ("tool_choice", "parallel_tool_calls")
NO_REASONING = " "
"""For an answer without reasoning, on a demanding server: Kimi refuses an empty text."""


def project(context: Context, blobs: Blobs, part: HistoryPart | None = None) -> Request:
    part, endpoint = part or HistoryPart(), endpoint_of(context.settings, NAME)
    issuer = issuer_of(endpoint.host)
    head = [Item(system(Text(text)), 0, 0, evidence=evidence) for text, evidence in _prompts(context)]
    items = [_without_foreign_evidence(item, issuer) for item in (*head, *context.items)]
    messages: list[dict[str, Any]] = []
    for paired in pair_results(items, ID_LENGTH, part):
        messages.extend(_with_reasoning(message, endpoint) for message in _write(paired, blobs))
    request: Request = {}
    tools = offered_tools(context, blobs, part, _name, issuer)
    if tools.specs:
        request["tools"] = write_tools(tools.specs)
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
    if item.evidence is None or item.evidence.issuer == NAME:
        return item
    return replace(
        item, evidence=replace(item.evidence, issuer=NAME) if item.evidence.issuer == issuer else None
    )


def _prompts(context: Context) -> Iterator[tuple[str, Evidence | None]]:
    """Yield the system prompts that say something, with the evidence of each."""
    for text, evidence in zip_longest(context.system, context.system_evidence[: len(context.system)]):
        if text.strip():
            yield text, evidence


def _with_reasoning(message: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.reasoning == "demanded" and message["role"] == "assistant":
        return {"reasoning_content": message.get("reasoning", NO_REASONING), **message}
    if endpoint.reasoning != "refused":
        return message
    return {key: value for key, value in message.items() if key not in REASONING_FIELDS}


def write_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    return [fill(tool.shape, _tool(tool)) for tool in tools]


def _tool(tool: ToolSpec) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    function = {"name": tool.name, **described, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _name(raw: str) -> str:
    return legal_name(raw, NAME_LENGTH)


def _write(paired: PairedMessage, blobs: Blobs) -> list[dict[str, Any]]:
    message, proofs = paired.item.message, proofs_of(paired.item.evidence, NAME)
    if message.role == "assistant":
        return [*_answer(paired, proofs, blobs), *_results(paired.pairs, blobs)]
    if message.role == "system" and not message.text.strip():
        return []
    content = [
        _user_content(part, proofs.get(str(index), {}), blobs)
        for index, part in enumerate(message.parts)
        if not is_blank(part)
    ]
    written = {"role": message.role, "content": _shortest(content) or EMPTY_MESSAGE}
    return [{**written, **fill(_shape(proofs), written)}]


def _shape(proofs: Mapping[str, Mapping[str, Any]]) -> Shape | None:
    return proofs.get(MESSAGE, {}).get("shape")


def _shortest(content: list[dict[str, Any]]) -> Any:
    """Return content as text if that is all there is."""
    is_text = len(content) == 1 and content[0].keys() == {"type", "text"}
    return content[0]["text"] if is_text else content


def _answer(
    paired: PairedMessage, proofs: Mapping[str, Mapping[str, Any]], blobs: Blobs
) -> list[dict[str, Any]]:
    parts, shape = paired.item.message.parts, _shape(proofs)
    own = [proofs.get(str(index), {}) for index in range(len(parts))]
    calls = [proof for part, proof in zip(parts, own, strict=True) if isinstance(part, ToolCall)]
    tool_calls = [_call(pair, proof) for pair, proof in zip(paired.pairs, calls, strict=True)]
    content: Any = [_answer_part(part, proof) for part, proof in zip(parts, own, strict=True)]
    content = [piece for piece in content if piece is not None]
    if all(piece.keys() == {"type", "text"} for piece in content):
        text = "".join(piece["text"] for piece in content)
        content = text if text.strip() else None
    written = {"role": "assistant", "content": content}
    refusal = "".join(
        part.text
        for part, proof in zip(parts, own, strict=True)
        if isinstance(part, Text) and proof.get("refusal")
    )
    written |= {"refusal": refusal} if refusal else {}
    if tool_calls or shape is not None:
        written |= _reasoning(paired, proofs, blobs)
    written |= {"tool_calls": tool_calls} if tool_calls else {}
    return [fill(shape, written)] if shape is not None or content or tool_calls or refusal else []


def _answer_part(part: Part, proof: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a part of an answer's content; None for what stands elsewhere."""
    block = proof.get("block")
    if isinstance(part, Reasoning | ProviderBlock) and isinstance(block, dict) and block.get("type"):
        return dict(block)
    if isinstance(part, Text):
        written = {"type": "text", "text": part.text}
        return None if proof.get("refusal") else fill(proof.get("shape"), written)
    if isinstance(part, Media | Attachment):
        return {"type": "text", "text": media_stub(part)}
    return {"type": "text", "text": f"\n{part.stub}\n"} if isinstance(part, ProviderBlock) else None


def _reasoning(
    paired: PairedMessage, proofs: Mapping[str, Mapping[str, Any]], blobs: Blobs
) -> dict[str, str]:
    message = with_reasoning(paired.item.message, blobs)
    fields: dict[str, str] = {}
    for index, part in enumerate(message.parts if message is not None else ()):
        field = proofs.get(str(index), {}).get("field")
        if isinstance(part, Reasoning) and field in REASONING_FIELDS and part.text:
            fields[field] = fields.get(field, "") + part.text
    return fields


def _call(pair: ToolPair, proof: Mapping[str, Any]) -> dict[str, Any]:
    # vLLM and llama-server parse the arguments of the whole history: one that is not JSON fails every later request.
    # Keys keep their order: the text is the same bytes whenever it is written.
    written = msgspec.json.encode(pair.arguments).decode()
    function = {"name": _name(pair.call.name), "arguments": written}
    return fill(proof.get("shape"), {"id": pair.wire_id, "type": "function", "function": function})


def _results(pairs: Iterable[ToolPair], blobs: Blobs) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    below: list[dict[str, Any]] = []
    for pair in pairs:
        content = [_user_content(piece, proof, blobs) for piece, proof in pair.pieces(NAME)]
        shape = pair.proof_for(NAME).get("shape")
        below.extend(piece for piece in content if piece["type"] != "text")
        content = [piece if piece["type"] == "text" else _text("[media: shown below]") for piece in content]
        if pair.is_error:  # there is no field for it
            content.insert(0, _text(ERROR))
        if all(piece.keys() == {"type", "text"} for piece in content):
            content = [_text("\n".join(piece["text"] for piece in content))]
        written = {"role": "tool", "tool_call_id": pair.wire_id, "content": _shortest(content)}
        results.append({**written, **fill(shape, written)})
    if below:
        results.append({"role": "user", "content": [_text(MEDIA_HEADING), *below]})
    return results


def _user_content(part: Part, proof: Mapping[str, Any], blobs: Blobs) -> dict[str, Any]:
    """Return linked media and sound in the form of this format; other formats know neither."""
    if isinstance(part, Text | ProviderBlock) and isinstance(proof.get("block"), dict):
        return dict(proof["block"])
    if isinstance(part, Media | Attachment) and proof.get("format"):
        sound = load_media(part, blobs, SOUND_LIMITS)
        if isinstance(sound, LoadedMedia):
            audio = {"data": sound.base64, "format": SOUND_FORMATS[sound.mime]}
            return fill(proof.get("shape"), {"type": "input_audio", "input_audio": audio})
    written = _content(part, blobs)
    is_stub = written["type"] == "text" and not isinstance(part, Text)
    return written if is_stub else fill(proof.get("shape"), written)


def _content(part: Part, blobs: Blobs) -> dict[str, Any]:
    media = load_content(part, blobs, MEDIA_LIMITS)
    if isinstance(media, str):
        return _text(media)
    url = f"data:{media.mime};base64,{media.base64}"
    if media.mime == PDF:
        return {"type": "file", "file": {"filename": media.name or "document.pdf", "file_data": url}}
    return {"type": "image_url", "image_url": {"url": url}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
