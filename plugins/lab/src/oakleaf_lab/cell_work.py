"""Replay and score the cells of a run, one at a time, and store each result as it lands.

The same work is done by `Lab.run` in its own process and by the workers of a queue (`worker_task`). Does not know which cells
are to be done, nor who else does some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from oakleaf import Session, Store
from oakleaf.errors import ClaimLost, Fenced, ModelUnavailable, OakleafError, SessionRunning, StoreError
from oakleaf.ext import CallMeter, read_store, session_at
from oakleaf_lab.cell import CellSetup, observe, run_cell
from oakleaf_lab.errors import BudgetReached, InvalidLab
from oakleaf_lab.experiment import Cell, CellResult
from oakleaf_lab.record import LabRecord
from oakleaf_lab.scorers import (
    Judge,
    JudgeCaller,
    ScoredSession,
    Scorer,
    apply_scorer,
    score_key,
    scored_session,
)

ENDS_THE_RUN = (StoreError, SessionRunning, Fenced, ClaimLost, BudgetReached, ModelUnavailable, InvalidLab)
"""Errors that are no property of the session which is replayed."""


class CellWork:
    """Replays and scores the cells of one run."""

    def __init__(
        self,
        store: Store,
        setup: CellSetup,
        record: LabRecord,
        budget: CallMeter,
        scorers: Sequence[Scorer] = (),
        judge: Judge | None = None,
    ) -> None:
        self._store, self._setup = store, setup
        self._record, self._budget = record, budget
        self._scorers, self._judge = scorers, judge
        self._judge_caller = None if judge is None else JudgeCaller(judge, record, budget)

    def is_finished(self, cell: Cell) -> bool:
        """Whether the result and all scores are stored."""
        return cell in self._record.cells and not self._is_unscored(cell)

    def unfinished(self, cells: Iterable[Cell]) -> list[Cell]:
        return [cell for cell in cells if not self.is_finished(cell)]

    async def finish(self, cell: Cell) -> None:
        """Replay a cell and score the cell, as far as not done."""
        result = self._record.cells.get(cell)
        if result is None:
            try:
                result = await self._replay(cell)
            except ENDS_THE_RUN:
                raise
            except OakleafError as error:  # this session cannot be replayed so; the others can
                result = CellResult(cell, error=str(error))
            await asyncio.to_thread(self._record.add_cell, result)
        if self._is_unscored(cell):
            await self._score(cell, result)

    async def _replay(self, cell: Cell) -> CellResult:
        source = await asyncio.to_thread(self._source, cell.source)
        return await run_cell(cell, source, self._record.run_id, self._setup, self._budget)

    def _is_unscored(self, cell: Cell) -> bool:
        keys = [score_key(each.name, each.version, cell) for each in self._scorers]
        keys += [] if self._judge is None else [self._judge.key(cell)]
        return not all(map(self._record.has, keys))

    async def _score(self, cell: Cell, result: CellResult) -> None:
        session = await asyncio.to_thread(self._scored_session, result)
        redact = read_store(self._store).redactor.redact_text
        for scorer in self._scorers:
            key = score_key(scorer.name, scorer.version, cell)
            if not self._record.has(key):
                scores = await apply_scorer(scorer, session, cell, redact)
                await asyncio.to_thread(self._record.add_scores, scores, key)
        if self._judge is not None and self._judge_caller is not None:
            for turn in session.turns:
                await self._judge_caller.score(turn, cell)
            await asyncio.to_thread(self._record.add_scores, (), self._judge.key(cell))

    def _scored_session(self, result: CellResult) -> ScoredSession:
        """Read a cell for the scorers, beside the observations."""
        cell = result.cell
        if result.error is not None:
            return ScoredSession(session_id=cell.source, lane=cell.lane, number=cell.number, turns=())
        source = self._source(cell.source)
        recorded = observe(Cell(cell.source, "observed", 0), source)
        observed = scored_session(recorded, source.path(), None)
        if cell.lane == "observed":
            return observed
        assert result.replay is not None
        replayed = self._store.session(result.replay).path()
        return scored_session(result, replayed, observed)

    def _source(self, session_id: str) -> Session:
        """Return a source, at the entry of the time of planning."""
        return session_at(self._store.session(session_id), self._setup.sources[session_id].leaf)
