"""A recorded session for a replay: the host's entries by turn, and the results of tools.

A result is found by the turn of the call, the name, the canonical arguments and the number of equal earlier
calls in the turn. Within the turn and not the session: a result of an earlier turn may be outdated, a result
of a later turn had not happened yet, and a turn with fewer calls must not shift the results of later turns.
Knows entries. Does not know what answers in the replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.entries import Entry
from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.core.turns import cursor_from_tail

_sorted = msgspec.json.Encoder(order="sorted")


class RecordedTurn(Struct, frozen=True):
    """One turn of the source, prepared for the replay."""

    turn: int
    """The seq of the input in the source."""
    input: Entry | None
    """None: the turn was open at the cut and is continued."""
    before: tuple[Entry, ...] = ()
    """Entries of the host between the previous turn and the turn."""
    inner: Sequence[Entry] = ()
    """Entries of the host inside the turn: settings, notes, compactions, system messages, in order of steps."""
    answers: int = 0
    """The number of answers in the turn, including answers before the cut."""


class RecordedResult(Struct, frozen=True):
    """The result of a recorded call."""

    branch: int
    seq: int
    index: int
    """The index of the call in the answer."""
    rank: tuple[int, int]
    """The order of arrival: the seq of the entry and the index within the entry."""
    message: Message

    @property
    def result(self) -> ToolResult:
        return self.message.results[0]

    def as_result_of(self, call: ToolCall) -> Message:
        """Return the recorded message for the call. The message keeps error, state and end of the turn."""
        return replace(self.message, parts=(replace(self.result, call_id=call.id),))


class Recording:
    """The replayed part of a path: after seq `at`, up to `until`."""

    def __init__(self, path: Sequence[Entry], at: int, until: int) -> None:
        self.path, self.at, self.until = path, at, until
        self.turns, self.after = _turns(path[:until], at)
        self._results = _results(path)

    def find(self, turn: int, call: ToolCall, occurrence: int) -> RecordedResult | None:
        """Return the result of the given occurrence of the call in the turn; None without call or result."""
        results = self._results.get((turn, canonical(call)), ())
        return results[occurrence] if occurrence < len(results) else None

    def calls(self) -> Iterable[ToolCall]:
        """Yield every call of the replayed part."""
        for entry in self.path[self.at :]:
            yield from entry.message.calls if entry.message is not None else ()


def canonical(call: ToolCall) -> bytes:
    """Encode name and arguments, independent of the order of keys."""
    return _sorted.encode([call.name, call.arguments, call.malformed])


def _turns(path: Sequence[Entry], at: int) -> tuple[list[RecordedTurn], tuple[Entry, ...]]:
    """Return the turns after seq `at`, and the host's entries after the last turn."""
    answers: dict[int, int] = {}
    for entry in path:
        answers[entry.turn] = answers.get(entry.turn, 0) + (entry.role == "assistant")
    open_turn = _open_turn(path[:at])
    between: list[Entry] = []
    inner: list[Entry] = []
    turns = [RecordedTurn(open_turn, None, (), inner, answers[open_turn])] if open_turn else []
    for entry in path[at:]:
        if not entry.turn:
            between.append(entry)
        elif entry.turn == entry.seq:
            inner = []
            turns.append(RecordedTurn(entry.turn, entry, tuple(between), inner, answers[entry.turn]))
            between = []
        elif entry.role not in ("assistant", "tool"):
            inner.append(entry)
    return turns, tuple(between)


def _open_turn(path: Sequence[Entry]) -> int:
    """Return the open turn at the end of the path, or 0."""
    cursor = cursor_from_tail(path)
    return 0 if cursor is None else cursor.turn


def _results(path: Sequence[Entry]) -> dict[tuple[int, bytes], list[RecordedResult | None]]:
    """Return results by answered call, paired as in the log."""
    results: dict[tuple[int, bytes], list[RecordedResult | None]] = {}
    open_calls: list[tuple[Entry, int, ToolCall, list[RecordedResult | None], int]] = []
    for entry in path:
        message = entry.message
        if message is None:
            continue
        if message.role == "assistant":
            open_calls = []
        for index, call in enumerate(message.calls):
            same_calls = results.setdefault((entry.turn, canonical(call)), [])
            same_calls.append(None)
            open_calls.append((entry, index, call, same_calls, len(same_calls) - 1))
        for n, result in enumerate(message.results):
            match = next(pending for pending in open_calls if pending[2].id == result.call_id)
            open_calls.remove(match)
            answer, index, _, same_calls, position = match
            single = message if len(message.parts) == 1 else Message("tool", (result,))
            same_calls[position] = RecordedResult(answer.branch, answer.seq, index, (entry.seq, n), single)
    return results
