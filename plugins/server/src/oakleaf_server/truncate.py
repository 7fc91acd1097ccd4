"""Keeps responses small: truncates long strings and counts what is omitted; pages stop before they are too large.

Knows JSON values only.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from oakleaf.verbs.base import to_json

MAX_RESPONSE = 1_000_000
"""Bytes of a JSON response."""
PAGE = 900_000
"""Bytes of the items of a page; the rest is for the fields around them."""
LINE = 200
STRING, ROOM = 4_000, 16_000
"""Characters of one string and of one list item, when a response contains several."""
_BOUNDED_STRING = 8_000
_MIN_ROOM = 1_000  # a part after a long one still shows its beginning


class Truncator:
    """Truncates a value; `omitted` counts the characters left out."""

    def __init__(self, string: int = STRING, room: int = ROOM) -> None:
        self.string, self.room = string, room
        self.omitted = 0

    def truncate(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return self._list(list(value))
        if isinstance(value, dict):
            return self._dict(value)
        self.room -= 8
        return value

    def _text(self, text: str) -> str:
        length = max(0, min(len(text), self.string, self.room))
        self.room -= length
        self.omitted += len(text) - length
        return text if length == len(text) else text[:length]

    def _list(self, values: list[Any]) -> list[Any]:
        items = []
        for at, value in enumerate(values):
            if self.room <= 0:
                self.omitted += json_size(values[at:])
                break
            self.room -= 2
            items.append(self.truncate(value))
        return items

    def _dict(self, values: dict[str, Any]) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for name, value in values.items():
            if self.room <= 0 and items:
                self.omitted += len(name) + json_size(value)
                continue
            self.room -= 4 + len(name)
            items[name] = self.truncate(value)
        return items


def json_size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def truncate_parts(parts: list[Any], string: int, room: int) -> tuple[list[Any], int]:
    """Truncate the parts of a message, each with a separate `omitted_chars`; return the parts and the total
    omitted.
    """
    shorter_parts: list[Any] = []
    omitted = 0
    for at, part in enumerate(parts):
        if room <= 0 and at > 50:
            return shorter_parts, omitted + json_size(parts[at:])
        truncator = Truncator(string, max(room, _MIN_ROOM))
        shorter = truncator.truncate(part)
        room -= max(room, _MIN_ROOM) - truncator.room
        omitted += truncator.omitted
        shorter_parts.append(
            {**shorter, "omitted_chars": truncator.omitted} if truncator.omitted else shorter
        )
    return shorter_parts, omitted


def truncate_entry(entry: dict[str, Any], string: int = STRING, room: int = ROOM) -> dict[str, Any]:
    """Truncate the long strings of an entry; `omitted_chars` counts the missing characters."""
    payload = entry["payload"]
    if isinstance(payload.get("parts"), list | tuple):
        parts, omitted = truncate_parts(list(payload["parts"]), string, room)
        rest = Truncator(string, room)
        others = rest.truncate({name: value for name, value in payload.items() if name != "parts"})
        shorter, omitted = {**others, "parts": parts}, omitted + rest.omitted
    else:
        truncator = Truncator(string, room)
        shorter, omitted = truncator.truncate(payload), truncator.omitted
    return {**entry, "payload": shorter, **({"omitted_chars": omitted} if omitted else {})}


def truncate_to_page(entry: dict[str, Any]) -> dict[str, Any]:
    """Truncate an entry to a response's limit. The encoded size is measured, because escapes are long."""
    room = PAGE
    while json_size(shorter := truncate_entry(entry, room, room)) > PAGE:
        room //= 2
    return shorter


def truncate_value(value: Any, room: int = PAGE // 2, string: int = 20_000) -> tuple[Any, int]:
    """Truncate any value to a response's limit; return the value and the characters omitted."""
    while True:
        truncator = Truncator(string, room)
        shorter = truncator.truncate(value)
        if json_size(shorter) <= PAGE:
            return shorter, truncator.omitted
        room //= 2


class SizedPage:
    """Collects items until the next item would make the page too large."""

    def __init__(self, room: int = PAGE) -> None:
        self.room = room
        self.items: list[Any] = []

    def add(self, item: Any) -> bool:
        """Add an item if there is room, and return whether there was. The first item always fits."""
        self.room -= json_size(item) + 1
        if self.room < 0 and self.items:
            return False
        self.items.append(item)
        return True


def bounded(answer: Struct) -> dict[str, Any]:
    """Return an answer as bounded JSON: strings are cut, lists end early, and `omitted_chars` counts both."""
    fields: dict[str, Any] = to_json(answer)
    room = PAGE
    while True:
        shorter, omitted = _cut(fields, room)
        if json_size(shorter) <= PAGE:
            counted = {"omitted_chars": fields.get("omitted_chars", 0) + omitted} if omitted else {}
            return {**shorter, **counted}
        room //= 2


def _cut(fields: dict[str, Any], room: int) -> tuple[dict[str, Any], int]:
    """Cut every item of a list separately, so items are whole or absent, and the other fields together."""
    lists = {name: value for name, value in fields.items() if isinstance(value, list)}
    rest = {name: value for name, value in fields.items() if name not in lists}
    shorter, omitted = truncate_value(rest, room // 4, _BOUNDED_STRING)
    for name, items in lists.items():
        page = SizedPage((room - room // 4) // len(lists))
        for at, item in enumerate(items):
            view, cut = truncate_value(item, room // 16, _BOUNDED_STRING)
            if not page.add(view):
                omitted += json_size(items[at:])
                break
            omitted += cut
        shorter[name] = page.items
    return {name: shorter[name] for name in fields if name in shorter}, omitted
