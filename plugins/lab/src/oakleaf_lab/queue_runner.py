"""Give the cells of a run to the workers of a queue, and wait for them.

Each cell is a task. What a worker needs is stored: the plan in the run's session, limit and judge in `RunControl`. Scorers are
functions of this process, so they are applied here as cells land. If the command is killed the workers continue; if it is
interrupted they finish the calls in flight and stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from oakleaf.ext import read_store
from oakleaf.stores.tasks import TaskQueue, TaskState, task_queue
from oakleaf_lab.cell_work import CellWork
from oakleaf_lab.control import JudgeSpec, RunControl, Start
from oakleaf_lab.experiment import Cell
from oakleaf_lab.record import LabRecord
from oakleaf_lab.runner import Progress, Runner
from oakleaf_lab.scorers import Judge

TASK = "oakleaf-lab-cell"
ATTEMPTS = 20
RETRY: dict[str, Any] = {"kind": "exponential", "base_seconds": 0.5, "factor": 2.0, "max_seconds": 10.0}
POLL_SECONDS = 0.3
TASK_POLL_SECONDS = 2.0
IDLE_SECONDS = 10.0
"""After which the command says that no worker has taken a cell."""

Notify = Callable[[str], None]


def task_key(run_id: str, number: int, cell: Cell) -> str:
    return f"{run_id}/{number}/{cell.key}"


def stop_workers(record: LabRecord) -> RunControl:
    """Let workers of an earlier command finish the running calls, and wait for the stop."""
    control = RunControl.create(record.store, record.run_id)
    start = control.start
    control.begin()
    if start is not None:
        keys = [task_key(record.run_id, start.number, cell) for cell in record.plan.cells()]
        queue = task_queue(record.store, start.queue)
        while any(each.is_claimed for each in queue.states(keys).values()):
            time.sleep(POLL_SECONDS)
    record.update()
    return control


class QueueRunner(Runner):
    """Runs the cells on the workers of a queue."""

    def __init__(
        self,
        record: LabRecord,
        work: CellWork,
        progress: Progress | None,
        queue: TaskQueue,
        limit: int | None,
        judge: Judge | None,
        judge_spec: JudgeSpec | None,
        cost: Callable[[], int],
        notify: Notify,
    ) -> None:
        super().__init__(record, work, progress)
        self._queue = queue
        self._limit, self._judge, self._judge_spec = limit, judge, judge_spec
        self._cost, self._notify = cost, notify
        self._cells = list(record.plan.cells())
        self._notices: set[str] = set()
        self._is_taken = False
        """Whether a worker has taken a cell."""

    def is_needed(self) -> bool:
        return not all(map(self._is_finished, self._cells))

    def _is_replayed(self, cell: Cell) -> bool:
        """Whether the workers have nothing left to do for a cell."""
        is_judged = self._judge is None or self.record.has(self._judge.key(cell))
        return cell in self.record.cells and is_judged

    def _is_finished(self, cell: Cell) -> bool:
        return self._is_replayed(cell) and self.work.is_finished(cell)

    def prepare(self) -> None:
        self._control = stop_workers(self.record)

    async def run_cells(self) -> None:
        pending = [cell for cell in self._cells if not self._is_replayed(cell)]
        number = self._control.number
        try:
            if pending:
                await asyncio.to_thread(self._spawn, number, pending)
            await self._wait(number, pending)
        except asyncio.CancelledError:
            self._notify("stopping: the workers finish their calls in flight first")
            await asyncio.to_thread(self._stop, number, pending)
            raise

    def _spawn(self, number: int, cells: Iterable[Cell]) -> None:
        start = Start(number, self._queue.queue, self._limit, self._cost(), self._judge_spec)
        self._control.open(start)
        params = {
            task_key(self.record.run_id, number, cell): {
                "session": self.record.run_id,
                "space": read_store(self.record.store).space,
                "number": number,
                "cell": msgspec.to_builtins(cell),
            }
            for cell in cells
        }
        self._queue.spawn(TASK, params, attempts=ATTEMPTS, retry=RETRY)

    def _stop(self, number: int, cells: Iterable[Cell]) -> None:
        """Ask the workers to stop, wait for the answers in flight, and read the stored results."""
        self._control.stop(number, None)
        while any(each.is_claimed for each in self._states(number, cells).values()):
            time.sleep(POLL_SECONDS)
        self.record.update()

    async def _wait(self, number: int, pending: list[Cell]) -> None:
        started = checked = time.monotonic()
        while True:
            states: dict[str, TaskState] | None = None
            if time.monotonic() - checked >= TASK_POLL_SECONDS:
                states = await asyncio.to_thread(self._states, number, pending)
                checked = time.monotonic()
            await self._score_results()
            if not self.is_needed():
                return
            # What ended tasks have stored was read after they had ended.
            if states is not None and await self._is_over(number, pending, states):
                return
            if states is not None:
                self._report_delays(states.values(), checked - started)
            await asyncio.sleep(POLL_SECONDS)

    async def _score_results(self) -> None:
        """Read and score the workers' stored results."""
        await asyncio.to_thread(self.record.update)
        for cell in self._cells:
            if self._is_replayed(cell) and not self.work.is_finished(cell):
                await self.work.finish(cell)
        self._report_progress()

    async def _is_over(self, number: int, pending: list[Cell], states: Mapping[str, TaskState]) -> bool:
        """Return whether nothing more will come, though cells are missing; then `why` says why."""
        await asyncio.to_thread(self._control.update)
        if self._control.is_over(number):
            await asyncio.to_thread(self._stop, number, pending)
            await self._score_results()
            self.why = self._control.why or "another command stopped it"
        elif all(each.has_ended for each in states.values()):
            reasons = [each.failure for each in states.values() if each.state == "failed" and each.failure]
            self.why = reasons[0] if reasons else "its tasks were cancelled"
        return self.why is not None

    def _report_delays(self, states: Collection[TaskState], seconds: float) -> None:
        """Say, once each, the reasons for the run's wait."""
        self._is_taken = self._is_taken or any(each.state != "pending" for each in states)
        if not self._is_taken and seconds > IDLE_SECONDS:
            self._say(
                f"no worker has taken a cell yet; start one: oakleaf worker --agents FILE.py --queue {self._queue.queue}"
            )
        for each in states:
            if each.failure is not None and not each.has_ended:
                self._say(f"a cell failed and is tried again: {each.failure}")

    def _states(self, number: int, cells: Iterable[Cell]) -> dict[str, TaskState]:
        return self._queue.states(task_key(self.record.run_id, number, cell) for cell in cells)

    def _report_progress(self) -> None:
        done = [cell for cell in self._cells if self._is_finished(cell)]
        spent = sum(self.record.cells[cell].usage.cost_microcents for cell in done if cell.lane != "observed")
        self.show_progress(len(done), spent)

    def _say(self, text: str) -> None:
        if text not in self._notices:
            self._notices.add(text)
            self._notify(text)
