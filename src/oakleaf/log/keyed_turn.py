"""A turn recorded under a caller's key: found again at a second run of the same lines.

Knows the place of the entries, also after a rewind, and whether the turn is still open. Does not run
anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.entries import Entry
from oakleaf.core.facts import TurnEnded, TurnLeft, TurnStarted
from oakleaf.core.messages import Message, to_user_message
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import ENDED_BY_TOOL, Cursor, is_completed
from oakleaf.core.usage import Call
from oakleaf.errors import InvalidOperation, KeyReused
from oakleaf.log.log import Log
from oakleaf.log.request import Committed
from oakleaf.stores.base import CommitResult


class KeyedTurn(Struct, frozen=True):
    turn: int
    leaf: Leaf
    """The leaf at the input."""
    entries: tuple[Entry, ...]
    """The entries from the input on."""
    is_open: bool
    """Whether the turn is the session's open turn."""
    fact_number: int
    """The number of the fact for the append of the input."""

    @property
    def last(self) -> Entry:
        return self.entries[-1]


def calls_of_turn(log: Log, recorded: KeyedTurn) -> list[Call]:
    """Return the model calls of the turn."""
    first, last = recorded.turn, recorded.last.seq
    return [
        call
        for branch in sorted({entry.branch for entry in recorded.entries})
        for call in log.store.calls_between(log.session_id, branch, first, last)
        if first <= call.after_seq < last
    ]


def turn_end(log: Log, recorded: KeyedTurn) -> TurnEnded | TurnLeft | None:
    """Return how the turn ended, or was left last; None if neither happened."""
    end: TurnEnded | TurnLeft | None = None
    for stored in log.store.journal(log.session_id, recorded.fact_number):
        fact = stored.fact
        if isinstance(fact, TurnEnded | TurnLeft) and fact.turn == recorded.turn:
            end = fact
        elif isinstance(fact, TurnStarted) and fact.turn != recorded.turn:
            break
    return end


def find_turn(log: Log, key: str | None, content: str | Message | None = None) -> KeyedTurn | None:
    """Return the turn of the input recorded under the key, None if there is none. No key costs no read.

    `KeyReused` if the recorded input has other content.
    """
    commit = log.find_change(key)
    if commit is None:
        return None
    recorded = read_turn(log, commit, str(key))
    if content is not None and not _is_same_input(log, recorded.entries[0], to_user_message(content)):
        raise KeyReused(log.session_id, str(key), recorded.turn)
    return recorded


def _is_same_input(log: Log, entry: Entry, message: Message) -> bool:
    """Compare the stored input with the new input as it would be stored.

    An input with hidden secrets counts as equal.
    """
    stored = entry.message
    if stored is None or "[redacted" in str(stored.parts):
        return True
    drafts = (Draft(stored), Draft(message))
    before, now = (
        build_entries(Cursor(), [draft], 0, redactor=log.runtime.redactor).payloads[0] for draft in drafts
    )
    return isinstance(before, Message) and isinstance(now, Message) and before.parts == now.parts


def read_turn(log: Log, commit: CommitResult, key: str) -> KeyedTurn:
    """Read the recorded turn from the session's path or from a rewound branch."""
    log.refresh()
    fact = log.store.journal(log.session_id, commit.facts - 1, 1)[0]
    first = fact.first or 0
    is_on_path = any(
        part.branch == commit.leaf.branch and part.first <= first <= part.last for part in log.ranges()
    )
    end = log.leaf if is_on_path else _branch_end(log, commit.leaf)
    path = log.store.path(log.session_id, leaf=end, first=first).entries if first else []
    opened = (entry.turn for entry in path if entry.turn == entry.seq <= commit.leaf.seq)
    turn = next(opened, 0)  # settings may come before the input
    entries = tuple(entry for entry in path if turn and entry.turn == turn)
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
    return KeyedTurn(turn, commit.leaf, entries, is_open, commit.facts)


def _branch_end(log: Log, leaf: Leaf) -> Leaf:
    tail = next(b.tail for b in log.store.branches(log.session_id) if b.branch == leaf.branch)
    return Leaf(leaf.branch, max(tail, leaf.seq))


class RecordedSteps:
    """The answers of a turn with their results, and the number of answers passed by a later run."""

    def __init__(self, recorded: KeyedTurn) -> None:
        self._entries, self._is_open = recorded.entries, recorded.is_open
        self._repeated: set[int] = set()
        """The seqs of repeated notes and settings."""
        self._answers: list[Entry] = []
        self._results: list[dict[str, Entry]] = []
        for entry in recorded.entries:
            if entry.finish in (ENDED_BY_TOOL, "interrupted"):
                continue  # not of these lines: it closed the turn, or our loop asked again
            if entry.role == "assistant":
                self._answers.append(entry)
                self._results.append({})
            elif self._results and entry.message is not None:
                self._results[-1] |= {result.call_id: entry for result in entry.message.results}
        self.passed = 0
        self.is_left = False
        """Whether this run writes now: nothing is left to repeat but results of the last answer."""

    @property
    def has_answers(self) -> bool:
        """Whether an answer is left to be repeated."""
        return not self.is_left and self.passed < len(self._answers)

    def next_answer(self) -> Entry | None:
        if not self.has_answers:
            return None
        self.passed += 1
        return self._answers[self.passed - 1]

    def result(self, call_id: str) -> Entry | None:
        """Return the recorded result of a call of the last repeated answer."""
        return self._results[self.passed - 1].get(call_id) if self.passed else None

    def leave(self, log: Log) -> None:
        """Move from the last repeated step to the session's leaf, to write there."""
        if not self.is_left:
            self.is_left = True
            log.refresh()

    def repeat(self, log: Log, drafts: Sequence[Draft]) -> Committed | None:
        """Return the notes and settings of the drafts as recorded; None if the drafts are to be written.

        New notes and settings are written after the last recorded step. A changed draft, such as a note of
        the time, is not written before a recorded step.
        """
        if any(isinstance(draft.payload, Message) for draft in drafts):
            return None
        payloads = build_entries(
            log.cursor, drafts, log.runtime.now(), redactor=log.runtime.redactor
        ).payloads
        is_followed, between = self._between_steps(log.leaf.seq)
        for payload in payloads:
            same = [
                entry for entry in between if entry.payload == payload and entry.seq not in self._repeated
            ]
            if same:
                self._repeated.add(same[0].seq)
                if same[0].seq > log.leaf.seq:
                    log.seek(Leaf(same[0].branch, same[0].seq))
            elif not is_followed and self._is_open:
                self.leave(log)
                return None
        return Committed(log.leaf, payloads, (), is_repeat=True)

    def _between_steps(self, position: int) -> tuple[bool, list[Entry]]:
        """Return the entries between the messages around a position, and whether a message follows."""
        between: list[Entry] = []
        for entry in self._entries:
            if entry.message is None:
                between.append(entry)
            elif entry.seq > position:
                return True, between
            else:
                between = []
        return False, between
