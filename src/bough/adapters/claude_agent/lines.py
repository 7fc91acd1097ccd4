"""A transcript line of Claude Code kept beside the message it is told as, without what the message tells already.

`packed` takes out of a line what the parts of its message hold, `unpacked` puts it back. A line that would not come back
as it was is not packed: it is kept whole. Pure: knows no session and no store.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.codec import to_json
from ...core.entries import Evidence
from ...core.media import BASE64_MARK
from ...core.messages import Attachment, Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from ...errors import InvalidValue
from ...formats.claude_code import TranscriptLine, content_blocks, line_message
from ...wire import Blobs

MISSING = "[media whose bytes are not in this store]"
Proofs = Mapping[str, Mapping[str, Any]]


class Unpackable(Exception):
    """The line would not come back as it was."""


def packed(
    lines: Sequence[TranscriptLine], message: Message, evidence: Evidence | None
) -> list[TranscriptLine]:
    """The lines without what the message tells. `Unpackable` if one of them has to be kept whole."""
    try:
        if any(BASE64_MARK in to_json(line, "line") for line in lines):
            raise Unpackable  # bytes within text, which the log lifts out of it
    except InvalidValue:
        raise Unpackable from None
    if sum(map(_pieces, lines)) != len(message.parts):
        raise Unpackable  # something in them is no part
    proofs = {} if evidence is None else evidence.parts
    parts = _numbered(message.parts)
    bare = [_bared(line, parts, proofs) for line in lines]
    if unpacked(bare, message, evidence, _no_blobs) != list(lines):
        raise Unpackable
    return bare


def _pieces(line: TranscriptLine) -> int:
    rendered = line.get("rendered")
    if line.get("type") == "attachment":
        return len(rendered) if isinstance(rendered, list) else 0
    return len(content_blocks(line))


def unpacked(
    bare: Iterable[TranscriptLine], message: Message, evidence: Evidence | None, blobs: Blobs
) -> list[TranscriptLine]:
    """The lines as they came."""
    proofs = {} if evidence is None else evidence.parts
    parts = _numbered(message.parts)
    return [_filled_line(line, parts, proofs, blobs) for line in bare]


def _no_blobs(_: str) -> None:
    """Bytes on their way in are in the message itself."""


def _numbered(parts: Sequence[Part]) -> Iterator[tuple[str, Part]]:
    return ((str(index), part) for index, part in enumerate(parts))


def _bared(line: TranscriptLine, parts: Iterator[tuple[str, Part]], proofs: Proofs) -> TranscriptLine:
    if line.get("type") == "attachment":
        rendered = line.get("rendered")
        if not isinstance(rendered, list) or not all(isinstance(one, dict) for one in rendered):
            raise Unpackable
        return {
            **line,
            "rendered": [_without(one, "content") for one, _ in zip(rendered, parts, strict=False)],
        }
    message = line_message(line)
    if isinstance(message.get("content"), str):
        next(parts, None)
        return {**line, "message": _without(message, "content")}
    content = [
        _bared_block(block, *found, proofs) for block in content_blocks(line) if (found := next(parts, None))
    ]
    return {**line, "message": {**message, "content": content}}


def _bared_block(block: object, index: str, part: Part, proofs: Proofs) -> object:
    if not isinstance(block, dict):
        raise Unpackable
    match part:
        case Text():
            return _without(block, "text")
        case Reasoning():
            return _without(block, "thinking", *proofs.get(index, ()))
        case ToolCall(malformed=None):
            return _without(block, "input")
        case Attachment() | Media() if isinstance(block.get("source"), dict):
            return {**block, "source": _without(block["source"], "data")}
        case ToolResult(content=pieces) if isinstance(block.get("content"), list):
            content = zip(block["content"], pieces, strict=False)
            return {**block, "content": [_bared_block(inner, "", piece, {}) for inner, piece in content]}
        case ToolResult():
            return _without(block, "content")
    raise Unpackable


def _without(block: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in keys}


def _filled_line(
    line: TranscriptLine, parts: Iterator[tuple[str, Part]], proofs: Proofs, blobs: Blobs
) -> TranscriptLine:
    if line.get("type") == "attachment":
        rendered = [{**one, "content": _text_of(next(parts, None))} for one in line["rendered"]]
        return {**line, "rendered": rendered}
    message = line_message(line)
    if "content" not in message:
        return {**line, "message": {**message, "content": _text_of(next(parts, None))}}
    content = (
        _filled(block, *found, proofs, blobs)
        for block in content_blocks(line)
        if (found := next(parts, None))
    )
    return {**line, "message": {**message, "content": [block for block in content if block is not None]}}


def _text_of(found: tuple[str, Part] | None) -> str | None:
    return found[1].text if found is not None and isinstance(found[1], Text) else None


def _filled(block: Any, index: str, part: Part, proofs: Proofs, blobs: Blobs) -> object:
    """The block as it was. None if it is a thought whose signature is gone, as in a bundle: no provider takes it back."""
    match part:
        case Text(text=text):
            return {**block, "text": text}
        case Reasoning(text=text):
            proof = proofs.get(index, {})
            thought = {} if "data" in proof else {"thinking": text}
            return {**block, **thought, **proof} if proof else None
        case ToolCall(arguments=arguments):
            return {**block, "input": arguments}
        case Media(hash=name):
            found = blobs(name)
            if found is None:
                return {"type": "text", "text": MISSING}
            return {**block, "source": {**block["source"], "data": base64.b64encode(found).decode()}}
        case Attachment(data=data):
            return {**block, "source": {**block["source"], "data": base64.b64encode(data).decode()}}
        case ToolResult(content=pieces) if "content" in block:
            content = zip(block["content"], pieces, strict=False)
            return {**block, "content": [_filled(inner, "", piece, {}, blobs) for inner, piece in content]}
        case ToolResult(content=pieces):
            return {**block, "content": "".join(piece.text for piece in pieces if isinstance(piece, Text))}
