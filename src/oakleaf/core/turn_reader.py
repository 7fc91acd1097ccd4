"""A path prepared for comparison: its turns, their steps, each call with its result, in call order.

Call ids are left out: providers make them up, and two runs never share one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.entries import INTERRUPTED, Entry
from oakleaf.core.messages import Media, Message, Reasoning, Text, ToolCall, ToolResult

_sorted = msgspec.json.Encoder(order="sorted")


class CallView(Struct, frozen=True):
    """A call and the result, if any."""

    call: ToolCall
    result: ToolResult | None = None
    seq: int | None = None
    """The seq of the result."""


class Step(Struct, frozen=True):
    seq: int
    message: Message
    """The answer without calls."""
    calls: tuple[CallView, ...] = ()
    model: str | None = None


class TurnView(Struct, frozen=True):
    """A turn."""

    turn: int
    input: Message
    steps: tuple[Step, ...] = ()
    last: int = 0
    """The seq of the turn's last entry."""


def read_turns(path: Sequence[Entry]) -> list[TurnView]:
    """Return the turns of a path, oldest first; entries outside of turns are left out."""
    turns: list[tuple[Message, list[Entry]]] = []
    for entry in path:
        if entry.turn == entry.seq and entry.message is not None:
            turns.append((entry.message, [entry]))
        elif entry.turn and turns:
            turns[-1][1].append(entry)
    return [_turn(message, entries) for message, entries in turns]


def _turn(input_message: Message, entries: Sequence[Entry]) -> TurnView:
    """An answer that broke off is no step: the next answer takes the place."""
    steps: list[Step] = []
    is_broken_off = False
    for entry in entries:
        message = entry.message
        if message is not None and message.role == "assistant":
            steps[len(steps) - is_broken_off :] = [_step(entry, message)]
            is_broken_off = entry.finish == INTERRUPTED and not message.calls
        elif message is not None and message.role == "tool":
            steps[-1] = _with_results(steps[-1], entry, message)
    return TurnView(entries[0].turn, input_message, tuple(steps), entries[-1].seq)


def _step(entry: Entry, message: Message) -> Step:
    parts = tuple(part for part in message.parts if not isinstance(part, ToolCall))
    return Step(entry.seq, Message("assistant", parts), tuple(map(CallView, message.calls)), entry.model)


def _with_results(step: Step, entry: Entry, message: Message) -> Step:
    calls = list(step.calls)
    for result in message.results:
        index = next(
            n for n, view in enumerate(calls) if view.result is None and view.call.id == result.call_id
        )
        calls[index] = CallView(calls[index].call, replace(result, call_id=""), entry.seq)
    return replace(step, calls=tuple(calls))


# -- as text, for people and for comparing word by word --------------------------------------------


def message_text(message: Message) -> str:
    """Return a message's text, media by type and hash."""
    pieces = []
    for part in message.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, Media):
            pieces.append(f"[{part.mime} {part.hash[:12]}]")
    return "\n".join(pieces)


def reasoning_text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Reasoning))


def arguments_text(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else _sorted.encode(call.arguments).decode()


def calls_text(step: Step | None) -> str:
    """Return the calls of a step in a line: `look({"order":41})`; empty without calls."""
    calls = step.calls if step is not None else ()
    return ", ".join(f"{view.call.name}({arguments_text(view.call)})" for view in calls)


def result_text(result: ToolResult | None) -> str:
    if result is None:
        return "(no result)"
    marks: list[str] = [] if result.outcome == "done" else [result.outcome]
    marks += ["error"] if result.error and result.outcome == "done" else []
    marks += ["ends the turn"] if result.ends_turn else []
    text = message_text(Message("user", result.content))
    details = "" if not result.details else f" {_sorted.encode(result.details).decode()}"
    return f"{'[' + ', '.join(marks) + '] ' if marks else ''}{text}{details}"
