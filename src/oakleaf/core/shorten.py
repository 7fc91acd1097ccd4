"""Shorten the results of tools for a model whose window they do not fit, the same on every machine."""

from __future__ import annotations

from msgspec.structs import replace

from oakleaf.core.messages import Attachment, Media, Message, Text, ToolResult

MEDIA_LENGTH = 6_000
"""Characters counted for an image: the estimate of `core.fit`."""


def shorten_results(message: Message, length: int) -> Message:
    """Show `length` characters of each result: begin and end, and in between the number of omitted characters."""
    parts = tuple(_shorten(part, length) if isinstance(part, ToolResult) else part for part in message.parts)
    return replace(message, parts=parts)


def _shorten(result: ToolResult, length: int) -> ToolResult:
    total = sum(len(piece.text) for piece in result.content if isinstance(piece, Text))
    room = length - total
    excess = max(0, -room)
    begin = (total - excess) * 2 // 3
    content: list[Text | Media | Attachment] = []
    at = 0
    for piece in result.content:
        if not isinstance(piece, Text):
            is_shown = room >= MEDIA_LENGTH
            room -= MEDIA_LENGTH if is_shown else 0
            content.append(piece if is_shown else Text(f"({piece.mime} left out)"))
            continue
        first, last = begin - at, begin + excess - at  # of this text, what is left out
        text, at = piece.text, at + len(piece.text)
        if not excess or first >= len(text) or last <= 0:
            content.append(piece)
            continue
        marker = f"\n(… {excess:,} of {total:,} characters left out …)\n" if first >= 0 else ""
        content.append(Text(f"{text[: max(0, first)]}{marker}{text[max(0, last) :]}"))
    visible = tuple(piece for piece in content if not isinstance(piece, Text) or piece.text)
    return replace(result, content=visible, details=None)
