"""A stored lab run of any size, written at once: what its cells did is drawn from a seed, no replay runs."""

from __future__ import annotations

import random

import msgspec

from oakleaf import Leaf, Note, Store
from oakleaf.core.turn_comparison import Divergence
from oakleaf.core.usage import Totals
from oakleaf_lab.cohort import Cohort, CohortSession
from oakleaf_lab.experiment import (
    CandidateChange,
    Cell,
    CellResult,
    Experiment,
    LabPlan,
    TurnClass,
    TurnResult,
)
from oakleaf_lab.record import LabRecord

HOSTILE = '</script><img src=x onerror="window.hacked=1">'


def write_run(store: Store, sessions: int, *, turns: int = 4, heading: str = "case", cut: int = 0) -> str:
    """Store a run of that many sessions and return its id. Of its last `cut` sessions nothing is done yet."""
    sources = tuple(_source(number, heading) for number in range(sessions))
    experiment = Experiment(cohort=("agent:support",), change=CandidateChange(prompt="Be brief."))
    plan = LabPlan(experiment, Cohort(sources, (), sessions))
    record = LabRecord.create(store, plan.run_id, plan)
    done = list(plan.cells())[: 3 * (sessions - cut)]
    cells = ({"cell": msgspec.to_builtins(_result(cell, turns))} for cell in done)
    store.session(plan.run_id).append([Note(cell, hidden=True) for cell in cells])
    record.finish(is_complete=not cut, why="it was interrupted" if cut else None)
    return record.run_id


def _source(number: int, heading: str) -> CohortSession:
    return CohortSession(
        session_id=f"ses_case_{number:04d}",
        leaf=Leaf(1, 10),
        heading=f"{heading} {number}",
        model="m",
        turns=4,
        calls=8,
        usage=Totals(),
        longest_request=10,
        longest_answer=10,
    )


def _result(cell: Cell, turns: int) -> CellResult:
    draw = random.Random(f"{cell.source} {cell.lane}")
    replay = None if cell.lane == "observed" else f"ses_{cell.lane}_{cell.source}"
    return CellResult(cell, replay, tuple(_turn(cell, 3 + 4 * n, draw) for n in range(turns)))


def _turn(cell: Cell, turn: int, draw: random.Random) -> TurnResult:
    usage = Totals(1, 100, 20, 0, 0, draw.randrange(100_000, 900_000))
    milliseconds = draw.randrange(200, 4_000)
    if cell.lane == "observed":
        return TurnResult(turn, "same", None, usage, milliseconds, input=f"Where is order {turn}? {HOSTILE}")
    weights = [80, 10, 3, 7, 0, 0] if cell.lane == "baseline" else [55, 12, 8, 21, 2, 2]
    kinds: list[TurnClass] = ["same", "reworded", "arguments changed", "tool changed", "missing", "failed"]
    (kind,) = draw.choices(kinds, weights)
    divergence = None
    if kind not in ("same", "failed"):
        divergence = Divergence(kind, "answer", f"It is lost. {HOSTILE}", "It was lost.")
    return TurnResult(turn, kind, turn, usage, milliseconds, divergence=divergence)
