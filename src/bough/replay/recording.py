"""What a session recorded, as a replay needs it: what the host put in, turn by turn, and what its tools returned.

Knows entries. Does not know who answers now. A result is found by the turn of its call, the name, the canonical
arguments and the number of its like in that turn. In the turn and not in the session: a result of an earlier
turn may be out of date, one of a later turn had not happened yet, and a turn that calls less than it did then
must not shift what all later ones get.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core.entries import Entry
from ..core.messages import Message, ToolCall, ToolResult
from ..core.turns import cursor_from_tail

_sorted = msgspec.json.Encoder(order="sorted")


class RecordedTurn(Struct, frozen=True):
    turn: int
    """The seq of its input in the source."""
    input: Entry | None
    """None: the turn was open at the cut and goes on."""
    before: tuple[Entry, ...] = ()
    """What the host put between this turn and the one before."""
    inner: Sequence[Entry] = ()
    """What the host put into the turn: settings, notes, compactions, system messages; steps never go down."""
    answers: int = 0
    """Answers in the whole turn, those before the cut included."""


class RecordedResult(Struct, frozen=True):
    """A recorded call and what it returned."""

    branch: int
    seq: int
    index: int
    """Of the call in its answer."""
    rank: tuple[int, int]
    """When its result landed: the seq of the entry and the index in it."""
    message: Message

    @property
    def result(self) -> ToolResult:
        return self.message.results[0]

    def as_result_of(self, call: ToolCall) -> Message:
        """The recorded result as the result of this call: errors, state, the end of the turn and all."""
        return replace(self.message, parts=(replace(self.result, call_id=call.id),))


class Recording:
    """The part of a path that is replayed: after seq `at`, up to `until`."""

    def __init__(self, path: Sequence[Entry], at: int, until: int) -> None:
        self.path, self.at, self.until = path, at, until
        self.turns, self.after = _turns(path[:until], at)
        self._results = _results(path)

    def find(self, turn: int, call: ToolCall, occurrence: int) -> RecordedResult | None:
        """What the n-th such call of that turn returned; None: there was none, or it never returned."""
        found = self._results.get((turn, canonical(call)), ())
        return found[occurrence] if occurrence < len(found) else None

    def calls(self) -> Iterable[ToolCall]:
        """Every call of the replayed part."""
        for entry in self.path[self.at :]:
            yield from entry.message.calls if entry.message is not None else ()


def canonical(call: ToolCall) -> bytes:
    """Name and arguments, whatever the order of the keys."""
    return _sorted.encode([call.name, call.arguments, call.malformed])


def _turns(path: Sequence[Entry], at: int) -> tuple[list[RecordedTurn], tuple[Entry, ...]]:
    """The turns after seq `at`, and what the host put behind the last one."""
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


def _open_turn(kept: Sequence[Entry]) -> int:
    """The turn that is open behind what is kept, or 0."""
    cursor = cursor_from_tail(kept)
    return 0 if cursor is None else cursor.turn


def _results(path: Sequence[Entry]) -> dict[tuple[int, bytes], list[RecordedResult | None]]:
    """Results by the calls they answer, paired as the log pairs them."""
    found: dict[tuple[int, bytes], list[RecordedResult | None]] = {}
    waiting: list[tuple[Entry, int, ToolCall, list[RecordedResult | None], int]] = []
    for entry in path:
        message = entry.message
        if message is None:
            continue
        if message.role == "assistant":
            waiting = []
        for index, call in enumerate(message.calls):
            hits = found.setdefault((entry.turn, canonical(call)), [])
            hits.append(None)
            waiting.append((entry, index, call, hits, len(hits) - 1))
        for n, result in enumerate(message.results):
            match = next(open_ for open_ in waiting if open_[2].id == result.call_id)
            waiting.remove(match)
            asked, index, _, hits, at = match
            alone = message if len(message.parts) == 1 else Message("tool", (result,))
            hits[at] = RecordedResult(asked.branch, asked.seq, index, (entry.seq, n), alone)
    return found
