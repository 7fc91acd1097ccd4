"""Project a context to the input items of OpenAI's Responses API.

Stateless: nothing is stored at OpenAI or refers to an id that it would have to remember. An answer is sent back as it came, with its
reasoning and item ids, or, if any of those are missing, as bare text and calls: OpenAI refuses an item that has its
id but lacks the reasoning before it. The rules a request must meet are in `rules`, which shares no code with this
module.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from oakleaf.core.context import Context, endpoint_of
from oakleaf.core.context import Item as ContextItem
from oakleaf.core.messages import Attachment, Media, Part, ProviderBlock, Reasoning, Text, ToolCall
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.wire.base import MESSAGE, Blobs, HistoryPart, Request
from oakleaf.wire.media import PDF, load_content, media_stub, with_reasoning
from oakleaf.wire.offered_tools import offered_tools
from oakleaf.wire.openai_chat.request import ERROR, MEDIA_LIMITS, choose_tools
from oakleaf.wire.openai_responses import NAME
from oakleaf.wire.options import request_fields
from oakleaf.wire.shapes import fill
from oakleaf.wire.tool_pairs import (
    EMPTY_MESSAGE,
    PairedMessage,
    ToolPair,
    is_blank,
    legal_name,
    pair_results,
    proofs_of,
    system_prompts,
)

ID_LENGTH = 64
NAME_LENGTH = 64

Item = dict[str, Any]
Proof = Mapping[str, Any]

_ITEM_ID = {
    Text: re.compile(r"msg[a-zA-Z0-9_-]{1,61}"),
    ToolCall: re.compile(r"(?:fc|ctc)[a-zA-Z0-9_-]{1,62}"),
    Reasoning: re.compile(r"rs[a-zA-Z0-9_-]{1,62}"),
}
CUSTOM_CALL = "custom_tool_call"
ENCRYPTED_REASONING = "reasoning.encrypted_content"


def project(context: Context, blobs: Blobs, part: HistoryPart | None = None) -> Request:
    part = part or HistoryPart()
    items: list[Item] = []
    encrypts = endpoint_of(context.settings, NAME).encrypts_reasoning
    used = _UsedIds(part, _outputs_of_user(context.items), is_stateless=encrypts is not None)
    for paired in pair_results(context.items, ID_LENGTH, part):
        items.extend(_write(paired, blobs, used))
    request: Request = {}
    prompts = system_prompts(context, NAME)
    if prompt := "\n\n".join(text for text, proofs in prompts if MESSAGE not in proofs):
        request["instructions"] = prompt
    head = [_system(text, proofs) for text, proofs in prompts if MESSAGE in proofs]
    tools = offered_tools(context, blobs, part, _name, NAME)
    if tools.specs:
        request["tools"] = write_tools(tools.specs)
    request["input"] = [*head, *items]
    if encrypts is not None:  # known of the calls of our own loop
        request |= {"store": False} | ({"include": [ENCRYPTED_REASONING]} if encrypts else {})
    return request | choose_tools(request_fields(NAME, context.settings.options), tools)


def _system(text: str, proofs: Mapping[str, Proof]) -> Item:
    """Return an item of the system, under the name that it had."""
    content = [fill(proofs.get("0", {}).get("shape"), _text(text))]
    return fill(proofs.get(MESSAGE, {}).get("shape"), {"role": "system", "content": content})


def write_tools(tools: Iterable[ToolSpec]) -> list[Item]:
    return [fill(tool.shape, _tool(tool)) for tool in tools]


def _tool(tool: ToolSpec) -> Item:
    described = {"description": tool.description} if tool.description else {}
    # Without a word about it the definition would be made strict, and refused for optional parameters.
    return {
        "type": "function",
        "name": tool.name,
        **described,
        "parameters": tool.parameters,
        "strict": False,
    }


def _name(raw: str) -> str:
    return legal_name(raw, NAME_LENGTH)


class _UsedIds:
    """The ids in the input so far, and the user's outputs after each answer."""

    def __init__(self, part: HistoryPart, outputs_after: dict[int, set[str]], *, is_stateless: bool) -> None:
        self.items, self.calls = part.used_items, part.used_calls
        self.is_stateless = is_stateless
        """Whether OpenAI is known to store nothing: alone an id of reasoning says nothing to it."""
        self.outputs_after = outputs_after


def _outputs_of_user(items: Sequence[ContextItem]) -> dict[int, set[str]]:
    """Return, by the seq of each answer, the calls that the user answers right after.

    An output behind another input or answer is too late: the call was sent as text by then, and stays so.
    """
    outputs: set[str] = set()
    outputs_after: dict[int, set[str]] = {}
    for item in reversed(items):
        if item.message.role == "assistant":
            outputs_after[item.seq], outputs = outputs, set()
        elif item.message.role == "user":
            block = proofs_of(item.evidence, NAME).get("0", {}).get("item") or {}
            outputs = outputs if item.evidence is not None else set()
            outputs |= {block["call_id"]} if _is_output(block) else set()
    return outputs_after


def _is_output(block: Mapping[str, Any]) -> bool:
    return str(block.get("type")).endswith("_output") and isinstance(block.get("call_id"), str)


