"""Read content blocks as Anthropic writes them, which several tools store for the answers of any provider.

Blocks of an unknown type become notes. Does not know messages or files.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from oakleaf.core.entries import Evidence, Note
from oakleaf.core.messages import Attachment, Part, Reasoning, Text, ToolResult, tool_result
from oakleaf.ingest.records import LossReport, unknown_note
from oakleaf.wire.parsing import parse_base64, parse_tool_call
from oakleaf_importers.formats.json_values import UNEXPECTED_SHAPE, as_list, text_or_none

ISSUER = "anthropic"

Block = dict[str, Any]


class Blocks(Struct):
    """The content of one message."""

    parts: list[Part] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    proofs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def evidence(self) -> Evidence | None:
        return Evidence(ISSUER, self.proofs) if self.proofs else None

    @property
    def input_parts(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if isinstance(part, Text | Attachment))


def read_blocks(tool: str, content: object, losses: LossReport) -> Blocks:
    """Read a content: text, or a list of blocks."""
    blocks = Blocks()
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for block in as_list(content):
        try:
            _read(block, blocks)
        except UNEXPECTED_SHAPE:
            kind = block.get("type") if isinstance(block, dict) else type(block).__name__
            blocks.notes.append(unknown_note(tool, kind, block, losses))
    return blocks


def _read(block: Block, blocks: Blocks) -> None:
    match block["type"]:
        case "text" if isinstance(block["text"], str):
            if block["text"]:
                blocks.parts.append(Text(block["text"]))
        case "thinking" | "reasoning":
            text = block.get("thinking", block.get("text"))
            if not isinstance(text, str):
                raise TypeError("reasoning without text")
            signature = text_or_none(block.get("signature"))
            if signature:
                blocks.proofs[str(len(blocks.parts))] = {"signature": signature}
            if text or signature:
                blocks.parts.append(Reasoning(text))
        case "redacted_thinking" if text_or_none(block["data"]):
            blocks.proofs[str(len(blocks.parts))] = {"data": block["data"]}
            blocks.parts.append(Reasoning(""))
        case "tool_use" if isinstance(block["id"], str) and isinstance(block["name"], str):
            blocks.parts.append(parse_tool_call(block["id"], block["name"], block.get("input")))
        case "tool_result" if isinstance(block["tool_use_id"], str):
            blocks.results.append(_result(block))
        case "image" | "document" if block["source"]["type"] == "base64":
            source = block["source"]
            blocks.parts.append(parse_base64(source["data"], source["media_type"], block.get("title")))
        case kind:
            raise ValueError(f"a block of type {kind}")


def _result(block: Block) -> ToolResult:
    """Read a result: text, texts and media, or any JSON."""
    content = block.get("content")
    if isinstance(content, list) and all(_is_text(each) for each in content):
        content = [Text(each["text"]) for each in content if each["text"]]
    (result,) = tool_result(
        block["tool_use_id"], "" if content is None else content, error=block.get("is_error") is True
    ).results
    return result


def _is_text(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
