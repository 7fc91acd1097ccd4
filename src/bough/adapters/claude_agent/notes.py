"""What entries keep of a transcript: lines whole in notes, or beside the message they are told as, each with its number.

Signatures are evidence and lie in no note: where evidence is left out, in a bundle for instance, the thoughts they belong to
are left out of the lines too. Pure: knows no session and no store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.codec import to_json
from ...core.drafts import Draft
from ...core.entries import Entry, Evidence, Note
from ...core.messages import Message
from ...errors import InvalidValue
from ...formats.claude_code import TranscriptLine, content_blocks, line_message
from ...formats.jsonl import INVALID_JSON, decode_json
from ...formats.records import LossReport
from ...wire import Blobs
from ...wire.anthropic import NAME as ISSUER
from .lines import unpacked

NAME = "claude"
"""Under which lines lie in details and notes."""
THINKING = ("thinking", "redacted_thinking")
SEALS = ("signature", "data")


def noted(
    numbers: Sequence[int], lines: Sequence[TranscriptLine], state: dict[str, Any] | None = None, **more: Any
) -> Draft:
    """Lines kept whole. What JSON of ours cannot hold (half a character, NaN) is kept as the text of their JSON."""
    try:
        to_json(lines, "lines")
    except InvalidValue:
        kept = {"n": list(numbers), "texts": [json.dumps(line) for line in lines], **more}
        return Draft(Note({NAME: kept}, state))
    seals: dict[str, dict[str, Any]] = {}
    kept = {
        "n": list(numbers),
        "lines": [_opened(line, n, seals) for n, line in zip(numbers, lines, strict=True)],
    }
    sealed = {"sealed": list(seals)} if seals else {}
    return Draft(
        Note({NAME: {**kept, **sealed, **more}}, state), evidence=Evidence(ISSUER, seals) if seals else None
    )


def _opened(line: TranscriptLine, n: int, seals: dict[str, dict[str, Any]]) -> TranscriptLine:
    """The line without its signatures, which go to `seals`."""
    blocks = content_blocks(line)
    found: dict[int, dict[str, Any]] = {}
    for index, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") in THINKING:
            seal = {key: block[key] for key in SEALS if isinstance(block.get(key), str)}
            if seal:
                found[index] = seal
    if not found:
        return line
    seals |= {f"{n}.{index}": seal for index, seal in found.items()}
    content = [_less(block, SEALS) if index in found else block for index, block in enumerate(blocks)]
    return {**line, "message": {**line_message(line), "content": content}}


def _less(block: Any, keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in keys or not isinstance(value, str)}


def _sealed(
    line: TranscriptLine, n: int, names: Iterable[str], seals: Mapping[str, Mapping[str, Any]]
) -> TranscriptLine:
    blocks: dict[int, Any] = dict(enumerate(content_blocks(line)))
    for name in names:
        number, _, index = name.partition(".")
        if int(number) == n and name in seals:
            blocks[int(index)] = {**blocks[int(index)], **seals[name]}
        elif int(number) == n:
            del blocks[int(index)]
    return {**line, "message": {**line_message(line), "content": list(blocks.values())}}


def beside(numbers: Sequence[int], bare: Sequence[TranscriptLine]) -> dict[str, Any]:
    """Details of a message that its lines lie beside."""
    return {NAME: {"n": list(numbers), "lines": list(bare)}}


def telling(numbers: Sequence[int]) -> dict[str, Any]:
    """Details of a message whose lines are kept whole, in notes."""
    return {NAME: {"of": list(numbers)}}


def held(entry: Entry, blobs: Blobs) -> Iterator[tuple[int, TranscriptLine]]:
    """The lines an entry keeps, with their numbers."""
    payload, found = entry.payload, about(entry)
    lines: Iterable[TranscriptLine] = found.get("lines", ())
    if isinstance(payload, Message):
        lines = unpacked(lines, payload, entry.evidence, blobs)
    elif "texts" in found:
        lines = map(json.loads, found["texts"])
    sealed = found.get("sealed", ())
    touched = {int(name.partition(".")[0]) for name in sealed}
    seals = {} if entry.evidence is None else entry.evidence.parts
    for n, line in zip(found.get("n", ()), lines, strict=True):
        yield n, _sealed(line, n, sealed, seals) if n in touched else line


def about(entry: Entry) -> dict[str, Any]:
    """What an entry says of lines; nothing if it is not one of theirs."""
    payload = entry.payload
    data = payload.data if isinstance(payload, Note) else None
    data = payload.details if isinstance(payload, Message) else data
    found = (data or {}).get(NAME)
    return found if isinstance(found, dict) else {}


def uuid_of(line: TranscriptLine) -> str | None:
    found = line.get("uuid")
    return found if isinstance(found, str) and found else None


def named(line: TranscriptLine, kind: str, key: str) -> list[str]:
    """The ids its blocks of a kind have under a key."""
    blocks = [
        block for block in content_blocks(line) if isinstance(block, dict) and block.get("type") == kind
    ]
    return [block[key] for block in blocks if isinstance(block.get(key), str)]


def readable(line: TranscriptLine) -> TranscriptLine:
    """The line as it can be told: JSON of ours, with a sign in place of half a character; nothing if it is none."""
    try:
        to_json(line, "line")
    except InvalidValue:
        try:
            found = decode_json(json.dumps(line).encode(), LossReport(), "")
        except INVALID_JSON:
            return {}
        return found if isinstance(found, dict) else {}
    return line