def _write(paired: PairedMessage, blobs: Blobs, used: _UsedIds) -> list[Item]:
    message = paired.item.message
    if message.role == "assistant":
        items = _answer(paired, used, blobs)
        custom = {item["call_id"] for item in items if item.get("type") == CUSTOM_CALL}
        return [*items, *(_output(pair, blobs, pair.wire_id in custom) for pair in paired.pairs)]
    whole = proofs_of(paired.item.evidence, NAME)
    if message.role == "system":
        return [_system(message.text, whole)] if message.text.strip() else []
    proofs = _part_proofs(paired)
    if proofs and (item := _input_item(proofs[0].get("item"), used)):
        return [item]
    parts = zip(message.parts, proofs, strict=True)
    content = [_content(part, blobs, proof) for part, proof in parts if not is_blank(part)]
    written = {"role": "user", "content": content or [_text(EMPTY_MESSAGE)]}
    return [fill(whole.get(MESSAGE, {}).get("shape"), written)]


def _input_item(item: Item | None, used: _UsedIds) -> Item | None:
    """Return a user's item other than a message, unless the item refers to something outside the input."""
    if item is None:
        return None
    key = item.get("approval_request_id") or item.get("call_id")
    keys = used.items if "approval_request_id" in item else used.calls
    return dict(item) if key is None or key in keys else None


def _answer(paired: PairedMessage, used: _UsedIds, blobs: Blobs) -> list[Item]:
    message = with_reasoning(paired.item.message, blobs)
    parts = (message or paired.item.message).parts
    proofs = [{} for _ in parts] if message is None else _part_proofs(paired)
    images = [_image(part, proof, blobs) for part, proof in zip(parts, proofs, strict=True)]
    outputs = used.outputs_after.get(paired.item.seq, set())
    is_original = _has_all_ids(parts, proofs, images, used, outputs)
    pairs = iter(paired.pairs)
    items: list[Item] = []
    for part, proof, image in zip(parts, proofs, images, strict=True):
        if isinstance(part, ToolCall):
            items.append(_call(next(pairs), proof, is_original))
        elif isinstance(part, Reasoning):
            items.extend([_reasoning(part, proof)] if is_original else ())
        elif is_original:
            if isinstance(part, Text):
                _append_output_text(items, part.text, proof)
            else:
                items.append(image or dict(proof["block"]))
        elif not is_blank(part):
            assert isinstance(part, Text | Media | Attachment | ProviderBlock)
            _append_text(items, _plain_text(part), proof)
    return items


def _part_proofs(paired: PairedMessage) -> list[Proof]:
    """Return, for each part of a message, the evidence for OpenAI."""
    proofs = proofs_of(paired.item.evidence, NAME)
    return [proofs.get(str(index), {}) for index in range(len(paired.item.message.parts))]


def _plain_text(part: Text | Media | Attachment | ProviderBlock) -> str:
    if isinstance(part, Text):
        return part.text
    return part.stub if isinstance(part, ProviderBlock) else media_stub(part)


def _image(part: Part, proof: Proof, blobs: Blobs) -> Item | None:
    """Return the item of a generated image, with the bytes."""
    if not isinstance(part, Media | Attachment) or "block" not in proof:
        return None
    data = part.data if isinstance(part, Attachment) else blobs(part.hash)
    return None if data is None else {**proof["block"], "result": base64.b64encode(data).decode()}


def _has_all_ids(
    parts: tuple[Part, ...],
    proofs: list[Proof],
    images: list[Item | None],
    used: _UsedIds,
    outputs: set[str],
) -> bool:
    """Whether every part has a well-formed, new item id, and all reasoning has encrypted content."""
    is_sent = all(proof.get("sent") for proof in proofs)
    if not parts or (isinstance(parts[-1], Reasoning) and not is_sent):
        return False
    if not is_sent and any(proof.get("sent") for proof in proofs):
        return False
    ids: list[str] = []
    calls: set[str] = set()
    blocks = [proof.get("block") or {} for proof in proofs]
    last_outputs = {block["call_id"]: n for n, block in enumerate(blocks) if _is_output(block)}
    for index, (part, proof, image) in enumerate(zip(parts, proofs, images, strict=True)):
        pattern, item_id = _ITEM_ID.get(type(part)), str(proof.get("id"))
        if pattern is None:
            block = image if isinstance(part, Media | Attachment) else proof.get("block")
            if not block:
                return False
            call_id = block.get("call_id")
            # A call without an output after it is refused, as is an output without a call.
            if isinstance(call_id, str):
                has_output = call_id in outputs or last_outputs.get(call_id, -1) > index
                is_new_call = has_output and call_id not in calls and call_id not in used.calls
                if not (call_id in calls if _is_output(block) else is_new_call):
                    return False
                calls.add(call_id)
            ids.extend([block["id"]] if isinstance(block.get("id"), str) else [])
            continue
        if proof.get("sent"):  # by the program, so OpenAI took it
            is_known = proof.get("encrypted_content") or "id" not in proof.get("block", {})
            if used.is_stateless and isinstance(part, Reasoning) and not is_known:
                return False
            ids.extend([item_id] if proof.get("id") and ids[-1:] != [item_id] else [])
            continue
        if is_blank(part) or not pattern.fullmatch(item_id):
            return False
        if isinstance(part, Reasoning) and not proof.get("encrypted_content"):
            return False
        if not isinstance(part, Text) or ids[-1:] != [item_id]:  # a message may hold several texts
            ids.append(item_id)
    if len(set(ids)) < len(ids) or used.items.intersection(ids):
        return False
    used.items.update(ids)
    used.calls.update(calls)
    return True


