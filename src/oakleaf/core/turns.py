"""Turns, steps and open batches: which entry may follow which, and what to do next.

`advance` is the only function that knows the order of a log: appending folds it over the new entries, opening a
session over the last stored ones, verify over all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.entries import OPEN_FINISHES, Compaction, Entry, Note, Payload, Uncompaction, kind_of
from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.errors import InvalidPosition, OpenBatch, OrphanResult

ENDED_BY_TOOL = "ended_by_tool"
"""The finish of the closing answer of a turn that a tool ended."""


class OpenCall(Struct, frozen=True, gc=False):
    """A tool call without a result, identified by the answer's seq and an index."""

    seq: int
    index: int
    call: ToolCall


class Cursor(Struct, frozen=True, gc=False):
    """Everything an append needs from the entry before."""

    seq: int = 0
    entry_id: bytes = b""
    turn: int = 0
    """The open turn, or 0."""
    step: int = 0
    open_calls: tuple[OpenCall, ...] = ()
    ends_turn: bool = False
    """Whether a result ends the turn: once the batch is closed, a closing answer follows and no model is called."""

    @property
    def is_ended_by_tool(self) -> bool:
        """Whether a tool ended the turn, and only the closing answer is missing."""
        return self.ends_turn and self.turn > 0 and not self.open_calls

    def with_id(self, entry_id: bytes) -> Cursor:
        """Return the same cursor with the entry's id."""
        return Cursor(self.seq, entry_id, self.turn, self.step, self.open_calls, self.ends_turn)


class TurnPosition(Struct, frozen=True, gc=False):
    """The turn and step of an appended entry, and the next cursor."""

    turn: int
    step: int
    cursor: Cursor
    """Without entry_id: the caller adds the computed id."""


def advance(
    cursor: Cursor, payload: Payload, *, seed: bool = False, finish: str | None = None
) -> TurnPosition:
    """Return the position of `payload` after `cursor`; raise OpenBatch, OrphanResult or InvalidPosition for an
    illegal payload.

    An answer that calls no tool ends the turn, unless its `finish` says that it was interrupted or paused. The last
    result ends the turn if its `finish` is `ENDED_BY_TOOL`.
    """
    seq = cursor.seq + 1
    if isinstance(payload, Message):
        if payload.role == "tool":
            return _result(cursor, payload.results, seq, finish)
        if cursor.open_calls:
            raise OpenBatch([call.call.id for call in cursor.open_calls], payload.role)
        if payload.role == "assistant":
            return _answer(cursor, payload.calls, seq, finish)
        if payload.role == "user" and not seed:
            return TurnPosition(seq, 0, Cursor(seq, b"", seq, 0))
    elif cursor.open_calls and not isinstance(payload, Note):
        raise OpenBatch([call.call.id for call in cursor.open_calls], kind_of(payload))
    elif isinstance(payload, Compaction) and not 0 < payload.first_kept <= seq:
        raise InvalidPosition(payload.first_kept, 1, seq)  # a later one would hide what comes after
    elif isinstance(payload, Uncompaction) and not 0 < payload.cancels < seq:
        raise InvalidPosition(payload.cancels, 1, cursor.seq)
    return TurnPosition(cursor.turn, cursor.step, replace(cursor, seq=seq, entry_id=b""))


def _answer(cursor: Cursor, calls: Sequence[ToolCall], seq: int, finish: str | None) -> TurnPosition:
    step = cursor.step + 1 if cursor.turn else 0
    if not calls and finish in OPEN_FINISHES:
        return TurnPosition(cursor.turn, step, Cursor(seq, b"", cursor.turn, step))
    if not calls:
        return TurnPosition(cursor.turn, step, Cursor(seq))
    open_calls = tuple([OpenCall(seq, index, call) for index, call in enumerate(calls)])
    return TurnPosition(cursor.turn, step, Cursor(seq, b"", cursor.turn, step, open_calls))


