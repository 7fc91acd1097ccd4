"""One side of a comparison: a path up to a leaf. Only the compared part is read.

An entry's id covers everything before the entry. So halving finds the fork of two paths without a read of the
shared part: a comparison is as fast in a long session as in a short one. Knows paths and ledgers; does not
know how turns differ.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from oakleaf.core import context as contexts
from oakleaf.core import tree
from oakleaf.core.codec import from_json
from oakleaf.core.context import Context
from oakleaf.core.entries import Entry
from oakleaf.core.facts import SessionEnded
from oakleaf.core.state import State, fold_state, state_updates
from oakleaf.core.tool_definitions import ToolSpec, read_callable_tools
from oakleaf.core.tree import Leaf, Range
from oakleaf.core.usage import Call, Totals, totals_by_turn
from oakleaf.log.log import Log
from oakleaf.log.prompt import prompt_frame
from oakleaf.stores.base import SessionRow

STEP = 250
"""Entries read at once."""


class ComparedPath(Struct, frozen=True):
    """The compared part of a path, with the cost of each turn."""

    session_id: str
    seq: int
    """Where the path ends."""
    path: Sequence[Entry]
    costs: Mapping[int, Totals]
    frame: Context
    """Prompt and settings at the end of the path, without messages."""
    incomplete: str | None = None
    """Why a replay has unanswered inputs."""
    tools: Sequence[ToolSpec] | None = None
    """The definitions of the tools at the end of the path; None if not recorded."""
    models: tuple[str, ...] = ()
    """The models of the answers in the part; without answers, the model of the last answer before."""
    inputs: Sequence[int] = ()
    """The seqs of the inputs of the whole path."""

    def turn_number(self, turn: int) -> int:
        """Return the number of the turn that begins at a seq, counted from 1."""
        return bisect_right(self.inputs, turn)


class PathSide(Struct, frozen=True):
    """One path of a comparison."""

    log: Log
    leaf: Leaf

    def read(self, first: int, last: int) -> list[Entry]:
        last = min(last, self.leaf.seq)
        if first > last:
            return []
        return self.log.store.path(self.log.session_id, leaf=self.leaf, first=first, last=last).entries

    def forward(self, first: int, count: int) -> Iterator[Entry]:
        """Yield `count` entries at most, read in small steps."""
        for begin in range(first, min(first + count - 1, self.leaf.seq) + 1, STEP):
            yield from self.read(begin, min(begin + STEP, first + count) - 1)

    def entry_id(self, seq: int) -> bytes:
        return self.read(seq, seq)[0].entry_id

    def ranges(self) -> Sequence[Range]:
        log = self.log
        return log.store.path(log.session_id, leaf=self.leaf, first=self.leaf.seq + 1).ranges

    def compared(self, entries: Sequence[Entry]) -> ComparedPath:
        """Return consecutive entries of the path, ready for a comparison."""
        log = self.log
        frame = contexts.build_context(prompt_frame(log, self.leaf))
        row = log.store.session(log.session_id)
        return ComparedPath(
            log.session_id,
            self.leaf.seq,
            entries,
            self._costs(entries),
            frame,
            _incomplete_reason(log, row) if self.leaf == row.leaf else None,
            read_callable_tools(frame.settings.tool_definitions, log.read_blob),
            self._models(entries),
            log.store.inputs(log.session_id, leaf=self.leaf),
        )

    def _models(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        answered = dict.fromkeys(entry.model for entry in entries if entry.model)
        if answered:
            return tuple(answered)
        before = (entries[0].seq - 1) if entries else self.leaf.seq
        for part in reversed(self.ranges()):
            if part.first <= before:
                last = min(part.last, before)
                call = self.log.store.latest_answer_call(self.log.session_id, part.branch, last)
                if call is not None and call.model:
                    return (call.model,)
        return ()

    def _costs(self, entries: Sequence[Entry]) -> dict[int, Totals]:
        """Return the cost of each turn of the entries."""
        if not entries:
            return {}
        first, last, calls = entries[0].seq, entries[-1].seq, list[Call]()
        store, session_id = self.log.store, self.log.session_id
        for part in self.ranges():
            if part.last >= first and part.first <= last:
                calls += store.calls_between(session_id, part.branch, first, min(part.last, last))
        return totals_by_turn(calls, entries)

    def stored_state(self) -> State | None:
        """Return the stored state at the end of the path; None if the leaf has moved or no state is
        stored."""
        row, detail = self.log.store.session_with_detail(self.log.session_id)
        if row.leaf != self.leaf or detail.state is None:
            return None
        state: State = from_json(detail.state)
        return state


def shared_seq(a: PathSide, b: PathSide) -> int:
    """Return the number of entries shared at the start.

    An id covers everything before the entry.
    """
    end = min(a.leaf.seq, b.leaf.seq)
    stored_once = 0  # because one session is a fork of the other, or both of a third
    if a.log.store is b.log.store:
        stored_once = tree.shared_seq(a.ranges(), b.ranges())
    seqs = range(stored_once + 1, end + 1)
    return stored_once + bisect_left(seqs, True, key=lambda seq: a.entry_id(seq) != b.entry_id(seq))


def first_unshared_turn(a: PathSide, b: PathSide, shared: int) -> int:
    """Return the seq of the first turn outside, or partly outside, of the first `shared` entries."""
    if not shared:
        return 1
    turn = a.read(shared, shared)[0].turn
    following = [*a.read(shared + 1, shared + 1), *b.read(shared + 1, shared + 1)]
    return turn if turn and any(entry.turn == turn for entry in following) else shared + 1


def is_state_same(sides: tuple[PathSide, PathSide], shared: int, limit: int | None = None) -> bool | None:
    """Whether both paths have the same state.

    None if a fold would read more than `limit` entries of a path.
    """
    if limit is not None and any(side.leaf.seq - shared > limit for side in sides):
        return None
    tails = [side.read(shared + 1, side.leaf.seq) for side in sides]
    if not any(state_updates(entry.payload) for tail in tails for entry in tail):
        return True
    states = [side.stored_state() for side in sides]
    if None not in states:
        return states[0] == states[1]
    if limit is not None and shared > limit:
        return None
    base = fold_state(sides[0].forward(1, shared))
    return fold_state(tails[0], base) == fold_state(tails[1], base)


def _incomplete_reason(log: Log, row: SessionRow) -> str | None:
    """Return why a replay stopped early; None after a missed call.

    A missed call is a difference.
    """
    if row.relation != "replay" or row.status == "completed":
        return None
    facts = (stored.fact for stored in log.facts_backwards())
    ended = next((fact for fact in facts if isinstance(fact, SessionEnded)), None)
    if ended is not None and ended.missed_call:
        return None
    return row.error or "it was interrupted"
