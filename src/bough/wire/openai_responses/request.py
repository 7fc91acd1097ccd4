"""Project a context to the input items of OpenAI's Responses API.

Stateless: nothing refers to an id that OpenAI would have to remember. An answer is sent back as it came, with its
reasoning and item ids, or, if any of those are missing, as bare text and calls: OpenAI refuses an item that has its
id but lacks the reasoning before it. The rules a request must meet are in `rules`, which shares no code with this
module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ...core.context import Context
from ...core.messages import Attachment, Media, Part, Reasoning, Text, ToolCall
from ..base import Blobs, Request
from ..media import PDF, LoadedMedia, load_media, media_stub, with_reasoning
from ..openai_chat.request import ERROR
from ..tool_pairs import (
    EMPTY_MESSAGE,
    PairedMessage,
    ToolPair,
    is_blank,
    legal_name,
    pair_results,
    result_content,
)
from . import NAME

ID_LENGTH = 64
NAME_LENGTH = 64
IMAGE_BYTES = 20 * 1024 * 1024
PDF_BYTES = 32 * 1024 * 1024
MEDIA_LIMITS = dict.fromkeys(("image/png", "image/jpeg", "image/gif", "image/webp"), IMAGE_BYTES) | {
    PDF: PDF_BYTES
}

Item = dict[str, Any]
Proof = dict[str, Any]

_ITEM_ID = {
    Text: re.compile(r"msg[a-zA-Z0-9_-]{1,61}"),
    ToolCall: re.compile(r"fc[a-zA-Z0-9_-]{1,62}"),
    Reasoning: re.compile(r"rs[a-zA-Z0-9_-]{1,62}"),
}


def project(context: Context, blobs: Blobs) -> Request:
    items: list[Item] = []
    used: set[str] = set()
    for paired in pair_results(context.items, ID_LENGTH):
        items.extend(_write(paired, blobs, used))
    prompt = "\n\n".join(prompt for prompt in context.system if prompt.strip())
    return {"instructions": prompt, "input": items} if prompt else {"input": items}


def _write(paired: PairedMessage, blobs: Blobs, used: set[str]) -> list[Item]:
    message = paired.item.message
    if message.role == "assistant":
        return [*_answer(paired, used, blobs), *(_output(pair, blobs) for pair in paired.pairs)]
    if message.role == "system":
        said = message.text
        return [{"role": "system", "content": [_text(said)]}] if said.strip() else []
    content = [_content(part, blobs) for part in message.parts if not is_blank(part)]
    return [{"role": "user", "content": content or [_text(EMPTY_MESSAGE)]}]


def _answer(paired: PairedMessage, used: set[str], blobs: Blobs) -> list[Item]:
    evidence, message = paired.item.evidence, with_reasoning(paired.item.message, blobs)
    parts = (message or paired.item.message).parts
    is_signed = evidence is not None and evidence.issuer == NAME and message is not None
    found = evidence.parts if evidence is not None and is_signed else {}
    proofs = [found.get(str(index), {}) for index in range(len(parts))]
    is_original = _has_all_ids(parts, proofs, used)
    pairs = iter(paired.pairs)
    items: list[Item] = []
    for part, proof in zip(parts, proofs, strict=True):
        if isinstance(part, ToolCall):
            items.append(_call(next(pairs), proof, is_original))
        elif isinstance(part, Reasoning):
            items.extend([_reasoning(part, proof)] if is_original else ())
        elif is_original:
            assert isinstance(part, Text)
            _append_output_text(items, part.text, proof)
        elif not is_blank(part):
            assert isinstance(part, Text | Media | Attachment)
            _append_text(items, part.text if isinstance(part, Text) else media_stub(part), proof)
    return items


def _has_all_ids(parts: tuple[Part, ...], proofs: list[Proof], used: set[str]) -> bool:
    """Whether every part has the id of its item, well-formed and new, and all reasoning what was encrypted of it."""
    if not parts or isinstance(parts[-1], Reasoning):
        return False
    made: list[str] = []
    for part, proof in zip(parts, proofs, strict=True):
        pattern, item_id = _ITEM_ID.get(type(part)), str(proof.get("id"))
        if pattern is None or is_blank(part) or not pattern.fullmatch(item_id):
            return False
        if isinstance(part, Reasoning) and not proof.get("encrypted_content"):
            return False
        if not isinstance(part, Text) or made[-1:] != [item_id]:  # a message may hold several texts
            made.append(item_id)
    if len(set(made)) < len(made) or used.intersection(made):
        return False
    used.update(made)
    return True


def _append_text(items: list[Item], text: str, proof: Mapping[str, Any]) -> None:
    """Without its id an assistant message is plain text, as the schema requires."""
    says = {"role": "assistant", "content": text} | _phase(proof)
    if items and items[-1] | {"content": text} == says:
        items[-1]["content"] += text
    else:
        items.append(says)


def _append_output_text(items: list[Item], text: str, proof: Mapping[str, Any]) -> None:
    # OpenAI accepts missing annotations, stricter servers of the same API do not.
    content = {"type": "output_text", "text": text, "annotations": []}
    if items and items[-1]["type"] == "message" and items[-1]["id"] == proof["id"]:
        items[-1]["content"].append(content)
        return
    says = {"type": "message", "id": proof["id"], "role": "assistant"}
    items.append(says | {"status": proof.get("status", "completed"), "content": [content]} | _phase(proof))


def _phase(proof: Mapping[str, Any]) -> Item:
    return {"phase": proof["phase"]} if proof.get("phase") else {}


def _reasoning(part: Reasoning, proof: Mapping[str, Any]) -> Item:
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    thought = {"type": "reasoning", "id": proof["id"], "summary": summary}
    return thought | {"encrypted_content": proof["encrypted_content"]}


def _call(pair: ToolPair, proof: Mapping[str, Any], is_original: bool) -> Item:
    call = pair.call
    # Keys keep their order: the text is the same bytes whenever it is written.
    written = msgspec.json.encode(call.arguments).decode() if call.malformed is None else call.malformed
    name = legal_name(call.name, NAME_LENGTH)
    item = {"type": "function_call", "call_id": pair.wire_id, "name": name, "arguments": written}
    if proof.get("namespace"):
        item["namespace"] = proof["namespace"]
    return item | {"id": proof["id"]} if is_original else item


def _output(pair: ToolPair, blobs: Blobs) -> Item:
    content = [_content(piece, blobs) for piece in result_content(pair.result)]
    if pair.is_error:  # there is no field for it
        content.insert(0, _text(ERROR))
    item = {"type": "function_call_output", "call_id": pair.wire_id}
    if all(piece["type"] == "input_text" for piece in content):
        return item | {"output": "\n".join(piece["text"] for piece in content)}
    return item | {"output": content}


def _content(part: Part, blobs: Blobs) -> Item:
    if isinstance(part, Text):
        return _text(part.text)
    assert isinstance(part, Media | Attachment)
    shown = load_media(part, blobs, MEDIA_LIMITS)
    if not isinstance(shown, LoadedMedia):
        return _text(shown)
    url = f"data:{shown.mime};base64,{shown.base64}"
    if shown.mime == PDF:
        return {"type": "input_file", "filename": shown.name or "document.pdf", "file_data": url}
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _text(text: str) -> Item:
    return {"type": "input_text", "text": text}
