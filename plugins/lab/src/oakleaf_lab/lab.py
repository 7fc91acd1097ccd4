"""A lab: replay a cohort of recorded sessions with the old setup and with a changed one, and compare.

    lab = Lab(store, "agent:support after:7d", prompt=new_prompt)
    print("\\n".join(lab.plan_lines()))      # what it will cost, before it costs anything
    report = lab.run_sync(max_cost_dollars=5)

Each cell is a replay in a session of its own whose id follows from the run, and each result is stored as it lands: a run
that was killed is continued by the same call and asks no model twice for an answer that is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeGuard, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Store, Tool
from oakleaf.core.facts import ModelCallFailed, ModelCallStarted
from oakleaf.core.usage import Usage, to_microcents
from oakleaf.errors import InvalidArgument, NotFound
from oakleaf.ext import (
    available_models,
    blocking,
    check_available,
    model_by_name,
    price_of,
    read_store,
    resolve_models,
    stored_model,
    tools_by_name,
)
from oakleaf.models.base import Model, ModelLike, model_name
from oakleaf.stores.base import SessionRow
from oakleaf.stores.tasks import task_queue
from oakleaf_lab.budget import CostBudget
from oakleaf_lab.cell import CellSetup
from oakleaf_lab.cell_work import CellWork
from oakleaf_lab.cohort import CohortFinder, CohortSession
from oakleaf_lab.control import JudgeSpec
from oakleaf_lab.errors import EmptyCohort, InvalidLab
from oakleaf_lab.experiment import (
    AfterDivergence,
    CandidateChange,
    Cell,
    Experiment,
    LabMode,
    LabPlan,
    digest,
)
from oakleaf_lab.function_identity import function_identity
from oakleaf_lab.gates import CALLS, Gate, parse_gate
from oakleaf_lab.lab_report import METRICS, LabReport, build_report
from oakleaf_lab.record import LabRecord, find_run
from oakleaf_lab.report_text import plan_lines
from oakleaf_lab.runner import LocalRunner, Progress, Runner
from oakleaf_lab.scorers import Judge, ScoreFunction, Scorer, as_scorers

ModelOfCell = Callable[[Cell], Model]
"""A function that returns the model of one cell, for example with a seed of its own."""
JUDGE_PROMPT_TOKENS, JUDGE_ANSWER_TOKENS = 200, 100
UNREAL_PROVIDERS = ("scripted", "recorded")


class Estimate(Struct, frozen=True):
    """The forecast of a run from the recording."""

    sessions: int
    turns: int
    calls: int
    cost_microcents: int
    unpriced_calls: int
    """Calls whose cost is not known: their model has no price, or the recording has no usage."""
    models: tuple[str, ...]
    is_real: bool
    """Whether a model is called that costs money."""
    cells_done: int = 0
    total_cells: int = 0


class Lab:
    """A lab run: the plan, and the verbs for carrying out the plan.

    It replays a cohort of sessions with the recorded setup and with a changed one, and compares. `cohort` are search
    queries, session ids or names of saved cohorts. Nothing runs before `run()`. If the same lab was interrupted it
    continues; if it is complete its report is returned, unless `again`. The workers of a `queue`, if one is named, replay it. See
    docs/lab.md.
    """

    def __init__(
        self,
        store: Store,
        /,
        *cohort: str,
        model: ModelLike | ModelOfCell | None = None,
        prompt: str | None = None,
        prompt_patch: str | None = None,
        options: Mapping[str, Any] | None = None,
        tools: Iterable[Tool | Callable[..., Any]] | None = None,
        baseline_model: ModelLike | ModelOfCell | None = None,
        baseline_tools: Iterable[Tool | Callable[..., Any]] | None = None,
        mode: LabMode | None = None,
        repeat: int = 1,
        after_divergence: AfterDivergence = "stop",
        sample: int | None = None,
        seed: int = 0,
        again: bool = False,
        queue: str | None = None,
    ) -> None:
        self._store = store
        self._tools, self._baseline_tools = _tools(tools), _tools(baseline_tools)
        self._model, self._baseline_model, self._again = model, baseline_model, again
        self._models: dict[str, Model] = {}
        self._queue = None if queue is None else task_queue(store, queue)
        change = CandidateChange(
            model=_name(model),
            prompt=prompt,
            prompt_patch=prompt_patch,
            options=None if not options else dict(options),
            tools=_tool_names(self._tools),
            tools_hash=_tools_hash(self._tools),
        )
        self._experiment = Experiment(
            cohort=cohort,
            sample=sample,
            seed=seed,
            change=change,
            baseline_model=_name(baseline_model),
            baseline_tools=_tool_names(self._baseline_tools),
            baseline_tools_hash=_tools_hash(self._baseline_tools),
            mode=mode or ("recorded" if self._tools is None and self._baseline_tools is None else "dry"),
            repeat=repeat,
            after_divergence=after_divergence,
        )
        _check_experiment(self._experiment)
        self.planned_at: int | None = None
        """When the interrupted run that this one continues was planned, in microseconds since the epoch."""
        record = find_run(store, self._experiment.digest)
        if record is None:
            self.plan = self._build_plan()
            self.run_id = self.plan.run_id
            """The id of the session that holds the run."""
        else:
            self._experiment = replace(self._experiment, number=record.plan.experiment.number)
            # The stored experiment may be redacted; what is replayed is what was passed.
            self.plan, self.run_id = LabPlan(self._experiment, record.plan.cohort), record.run_id
            self.planned_at = store.session(record.run_id).row.started_at
        self._sources = {source.session_id: source for source in self.plan.cohort.sources}
        self._check_models()
        if self._queue is not None:
            self._check_for_workers()

    # -- the plan ----------------------------------------------------------------------------------

    def _build_plan(self) -> LabPlan:
        experiment = self._experiment
        cohort = CohortFinder(self._store).find(
            experiment.cohort,
            sample=experiment.sample,
            seed=experiment.seed,
            needs_model=experiment.mode != "strict" and self._baseline_model is None,
        )
        if not cohort.sources:
            raise EmptyCohort(
                experiment.cohort, [(each.reason, len(each.session_ids)) for each in cohort.skipped]
            )
        plan = LabPlan(experiment, cohort)
        while self._is_to_be_repeated(plan.run_id):
            self._experiment = replace(self._experiment, number=self._experiment.number + 1)
            plan = LabPlan(self._experiment, cohort)
        return plan

    def _is_to_be_repeated(self, run_id: str) -> bool:
        """Whether an existing run is to be repeated: on request, or with the old run in the trash."""
        row = read_store(self._store).find_session(run_id)
        return row is not None and (row.trashed_at is not None or self._again)

    def _check_models(self) -> None:
        """Raise ModelUnavailable for an unusable name, before any money is spent."""
        if self._experiment.mode == "strict":
            return
        # A worker has its own keys and servers; here its models are only asked for their prices.
        is_local = self._queue is None
        for name in (self._model, self._baseline_model):
            if isinstance(name, str) and name not in self._models:
                self._models[name] = available_models([name])[0] if is_local else model_by_name(name)
        if self._baseline_model is not None:
            return
        for source in self.plan.cohort.sources:
            if source.model is not None and source.model not in self._models:
                model = stored_model(
                    source.model, source.session_id, "baseline_model", "--set baseline.model="
                )
                self._models[source.model] = check_available(model) if is_local else model

    def estimate(self, judge: Judge | None = None) -> Estimate:
        """Return the work left, and the cost for answers as long as the recorded answers."""
        record: LabRecord | None = None
        with suppress(NotFound):
            record = LabRecord.load(self._store, self.run_id)
        done = {} if record is None else record.cells
        cells = list(self.plan.cells())
        calls = cost = unpriced = 0
        models: dict[str, bool] = {}

        def add(model: ModelLike, count: int, usage: Usage | None) -> None:
            nonlocal calls, cost, unpriced
            first = resolve_models(model)[0]
            models[model_name(first) or first.model] = first.provider not in UNREAL_PROVIDERS
            price = None if usage is None else price_of(first, usage)
            calls += count
            cost += 0 if price is None else price.microcents
            unpriced += count if price is None else 0

        for cell in cells:
            source = self._sources[cell.source]
            if judge is not None and (record is None or not record.has(judge.key(cell))):
                add(judge.model, source.turns, _judge_usage(source))
            if cell in done or cell.lane == "observed":
                continue
            model = self._model_of(cell)
            if model is not None:
                add(model, source.calls, _recorded_usage(source))
        return Estimate(
            len(self._sources),
            self.plan.cohort.turns,
            calls,
            cost,
            unpriced,
            tuple(models),
            any(models.values()),
            sum(cell in done for cell in cells),
            len(cells),
        )

    def plan_lines(self, judge: Judge | None = None) -> list[str]:
        """Return the plan and the estimate as lines of text."""
        lines = plan_lines(self.plan, self.estimate(judge))
        if self.planned_at is not None:
            day = datetime.fromtimestamp(self.planned_at / 1e6).strftime("%Y-%m-%d %H:%M")
            lines.insert(
                0, f"continues  {self.run_id}, planned at {day}; oakleaf rm {self.run_id} forgets it"
            )
        return lines

    def check(
        self,
        *,
        fail_if: Sequence[str] = (),
        max_cost_microcents: int | None = None,
        max_cost_dollars: float | None = None,
        scorers: Sequence[ScoreFunction] = (),
        judge: Judge | None = None,
    ) -> tuple[list[Gate], list[Scorer]]:
        """Return the gates and scorers; raise InvalidLab for faults that would stop the run after spending money."""
        limit = to_microcents(max_cost_dollars, max_cost_microcents)
        functions = as_scorers(scorers, METRICS)
        names = [*METRICS, *(each.name for each in functions), *([] if judge is None else [judge.name])]
        names += [f"{CALLS}{name}" for name in self._tool_names()]
        gates = [parse_gate(text, names) for text in fail_if]
        if limit is not None:
            budget = CostBudget(limit)
            for model in self._all_models(judge):
                budget.check_price(model)
        return gates, functions

    def _tool_names(self) -> list[str]:
        """Return the tools a turn may call: recorded tools and the tools of both lanes."""
        cohort, given = self.plan.cohort, [*(self._tools or ()), *(self._baseline_tools or ())]
        offered = {spec.name for specs in cohort.tools for spec in specs}
        return sorted({*cohort.called, *offered, *(tool.name for tool in given)})

    def _all_models(self, judge: Judge | None) -> Iterable[Model]:
        for cell in self.plan.cells():
            model = None if cell.lane == "observed" else self._model_of(cell)
            yield from () if model is None else resolve_models(model)
        yield from () if judge is None else resolve_models(judge.model)

    # -- running -----------------------------------------------------------------------------------

    async def run(
        self,
        *,
        workers: int = 4,
        max_cost_microcents: int | None = None,
        max_cost_dollars: float | None = None,
        fail_if: Sequence[str] = (),
        scorers: Sequence[ScoreFunction] = (),
        judge: Judge | None = None,
        progress: Progress | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> LabReport:
        """Run the missing cells, and return the report. Cancelled, it finishes the calls in flight first.

        No model call is made that could make the run cost more than `max_cost_dollars`, or `max_cost_microcents`. `scorers` are functions of a
        turn or a session; `judge` is a model that scores each turn. `fail_if` are gates, checked in the report. `notify`
        is called with what the workers of a queue wait for.
        """
        if type(workers) is not int or workers < 1:
            raise InvalidArgument("workers", workers, "a number from 1 up")
        limit = to_microcents(max_cost_dollars, max_cost_microcents)
        gates, functions = self.check(
            fail_if=fail_if, max_cost_microcents=limit, scorers=scorers, judge=judge
        )
        record = await asyncio.to_thread(LabRecord.create, self._store, self.run_id, self.plan)
        await asyncio.to_thread(record.add_gates, fail_if)
        runner = self._runner(record, functions, judge, limit, workers, progress, notify)
        await runner.run()
        spent, _ = await asyncio.to_thread(self._cost_so_far, record)
        versions = {each.name: each.version for each in functions}
        versions |= {} if judge is None else {judge.name: judge.version}
        return build_report(
            self.run_id,
            record.plan,  # as it is stored: a report repeats no secret of a prompt
            record.cells,
            record.scores.values(),
            versions,
            gates,
            spent=spent,
            why=runner.why,
        )

    run_sync = blocking(run)

    def _runner(
        self,
        record: LabRecord,
        scorers: Sequence[Scorer],
        judge: Judge | None,
        limit: int | None,
        workers: int,
        progress: Progress | None,
        notify: Callable[[str], None],
    ) -> Runner:
        longest = max((source.longest_answer for source in self.plan.cohort.sources), default=0)
        budget = CostBudget(limit, 0, longest)
        setup = CellSetup(self._experiment, self._sources, self._model_of, self._tools, self._baseline_tools)

        def cost() -> int:
            return sum(self._cost_so_far(record))

        if self._queue is None:
            work = CellWork(self._store, setup, record, budget, scorers, judge)
            return LocalRunner(record, work, progress, budget, cost, workers)
        from oakleaf_lab.queue_runner import QueueRunner  # imported late: needs the engine's packages

        work = CellWork(self._store, setup, record, budget, scorers)
        return QueueRunner(
            record, work, progress, self._queue, limit, judge, self._judge_spec(judge), cost, notify
        )

    def _judge_spec(self, judge: Judge | None) -> JudgeSpec | None:
        """Return the judge as stored for workers."""
        if judge is None:
            return None
        spec = JudgeSpec(_name(judge.model) or "", judge.prompt, judge.name)
        self._check_readable(spec, "the judge's prompt")
        return spec

    def _check_for_workers(self) -> None:
        """Raise InvalidLab for values no worker can load."""
        for model in (self._model, self._baseline_model):
            if model is not None and not isinstance(model, str) and is_model_of_cell(model):
                raise InvalidLab(
                    f"{_name(model)} is a function of the cell, which only this process has",
                    "pass a model that an agent of the workers has, or run it without queue=",
                )
        self._check_readable(self._experiment, "the experiment")

    def _check_readable(self, value: object, subject: str) -> None:
        data = msgspec.json.decode(msgspec.json.encode(value))
        if read_store(self._store).redactor.redact_json(data) != data:
            raise InvalidLab(
                f"{subject} contains a secret, which is not stored, so a worker cannot read it",
                "take it out, or run it without queue=",
                "take it out, or run it without a queue",
            )

    def _cost_so_far(self, record: LabRecord) -> tuple[int, int]:
        """Return the run's cost so far by the ledger, replays and judge included, and the highest possible
        cost of calls cut off by a crash.
        """
        row = self._store.session(record.run_id).row
        spent, unknown = row.totals.cost_microcents, self._cost_of_unpriced_calls(row, None)
        for cell in self.plan.cells():
            if cell.lane == "observed":
                continue
            replay = read_store(self._store).find_session(cell.replay_id(self.run_id))
            if replay is not None:
                spent += replay.totals.cost_microcents
                unknown += self._cost_of_unpriced_calls(replay, cell)
        return spent, unknown

    def _cost_of_unpriced_calls(self, row: SessionRow, cell: Cell | None) -> int:
        """Return the highest possible cost of failed or cut-off calls: the reserved amounts.

        A call that was made without a limit has no reservation: it counts as the longest call of the session.
        """
        if not (row.totals.unpriced_calls or row.totals.unknown_calls):
            return 0
        session = self._store.session(row.session_id)
        reserved: dict[str, int] = {}
        refused: set[str | None] = set()
        for stored in session.journal():
            match stored.fact:
                case ModelCallStarted(call_id=str(call_id), reserved=int(reservation)):
                    reserved[call_id] = reservation
                case ModelCallFailed(refused=call_id):
                    refused.add(call_id)
        unpriced = [
            call for call in session.model_calls() if call.price is None and call.call_id not in refused
        ]
        unknown = [call for call in unpriced if call.call_id not in reserved and not call.failed]
        known = sum(reserved.get(call.call_id, 0) for call in unpriced)
        return known + (len(unknown) * self._longest_call(cell) if cell is not None else 0)

    def _longest_call(self, cell: Cell) -> int:
        """Return the highest possible cost of a cell's longest call, by the recording."""
        source, model = self._sources[cell.source], self._model_of(cell)
        if model is None:
            return 0
        usage = Usage(source.longest_request, 2 * source.longest_answer, 0, 0)
        price = price_of(resolve_models(model)[0], usage)
        return 0 if price is None else price.microcents

    def _model_of(self, cell: Cell) -> ModelLike | None:
        """Return the model of a cell; None for the recorded answers."""
        if self._experiment.mode == "strict":
            return None
        model = self._model if cell.lane == "candidate" else None
        model = model or self._baseline_model or self._sources[cell.source].model
        if model is None:
            return None
        if isinstance(model, str):  # one object for all cells, so that they share its connections
            return self._models[model]
        return model(cell) if is_model_of_cell(model) else cast("ModelLike", model)


