"""A turn that was recorded under a caller's key: found again when the same lines run once more.

Knows where its entries are, also after a rewind, and whether it is still open. Does not run anything.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..core.entries import Entry
from ..core.tree import Leaf
from ..core.turns import is_completed
from ..core.usage import Call
from ..errors import InvalidOperation
from ..stores.base import CommitResult
from .log import Log


class RecordedTurn(Struct, frozen=True):
    turn: int
    leaf: Leaf
    """The leaf at its input."""
    entries: tuple[Entry, ...]
    """From its input on."""
    is_open: bool
    """Whether it is the session's open turn."""
    fact_number: int
    """The number of the fact that appended its input."""

    @property
    def last(self) -> Entry:
        return self.entries[-1]


def calls_of_turn(log: Log, recorded: RecordedTurn) -> list[Call]:
    """Return the model calls that the turn made."""
    branches = {entry.branch for entry in recorded.entries}
    return [
        call
        for call in log.store.calls(log.session_id)
        if call.branch in branches and recorded.turn <= call.after_seq < recorded.last.seq
    ]


def turn_end(log: Log, recorded: RecordedTurn) -> dict[str, Any]:
    """Return the data of the fact that ended the turn; empty if none did."""
    ended: dict[str, Any] = {}
    for fact in log.store.journal(log.session_id, recorded.fact_number):
        if fact.kind == "turn_ended" and fact.data.get("turn") == recorded.turn:
            ended = fact.data
        elif fact.kind == "turn_started" and fact.data.get("turn") != recorded.turn:
            break
    return ended


def find_turn(log: Log, key: str | None) -> RecordedTurn | None:
    """Return the turn whose input was recorded under the key, None if there is none. A key that was not given costs no read."""
    known = log.find_change(key)
    return None if known is None else read_turn(log, known, str(key))


def read_turn(log: Log, known: CommitResult, key: str) -> RecordedTurn:
    """Read the turn that was recorded, on the session's path or on the branch that a rewind left behind."""
    log.refresh()
    fact = log.store.journal(log.session_id, known.facts - 1, 1)[0]
    turn = int(fact.data.get("first", 0))
    is_on_path = any(
        part.branch == known.leaf.branch and part.first <= turn <= part.last for part in log.ranges()
    )
    end = log.leaf if is_on_path else _branch_end(log, known.leaf)
    path = log.store.path(log.session_id, leaf=end, first=turn).entries if turn else []
    entries = tuple(entry for entry in path if entry.turn == turn)
    if not entries:
        raise InvalidOperation(
            f"key {key!r} belongs to another change of session {log.session_id}, which opened no turn; "
            "use a key of its own for each input"
        )
    is_open = is_on_path and log.cursor.turn == turn
    if not is_on_path and not is_completed(entries):
        raise InvalidOperation(
            f"the turn with key {key!r} was rewound before it had an answer; use another key for a new try"
        )
    return RecordedTurn(turn, known.leaf, entries, is_open, known.facts)


def _branch_end(log: Log, leaf: Leaf) -> Leaf:
    tail = next(b.tail for b in log.store.branches(log.session_id) if b.branch == leaf.branch)
    return Leaf(leaf.branch, max(tail, leaf.seq))
