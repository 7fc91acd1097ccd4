"""Convert a path to the five event types of an event-sourced log: one event per message, call and result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct, to_builtins

from oakleaf.core.entries import INTERRUPTED, PARTIAL, Entry
from oakleaf.core.messages import Text, ToolCall, ToolResult
from oakleaf.errors import InvalidOperation

EventType = Literal["system_message", "user_message", "assistant_message", "tool_call", "tool_result"]


EVENTS_PER_ENTRY = 1000


class LogEvent(Struct, frozen=True):
    """A message, tool call or tool result of a path, in the order of the log."""

    type: EventType
    number: int
    """Unique in the session and rising along a path: events of entry 7 are 7000, 7001, 7002, …"""
    seq: int
    """The seq of the entry, for `--to-point` and `--from-point`."""
    at: int
    content: dict[str, Any]
    tool_call_id: str | None = None


def log_events(path: Iterable[Entry]) -> Iterator[LogEvent]:
    """Yield the events of a path.

    An event's number follows from its entry alone, so the last events of a long path are read without the others.
    """
    for entry in path:
        for index, (kind, content, call_id) in enumerate(_events_of(entry)):
            if index == EVENTS_PER_ENTRY:
                raise InvalidOperation(f"entry {entry.seq} has more than {EVENTS_PER_ENTRY} calls or results")
            yield LogEvent(kind, entry.seq * EVENTS_PER_ENTRY + index, entry.seq, entry.at, content, call_id)


def _events_of(entry: Entry) -> Iterator[tuple[EventType, dict[str, Any], str | None]]:
    message = entry.message
    if message is None:
        return
    if message.role != "tool":
        content: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.calls:
            content["tool_calls"] = [_call(call) for call in message.calls]
        if entry.finish in (INTERRUPTED, PARTIAL):
            content["finish"] = entry.finish
        yield f"{message.role}_message", content, None  # type: ignore[misc]
    for call in message.calls:
        yield "tool_call", _call(call), call.id
    for result in message.results:
        yield "tool_result", _result(result), result.call_id


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _result(result: ToolResult) -> dict[str, Any]:
    text = result.text
    content: dict[str, Any] = {"tool_call_id": result.call_id, "content": text}
    if media := [to_builtins(part) for part in result.content if not isinstance(part, Text)]:
        content["media"] = media
    if result.error or result.outcome != "done":
        content |= {"error": result.error, "outcome": result.outcome}
    return content
