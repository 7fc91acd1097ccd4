"""The session that holds a lab run: its plan, its gates, the result of each cell and the scores, as notes.

A run is a session of its own with relation `replay`, so that no list of conversations shows it and nothing continues it. Its
first entry is the plan; each finished cell adds one note, under a key that names the cell, so that a cell is stored once
however often it is run. What a killed run has stored is all that the next one needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from threading import Lock
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Session, Store
from oakleaf.core.entries import Entry, Note
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Call
from oakleaf.errors import NotFound
from oakleaf.ext import notebook, read
from oakleaf.stores.base import SessionRow
from oakleaf_lab.cohort import AGENT, create_lab_session
from oakleaf_lab.experiment import Cell, CellResult, LabPlan

RUN_PREFIX = "lab_"
FORMAT = 1


class Score(Struct, frozen=True, omit_defaults=True):
    """A scorer's judgement of a cell."""

    scorer: str
    version: str
    """A hash of the scorer: a changed one scores again."""
    cell: Cell
    turn: int | None = None
    """The seq of the turn's input in the recording; None for a score of the whole session."""
    value: float | None = None
    error: str | None = None
    """Why it has no value."""


_to_plan, _to_cell_result = converter(LabPlan), converter(CellResult)
_to_scores = converter(list[Score])


class LabRecord:
    """A stored lab run. Safe to use from several threads."""

    def __init__(self, store: Store, session: Session) -> None:
        self.store, self.notebook = store, notebook(session)
        self._lock = Lock()
        self.cells: dict[Cell, CellResult] = {}
        self.gates: tuple[str, ...] = ()
        """Those that were checked last."""
        self.scores: dict[tuple[str, str, Cell, int | None], Score] = {}
        self._plan: LabPlan | None = None
        self._keys: set[str] = set()
        self.update()
        self.plan = self._stored_plan()

    def update(self) -> None:
        """Read the records since, from any process."""
        with self._lock:
            for data in self.notebook.read():
                self._read(data)

    def _stored_plan(self) -> LabPlan:
        if self._plan is None:
            raise NotFound(self.run_id)
        return self._plan

    def _read(self, data: dict[str, Any]) -> None:
        if "key" in data:
            self._keys.add(data["key"])
        if "plan" in data:
            self._plan = _to_plan(data["plan"])
        elif "cell" in data:
            result = _to_cell_result(data["cell"])
            self.cells[result.cell] = result
        elif "gates" in data:
            self.gates = tuple(data["gates"])
        elif "scores" in data:
            for score in _to_scores(data["scores"]):
                self.scores[score.scorer, score.version, score.cell, score.turn] = score

    @property
    def run_id(self) -> str:
        return self.notebook.session_id

    @property
    def is_complete(self) -> bool:
        """Whether every cell has a result."""
        return all(cell in self.cells for cell in self.plan.cells())

    @classmethod
    def create(cls, store: Store, run_id: str, plan: LabPlan) -> LabRecord:
        """Store the plan; return a run already stored unchanged."""
        with suppress(NotFound):
            return cls.load(store, run_id)
        data = {"lab": FORMAT, "plan": msgspec.to_builtins(plan)}
        experiment = plan.experiment
        title = f"lab {' '.join(experiment.cohort)}"[:200]
        notes = [Note(data, hidden=True)]
        tags = {"experiment": experiment.digest}
        return cls(store, create_lab_session(store, run_id, title, notes, tags))

    @classmethod
    def load(cls, store: Store, run_id: str) -> LabRecord:
        return cls(store, store.session(run_id))

    def add_cell(self, result: CellResult) -> None:
        self._append({"cell": msgspec.to_builtins(result)}, result.cell.key)

    def add_gates(self, gates: Sequence[str]) -> None:
        """Add new gates of a run to the store; a later report shows the outcomes."""
        if gates and tuple(gates) != self.gates:
            self._append({"gates": list(gates)}, None)

    def add_scores(self, scores: Sequence[Score], key: str, call: Call | None = None) -> None:
        """Add scores, with the model call behind the scores, in one commit."""
        self._append({"scores": msgspec.to_builtins(list(scores))}, key, call)

    def has(self, key: str) -> bool:
        """Whether the record holds the key."""
        return key in self._keys

    def finish(self, *, is_complete: bool, why: str | None) -> None:
        self.notebook.end("completed" if is_complete else "interrupted", why)

    def _append(self, data: dict[str, Any], key: str | None, call: Call | None = None) -> None:
        """Store the data, and keep the form a later process reads."""
        named = data if key is None else {**data, "key": key}
        with self._lock:
            self._read(self.notebook.add(named, key=key, call=call))


def find_run(store: Store, experiment_digest: str) -> LabRecord | None:
    """Return the newest unfinished run of an experiment."""
    rows = store.all_sessions(relation="replay", agent=AGENT, tag=("experiment", experiment_digest))
    row = next((row for row in rows if row.status != "completed"), None)
    return None if row is None else LabRecord.load(store, row.session_id)


def runs(store: Store) -> list[SessionRow]:
    """Return the rows of all lab runs, newest first."""
    return list(_run_rows(store))


def _run_rows(store: Store, *, trashed: bool = False) -> Iterator[SessionRow]:
    return store.all_sessions(relation="replay", agent=AGENT, id_prefix=RUN_PREFIX, trashed=trashed)


def runs_that_quote(store: Store, session_ids: Set[str]) -> Iterator[SessionRow]:
    """Yield the lab runs of the sessions, the trash included: a run stores quotes of inputs and answers."""
    for trashed in (False, True):
        for row in _run_rows(store, trashed=trashed):
            notes = _notes(read(store.session(row.session_id)).entries(last=1))
            plans = (_to_plan(data["plan"]) for data in notes if "plan" in data)
            if any(each.session_id in session_ids for plan in plans for each in plan.cohort.sources):
                yield row


def copy_without(store: Store, run_id: str, session_ids: Set[str]) -> str | None:
    """Store a run again without the cells of some sessions; return the new run's id, None without cells.

    A cell is stored under its key, so a copy that was cut off goes on.
    """
    old = LabRecord.load(store, run_id)
    sources = [one for one in old.plan.cohort.sources if one.session_id not in session_ids]
    if not sources:
        return None
    plan = replace(old.plan, cohort=replace(old.plan.cohort, sources=type(old.plan.cohort.sources)(sources)))
    new = LabRecord.create(store, plan.run_id, plan)
    for cell, result in old.cells.items():
        if cell.source not in session_ids:
            new.add_cell(result)
    scores = [score for score in old.scores.values() if score.cell.source not in session_ids]
    new.add_scores(scores, f"kept:{run_id}")
    new.add_gates(old.gates)
    if new.is_complete:
        new.finish(is_complete=True, why=None)
    return new.run_id


class RunSummary(Struct, frozen=True, kw_only=True):
    """A row in the list of runs."""

    run_id: str
    title: str | None
    status: Literal["complete", "incomplete"]
    started_at: int


def run_summary(row: SessionRow) -> RunSummary:
    return RunSummary(
        run_id=row.session_id,
        title=row.title,
        status="complete" if row.status == "completed" else "incomplete",
        started_at=row.started_at,
    )


def _notes(path: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    return (entry.payload.data for entry in path if isinstance(entry.payload, Note))
