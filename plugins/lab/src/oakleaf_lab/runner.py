"""Carry out the cells of a run that are not done, in this process, several at a time.

`Runner` is what every way of running has: the run's lease, so that one command runs it at a time, and its end.
`queue_runner` gives the cells to workers instead.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from oakleaf.errors import ModelUnavailable, SessionRunning
from oakleaf_lab.budget import CostBudget, RunStopping
from oakleaf_lab.cell import ModelUnreachable
from oakleaf_lab.cell_work import CellWork
from oakleaf_lab.control import RunControl
from oakleaf_lab.errors import BudgetReached, LabRunning
from oakleaf_lab.experiment import Cell
from oakleaf_lab.record import LabRecord

Progress = Callable[[int, int, int], None]
"""Called with the number of cells done, of all cells, and what was spent in microcents."""


class Runner(ABC):
    """Runs the unfinished part of a run."""

    def __init__(self, record: LabRecord, work: CellWork, progress: Progress | None) -> None:
        self.record, self.work, self._progress = record, work, progress
        self.total = len(list(record.plan.cells()))
        self.why: str | None = None
        """Why the run stopped before its end."""

    async def run(self) -> None:
        notebook = self.record.notebook
        row = (await asyncio.to_thread(self.record.store.session, self.record.run_id)).row
        if row.status == "completed" and not self.is_needed():
            return
        try:
            await asyncio.to_thread(notebook.take)
        except SessionRunning as running:
            raise LabRunning(self.record.run_id, running.holder) from None
        try:
            await asyncio.to_thread(self.prepare)
            await self.run_cells()
            await asyncio.to_thread(self.record.finish, is_complete=self.record.is_complete, why=self.why)
        finally:
            await asyncio.to_thread(notebook.release)

    @abstractmethod
    def is_needed(self) -> bool:
        """Return whether anything is left to do."""

    @abstractmethod
    def prepare(self) -> None:
        """Stop the workers of an earlier command, and read the amount spent."""

    @abstractmethod
    async def run_cells(self) -> None:
        """Run the remaining cells. Cancelled, it stores the answers in flight first."""

    def show_progress(self, done: int, spent: int) -> None:
        if self._progress is not None:
            self._progress(done, self.total, spent)


class LocalRunner(Runner):
    """Runs the cells in the own process."""

    def __init__(
        self,
        record: LabRecord,
        work: CellWork,
        progress: Progress | None,
        budget: CostBudget,
        cost: Callable[[], int],
        workers: int,
    ) -> None:
        super().__init__(record, work, progress)
        self._budget, self._cost, self._workers = budget, cost, workers
        self._done = 0

    def is_needed(self) -> bool:
        return bool(self.work.unfinished(self.record.plan.cells()))

    def prepare(self) -> None:
        if RunControl.find(self.record.store, self.record.run_id) is not None:
            from oakleaf_lab.queue_runner import stop_workers  # imported late: needs the engine's packages

            stop_workers(self.record)
        self._budget.spent = self._cost()

    async def run_cells(self) -> None:
        cells = self.work.unfinished(self.record.plan.cells())
        self._done = self.total - len(cells)
        pending = iter(cells)
        count = min(self._workers, len(cells))
        tasks = [asyncio.create_task(self._work(pending)) for _ in range(count)]
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Cancelled, or one failed. The calls in flight are paid for: wait until their answers are stored.
            self._budget.is_stopping = True
            await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _work(self, pending: Iterable[Cell]) -> None:
        for cell in pending:
            if self._budget.is_stopping:
                return
            try:
                await self.work.finish(cell)
            except RunStopping:
                return
            except BudgetReached as reached:
                self._stop(reached.command_text)
                return
            except (ModelUnreachable, ModelUnavailable) as unreachable:
                self._stop(str(unreachable))
                return
            self._done += 1
            self.show_progress(self._done, self._budget.spent)

    def _stop(self, why: str) -> None:
        self._budget.is_stopping = True
        self.why = self.why or why
