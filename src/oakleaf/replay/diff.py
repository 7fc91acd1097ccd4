"""The difference between two paths, turn by turn: text, tools, results and cost.

Equal entry ids are equal histories: the shared part is known without a read. After the shared part values are
compared. Turns are aligned by inputs, so one more turn does not change all later turns, and results by call
order. Two paths are the same if inputs, answers, calls, results and state are equal. Prompt, model and tools
are listed in `setup` and are not a difference of behaviour. Knows paths and ledgers; does not know how a
replay is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from oakleaf.core.codec import to_json
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.tree import Leaf
from oakleaf.core.turn_comparison import DiffRow, Divergence, align, heaviest_kind
from oakleaf.core.turn_reader import TurnView, message_text, read_turns
from oakleaf.core.usage import Totals, add
from oakleaf.errors import InvalidArgument
from oakleaf.log.log import Log
from oakleaf.replay.compared_path import (
    ComparedPath,
    PathSide,
    first_unshared_turn,
    is_state_same,
    shared_seq,
)

if TYPE_CHECKING:
    from oakleaf.session import Session

    DiffTarget: TypeAlias = Session | tuple[Session, int | Leaf]


class DiffSide(Struct, frozen=True):
    session_id: str
    seq: int
    models: tuple[str, ...] = ()
    """The models of the answers after the shared part."""
    totals: Totals = Totals()
    """The cost of the turns of `rows`."""
    incomplete: str | None = None
    """Why a replay has unanswered inputs. A comparison with such a replay tells nothing."""


class SetupChange(Struct, frozen=True):
    """A difference around the turns: prompt, model, an option of a call, tools or limits."""

    name: str
    a: str
    b: str


class Diff(Struct, frozen=True):
    """The difference between two sessions or branches, turn by turn: iterates over the rows."""

    a: DiffSide
    b: DiffSide
    shared: int
    """The number of entries with equal ids; `rows` holds no whole turn of the shared part."""
    rows: tuple[DiffRow, ...] = ()
    setup: tuple[SetupChange, ...] = ()
    is_state_same: bool = True

    def __iter__(self) -> Iterator[DiffRow]:
        return iter(self.rows)

    @property
    def is_same(self) -> bool:
        return self.is_state_same and all(row.kind == "same" for row in self.rows)

    @property
    def incomplete(self) -> str | None:
        """Why the comparison tells nothing: one side is a replay with unanswered inputs."""
        return self.a.incomplete or self.b.incomplete

    @property
    def first_divergence(self) -> Divergence | None:
        """The first divergence, even in a single word."""
        return next((divergence for row in self.rows for divergence in row.differences), None)

    @property
    def first_action_divergence(self) -> Divergence | None:
        """The first divergence beyond wording."""
        divergences = (divergence for row in self.rows for divergence in row.differences)
        return next((divergence for divergence in divergences if divergence.kind != "reworded"), None)

    def lines(self) -> list[str]:
        from oakleaf.replay.report_text import diff_lines

        return diff_lines(self)

    def markdown(self) -> str:
        from oakleaf.replay.report_text import diff_markdown

        return diff_markdown(self)


def diff(a: DiffTarget, b: DiffTarget) -> Diff:
    """Compare two sessions at their leaves, or at any entries: `(session, seq)`, `(session, Leaf(branch, seq))`."""
    return compare(compared_path(a), compared_path(b))


def compared_path(target: DiffTarget) -> PathSide:
    """Return the path of a target of a comparison."""
    is_pair = isinstance(target, tuple) and len(target) == 2
    session, at = target if is_pair else (target, getattr(target, "leaf", None))  # type: ignore[misc]
    log = getattr(session, "log", None)
    if not isinstance(log, Log) or not (type(at) is int or isinstance(at, Leaf)):
        raise InvalidArgument(
            "diff target", target, "a session, (session, seq) or (session, Leaf(branch, seq))"
        )
    leaf = log.leaf_at(at) if isinstance(at, int) else at
    log.store.path(log.session_id, leaf=leaf, newest=1)  # InvalidPosition for a leaf of another session
    return PathSide(log, leaf)


def compare(a: PathSide, b: PathSide, *, after: int | None = None) -> Diff:
    """Compare two paths. With `after`, turns after that seq are in `rows` even if their ids are equal."""
    shared = shared_seq(a, b)
    start = first_unshared_turn(a, b, shared if after is None else min(after, shared))
    path_a, path_b = (side.compared(side.read(start, side.leaf.seq)) for side in (a, b))
    turns_a, turns_b = read_turns(path_a.path), read_turns(path_b.path)
    rows = tuple(compared_row(*aligned, path_a, path_b) for aligned in align(turns_a, turns_b))
    return Diff(
        compared_side(path_a, turns_a, [row.a for row in rows]),
        compared_side(path_b, turns_b, [row.b for row in rows]),
        shared,
        rows,
        compare_setup(path_a, path_b),
        is_state_same((a, b), shared) is not False,
    )


def compared_row(
    turn_a: TurnView | None,
    turn_b: TurnView | None,
    divergences: Sequence[Divergence],
    a: ComparedPath,
    b: ComparedPath,
) -> DiffRow:
    turn = turn_a or turn_b
    assert turn is not None
    return DiffRow(
        heaviest_kind(divergences),
        message_text(turn.input),
        None if turn_a is None else turn_a.turn,
        None if turn_b is None else turn_b.turn,
        None if turn_a is None else a.turn_number(turn_a.turn),
        None if turn_b is None else b.turn_number(turn_b.turn),
        tuple(divergences),
        Totals() if turn_a is None else a.costs.get(turn_a.turn, Totals()),
        Totals() if turn_b is None else b.costs.get(turn_b.turn, Totals()),
    )


def compared_side(compared: ComparedPath, turns: Sequence[TurnView], costs: Sequence[Totals]) -> DiffSide:
    models = dict.fromkeys(step.model for turn in turns for step in turn.steps if step.model)
    spent = reduce(add, costs, Totals())
    return DiffSide(compared.session_id, compared.seq, tuple(models), spent, compared.incomplete)


def compare_setup(a: ComparedPath, b: ComparedPath) -> tuple[SetupChange, ...]:
    """Return the differences around the turns."""
    context_a, context_b = a.frame, b.frame
    pairs = [
        ("prompt", "\n\n".join(context_a.system), "\n\n".join(context_b.system)),
        ("model", *_models((context_a.settings.model, context_b.settings.model), (a.models, b.models))),
        *_options(context_a.settings.options or {}, context_b.settings.options or {}),
        ("tools", ", ".join(context_a.settings.tools or ()), ", ".join(context_b.settings.tools or ())),
        *_definitions(a.tools, b.tools),
        ("limits", str(context_a.settings.limits or ""), str(context_b.settings.limits or "")),
        (
            "max_messages",
            str(context_a.settings.max_messages or ""),
            str(context_b.settings.max_messages or ""),
        ),
    ]
    return tuple(SetupChange(name, x, y) for name, x, y in pairs if x != y)


def _options(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return every option with the value on both sides.

    An option absent on one side has the provider's default there.
    """
    names = sorted({*a, *b})
    return [(name, _option_text(a.get(name)), _option_text(b.get(name))) for name in names]


