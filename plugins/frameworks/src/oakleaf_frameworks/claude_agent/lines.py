"""How entries hold the lines of a Claude Code transcript: packed into the message they became, or unchanged in notes.

A packed line is stored in the details of its message, without what the message's parts hold; one that could not be
restored exactly is stored unchanged in a note. Every line has a number, its position in the transcript. Signatures are
evidence and never stored in notes: where evidence is left out, in a bundle for instance, the reasoning it belongs to is
left out of the lines too. Pure: knows no session and no store.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from oakleaf.core.codec import to_json
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry, Evidence, Note
from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.core.media import has_inline_bytes, restore_json
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    Part,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from oakleaf.errors import InvalidValue
from oakleaf.ingest.records import LossReport
from oakleaf.wire import Blobs
from oakleaf.wire.anthropic import NAME as ISSUER
from oakleaf_frameworks.shared import MISSING_MEDIA, no_blob, stored_record
from oakleaf_importers.formats.claude_code import TranscriptLine, content_blocks, line_message
from oakleaf_importers.formats.jsonl import decode_json

KEY = "claude"
"""The key of this adapter's data in details and notes."""
THINKING = ("thinking", "redacted_thinking")
SIGNATURE_FIELDS = ("signature", "data")
Proofs = Mapping[str, Mapping[str, Any]]


class NumberedLine(Struct, frozen=True):
    """A line with its position in the transcript."""

    number: int
    line: TranscriptLine
    is_stored: bool = False
    """Whether a note holds it already."""


def record_of(entry: Entry) -> dict[str, Any]:
    """Return an entry's record of lines; empty for a foreign entry."""
    return stored_record(entry.payload, KEY) or {}


def stored_lines(entry: Entry, blobs: Blobs) -> Iterator[tuple[int, TranscriptLine]]:
    """Yield the lines of an entry, with numbers."""
    payload, record = entry.payload, record_of(entry)
    lines: Iterable[TranscriptLine] = restore_json(record.get("lines", []), blobs)
    if isinstance(payload, Message):
        lines = unpack_lines(lines, payload, entry.evidence, blobs)
    elif "texts" in record:
        lines = map(json.loads, restore_json(record["texts"], blobs))
    signed = record.get("signed", ())
    signed_numbers = {int(name.partition(".")[0]) for name in signed}
    signatures = {} if entry.evidence is None else entry.evidence.parts
    for number, line in zip(record.get("numbers", ()), lines, strict=True):
        is_signed = number in signed_numbers
        yield number, _with_signatures(line, number, signed, signatures) if is_signed else line


def uuid_of(line: TranscriptLine) -> str | None:
    uuid = line.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


def block_ids(line: TranscriptLine, kind: str, key: str) -> list[str]:
    """Return the ids of blocks of a kind under a key."""
    blocks = [
        block for block in content_blocks(line) if isinstance(block, dict) and block.get("type") == kind
    ]
    return [block[key] for block in blocks if isinstance(block.get(key), str)]


def readable_line(line: TranscriptLine) -> TranscriptLine:
    """Return the line as storable JSON, lone surrogates replaced; empty if impossible."""
    try:
        to_json(line, "line")
    except InvalidValue:
        try:
            decoded_line = decode_json(json.dumps(line).encode(), LossReport(), "")
        except INVALID_JSON:
            return {}
        return decoded_line if isinstance(decoded_line, dict) else {}
    return line


# -- lines in notes --------------------------------------------------------------------------------


def lines_note(
    numbered: Sequence[NumberedLine],
    state: dict[str, Any] | None = None,
    *,
    shows: int | None = None,
    is_pending: bool = False,
) -> Draft:
    """Return a note with unchanged lines; lines our JSON cannot hold (lone surrogates, NaN) as JSON text.

    `shows` is the number of the line that the next entry represents; `is_pending` marks lines that may become messages
    later.
    """
    numbers, lines = [each.number for each in numbered], [each.line for each in numbered]
    marks = ({} if shows is None else {"shows": shows}) | ({"pending": True} if is_pending else {})
    try:
        to_json(lines, "lines")
    except InvalidValue:
        record = {"numbers": numbers, "texts": [json.dumps(line) for line in lines], **marks}
        return Draft(Note({KEY: record}, state))
    signatures: dict[str, dict[str, Any]] = {}
    unsigned = [_without_signatures(each.line, each.number, signatures) for each in numbered]
    signed = {"signed": list(signatures)} if signatures else {}
    note = Note({KEY: {"numbers": numbers, "lines": unsigned, **signed, **marks}}, state)
    return Draft(note, evidence=Evidence(ISSUER, signatures) if signatures else None)


def _without_signatures(
    line: TranscriptLine, number: int, signatures: dict[str, dict[str, Any]]
) -> TranscriptLine:
    """Return the line without signatures, and add the signatures to `signatures`."""
    blocks = content_blocks(line)
    content = list(blocks)
    for index, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") in THINKING:
            signature = {key: block[key] for key in SIGNATURE_FIELDS if isinstance(block.get(key), str)}
            if signature:
                signatures[f"{number}.{index}"] = signature
                content[index] = {key: value for key, value in block.items() if key not in signature}
    if content == blocks:
        return line
    return {**line, "message": {**line_message(line), "content": content}}