def _judge_usage(source: CohortSession) -> Usage:
    """Estimate a judge's usage for the turns of a session: the texts, and the prompt."""
    read = source.longest_request + source.usage.output_tokens + source.turns * JUDGE_PROMPT_TOKENS
    return Usage(read, source.turns * JUDGE_ANSWER_TOKENS, 0, 0)


def _recorded_usage(source: CohortSession) -> Usage | None:
    """Return the usage of a session's recorded calls; None if unknown."""
    used = source.usage
    if used.is_unknown or not used.calls:
        return None
    return Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, 0)


def _check_experiment(experiment: Experiment) -> None:
    mode, after_divergence = experiment.mode, experiment.after_divergence
    if mode not in get_args(LabMode):
        raise InvalidLab(f"mode={mode!r} is invalid", f"use {', '.join(get_args(LabMode))}")
    if after_divergence not in get_args(AfterDivergence):
        raise InvalidLab(
            f"after_divergence={after_divergence!r} is invalid",
            f"use {' or '.join(get_args(AfterDivergence))}",
        )
    if type(experiment.repeat) is not int or experiment.repeat < 1:
        raise InvalidArgument("repeat", experiment.repeat, "a number from 1 up")
    if mode == "strict" and not experiment.change.is_empty:
        raise InvalidLab(
            "mode strict repeats the recorded answers, so nothing can be changed",
            "leave out model=, prompt=, options= and tools=, or use another mode",
            "leave out --model, --prompt, -o and tools, or use another mode",
        )


