"""Turns, steps and open batches: where an entry may stand, and what is to be done next.

`advance` is the one function that knows the order of a log: appending folds it over what is to be
written, opening a session folds it over what is there, verify folds it over everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ..errors import OpenBatch, OrphanResult
from .entries import Entry, Note, Payload, kind_of
from .messages import Message, ToolCall, ToolResult


class OpenCall(Struct, frozen=True, gc=False):
    """A tool call without its result, named by the answer that made it and its index there."""

    seq: int
    index: int
    call: ToolCall


class Cursor(Struct, frozen=True, gc=False):
    """All an append must know of the place it follows."""

    seq: int = 0
    entry_id: bytes = b""
    turn: int = 0
    """The turn that is open, or 0."""
    step: int = 0
    open_calls: tuple[OpenCall, ...] = ()
    ends_turn: bool = False
    """A result of the open batch ends the turn once the batch is closed."""

    def with_id(self, entry_id: bytes) -> Cursor:
        """The same place, its entry's id filled in."""
        return Cursor(self.seq, entry_id, self.turn, self.step, self.open_calls, self.ends_turn)


class TurnPosition(Struct, frozen=True, gc=False):
    turn: int
    step: int
    cursor: Cursor
    """The cursor behind the entry; its entry_id is filled in by whoever computes it."""


def advance(cursor: Cursor, payload: Payload, *, seed: bool = False) -> TurnPosition:
    """Where `payload` stands when it follows `cursor`; raises if it may not."""
    seq = cursor.seq + 1
    if isinstance(payload, Message):
        if payload.role == "tool":
            return _result(cursor, payload.results, seq)
        if cursor.open_calls:
            raise OpenBatch([call.call.id for call in cursor.open_calls], payload.role)
        if payload.role == "assistant":
            return _answer(cursor, payload.calls, seq)
        if payload.role == "user" and not seed:
            return TurnPosition(seq, 0, Cursor(seq, b"", seq, 0))
    elif cursor.open_calls and not isinstance(payload, Note):
        raise OpenBatch([call.call.id for call in cursor.open_calls], kind_of(payload))
    return TurnPosition(cursor.turn, cursor.step, replace(cursor, seq=seq, entry_id=b""))


def _answer(cursor: Cursor, calls: Sequence[ToolCall], seq: int) -> TurnPosition:
    step = cursor.step + 1 if cursor.turn else 0
    if not calls:
        return TurnPosition(cursor.turn, step, Cursor(seq))
    waiting = tuple([OpenCall(seq, index, call) for index, call in enumerate(calls)])
    return TurnPosition(cursor.turn, step, Cursor(seq, b"", cursor.turn, step, waiting))


def _result(cursor: Cursor, results: Sequence[ToolResult], seq: int) -> TurnPosition:
    waiting = list(cursor.open_calls)
    ends = cursor.ends_turn
    for result in results:
        for index, waits in enumerate(waiting):
            if waits.call.id == result.call_id:
                del waiting[index]
                break
        else:
            raise OrphanResult(result.call_id, [call.call.id for call in waiting])
        ends = ends or result.ends_turn
    if not waiting and ends:
        return TurnPosition(cursor.turn, cursor.step, Cursor(seq))
    after = Cursor(seq, b"", cursor.turn, cursor.step, tuple(waiting), ends)
    return TurnPosition(cursor.turn, cursor.step, after)


def cursor_after(entries: Iterable[Entry], cursor: Cursor = Cursor()) -> Cursor:
    """The cursor behind entries that are already in the log. An input that opened no turn was a seed."""
    for entry in entries:
        after = advance(cursor, entry.payload, seed=not entry.turn).cursor
        cursor = after.with_id(entry.entry_id)
    return cursor


def cursor_from_tail(entries: Sequence[Entry]) -> Cursor | None:
    """The cursor behind the last of some consecutive entries; None if more of what lies before is needed.

    Looking back to the latest input or answer is enough, so opening a long session reads a few entries.
    """
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if entry.role in ("user", "assistant"):
            step = entry.step - 1 if entry.role == "assistant" and entry.turn else entry.step
            before = Cursor(entry.seq - 1, b"", entry.turn, step)
            return cursor_after(entries[index:], before)
    if not entries or entries[0].seq == 1:
        return cursor_after(entries)
    return None


class CallModel(Struct, frozen=True):
    """The turn waits for an answer."""


class RunTools(Struct, frozen=True):
    """These calls wait for results. The started ones may have happened before a crash."""

    calls: tuple[OpenCall, ...]
    started: frozenset[tuple[int, int]] = frozenset()


class Rest(Struct, frozen=True):
    """Nothing to do until the next input."""

    reason: Literal["empty", "answered", "ended by a tool"]


Action = CallModel | RunTools | Rest


def next_action(path: Sequence[Entry], started: Iterable[tuple[int, int]] = ()) -> Action:
    """What to do at the end of this path: call the model, run these tools, or rest.

    A pure function of what is durable, so going on after a crash is the same loop as going on at all.
    `started` names, by (seq of the answer, index), the calls whose start was recorded.
    """
    cursor = cursor_from_tail(path)
    if cursor is None:
        raise ValueError("the path must reach back to its latest input or answer")
    if cursor.open_calls:
        waiting = {(call.seq, call.index) for call in cursor.open_calls}
        return RunTools(cursor.open_calls, frozenset(waiting.intersection(started)))
    if cursor.turn:
        return CallModel()
    last = next((e.message for e in reversed(path) if e.message is not None and e.turn), None)
    if last is None:
        return Rest("empty")
    return Rest("ended by a tool" if last.role == "tool" else "answered")


def is_completed(turn: Sequence[Entry]) -> bool:
    """Whether a turn has its final answer: the one reading for resume, export and usage."""
    messages = [entry.message for entry in turn if entry.message is not None]
    if not messages:
        return False
    last = messages[-1]
    if last.role == "assistant":
        return not last.calls
    return last.role == "tool" and any(r.ends_turn for m in messages for r in m.results)


class HasTurn(Protocol):
    """Whatever knows its turn and may hold a message: an entry, or an item of a context."""

    @property
    def turn(self) -> int: ...
    @property
    def message(self) -> Message | None: ...


P = TypeVar("P", bound=HasTurn)


def group_by_turn(items: Iterable[P]) -> list[list[P]]:
    """Units that stay or go together: a turn; outside of turns one thing, or a call with its results."""
    found: list[list[P]] = []
    waiting = 0
    for thing in items:
        previous = found[-1][-1] if found else None
        joins = previous is not None and (thing.turn == previous.turn if thing.turn else waiting > 0)
        if joins:
            found[-1].append(thing)
        else:
            found.append([thing])
        message = thing.message
        if message is not None and not thing.turn:
            waiting = len(message.calls) if message.role == "assistant" else waiting
            waiting -= len(message.results)
    return found