def _with_signatures(
    line: TranscriptLine, number: int, names: Iterable[str], signatures: Proofs
) -> TranscriptLine:
    blocks: dict[int, Any] = dict(enumerate(content_blocks(line)))
    for name in names:
        line_number, _, index = name.partition(".")
        if int(line_number) == number and name in signatures:
            blocks[int(index)] = {**blocks[int(index)], **signatures[name]}
        elif int(line_number) == number:
            del blocks[int(index)]
    return {**line, "message": {**line_message(line), "content": list(blocks.values())}}


# -- lines packed into a message -------------------------------------------------------------------


class CannotPack(Exception):
    """The line would not be restored exactly."""


def pack_lines(
    lines: Sequence[TranscriptLine], message: Message, evidence: Evidence | None
) -> list[TranscriptLine]:
    """Return the lines without the content of the message. `CannotPack` if one has to be stored unchanged."""
    try:
        to_json(lines, "lines")
    except InvalidValue:
        raise CannotPack from None
    if has_inline_bytes(message):
        raise CannotPack  # bytes within text, which the log extracts into a blob
    if sum(map(_block_count, lines)) != len(message.parts):
        raise CannotPack  # some block is not a part
    proofs = {} if evidence is None else evidence.parts
    parts = _enumerate_parts(message.parts)
    packed = [_pack_line(line, parts, proofs) for line in lines]
    if unpack_lines(packed, message, evidence, no_blob) != list(lines):
        raise CannotPack
    return packed


def unpack_lines(
    packed: Iterable[TranscriptLine], message: Message, evidence: Evidence | None, blobs: Blobs
) -> list[TranscriptLine]:
    """Return the original lines."""
    proofs = {} if evidence is None else evidence.parts
    parts = _enumerate_parts(message.parts)
    return [_unpack_line(line, parts, proofs, blobs) for line in packed]


def _block_count(line: TranscriptLine) -> int:
    rendered = line.get("rendered")
    if line.get("type") == "attachment":
        return len(rendered) if isinstance(rendered, list) else 0
    return len(content_blocks(line))


def _enumerate_parts(parts: Sequence[Part]) -> Iterator[tuple[str, Part]]:
    return ((str(index), part) for index, part in enumerate(parts))


def _pack_line(line: TranscriptLine, parts: Iterator[tuple[str, Part]], proofs: Proofs) -> TranscriptLine:
    if line.get("type") == "attachment":
        rendered = line.get("rendered")
        if not isinstance(rendered, list) or not all(isinstance(item, dict) for item in rendered):
            raise CannotPack
        contents = [_without(item, "content") for item, _ in zip(rendered, parts, strict=False)]
        return {**line, "rendered": contents}
    message = line_message(line)
    if isinstance(message.get("content"), str):
        next(parts, None)
        return {**line, "message": _without(message, "content")}
    content = [
        _pack_block(block, *indexed, proofs)
        for block in content_blocks(line)
        if (indexed := next(parts, None))
    ]
    return {**line, "message": {**message, "content": content}}


def _pack_block(block: object, index: str, part: Part, proofs: Proofs) -> object:
    if not isinstance(block, dict):
        raise CannotPack
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
            return {**block, "content": [_pack_block(inner, "", piece, {}) for inner, piece in content]}
        case ToolResult():
            return _without(block, "content")
    raise CannotPack


def _without(block: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in keys}


def _unpack_line(
    line: TranscriptLine, parts: Iterator[tuple[str, Part]], proofs: Proofs, blobs: Blobs
) -> TranscriptLine:
    if line.get("type") == "attachment":
        rendered = [{**item, "content": _text_of(next(parts, None))} for item in line["rendered"]]
        return {**line, "rendered": rendered}
    message = line_message(line)
    if "content" not in message:
        return {**line, "message": {**message, "content": _text_of(next(parts, None))}}
    content = (
        _unpack_block(block, *indexed, proofs, blobs)
        for block in content_blocks(line)
        if (indexed := next(parts, None))
    )
    return {**line, "message": {**message, "content": [block for block in content if block is not None]}}


def _text_of(indexed: tuple[str, Part] | None) -> str | None:
    return indexed[1].text if indexed is not None and isinstance(indexed[1], Text) else None


def _unpack_block(block: Any, index: str, part: Part, proofs: Proofs, blobs: Blobs) -> object:
    """Return the original block; None for reasoning without a signature: no provider accepts such reasoning back."""
    match part:
        case Text(text=text):
            return {**block, "text": text}
        case Reasoning(text=text):
            proof = proofs.get(index, {})
            thinking = {} if "data" in proof else {"thinking": text}
            return {**block, **thinking, **proof} if proof else None
        case ToolCall(arguments=arguments):
            return {**block, "input": arguments}
        case Media() | Attachment():
            data = part.data if isinstance(part, Attachment) else blobs(part.hash)
            if data is None:
                return {"type": "text", "text": MISSING_MEDIA}
            return {**block, "source": {**block["source"], "data": base64.b64encode(data).decode()}}
        case ToolResult(content=pieces) if "content" in block:
            content = zip(block["content"], pieces, strict=False)
            return {
                **block,
                "content": [_unpack_block(inner, "", piece, {}, blobs) for inner, piece in content],
            }
        case ToolResult(content=pieces):
            return {**block, "content": "".join(piece.text for piece in pieces if isinstance(piece, Text))}
        case ProviderBlock():  # a line that has one is never packed
            return block
