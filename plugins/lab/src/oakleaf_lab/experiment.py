"""The values of a lab run: what is changed, the lanes and cells, the plan, and the result of each cell.

    Experiment   what was asked for: cohort, change, mode, number of repetitions
    Plan         the experiment with its sessions, as they were when it was planned
    Cell         one replay: a session in one lane, for the n-th time
    CellResult   what its turns did and cost

Values only: they are stored in the notes of the run's session as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.turn_comparison import Divergence
from oakleaf.core.usage import Totals
from oakleaf_lab.cohort import Cohort

Lane = Literal["observed", "baseline", "candidate"]
LANES: tuple[Lane, ...] = get_args(Lane)
LabMode = Literal["strict", "recorded", "dry"]
AfterDivergence = Literal["stop", "continue"]
TurnClass = Literal["same", "reworded", "arguments changed", "tool changed", "missing", "failed"]
TURN_CLASSES: tuple[TurnClass, ...] = get_args(TurnClass)

_sorted = msgspec.json.Encoder(order="deterministic")


class CandidateChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The candidate's difference from the recorded setup."""

    model: str | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    options: Mapping[str, Any] | None = None
    tools: tuple[str, ...] | None = None
    """The names of its tools; `tools_hash` covers their definitions."""
    tools_hash: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == CandidateChange()


class Experiment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The full input of a run's replays. Two runs of the same experiment are interchangeable."""

    cohort: tuple[str, ...]
    sample: int | None = None
    seed: int = 0
    change: CandidateChange = CandidateChange()
    baseline_model: str | None = None
    """The model of the baseline; None: the one that each session ran with."""
    baseline_tools: tuple[str, ...] | None = None
    baseline_tools_hash: str | None = None
    mode: LabMode = "recorded"
    """Of a `Lab` with tools `dry` by default."""
    repeat: int = 1
    after_divergence: AfterDivergence = "stop"
    number: int = 1
    """The n-th run of an otherwise equal experiment, if it was to be repeated."""

    @property
    def digest(self) -> str:
        """The same for all runs of an experiment."""
        return digest(replace(self, number=1))


class LabPlan(Struct, frozen=True):
    """An experiment and the sessions."""

    experiment: Experiment
    cohort: Cohort

    @property
    def run_id(self) -> str:
        """The id of the run's session: equal plans are one run."""
        leaves = [
            [source.session_id, list(msgspec.structs.astuple(source.leaf))] for source in self.cohort.sources
        ]
        return f"lab_{digest([self.experiment, leaves])[:20]}"

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, session by session: a run stopped early has whole sessions."""
        for source in self.cohort.sources:
            yield Cell(source.session_id, "observed", 0)
            for number in range(1, self.experiment.repeat + 1):
                yield Cell(source.session_id, "baseline", number)
                yield Cell(source.session_id, "candidate", number)


class Cell(Struct, frozen=True, order=True):
    """A replay of a session in a lane."""

    source: str
    lane: Lane
    number: int
    """The repetition, from 1; 0 for what was observed."""

    @property
    def key(self) -> str:
        """The key of the stored result."""
        return f"cell:{digest(self)[:20]}"

    def replay_id(self, run_id: str) -> str:
        """Return the id of the session with the replay: the same each time, for finding the replay again."""
        return f"ses_{digest([run_id, self])[:20]}"


class TurnResult(Struct, frozen=True, omit_defaults=True):
    """A cell's record of a turn of the recording."""

    turn: int
    """The seq of the turn's input in the recording."""
    kind: TurnClass
    replay_turn: int | None = None
    """The seq of its input in the replay."""
    usage: Totals = Totals()
    milliseconds: int = 0
    is_cut: bool = False
    """Whether it ended at a call that the recording could not answer: what it cost and said is not the whole."""
    divergence: Divergence | None = None
    """The most important difference from the recording."""
    input: str = ""
    """The beginning of the input, in what was observed."""
    calls: tuple[str, ...] = ()
    """The names of the tools that it called, each once."""


class CellResult(Struct, frozen=True, omit_defaults=True):
    """The outcome of a cell. Turns that it did not reach are not in it."""

    cell: Cell
    replay: str | None = None
    """The session that holds the replay; None for what was observed."""
    turns: tuple[TurnResult, ...] = ()
    usage: Totals = Totals()
    stop_reason: str | None = None
    """Why it ended before the last turn."""
    error: str | None = None
    """Why it could not be replayed at all."""


def digest(value: object) -> str:
    """Return a hash of a value's JSON, the same in every process."""
    return sha256(_sorted.encode(value)).hexdigest()
