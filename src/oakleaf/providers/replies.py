"""A whole reply from the body of a recorded response: JSON, or the events of a stream put together.

A stream that was cut gives what came of it, marked as incomplete. Of several answers to one request it is the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import Any

from oakleaf.core.json_repair import INVALID_JSON, decode_repaired
from oakleaf.models.base import StreamReply
from oakleaf.providers.sse import EventReader, ServerEvent
from oakleaf.wire.parsing import to_dict


class RecordedReply(ABC):
    """Puts the events of a vendor's stream together."""

    def __init__(self) -> None:
        self.error = ""

    @abstractmethod
    def add(self, event: dict[str, Any]) -> None: ...

    @abstractmethod
    def reply(self) -> StreamReply: ...

    def read(self, content_type: str, body: bytes) -> StreamReply:
        if "event-stream" not in content_type and not body.lstrip().startswith((b"data:", b"event:")):
            return self._read_json(body)
        reader = EventReader()
        for event in map(_decode_event, chain(reader.feed(body), reader.close())):
            if event is None:
                break  # the stream was cut within this event
            if "error" in event and event.get("type", "error") == "error":
                self.error = error_text(event["error"])
            else:
                self.add(event)
        return self.reply()

    def _read_json(self, body: bytes) -> StreamReply:
        try:
            data = decode_repaired(body)
        except INVALID_JSON:
            return StreamReply(None, False, body[:400].decode("utf-8", "replace"))
        return self.read_value(data)

    def read_value(self, value: object) -> StreamReply:
        """Read a response outside of an event stream."""
        data = to_dict(value)
        if data.get("error"):
            return StreamReply(None, False, error_text(data["error"]))
        return StreamReply(data, True, response_id=text_or_none(data.get("id")))


def error_text(error: object) -> str:
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _decode_event(event: ServerEvent) -> dict[str, Any] | None:
    """Return the JSON of an event; None for a partial event."""
    try:
        data = decode_repaired(event.data.encode("utf-8", "replace"))
    except INVALID_JSON:
        return None
    return data if isinstance(data, dict) else {}
