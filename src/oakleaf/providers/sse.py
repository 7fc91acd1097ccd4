"""Read the body of a response that should be server-sent events.

Bytes may be split anywhere; lines end with LF, CR or both; the blank line after an event may be missing. A body that has
no events at all (JSON, a page of a proxy) is kept as it came. Knows no vendor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from msgspec import Struct

DONE = "[DONE]"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class ServerEvent(Struct, frozen=True):
    kind: str
    """Empty unless the server names it: "error"."""
    data: str


class EventReader:
    """Turns the bytes of a response into events."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._is_after_cr = False
        self._kind = ""
        self._data: list[str] = []
        self._other_lines: list[str] = []

    @property
    def body(self) -> str:
        """The lines outside of events."""
        return "\n".join(self._other_lines)

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        if not data:
            return
        if self._is_after_cr:
            data = data.removeprefix(b"\n")  # the second half of a line end
        self._is_after_cr = data.endswith(b"\r")
        first, *others = _LINE_END.split(data)
        self._line.append(first)
        for start in others:
            line = b"".join(self._line)
            self._line = [start]
            yield from self._read_line(line)

    def close(self) -> Iterator[ServerEvent]:
        """Return the last event, possibly without a line end."""
        yield from self._read_line(b"".join(self._line))
        yield from self._flush()

    def _read_line(self, line: bytes) -> Iterator[ServerEvent]:
        text = line.decode("utf-8", "replace").removeprefix("\ufeff")
        if not text:
            yield from self._flush()
            return
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            if self._data and _is_whole("\n".join(self._data)):
                yield from self._flush()
            self._data.append(value)
        elif field == "event":
            yield from self._flush()
            self._kind = value
        elif field == "error":  # llama.cpp
            yield from self._flush()
            yield ServerEvent("error", value)
        elif field not in ("id", "retry", ""):
            self._other_lines.append(text)

    def _flush(self) -> Iterator[ServerEvent]:
        if self._data:
            yield ServerEvent(self._kind, "\n".join(self._data))
        self._kind, self._data = "", []


def _is_whole(data: str) -> bool:
    if data.strip() == DONE:
        return True
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
