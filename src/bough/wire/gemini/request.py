"""Google's Gemini API: a context as its contents, its replies and contents as ours.

Written as the REST API writes JSON, in camelCase and base64; the SDK takes such dicts as they are, and what
it returns in snake_case and bytes is read alike. A call and its response are matched by their order: an id is
written only where Gemini gave one, for Vertex knows no such field. The rules this must meet are in
`gemini_rules`, which shares no code with this file.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.codec import to_json
from ...core.context import Context
from ...core.entries import Evidence
from ...core.messages import Attachment, Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from ...core.usage import Usage
from ...errors import UnrecognizedReply
from ..media import PDF, LoadedMedia, load_media, media_stub
from ..pairs import (
    EMPTY_MESSAGE,
    MEDIA_HEADING,
    PairedMessage,
    ToolPair,
    is_blank,
    legal_name,
    pair_results,
    result_content,
)
from ..shapes import (
    Answer,
    Blobs,
    Request,
    content_blocks,
    parse_base64,
    parse_tool_call,
    text_field,
    to_dict,
)

NAME = "gemini"
ID_LENGTH = 64
NAME_LENGTH = 64
INLINE_BYTES = 14 * 1024 * 1024  # a request may have 20 MB in all, base64 and everything else included
IMAGES = ("image/png", "image/jpeg", "image/webp")
AUDIO = ("audio/wav", "audio/x-wav", "audio/mp3", "audio/mpeg", "audio/ogg", "audio/flac")
MEDIA_LIMITS = dict.fromkeys((*IMAGES, PDF, *AUDIO), INLINE_BYTES)
OPENING = "(the conversation goes on from here)"
UNSIGNED = "skip_thought_signature_validator"
"""What Google documents for calls its model did not make: from Gemini 3 on a call without a signature is refused."""

Piece = dict[str, Any]

_USUAL = str.maketrans("-_", "+/")
_ILLEGAL_NAME = re.compile(r"[^a-zA-Z0-9_.:-]")


def project(context: Context, blobs: Blobs) -> Request:
    contents: list[dict[str, Any]] = []
    for step in pair_results(context.items, ID_LENGTH):
        for role, parts in _write(step, blobs):
            if contents and contents[-1]["role"] == role:
                contents[-1]["parts"].extend(parts)
            elif parts:
                contents.append({"role": role, "parts": parts})
    if contents and contents[0]["role"] == "model":
        contents.insert(0, {"role": "user", "parts": [_text(OPENING)]})
    system = [_text(prompt) for prompt in context.system if prompt.strip()]
    return (
        {"systemInstruction": {"parts": system}, "contents": contents} if system else {"contents": contents}
    )


def _write(step: PairedMessage, blobs: Blobs) -> list[tuple[str, list[Piece]]]:
    message = step.item.message
    if message.role == "assistant":
        proofs = _proofs(step)
        answer = ("model", _answer(step, proofs))
        return [answer, ("user", _responses(step, proofs, blobs))] if step.pairs else [answer]
    if message.role == "system":
        # There is no such role in the list; the tag tells the model that it is not the user who speaks.
        said = message.text.strip()
        return [("user", [_text(f"<system>\n{said}\n</system>")])] if said else []
    parts = [_content(part, blobs) for part in message.parts if not is_blank(part)]
    return [("user", parts or [_text(EMPTY_MESSAGE)])]


def _proofs(step: PairedMessage) -> Mapping[str, Mapping[str, Any]]:
    evidence = step.item.evidence
    return evidence.parts if evidence is not None and evidence.issuer == NAME else {}


def _answer(step: PairedMessage, proofs: Mapping[str, Mapping[str, Any]]) -> list[Piece]:
    pairs = iter(step.pairs)
    parts: list[Piece] = []
    is_first = True
    for index, part in enumerate(step.item.message.parts):
        proof = proofs.get(str(index), {})
        signed = {"thoughtSignature": proof["signature"]} if proof.get("signature") else {}
        if isinstance(part, ToolCall):
            # One signature stands for the calls of a step that were made together, on the first of them.
            signed = signed or ({"thoughtSignature": UNSIGNED} if is_first else {})
            is_first = False
            parts.append(_call(next(pairs), proof) | signed)
        elif isinstance(part, Media | Attachment):
            parts.append(_text(media_stub(part)))
        elif isinstance(part, Text) and (signed or not is_blank(part)):
            parts.append(_text(part.text) | signed)
    return parts


def _call(pair: ToolPair, proof: Mapping[str, Any]) -> Piece:
    call = pair.call
    arguments = call.arguments if call.malformed is None else {"malformed_arguments": call.malformed}
    return {"functionCall": {"name": _name(call.name), "args": arguments} | _id(pair, proof)}


def _responses(step: PairedMessage, proofs: Mapping[str, Mapping[str, Any]], blobs: Blobs) -> list[Piece]:
    parts = step.item.message.parts
    asked = [proofs.get(str(index), {}) for index, part in enumerate(parts) if isinstance(part, ToolCall)]
    responses: list[Piece] = []
    below: list[Piece] = []
    for pair, proof in zip(step.pairs, asked, strict=True):
        content = [_content(piece, blobs) for piece in result_content(pair.result)]
        below.extend(piece for piece in content if "text" not in piece)
        said = "\n".join(piece.get("text", "[media: shown below]") for piece in content)
        response = {"error" if pair.is_error else "output": said}
        named = {"name": _name(pair.call.name), "response": response}
        responses.append({"functionResponse": named | _id(pair, proof)})
    return [*responses, _text(MEDIA_HEADING), *below] if below else responses


def _id(pair: ToolPair, proof: Mapping[str, Any]) -> Piece:
    return {"id": pair.wire_id} if proof.get("id") else {}


def _name(raw: str) -> str:
    name = legal_name(raw, NAME_LENGTH, _ILLEGAL_NAME)
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"[:NAME_LENGTH]


def _content(part: Part, blobs: Blobs) -> Piece:
    if isinstance(part, Text):
        return _text(part.text)
    assert isinstance(part, Media | Attachment)
    shown = load_media(part, blobs, MEDIA_LIMITS)
    if not isinstance(shown, LoadedMedia):
        return _text(shown)
    return {"inlineData": {"mimeType": shown.mime, "data": shown.base64}}


def _text(text: str) -> Piece:
    return {"text": text}


def parse_reply(reply: object) -> Answer:
    """A whole reply, or only the content of one."""
    found = to_dict(reply)
    candidate: dict[str, Any] = {"content": found}
    if "parts" not in found:
        candidates = found.get("candidates") or []
        if len(candidates) != 1:
            why = _either(found, "prompt_feedback")
            raise UnrecognizedReply(
                f"a reply with {len(candidates)} candidates ({why}); an answer is exactly one"
            )
        candidate = to_dict(candidates[0])
    content = to_dict(candidate.get("content") or {})
    if content.get("role") not in ("model", None):
        raise UnrecognizedReply(f"a content of role {content['role']!r} is no answer")
    parts, evidence = _read_parts(content)
    if any(isinstance(part, ToolResult) for part in parts):
        raise UnrecognizedReply("a function response is no answer")
    usage, finish = _either(found, "usage_metadata"), _either(candidate, "finish_reason")
    return Answer(
        Message("assistant", tuple(parts)),
        None if usage is None else _read_usage(to_dict(usage)),
        Evidence(NAME, evidence) if evidence else None,
        NAME,
        _either(found, "model_version"),
        getattr(finish, "value", finish),  # the SDK has an enum of it
    )


def _read_usage(usage: dict[str, Any]) -> Usage:
    return Usage(
        _count(usage, "prompt_token_count", "tool_use_prompt_token_count"),
        _count(usage, "candidates_token_count", "thoughts_token_count"),
        _count(usage, "cached_content_token_count"),
    )


def _count(usage: dict[str, Any], *names: str) -> int | None:
    """Gemini counts thoughts beside the answer and tool use beside the prompt; ours is all of it."""
    told = [value for name in names if isinstance(value := _either(usage, name), int)]
    return sum(told) if told else None


def parse_messages(messages: Iterable[object]) -> list[Message]:
    return [ours for content in messages for ours in _read_content(to_dict(content))]


def _read_content(content: dict[str, Any]) -> list[Message]:
    role = content.get("role")
    parts, _ = _read_parts(content)
    results = [part for part in parts if isinstance(part, ToolResult)]
    rest = tuple(part for part in parts if not isinstance(part, ToolResult))
    if role == "model" and not results:
        return [Message("assistant", rest)]
    if role in ("user", "function", None) and all(isinstance(part, Text | Attachment) for part in rest):
        tools = [Message("tool", (result,)) for result in results]
        return [*tools, Message("user", rest)] if rest or not tools else tools
    raise UnrecognizedReply(f"a content of role {role!r} with {len(parts)} parts, which is not kept")


def _read_parts(content: dict[str, Any]) -> tuple[list[Part], dict[str, dict[str, Any]]]:
    """The parts, and by their index what Gemini wants back with them."""
    parts: list[Part] = []
    evidence: dict[str, dict[str, Any]] = {}
    # Without ids the n-th call of a name is answered by the n-th response of that name, whenever it is read.
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for piece in content_blocks(content.get("parts")):
        signature = _either(piece, "thought_signature")
        call, result = _either(piece, "function_call"), _either(piece, "function_response")
        proof: dict[str, Any] = {"signature": _encoded(signature)} if signature else {}
        if call is not None:
            found = to_dict(call)
            proof |= {"id": found["id"]} if found.get("id") else {}
            part: Part = parse_tool_call(
                _read_id(found, calls), text_field(found, "name"), found.get("args") or {}
            )
        elif result is not None:
            part = _read_response(to_dict(result), results)
        elif piece.get("thought"):
            part, proof = Reasoning(piece.get("text") or ""), {}
        else:
            part = _read_part(piece)
        if part == Text("") and not proof:
            continue
        if proof:
            evidence[str(len(parts))] = proof
        parts.append(part)
    return parts, evidence


def _read_id(found: dict[str, Any], seen: Counter[str]) -> str:
    if found.get("id"):
        return text_field(found, "id")
    name = text_field(found, "name")
    seen[name] += 1
    return f"call_{seen[name]}_{name}"


def _read_response(found: dict[str, Any], seen: Counter[str]) -> ToolResult:
    response = to_dict(found.get("response"))
    key = next(iter(response)) if len(response) == 1 else None
    said = response[key] if key in ("output", "error") else response
    text = said if isinstance(said, str) else to_json(said, "response").decode()
    pieces: list[Text | Attachment] = [Text(text)] if text else []
    pieces.extend(_read_part(piece) for piece in content_blocks(found.get("parts")))
    return ToolResult(_read_id(found, seen), tuple(pieces), key == "error")


def _read_part(piece: dict[str, Any]) -> Text | Attachment:
    data, file = _either(piece, "inline_data"), _either(piece, "file_data")
    if data is not None:
        blob = to_dict(data)
        encoded = _encoded(blob.get("data"))
        # The SDK dumps JSON in the other alphabet of base64.
        usual = encoded.translate(_USUAL) if isinstance(encoded, str) else encoded
        return parse_base64(usual, _either(blob, "mime_type"), _either(blob, "display_name"))
    if file is not None:  # bytes that lie elsewhere: the words that lead to them are kept
        return Text(f"[file: {_either(to_dict(file), 'file_uri')}]")
    others = [key for key, value in piece.items() if value is not None]
    if piece.get("text") is not None or set(others) <= {"thoughtSignature", "thought_signature", "thought"}:
        return Text(text_field({"text": "", **{key: piece[key] for key in others}}, "text"))
    raise UnrecognizedReply(f"a part with {', '.join(others)}, which is not kept")


def _encoded(data: object) -> object:
    """The SDK's bytes as the REST API writes them."""
    return base64.b64encode(data).decode() if isinstance(data, bytes) else data


def _either(found: Mapping[str, Any], name: str) -> Any:
    """A field by its name in snake_case or in camelCase."""
    head, *rest = name.split("_")
    value = found.get(name)
    return found.get(head + "".join(map(str.capitalize, rest))) if value is None else value
