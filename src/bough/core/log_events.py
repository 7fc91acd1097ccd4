"""Convert a path to the five event types of an event-sourced log: one event per message, call and result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct, to_builtins

from .entries import INTERRUPTED, PARTIAL, Entry

EventType = Literal["system_message", "user_message", "assistant_message", "tool_call", "tool_result"]


class LogEvent(Struct, frozen=True):
    """One message, tool call or tool result of a path, in the order of the log."""

    type: EventType
    seq: int
    at: int
    content: dict[str, Any]
    tool_call_id: str | None = None


def log_events(path: Iterable[Entry]) -> Iterator[LogEvent]:
    for entry in path:
        message = entry.message
        if message is None:
            continue
        if message.role != "tool":
            content: dict[str, Any] = {"role": message.role, "content": message.text}
            if message.calls:
                content["tool_calls"] = [_call(call) for call in message.calls]
            if entry.finish in (INTERRUPTED, PARTIAL):
                content["finish"] = entry.finish
            yield LogEvent(f"{message.role}_message", entry.seq, entry.at, content)  # type: ignore[arg-type]
        for call in message.calls:
            yield LogEvent("tool_call", entry.seq, entry.at, _call(call), call.id)
        for result in message.results:
            content = {"tool_call_id": result.call_id, "content": to_builtins(result.content)}
            if result.error or result.outcome != "done":
                content |= {"error": result.error, "outcome": result.outcome}
            yield LogEvent("tool_result", entry.seq, entry.at, content, result.call_id)


def _call(call: Any) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}
