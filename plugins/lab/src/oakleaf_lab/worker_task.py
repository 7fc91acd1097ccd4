"""Run the cells of lab runs on a worker: a second kind of task beside a session's turn.

    Worker(url, agents, handlers={TASK: CellTasks()})        what `oakleaf worker` does

A worker rebuilds the run from what is stored. Models that are no public names, and tools, are found among its agents: a model by
its name, tools by their names and definitions. A worker that lacks one fails the attempt, and another may have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from threading import Lock
from typing import Any

from absurd_sdk import SuspendTask
from msgspec import Struct

from oakleaf import Store
from oakleaf.agent.run import ModelLike
from oakleaf.agent.tools.tool import Tool
from oakleaf.core.typed_json import converter
from oakleaf.errors import BudgetReached, ClaimLost, InvalidLab, ModelUnavailable, NotFound
from oakleaf.models.availability import available_models
from oakleaf.models.base import model_name
from oakleaf.models.names import is_model_name
from oakleaf_lab.budget import CostBudget, RunStopping
from oakleaf_lab.cell import CellSetup, ModelUnreachable
from oakleaf_lab.cell_work import CellWork
from oakleaf_lab.control import RunControl, SharedBudget, control_id
from oakleaf_lab.experiment import Cell, CellResult, digest
from oakleaf_lab.queue_runner import TASK
from oakleaf_lab.record import LabRecord
from oakleaf_lab.scorers import Judge
from oakleaf_postgres.absurd.claim import Claim
from oakleaf_postgres.absurd.deaths import Deaths
from oakleaf_postgres.absurd.worker import Worker

TRIES = 5
"""Attempts of a cell after which a model that does not answer, or that no worker has, stops the run."""
RUNS = 8
"""Runs whose plan a worker keeps in memory."""

__all__ = ["TASK", "CellTasks"]


class CellParams(Struct, frozen=True):
    """The parameters of a task: which cell it runs, and nothing of its content."""

    session: str
    """The session of the run."""
    space: str
    number: int
    """The start of the run that spawned it."""
    cell: Cell


_to_cell_params = converter(CellParams)


class CellTasks:
    """Runs the tasks of all lab runs on one worker."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], WorkerRun] = {}
        self._lock = Lock()

    def __call__(self, worker: Worker, claim: Claim, params: Any, deaths: Deaths) -> dict[str, Any]:
        task = _to_cell_params(params)
        try:
            run = self._load(worker, task)
        except NotFound as gone:
            return {"stop_reason": "gone", "why": str(gone)}
        return run.give_up(task, deaths) if deaths.is_hopeless else run.run(worker, claim, task)

    def _load(self, worker: Worker, task: CellParams) -> WorkerRun:
        with self._lock:
            key = (task.space, task.session)
            run = self._runs.pop(key, None) or WorkerRun(worker, task)
            self._runs[key] = run  # the newest last
            while len(self._runs) > RUNS:
                del self._runs[next(iter(self._runs))]
            return run


