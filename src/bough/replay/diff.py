"""What is different between two paths: where they part, turn by turn, in words, tools, results and money.

Ids find what they share (equal ids are equal histories); after it values are compared, turns aligned by their inputs
so that one more or one less does not make all that follow look changed, results in call order. The same means: the
same was asked, said, called and returned, and the state is the same. What differs around it (prompt, model, tools)
is told in `setup` and is no difference of behaviour. Knows paths and ledgers; does not know how a replay is made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ..core import context as contexts
from ..core.entries import Entry
from ..core.state import fold_state
from ..core.tree import Leaf
from ..core.usage import Totals, add, total
from ..errors import InvalidArgument
from ..log import ledger
from ..log.log import Log
from .turn_comparison import Divergence, Kind, align, heaviest
from .turn_reader import Read, read, told_message

if TYPE_CHECKING:
    from ..session import Session

    DiffTarget: TypeAlias = Session | tuple[Session, int | Leaf]


class DiffSide(Struct, frozen=True):
    session_id: str
    seq: int
    models: tuple[str, ...] = ()
    """Who answered after the shared part."""
    totals: Totals = Totals()
    """What the turns of the table cost."""


class SetupChange(Struct, frozen=True):
    """Something around the turns that differs: prompt, model, tools or limits."""

    name: str
    a: str
    b: str


class DiffRow(Struct, frozen=True):
    """One turn of the table."""

    kind: Kind
    input: str
    turn_a: int | None = None
    turn_b: int | None = None
    differences: tuple[Divergence, ...] = ()
    """In order; behind one that changes what is called, the rest of the turn is its consequence and not listed."""
    a: Totals = Totals()
    b: Totals = Totals()


class Diff(Struct, frozen=True):
    """What two sessions, or two branches, differ in, turn by turn."""

    a: DiffSide
    b: DiffSide
    shared: int
    """So many entries are the very same."""
    shared_turns: int
    """So many turns lie in them whole; they are not in the table."""
    rows: tuple[DiffRow, ...] = ()
    setup: tuple[SetupChange, ...] = ()
    is_state_same: bool = True

    @property
    def is_same(self) -> bool:
        return self.is_state_same and all(row.kind == "same" for row in self.rows)

    @property
    def first_divergence(self) -> Divergence | None:
        """The first divergence, be it one word."""
        return next((found for row in self.rows for found in row.differences), None)

    @property
    def first_action_divergence(self) -> Divergence | None:
        """The first divergence that is more than wording."""
        found = (found for row in self.rows for found in row.differences)
        return next((one for one in found if one.kind != "reworded"), None)

    def lines(self) -> list[str]:
        from .report_text import diff_lines

        return diff_lines(self)

    def markdown(self) -> str:
        from .report_text import diff_markdown

        return diff_markdown(self)


class ComparedPath(Struct, frozen=True):
    """One side as it was read: the path, and what each of its turns cost."""

    session_id: str
    path: Sequence[Entry]
    costs: Mapping[int, Totals]


def diff(a: DiffTarget, b: DiffTarget) -> Diff:
    """Compare two sessions at their leaves, or any two places: `(session, seq)`, `(session, Leaf(branch, seq))`."""
    return compare(_line(a), _line(b))


def _line(place: DiffTarget) -> ComparedPath:
    session, at = (
        place if isinstance(place, tuple) and len(place) == 2 else (place, getattr(place, "leaf", None))
    )
    log = getattr(session, "log", None)
    if not isinstance(log, Log) or not (type(at) is int or isinstance(at, Leaf)):
        raise InvalidArgument("a place", place, "a session, (session, seq) or (session, Leaf(branch, seq))")
    return read_compared_path(log, log.leaf_at(at) if isinstance(at, int) else at)


def read_compared_path(log: Log, leaf: Leaf) -> ComparedPath:
    row = log.store.session(log.session_id)
    there = log if leaf == log.leaf else Log(log.store, replace(row, leaf=leaf), log.runtime)
    path = there.path().entries
    return ComparedPath(log.session_id, path, ledger.by_turn(there, path))


def compare(a: ComparedPath, b: ComparedPath, *, kept: int | None = None) -> Diff:
    """With `kept` what comes behind that seq is in the table even if it came out the very same."""
    shared = shared_prefix(a.path, b.path)
    turns_a, turns_b = read(a.path), read(b.path)
    most = shared if kept is None else min(kept, shared)
    whole = _whole(turns_a, turns_b, most, len(a.path), len(b.path))
    rows = [_row(one, other, found, a, b) for one, other, found in align(turns_a[whole:], turns_b[whole:])]
    return Diff(
        _side(a, turns_a[whole:], [row.a for row in rows]),
        _side(b, turns_b[whole:], [row.b for row in rows]),
        shared,
        whole,
        tuple(rows),
        _setup(a.path, b.path),
        fold_state(a.path) == fold_state(b.path),
    )


def shared_prefix(a: Sequence[Entry], b: Sequence[Entry]) -> int:
    """How many entries are the same. An id holds all that came before it, so one look halves the question."""
    places = range(min(len(a), len(b)))
    return bisect_left(places, True, key=lambda n: a[n].entry_id != b[n].entry_id)


def _whole(a: Sequence[Read], b: Sequence[Read], shared: int, end_a: int, end_b: int) -> int:
    """How many turns lie in the shared part with all they hold on both sides."""
    if shared == end_a == end_b:
        return len(a)
    count = 0
    for one, other in zip(a, b, strict=False):
        if one.turn > shared or max(one.last, other.last) > shared:
            break
        count += 1
    return count


def _row(
    one: Read | None, other: Read | None, found: Sequence[Divergence], a: ComparedPath, b: ComparedPath
) -> DiffRow:
    asked = one or other
    assert asked is not None
    return DiffRow(
        heaviest(found),
        told_message(asked.input),
        None if one is None else one.turn,
        None if other is None else other.turn,
        tuple(found),
        Totals() if one is None else a.costs.get(one.turn, Totals()),
        Totals() if other is None else b.costs.get(other.turn, Totals()),
    )


def _side(line: ComparedPath, turns: Sequence[Read], costs: Sequence[Totals]) -> DiffSide:
    models = dict.fromkeys(step.model for turn in turns for step in turn.steps if step.model)
    spent = total([])
    for cost in costs:
        spent = add(spent, cost)
    return DiffSide(line.session_id, line.path[-1].seq if line.path else 0, tuple(models), spent)


def _setup(a: Sequence[Entry], b: Sequence[Entry]) -> tuple[SetupChange, ...]:
    one, other = contexts.build_context(a), contexts.build_context(b)
    pairs = [
        ("prompt", "\n\n".join(one.system), "\n\n".join(other.system)),
        ("model", *_models((one.settings.model, other.settings.model), (a, b))),
        ("tools", ", ".join(one.settings.tools or ()), ", ".join(other.settings.tools or ())),
        ("limits", str(one.settings.limits or ""), str(other.settings.limits or "")),
    ]
    return tuple(SetupChange(name, x, y) for name, x, y in pairs if x != y)


def _models(
    asked: tuple[str | None, str | None], paths: tuple[Sequence[Entry], Sequence[Entry]]
) -> list[str]:
    """What was asked for; where only one side says it, the other is told by who answered there."""
    if not any(asked):
        return ["", ""]
    answered = [", ".join(dict.fromkeys(entry.model for entry in path if entry.model)) for path in paths]
    return [name or others for name, others in zip(asked, answered, strict=True)]