def _tools(tools: Iterable[Tool | Callable[..., Any]] | None) -> list[Tool] | None:
    return None if tools is None else list(tools_by_name(tools).values())


def _tool_names(tools: Sequence[Tool] | None) -> tuple[str, ...] | None:
    return None if tools is None else tuple(tool.name for tool in tools)


def _tools_hash(tools: Sequence[Tool] | None) -> str | None:
    return None if tools is None else digest([tool.spec for tool in tools])


def is_model_of_cell(model: ModelLike | ModelOfCell) -> TypeGuard[ModelOfCell]:
    """Whether a value is a function for the model of a cell, and no model."""
    return callable(model) and not hasattr(model, "stream")


def _name(model: ModelLike | ModelOfCell | None) -> str | None:
    """Return a model's name in the plan; for a function also the function's identity."""
    if model is None or isinstance(model, str):
        return model
    if is_model_of_cell(model):
        return f"{getattr(model, '__name__', type(model).__name__)} {function_identity(model)}"
    models = resolve_models(cast("ModelLike", model))
    return ", ".join(model_name(each) or each.model for each in models)


def report(store: Store, run_id: str) -> LabReport:
    """Return the report of a stored run as far as done, with the scores and the latest gates. Raises NotFound."""
    record = LabRecord.load(store, run_id)
    row = store.session(run_id).row
    replays = (result for cell, result in record.cells.items() if cell.lane != "observed")
    return build_report(
        run_id,
        record.plan,
        record.cells,
        record.scores.values(),
        {score.scorer: score.version for score in record.scores.values()},  # of each the latest
        [parse_gate(text, None) for text in record.gates],
        spent=row.totals.cost_microcents + sum(result.usage.cost_microcents for result in replays),
        why=None if record.is_complete else row.error,
    )