def _result(cursor: Cursor, results: Sequence[ToolResult], seq: int, finish: str | None) -> TurnPosition:
    open_calls = list(cursor.open_calls)
    ends_turn = cursor.ends_turn
    for result in results:
        for index, open_call in enumerate(open_calls):
            if open_call.call.id == result.call_id:
                del open_calls[index]
                break
        else:
            raise OrphanResult(result.call_id, [open_call.call.id for open_call in open_calls])
        ends_turn = ends_turn or result.ends_turn
    if not open_calls and (not cursor.turn or finish == ENDED_BY_TOOL):
        return TurnPosition(cursor.turn, cursor.step, Cursor(seq))
    after = Cursor(seq, b"", cursor.turn, cursor.step, tuple(open_calls), ends_turn)
    return TurnPosition(cursor.turn, cursor.step, after)


def cursor_after(entries: Iterable[Entry], cursor: Cursor = Cursor()) -> Cursor:
    """Return the cursor after stored entries. An input that opened no turn was a seed."""
    for entry in entries:
        after = advance(cursor, entry.payload, seed=not entry.turn, finish=entry.finish).cursor
        cursor = after.with_id(entry.entry_id)
    return cursor


def cursor_from_tail(entries: Sequence[Entry]) -> Cursor | None:
    """Return the cursor after the last of consecutive entries; None if earlier entries are needed.

    It suffices to reach back to the latest input or answer, so opening a long session reads only a few entries.
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
    """Calls wait for results. Started calls may have run before a crash."""

    calls: tuple[OpenCall, ...]
    started: frozenset[tuple[int, int]] = frozenset()


class Rest(Struct, frozen=True):
    """Nothing to do until the next input."""

    reason: Literal["empty", "answered", "ended by a tool"]


Action = CallModel | RunTools | Rest


def next_action(path: Sequence[Entry], started: Iterable[tuple[int, int]] = ()) -> Action:
    """Return the next action at the end of a path: call the model, run tools, or rest.

    A pure function of what is durable, so resuming after a crash is the same loop as running at all.
    `started` holds (seq of the answer, index) of the calls whose start was recorded.
    """
    action = action_at_end(path, started)
    if action is None:
        raise ValueError("the path must reach back to its latest turn")
    return action


def action_at_end(path: Sequence[Entry], started: Iterable[tuple[int, int]] = ()) -> Action | None:
    """Return the next action after consecutive entries; None if earlier entries are needed."""
    cursor = cursor_from_tail(path)
    if cursor is None:
        return None
    if cursor.open_calls:
        open_keys = {(call.seq, call.index) for call in cursor.open_calls}
        return RunTools(cursor.open_calls, frozenset(open_keys.intersection(started)))
    if cursor.turn:
        return Rest("ended by a tool") if cursor.is_ended_by_tool else CallModel()
    last = next((entry for entry in reversed(path) if entry.message is not None and entry.turn), None)
    if last is None:
        return None if path and path[0].seq > 1 else Rest("empty")
    return Rest("ended by a tool" if last.finish == ENDED_BY_TOOL else "answered")


def turn_number(inputs: Sequence[int], turn: int) -> int:
    """Return the number by which people know a turn: 1 for the first on the path, 0 for an entry outside of turns.

    `inputs` has the seq of each input of the path, `turn` is an entry's: the seq of its turn's input.
    """
    return bisect_right(inputs, turn) if turn else 0


def is_completed(turn: Sequence[Entry]) -> bool:
    """Return whether a turn has a final answer: the same rule for resume, export and usage."""
    messages = [entry.message for entry in turn if entry.message is not None]
    if not messages:
        return False
    last = messages[-1]
    finish = next(entry.finish for entry in reversed(turn) if entry.message is not None)
    is_final = last.role == "assistant" and not last.calls and finish not in OPEN_FINISHES
    return is_final or finish == ENDED_BY_TOOL


class HasTurn(Protocol):
    """An entry, or an item of a context: with a turn and perhaps a message."""

    @property
    def turn(self) -> int: ...
    @property
    def message(self) -> Message | None: ...


P = TypeVar("P", bound=HasTurn)


def group_by_turn(items: Iterable[P]) -> list[list[P]]:
    """Group entries to keep or drop together: a turn; outside of turns an item, or a call with the results."""
    groups: list[list[P]] = []
    open_calls = 0
    for item in items:
        previous = groups[-1][-1] if groups else None
        if previous is not None and (item.turn == previous.turn if item.turn else open_calls > 0):
            groups[-1].append(item)
        else:
            groups.append([item])
        message = item.message
        if message is not None and not item.turn:
            open_calls = len(message.calls) if message.role == "assistant" else open_calls
            open_calls -= len(message.results)
    return groups