def _definitions(
    a: Sequence[ToolSpec] | None, b: Sequence[ToolSpec] | None
) -> Iterator[tuple[str, str, str]]:
    """Yield both sides' definitions of each tool; nothing if one side recorded no definitions."""
    if a is None or b is None:
        return
    specs_a, specs_b = {spec.name: spec for spec in a}, {spec.name: spec for spec in b}
    for name in sorted({*specs_a, *specs_b}):
        one, other = specs_a.get(name), specs_b.get(name)
        if one is None or other is None:
            yield f"tool {name}", "" if one is None else "defined", "" if other is None else "defined"
            continue
        yield f"tool {name}, description", one.description, other.description
        parameters = [to_json(spec.parameters, "parameters").decode() for spec in (one, other)]
        yield f"tool {name}, parameters", parameters[0], parameters[1]


def _option_text(value: object) -> str:
    if value is None:
        return "(default)"
    return value if isinstance(value, str) else to_json(value, "option").decode()


def _models(names: tuple[str | None, str | None], answered: tuple[Sequence[str], Sequence[str]]) -> list[str]:
    """Return the models of the settings. For a side without a model, return the models of the answers."""
    if not any(names):
        return ["", ""]
    return [name or ", ".join(models) for name, models in zip(names, answered, strict=True)]