class WorkerRun:
    """A lab run as a worker has it: the stored plan, with the models and tools of this worker."""

    def __init__(self, worker: Worker, task: CellParams) -> None:
        store = Store(worker.store(task.space), worker.runtime)
        self._record = LabRecord.load(store, task.session)
        self._control = RunControl(store, control_id(task.session))
        self._worker = worker
        self._models: dict[str, ModelLike] = {}
        plan = self._record.plan
        self._experiment = plan.experiment
        self._sources = {source.session_id: source for source in plan.cohort.sources}
        longest = max((source.longest_answer for source in plan.cohort.sources), default=0)
        self._prices = CostBudget(0, 0, longest)

    def run(self, worker: Worker, claim: Claim, task: CellParams) -> dict[str, Any]:
        control = self._control
        control.update()
        if control.is_over(task.number):
            return {"stop_reason": "stopped"}
        self._record.update()
        budget = SharedBudget(control, task.number, self._prices, worker.stopping.is_set)
        try:
            work = CellWork(
                Store(worker.claimed_store(task.space, claim), worker.claimed_runtime(claim)),
                self._setup(),
                self._record,
                budget,
                (),
                self._judge(),
            )
            _run_claimed(worker, claim, work.finish(task.cell))
        except RunStopping:
            if control.is_over(task.number):
                return {"stop_reason": "stopped"}
            claim.reschedule(0)  # this worker stops; another one continues
            raise SuspendTask from None
        except BudgetReached as reached:
            control.stop(task.number, reached.command_text)
            return {"stop_reason": "budget"}
        except (ModelUnreachable, ModelUnavailable, InvalidLab) as error:
            if claim.attempt < TRIES:
                raise
            why = error.command_text if isinstance(error, InvalidLab | ModelUnavailable) else str(error)
            control.stop(task.number, f"{why} (worker {worker.name})")
            return {"stop_reason": "failed", "why": why}
        return {"stop_reason": "completed"}

    def give_up(self, task: CellParams, deaths: Deaths) -> dict[str, Any]:
        """Record that the cell cannot be replayed: the others can."""
        self._record.update()
        if task.cell not in self._record.cells:
            why = f"{deaths.total} worker processes died while they replayed it ({deaths.last})"
            self._record.add_cell(CellResult(task.cell, error=why))
        if (judge := self._judge()) is not None:
            self._record.add_scores((), judge.key(task.cell))
        return {"stop_reason": "given up"}

    # -- what it is run with -----------------------------------------------------------------------

    def _setup(self) -> CellSetup:
        experiment = self._experiment
        return CellSetup(
            experiment,
            self._sources,
            self._model_of,
            self._tools(experiment.change.tools, experiment.change.tools_hash),
            self._tools(experiment.baseline_tools, experiment.baseline_tools_hash),
        )

    def _model_of(self, cell: Cell) -> ModelLike | None:
        experiment = self._experiment
        if experiment.mode == "strict":
            return None
        name = experiment.change.model if cell.lane == "candidate" else None
        name = name or experiment.baseline_model or self._sources[cell.source].model
        return None if name is None else self._model(name)

    def _model(self, name: str) -> ModelLike:
        """Return the model of an agent that has this name, else the public one; one object for all cells.

        The name is read from the store: an address is this worker's to allow.
        """
        if name not in self._models:
            chains = [agent.models for agent in self._worker.agents.values()]
            known = {", ".join(model_name(each) or each.model for each in chain): chain for chain in chains}
            if name in known:
                self._models[name] = known[name]
            elif is_model_name(name):
                (self._models[name],) = available_models([name], stored_in=self._record.run_id)
            else:
                raise InvalidLab(
                    f"no agent of this worker has the model {name}",
                    "start it with an agents file that has an Agent with this model",
                )
        return self._models[name]

    def _tools(self, names: Sequence[str] | None, hash_: str | None) -> list[Tool] | None:
        if names is None:
            return None
        for agent in self._worker.agents.values():
            tools = [agent.tools[name] for name in names if name in agent.tools]
            if digest([tool.spec for tool in tools]) == hash_:
                return tools
        raise InvalidLab(
            f"no agent of this worker has the tools {', '.join(names)} as the lab was planned with them",
            "start it with an agents file that has an Agent with these tools",
        )

    def _judge(self) -> Judge | None:
        spec = None if self._control.start is None else self._control.start.judge
        return None if spec is None else Judge(self._model(spec.model), spec.prompt, spec.name)


def _run_claimed(worker: Worker, claim: Claim, work: Coroutine[Any, Any, None]) -> None:
    """Run it on the worker's event loop; cancel it when the claim is lost."""

    async def run() -> None:
        events = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        claim.on_loss(lambda: events.call_soon_threadsafe(task.cancel))
        await asyncio.wait([task])
        if claim.is_lost:
            task.cancelled() or task.exception()  # retrieved, or asyncio logs it
            raise ClaimLost(claim.queue, claim.task_id)
        task.result()

    asyncio.run_coroutine_threadsafe(run(), worker.loop).result()
