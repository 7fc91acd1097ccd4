"""Run the cells of lab runs on a worker: a second kind of task beside a session's turn.

    oakleaf-lab-cell = "oakleaf_lab.worker_task:run_cell"        its entry point in the group `oakleaf.tasks`

A worker rebuilds the run from what is stored. Models that are no public names, and tools, are found among its agents: a model by
its name, tools by their names and definitions. A worker that lacks one fails the attempt, and another may have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct

from oakleaf import Tool
from oakleaf.core.typed_json import converter
from oakleaf.errors import ModelUnavailable, NotFound
from oakleaf.ext import available_models, is_model_name
from oakleaf.models.base import ModelLike, model_name
from oakleaf.stores.tasks import Task, TaskWorker
from oakleaf_lab.budget import CostBudget, RunStopping
from oakleaf_lab.cell import CellSetup, ModelUnreachable
from oakleaf_lab.cell_work import CellWork
from oakleaf_lab.control import RunControl, SharedBudget, control_id
from oakleaf_lab.errors import BudgetReached, InvalidLab
from oakleaf_lab.experiment import Cell, CellResult, digest
from oakleaf_lab.record import LabRecord
from oakleaf_lab.scorers import Judge

TRIES = 5
"""Attempts of a cell after which a model that does not answer, or that no worker has, stops the run."""
RUNS = 8
"""Runs whose plan a worker keeps in memory."""


class CellParams(Struct, frozen=True):
    """The parameters of a task: the cell to run, and no content."""

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

    def run(self, task: Task, params: dict[str, Any]) -> dict[str, Any]:
        cell = _to_cell_params(params)
        try:
            run = self._load(task.worker, cell)
        except NotFound as gone:
            return {"stop_reason": "gone", "why": str(gone)}
        return run.give_up(task, cell) if task.is_hopeless else run.run(task, cell)

    def _load(self, worker: TaskWorker, cell: CellParams) -> WorkerRun:
        with self._lock:
            key = (cell.space, cell.session)
            run = self._runs.pop(key, None) or WorkerRun(worker, cell)
            self._runs[key] = run  # the newest last
            while len(self._runs) > RUNS:
                del self._runs[next(iter(self._runs))]
            return run


_cell_tasks: WeakKeyDictionary[TaskWorker, CellTasks] = WeakKeyDictionary()
_lock = Lock()


def run_cell(task: Task, params: dict[str, Any]) -> dict[str, Any]:
    """Run one cell. A worker keeps the plans of the runs that it works on."""
    with _lock:
        cell_tasks = _cell_tasks.setdefault(task.worker, CellTasks())
    return cell_tasks.run(task, params)


class WorkerRun:
    """A lab run for a worker: the stored plan, with the worker's models and tools."""

    def __init__(self, worker: TaskWorker, cell: CellParams) -> None:
        store = worker.store(cell.space)
        self._record = LabRecord.load(store, cell.session)
        self._control = RunControl(store, control_id(cell.session))
        self._agents = worker.agents  # not the worker: it is the key under which this is kept
        self._models: dict[str, ModelLike] = {}
        plan = self._record.plan
        self._experiment = plan.experiment
        self._sources = {source.session_id: source for source in plan.cohort.sources}
        longest = max((source.longest_answer for source in plan.cohort.sources), default=0)
        self._prices = CostBudget(0, 0, longest)

    def run(self, task: Task, cell: CellParams) -> dict[str, Any]:
        control = self._control
        control.update()
        if control.is_over(cell.number):
            return {"stop_reason": "stopped"}
        self._record.update()
        budget = SharedBudget(control, cell.number, self._prices, task.worker.is_stopping)
        try:
            work = CellWork(
                task.store(cell.space),
                self._setup(),
                self._record,
                budget,
                (),
                self._judge(),
            )
            task.run(work.finish(cell.cell))
        except RunStopping:
            if control.is_over(cell.number):
                return {"stop_reason": "stopped"}
            task.put_back()  # this worker stops; another one continues
        except BudgetReached as reached:
            control.stop(cell.number, reached.command_text)
            return {"stop_reason": "budget"}
        except (ModelUnreachable, ModelUnavailable, InvalidLab) as error:
            if task.attempt < TRIES:
                raise
            why = error.command_text if isinstance(error, InvalidLab | ModelUnavailable) else str(error)
            control.stop(cell.number, f"{why} (worker {task.worker.name})")
            return {"stop_reason": "failed", "why": why}
        return {"stop_reason": "completed"}

    def give_up(self, task: Task, cell: CellParams) -> dict[str, Any]:
        """Record a failed replay of the cell, so the run goes on."""
        self._record.update()
        if cell.cell not in self._record.cells:
            why = f"{task.deaths} worker processes died while they replayed it ({task.last_death})"
            self._record.add_cell(CellResult(cell.cell, error=why))
        if (judge := self._judge()) is not None:
            self._record.add_scores((), judge.key(cell.cell))
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
        """Return the agent's model of the name, else the public model; one object for all cells.

        The name is read from the store: an address is this worker's to allow.
        """
        if name not in self._models:
            chains = [agent.models for agent in self._agents.values()]
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
        for agent in self._agents.values():
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
