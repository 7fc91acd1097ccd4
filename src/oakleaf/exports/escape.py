"""Put untrusted text into Markdown so that it can be read and has no effect.

Under CommonMark the text stays inside its quote or fence, opens no tag, loads no image and links nowhere. Its own fences
are rewritten longer than any fence inside; elsewhere, what could open a tag or a link becomes an entity, which is never
syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from oakleaf.errors import plural, shorten

_BREAK = re.compile(r"\r\n|\r|\n")
_TICKS = re.compile(r"`+")
_FENCE = re.compile(r" {0,3}(`{3,}+|~{3,}+)[ \t]*+([\w+#-]{0,20}+)[^`]*")
# An entity is always text; a backslash could be undone by one before it.
_INERT = {"<": "&lt;", "](": "]&#40;", "]:": "]&#58;"}
_ACTIVE = re.compile("|".join(map(re.escape, _INERT)))
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Control characters as visible symbols, so that a terminal does not obey them."""


def lines_of(text: str) -> list[str]:
    """Return the lines in Markdown's count, with control characters made visible."""
    return _BREAK.split(text.translate(_CONTROLS))


def inert(line: str) -> str:
    """Return a line without the start of a tag or a link."""
    return _ACTIVE.sub(lambda match: _INERT[match.group()], line)


def quote(text: str) -> str:
    """Return text as a quote with code blocks intact."""
    return "\n".join(f"> {line}" if line else ">" for line in _quote_lines(lines_of(text)))


def _quote_lines(lines: Iterable[str]) -> Iterator[str]:
    closing, info = "", ""
    code: list[str] = []
    for line in lines:
        if closing:
            if _closes(line, closing):
                yield from fence(code, info)
                closing = ""
            else:
                code.append(line)
            continue
        opened = _FENCE.fullmatch(line)
        if opened is None:
            yield inert(line)
        else:
            closing, info, code = opened[1], opened[2], []
    if closing:
        yield from fence(code, info)


def _closes(line: str, opening: str) -> bool:
    mark = line.strip(" \t")
    return len(mark) >= len(opening) and set(mark) == {opening[0]} and len(line) - len(line.lstrip(" ")) < 4


def fence(lines: Iterable[str], info: str) -> list[str]:
    """Return lines in a code block closed by none of the lines."""
    body = list(lines)
    longest = max((len(run) for line in body for run in _TICKS.findall(line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return [ticks + info, *body, ticks]


def code(text: str, most: int = 80) -> str:
    """Return a name as inline code on a single line."""
    line = " ".join(" ".join(lines_of(text)).split())
    if not line:
        return "*(unnamed)*"
    line = shorten(line, most)
    ticks = "`" * (max((len(run) for run in _TICKS.findall(line)), default=0) + 1)
    pad = " " if "`" in line else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def cut(text: str, most_lines: int, most_characters: int) -> tuple[list[str], str]:
    """Return the first lines of a text, and a note of the rest; empty for the whole text."""
    lines = lines_of(text)
    head: list[str] = []
    room = most_characters
    for line in lines[:most_lines]:
        if len(line) > room:
            remaining = len(line) - room
            rest = len(lines) - len(head) - 1
            return [*head, line[:room]], f"… {remaining:,} more characters" + (
                f" and {plural(rest, 'more line')}" if rest else ""
            )
        head.append(line)
        room -= len(line)
    rest = len(lines) - len(head)
    return head, f"… {plural(rest, 'more line')}" if rest else ""
