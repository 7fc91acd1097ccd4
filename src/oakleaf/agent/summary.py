"""Summaries made without a model: each message in a line, shortened, the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from oakleaf.core.context import Item
from oakleaf.core.entries import Compaction
from oakleaf.core.fit import measure
from oakleaf.core.messages import Message, ToolCall, user
from oakleaf.core.search_text import searchable_text

MAX_SUMMARY = 4_000
MIN_SUMMARY = 120
MAX_LINE = 200
MIN_LINE = 24
_READS = frozenset(["read_file"])
_CHANGES = frozenset(["write_file", "edit_file"])
_OMISSION = re.compile(r"\(… (\d{1,18}) more …\)")


def summarise_items(
    earlier: Sequence[Compaction], items: Sequence[Item], length: int, *, keeps_prose: bool = True
) -> str:
    """Write one summary of about `length` characters for earlier summaries and newer messages.

    Lines are shortened so that all of them fit; prose, which a person or a model wrote, stays as it is if possible.
    """
    summarised = [line for compaction in earlier for line in compaction.summary.splitlines() if line]
    prose = [line for line in summarised if keeps_prose and len(line) > MAX_LINE + len("assistant: ")]
    lines = [line for line in summarised if line not in prose] + list(_lines(items, MAX_LINE))
    room = max(length // 2, length - sum(len(line) + 1 for line in prose))
    return "\n".join([*prose, shorten_lines(lines, room)]).strip() or "(no text)"


def transcribe(summaries: Sequence[str], items: Sequence[Item], max_tokens: int) -> str:
    """Return summaries and messages as lines for a summarising model, shortened to fit the window."""
    lines = [*(line for summary in summaries for line in summary.splitlines()), *_lines(items, None)]
    length = max(MIN_SUMMARY, sum(len(line) + 1 for line in lines))
    while measure(user(text := shorten_lines(lines, length))).tokens > max_tokens and length > MIN_SUMMARY:
        length = max(MIN_SUMMARY, min(length * 3 // 4, max_tokens * 4))
    return text


def _lines(items: Sequence[Item], width: int | None) -> Iterator[str]:
    for item in items:
        text = " ".join(searchable_text(item.message).split())
        if text:
            line = f"{item.message.role}: {text}"
            yield line if width is None else line[: width + len("assistant: ")]


def shorten_lines(lines: Sequence[str], length: int) -> str:
    """Cut the longest lines to the same width. If that width is too short to read, keep only the first and
    the newest lines."""
    if sum(len(line) + 1 for line in lines) <= length:
        return "\n".join(lines)
    count = max(2, length // (MIN_LINE + 1))
    if len(lines) > count:
        first, newest = count // 4, count - count // 4 - 1
        omitted = lines[first : len(lines) - newest]
        number = sum(int(match[1]) if (match := _OMISSION.fullmatch(line)) else 1 for line in omitted)
        lines = [*lines[:first], f"(… {number} more …)", *lines[len(lines) - newest :]]
    width = _common_width([len(line) for line in lines], length)
    return "\n".join(line if len(line) <= width else f"{line[: max(0, width - 1)]}…" for line in lines)


def _common_width(widths: Sequence[int], length: int) -> int:
    """Return the width for the longest lines so that all lines with ends have `length` characters."""
    room, rest = length - len(widths), len(widths)
    for width in sorted(widths):
        if width * rest > room:
            break
        room, rest = room - width, rest - 1
    return max(1, room // max(1, rest))


def list_files(
    messages: Sequence[Message], earlier: Sequence[Compaction]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files read and the files changed, each once, in order."""
    calls = [call for message in messages for call in message.calls]
    read = [path for compaction in earlier for path in compaction.files_read] + _paths(calls, _READS)
    changed = [path for compaction in earlier for path in compaction.files_changed] + _paths(calls, _CHANGES)
    return tuple(dict.fromkeys(read)), tuple(dict.fromkeys(changed))


def _paths(calls: Sequence[ToolCall], names: frozenset[str]) -> list[str]:
    paths = [call.arguments.get("path") for call in calls if call.name in names]
    return [path for path in paths if isinstance(path, str)]
