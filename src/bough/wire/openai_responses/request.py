"""OpenAI's Responses API: a context as its input items, its responses and items as ours.

Stateless: nothing is asked for by an id that OpenAI would have to remember. An answer goes back as it came,
with its reasoning and the ids of its items, or, if any of that is missing, as bare words and calls: an item
with its id and without the reasoning before it is refused. The rules this must meet are in
`openai_responses_rules`, which shares no code with this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ...core.context import Context
from ...core.entries import Evidence
from ...core.messages import Attachment, Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from ...core.usage import Usage
from ...errors import UnrecognizedReply
from ..media import PDF, LoadedMedia, load_media, media_stub
from ..openai_chat.request import ERROR
from ..pairs import EMPTY_MESSAGE, PairedMessage, ToolPair, is_blank, legal_name, pair_results, result_content
from ..shapes import (
    Answer,
    Blobs,
    Request,
    content_blocks,
    int_field,
    parse_base64,
    parse_tool_call,
    text_field,
    to_dict,
)

NAME = "openai"
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
_PROOF = {"message": ("id", "status", "phase"), "function_call": ("id", "namespace")}
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def project(context: Context, blobs: Blobs) -> Request:
    items: list[Item] = []
    used: set[str] = set()
    for step in pair_results(context.items, ID_LENGTH):
        items.extend(_write(step, blobs, used))
    prompt = "\n\n".join(prompt for prompt in context.system if prompt.strip())
    return {"instructions": prompt, "input": items} if prompt else {"input": items}


def _write(step: PairedMessage, blobs: Blobs, used: set[str]) -> list[Item]:
    message = step.item.message
    if message.role == "assistant":
        return [*_answer(step, used), *(_output(pair, blobs) for pair in step.pairs)]
    if message.role == "system":
        said = message.text
        return [{"role": "system", "content": [_text(said)]}] if said.strip() else []
    content = [_content(part, blobs) for part in message.parts if not is_blank(part)]
    return [{"role": "user", "content": content or [_text(EMPTY_MESSAGE)]}]


def _answer(step: PairedMessage, used: set[str]) -> list[Item]:
    evidence, parts = step.item.evidence, step.item.message.parts
    found = evidence.parts if evidence is not None and evidence.issuer == NAME else {}
    proofs = [found.get(str(index), {}) for index in range(len(parts))]
    as_it_came = _is_whole(parts, proofs, used)
    pairs = iter(step.pairs)
    items: list[Item] = []
    for part, proof in zip(parts, proofs, strict=True):
        if isinstance(part, ToolCall):
            items.append(_call(next(pairs), proof, as_it_came))
        elif isinstance(part, Reasoning):
            items.extend([_reasoning(part, proof)] if as_it_came else ())
        elif as_it_came:
            assert isinstance(part, Text)
            _say_again(items, part.text, proof)
        elif not is_blank(part):
            assert isinstance(part, Text | Media | Attachment)
            _say(items, part.text if isinstance(part, Text) else media_stub(part), proof)
    return items


def _is_whole(parts: tuple[Part, ...], proofs: list[Proof], used: set[str]) -> bool:
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


def _say(items: list[Item], text: str, proof: Mapping[str, Any]) -> None:
    """Without its id a message of the assistant is plain text, by the letter of the schema."""
    says = {"role": "assistant", "content": text} | _phase(proof)
    if items and items[-1] | {"content": text} == says:
        items[-1]["content"] += text
    else:
        items.append(says)


def _say_again(items: list[Item], text: str, proof: Mapping[str, Any]) -> None:
    # OpenAI bears the lack of annotations, stricter servers of the same API do not.
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


def _call(pair: ToolPair, proof: Mapping[str, Any], as_it_came: bool) -> Item:
    call = pair.call
    # Keys keep their order: the text is the same bytes whenever it is written.
    written = msgspec.json.encode(call.arguments).decode() if call.malformed is None else call.malformed
    name = legal_name(call.name, NAME_LENGTH)
    item = {"type": "function_call", "call_id": pair.wire_id, "name": name, "arguments": written}
    if proof.get("namespace"):
        item["namespace"] = proof["namespace"]
    return item | {"id": proof["id"]} if as_it_came else item


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


def parse_reply(reply: object) -> Answer:
    """A whole response, or only an item of one."""
    found = to_dict(reply)
    is_response = found.get("object") == "response"
    if is_response and (found.get("status") == "failed" or found.get("error")):
        raise UnrecognizedReply(f"a response that failed: {found.get('error')!r}")
    parts: list[Part] = []
    evidence: dict[str, Proof] = {}
    for item in content_blocks(found.get("output")) if is_response else [found]:
        for part, proof in _read_said(item):
            if proof:
                evidence[str(len(parts))] = proof
            parts.append(part)
    usage = found.get("usage")
    return Answer(
        Message("assistant", tuple(parts)),
        None if usage is None else _read_usage(to_dict(usage)),
        Evidence(NAME, evidence) if evidence else None,
        NAME,
        found.get("model"),
        _read_finish(found) if is_response else None,
    )


def _read_finish(response: dict[str, Any]) -> str | None:
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        return (None if details is None else to_dict(details).get("reason")) or "incomplete"
    return status if status in ("completed", "cancelled") else None


def _read_usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("input_tokens_details")
    cached = {} if details is None else to_dict(details)
    read, written = int_field(cached, "cached_tokens"), int_field(cached, "cache_write_tokens")
    return Usage(int_field(usage, "input_tokens"), int_field(usage, "output_tokens"), read, written)


def _read_said(item: dict[str, Any]) -> Iterator[tuple[Part, Proof]]:
    """The parts of an item the model made, each with what OpenAI wants back with it."""
    kind = item.get("type") or "message"
    proof = {key: item[key] for key in _PROOF.get(kind, ()) if item.get(key)}
    if kind == "function_call":
        yield (
            parse_tool_call(text_field(item, "call_id"), text_field(item, "name"), item.get("arguments")),
            proof,
        )
    elif kind == "reasoning":
        yield _read_reasoning(item)
    elif kind == "message" and item.get("role") == "assistant":
        for part in content_blocks(item.get("content")):
            said = _read_part(part)
            if said != Text(""):
                yield said, proof
    else:
        raise UnrecognizedReply(f"an item of type {kind!r} and role {item.get('role')!r}, which is not kept")


def _read_reasoning(item: dict[str, Any]) -> tuple[Part, Proof]:
    """What was encrypted goes back; without it an id is of no use to anybody who stores nothing."""
    shown = content_blocks(item.get("summary")) or content_blocks(item.get("content"))
    proof = {key: item[key] for key in ("id", "encrypted_content") if item.get(key)}
    return Reasoning("\n\n".join(text_field(piece, "text") for piece in shown)), proof if len(
        proof
    ) == 2 else {}


def parse_messages(messages: Iterable[object]) -> list[Message]:
    """Input items as messages: what the model made in a row is one answer."""
    read: list[Message] = []
    said: list[Part] | None = None
    for item in map(to_dict, messages):
        kind = item.get("type") or "message"
        if kind in ("reasoning", "function_call") or item.get("role") == "assistant":
            said = [*(said or ()), *(part for part, _ in _read_said(item))]
            continue
        if said is not None:
            read.append(Message("assistant", tuple(said)))
            said = None
        read.append(_read_item(kind, item))
    return read if said is None else [*read, Message("assistant", tuple(said))]


def _read_item(kind: str, item: dict[str, Any]) -> Message:
    if kind == "function_call_output":
        pieces = tuple(_read_part(part) for part in content_blocks(item.get("output")))
        return Message("tool", (ToolResult(text_field(item, "call_id"), pieces),))
    if kind != "message":
        raise UnrecognizedReply(f"an item of type {kind!r}, which is not kept")
    role = text_field(item, "role")
    parts = tuple(_read_part(part) for part in content_blocks(item.get("content")))
    if role == "user":
        return Message("user", parts)
    if role in ("system", "developer") and all(isinstance(part, Text) for part in parts):
        return Message("system", parts)
    raise UnrecognizedReply(f"an item of role {role!r} with {len(parts)} parts, which is not kept")


def _read_part(part: dict[str, Any]) -> Text | Attachment:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return Text(text_field(part, "text"))
    if kind == "refusal":
        return Text(text_field(part, "refusal"))
    if kind == "input_image":
        return _read_link("image", part, "image_url")
    if kind == "input_file":
        return _read_link("file", part, "file_data" if part.get("file_data") else "file_url")
    if kind == "input_audio":
        audio = to_dict(part.get("input_audio"))
        return parse_base64(audio.get("data"), _AUDIO.get(str(audio.get("format"))))
    raise UnrecognizedReply(f"a content part of type {kind!r}, which is not kept")


def _read_link(kind: str, part: dict[str, Any], key: str) -> Text | Attachment:
    """Bytes that lie elsewhere are kept as the words that lead to them."""
    link = text_field(part, key if part.get(key) else "file_id")
    found = _DATA_URL.fullmatch(link)
    return parse_base64(found[2], found[1], part.get("filename")) if found else Text(f"[{kind}: {link}]")
