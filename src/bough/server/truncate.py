"""Keeping answers small: long strings end early and say by how much, pages end before they are too large.

Knows JSON values only. Whoever wants the whole of something asks for it by itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

MOST = 1_000_000
"""Bytes of a JSON answer."""
PAGE = 900_000
"""Bytes of what a page lists; the rest is for what stands around it."""
LINE = 200
STRING, ROOM = 4_000, 16_000
"""Characters of one string, and of one thing of a list, when several are told."""
_LEAST = 1_000  # a part behind a long one still shows its beginning


class Truncator:
    """Cuts one value: `left` tells how many characters were left out."""

    def __init__(self, string: int = STRING, room: int = ROOM) -> None:
        self.string, self.room = string, room
        self.left = 0

    def cut(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return self._list(list(value))
        if isinstance(value, dict):
            return self._dict(value)
        self.room -= 8
        return value

    def _text(self, text: str) -> str:
        kept = max(0, min(len(text), self.string, self.room))
        self.room -= kept
        self.left += len(text) - kept
        return text if kept == len(text) else text[:kept]

    def _list(self, values: list[Any]) -> list[Any]:
        found = []
        for at, value in enumerate(values):
            if self.room <= 0:
                self.left += json_size(values[at:])
                break
            self.room -= 2
            found.append(self.cut(value))
        return found

    def _dict(self, values: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            if self.room <= 0 and found:
                self.left += len(name) + json_size(value)
                continue
            self.room -= 4 + len(name)
            found[name] = self.cut(value)
        return found


def json_size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def truncate_parts(parts: list[Any], string: int, room: int) -> tuple[list[Any], int]:
    """The parts of a message, each with its own `cut`; and how much was left out of all of them."""
    found: list[Any] = []
    left = 0
    for at, part in enumerate(parts):
        if room <= 0 and at > 50:
            return found, left + json_size(parts[at:])
        scissors = Truncator(string, max(room, _LEAST))
        shorter = scissors.cut(part)
        room -= max(room, _LEAST) - scissors.room
        left += scissors.left
        found.append({**shorter, "omitted_chars": scissors.left} if scissors.left else shorter)
    return found, left


def truncate_entry(entry: dict[str, Any], string: int = STRING, room: int = ROOM) -> dict[str, Any]:
    """An entry whose long strings end early; `cut` says by how much."""
    payload = entry["payload"]
    if isinstance(payload.get("parts"), list | tuple):
        parts, left = truncate_parts(list(payload["parts"]), string, room)
        rest = Truncator(string, room)
        others = rest.cut({name: value for name, value in payload.items() if name != "parts"})
        shorter, left = {**others, "parts": parts}, left + rest.left
    else:
        scissors = Truncator(string, room)
        shorter, left = scissors.cut(payload), scissors.left
    return {**entry, "payload": shorter, **({"omitted_chars": left} if left else {})}


def truncate_to_page(entry: dict[str, Any]) -> dict[str, Any]:
    """As much of one entry as an answer can hold. Escaped characters are long, so it is measured."""
    room = PAGE
    while json_size(shorter := truncate_entry(entry, room, room)) > PAGE:
        room //= 2
    return shorter


def truncate_value(value: Any, room: int = PAGE // 2, string: int = 20_000) -> tuple[Any, int]:
    """Any value, small enough for an answer of its own."""
    while True:
        scissors = Truncator(string, room)
        shorter = scissors.cut(value)
        if json_size(shorter) <= PAGE:
            return shorter, scissors.left
        room //= 2


class SizedPage:
    """Fills up with things until the next one would make it too large."""

    def __init__(self, most: int = PAGE) -> None:
        self.room = most
        self.items: list[Any] = []

    def add(self, thing: Any) -> bool:
        """Whether there was room for it. The first one always has: it was cut to be small."""
        self.room -= json_size(thing) + 1
        if self.room < 0 and self.items:
            return False
        self.items.append(thing)
        return True


def one_line(text: str, most: int = LINE) -> str:
    """The beginning of a text in one line that can be shown anywhere."""
    line = " ".join(text[: most * 4].split())
    line = "".join(c if c.isprintable() else "·" for c in line)
    return line if len(line) <= most else line[: most - 1] + "…"
