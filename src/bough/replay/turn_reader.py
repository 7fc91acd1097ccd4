"""A path read for comparing: its turns, their steps, each call with its result in call order.

Ids of calls are left out: providers make them up, and two runs never share one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core.entries import Entry
from ..core.messages import Media, Message, Reasoning, Text, ToolCall, ToolResult

_sorted = msgspec.json.Encoder(order="sorted")


class Made(Struct, frozen=True):
    """One call and what it returned; None: it has no result."""

    call: ToolCall
    result: ToolResult | None = None
    seq: int | None = None
    """Of the result."""


class Step(Struct, frozen=True):
    seq: int
    message: Message
    """The answer without its calls."""
    made: tuple[Made, ...] = ()
    model: str | None = None


class Read(Struct, frozen=True):
    """One turn."""

    turn: int
    input: Message
    steps: tuple[Step, ...] = ()
    last: int = 0
    """The seq of its last entry."""


def read(path: Sequence[Entry]) -> list[Read]:
    """The turns of a path, oldest first; what belongs to none is left out."""
    turns: list[tuple[Message, list[Entry]]] = []
    for entry in path:
        if entry.turn == entry.seq and entry.message is not None:
            turns.append((entry.message, [entry]))
        elif entry.turn and turns:
            turns[-1][1].append(entry)
    return [_turn(asked, entries) for asked, entries in turns]


def _turn(asked: Message, entries: Sequence[Entry]) -> Read:
    steps: list[Step] = []
    for entry in entries:
        message = entry.message
        if message is not None and message.role == "assistant":
            steps.append(_step(entry, message))
        elif message is not None and message.role == "tool":
            steps[-1] = _answered(steps[-1], entry, message)
    return Read(entries[0].turn, asked, tuple(steps), entries[-1].seq)


def _step(entry: Entry, message: Message) -> Step:
    said = tuple(part for part in message.parts if not isinstance(part, ToolCall))
    return Step(entry.seq, Message("assistant", said), tuple(map(Made, message.calls)), entry.model)


def _answered(step: Step, entry: Entry, message: Message) -> Step:
    made = list(step.made)
    for result in message.results:
        at = next(n for n, one in enumerate(made) if one.result is None and one.call.id == result.call_id)
        made[at] = Made(made[at].call, replace(result, call_id=""), entry.seq)
    return replace(step, made=tuple(made))


# -- as text, for people and for comparing by words ------------------------------------------------


def told_message(message: Message) -> str:
    """The words of a message, its media by name."""
    pieces = []
    for part in message.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, Media):
            pieces.append(f"[{part.mime} {part.hash[:12]}]")
    return "\n".join(pieces)


def told_reasoning(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Reasoning))


def told_arguments(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else _sorted.encode(call.arguments).decode()


def told_calls(step: Step | None) -> str:
    """The calls of a step in one line: `look({"order":41})`; empty if it calls nothing."""
    made = step.made if step is not None else ()
    return ", ".join(f"{one.call.name}({told_arguments(one.call)})" for one in made)


def told_result(result: ToolResult | None) -> str:
    if result is None:
        return "(no result)"
    marks: list[str] = [] if result.outcome == "done" else [result.outcome]
    marks += ["error"] if result.error and result.outcome == "done" else []
    marks += ["ends the turn"] if result.ends_turn else []
    text = told_message(Message("user", result.content))
    details = "" if not result.details else f" {_sorted.encode(result.details).decode()}"
    return f"{'[' + ', '.join(marks) + '] ' if marks else ''}{text}{details}"