def _append_text(items: list[Item], text: str, proof: Proof) -> None:
    """Without an id an assistant message is plain text, as the schema requires."""
    says = {"role": "assistant", "content": text} | _phase(proof)
    if items and items[-1] | {"content": text} == says:
        items[-1]["content"] += text
    else:
        items.append(says)


def _append_output_text(items: list[Item], text: str, proof: Proof) -> None:
    if proof.get("sent"):
        key = "refusal" if proof.get("refusal") else "text"
        content = fill(proof["shape"], {"type": "output_text", key: text})
        if proof["is_first"] or not items or "content" not in items[-1]:
            items.append(fill(proof["message"], {"content": []}))
        items[-1]["content"].append(content)
        return
    # OpenAI accepts missing annotations, stricter servers of the same API do not.
    content = {"type": "output_text", "text": text, "annotations": proof.get("annotations", [])}
    if proof.get("refusal"):
        content = {"type": "refusal", "refusal": text}
    if items and items[-1].get("type") == "message" and items[-1]["id"] == proof["id"]:
        items[-1]["content"].append(content)
        return
    says = {"type": "message", "id": proof["id"], "role": "assistant"}
    items.append(says | {"status": proof.get("status", "completed"), "content": [content]} | _phase(proof))


def _phase(proof: Proof) -> Item:
    return {"phase": proof["phase"]} if proof.get("phase") else {}


def _reasoning(part: Reasoning, proof: Proof) -> Item:
    if proof.get("sent"):
        return dict(proof["block"])
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    item: Item = {"type": "reasoning", "id": proof["id"], "summary": summary, **proof.get("block", {})}
    return item | {"encrypted_content": proof["encrypted_content"]}


def _call(pair: ToolPair, proof: Proof, is_original: bool) -> Item:
    call = pair.call
    described = {key: proof[key] for key in ("namespace", "caller") if proof.get(key)}
    shape = proof.get("shape") or None if is_original else None
    if is_original and proof.get("type") == CUSTOM_CALL:
        custom = {"type": CUSTOM_CALL, "id": proof.get("id"), "call_id": pair.wire_id, "name": call.name}
        return fill(shape, custom | {"input": call.arguments["input"]} | described)
    # Keys keep their order: the text is the same bytes whenever it is written. What is not JSON fails every later request
    # at servers that parse the history.
    written = msgspec.json.encode(pair.arguments).decode()
    name = _name(call.name)
    item = {"type": "function_call", "call_id": pair.wire_id, "name": name, "arguments": written}
    if proof.get("sent"):
        return fill(shape, item)
    return (item | {"id": proof["id"]} if is_original else item) | described


def _output(pair: ToolPair, blobs: Blobs, is_custom: bool) -> Item:
    content = [_content(piece, blobs, proof) for piece, proof in pair.pieces(NAME)]
    if pair.is_error:  # there is no field for it
        content.insert(0, _text(ERROR))
    kind = f"{CUSTOM_CALL}_output" if is_custom else "function_call_output"
    output: Any = content
    if all(piece.keys() == {"type", "text"} for piece in content):
        output = "\n".join(piece["text"] for piece in content)
    return fill(pair.proof_for(NAME).get("shape"), {"type": kind, "call_id": pair.wire_id, "output": output})


def _content(part: Part, blobs: Blobs, proof: Proof) -> Item:
    block = proof.get("block")
    if isinstance(block, dict):
        return _with_bytes(block, part, blobs) if isinstance(part, Media | Attachment) else dict(block)
    if isinstance(part, Text):
        return fill(proof.get("shape"), _text(part.text))
    media = load_content(part, blobs, MEDIA_LIMITS)
    if isinstance(media, str):
        return _text(media)
    url = f"data:{media.mime};base64,{media.base64}"
    if media.mime == PDF:
        return {"type": "input_file", "filename": media.name or "document.pdf", "file_data": url}
    return {"type": "input_image", "image_url": url}


def _with_bytes(block: Item, part: Media | Attachment, blobs: Blobs) -> Item:
    """Return a content part in the user's original form, with the bytes from the store."""
    data = part.data if isinstance(part, Attachment) else blobs(part.hash)
    if data is None:
        return _text(media_stub(part, "is missing"))
    encoded = base64.b64encode(data).decode()
    if "input_audio" in block:
        return {**block, "input_audio": {**block["input_audio"], "data": encoded}}
    key = "file_data" if "file_data" in block else "image_url"
    return {**block, key: block[key] + encoded}


def _text(text: str) -> Item:
    return {"type": "input_text", "text": text}
