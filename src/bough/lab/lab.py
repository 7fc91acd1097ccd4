"""A lab: replay a cohort of recorded sessions with the old setup and with a changed one, and compare.

    lab = store.lab("agent:support after:7d", prompt=new_prompt)
    print("\\n".join(lab.plan_lines()))      # what it will cost, before it costs anything
    report = lab.run_sync(max_cost_microcents=500_000_000)

Each cell is a replay in a session of its own whose id follows from the run, and each result is stored as it lands: a run
that was killed is continued by the same call and asks no model twice for an answer that is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeGuard, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from ..agent.tools.mcp.server import tools_by_name
from ..agent.tools.tool import Tool
from ..core.usage import Usage
from ..engines.local import ModelLike, resolve_models
from ..errors import (
    BoughError,
    BudgetReached,
    EmptyCohort,
    Fenced,
    InvalidArgument,
    InvalidLab,
    LabRunning,
    ModelUnavailable,
    NotFound,
    SessionRunning,
    StoreError,
)
from ..log.lease import Lease
from ..log.log import Log
from ..log.runtime import Runtime
from ..models.availability import available_models
from ..models.model import Model, model_name
from ..models.prices import price_of
from ..stores.base import StoreBackend
from .budget import CostBudget, RunStopping
from .cell import CellSetup, ModelUnreachable, observe, run_cell
from .cohort import CohortFinder, CohortSession
from .experiment import (
    AfterDivergence,
    CandidateChange,
    Cell,
    CellResult,
    Experiment,
    LabMode,
    LabPlan,
    digest,
)
from .gates import Gate, parse_gate
from .record import LabRecord, find_run
from .report import METRICS, LabReport, build_report
from .report_text import plan_lines
from .scorers import (
    Judge,
    JudgeCaller,
    ScoredSession,
    ScoreFunction,
    Scorer,
    apply_scorer,
    as_scorers,
    score_key,
    scored_session,
)

ModelOfCell = Callable[[Cell], Model]
"""A function that returns the model of one cell, for example with a seed of its own."""
Progress = Callable[[int, int, int], None]
"""Called with the number of cells done, of all cells, and what was spent in microcents."""
JUDGE_PROMPT_TOKENS, JUDGE_ANSWER_TOKENS = 200, 100
UNREAL_PROVIDERS = ("scripted", "recorded")


class LabOptions(Struct, frozen=True, kw_only=True):
    """The options of `Store.lab`; docs/lab.md describes each."""

    model: ModelLike | ModelOfCell | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    options: Mapping[str, Any] | None = None
    tools: Iterable[Tool | Callable[..., Any]] | None = None
    baseline_model: ModelLike | ModelOfCell | None = None
    baseline_tools: Iterable[Tool | Callable[..., Any]] | None = None
    mode: LabMode | None = None
    repeat: int = 1
    after_divergence: AfterDivergence = "stop"
    sample: int | None = None
    seed: int = 0
    again: bool = False


class Estimate(Struct, frozen=True):
    """What a run will do, by what was recorded."""

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
    """One lab run: its plan, and the verbs that carry it out."""

    def __init__(
        self, store: StoreBackend, runtime: Runtime, cohort: Sequence[str], options: LabOptions
    ) -> None:
        self._store, self._runtime, self._options = store, runtime, options
        self._tools = None if options.tools is None else list(tools_by_name(options.tools).values())
        self._baseline_tools = (
            None if options.baseline_tools is None else list(tools_by_name(options.baseline_tools).values())
        )
        self._models: dict[str, Model] = {}
        self._experiment = _experiment(cohort, options, self._tools, self._baseline_tools)
        self.planned_at: int | None = None
        """When the interrupted run that this one continues was planned, in microseconds since the epoch."""
        record = find_run(store, runtime, self._experiment.digest)
        if record is None:
            self.plan = self._build_plan()
            self.run_id = self.plan.run_id
            """The id of the session that holds the run."""
        else:
            self._experiment = replace(self._experiment, number=record.plan.experiment.number)
            # The stored experiment may be redacted; what is replayed is what was passed.
            self.plan, self.run_id = LabPlan(self._experiment, record.plan.cohort), record.run_id
            self.planned_at = store.session(record.run_id).started_at
        self._sources = {source.session_id: source for source in self.plan.cohort.sources}
        self._check_models()

    # -- the plan ----------------------------------------------------------------------------------

    def _build_plan(self) -> LabPlan:
        experiment = self._experiment
        finder = CohortFinder(self._store, self._runtime)
        cohort = finder.find(
            experiment.cohort,
            sample=experiment.sample,
            seed=experiment.seed,
            needs_model=experiment.mode != "strict" and self._options.baseline_model is None,
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
        """Whether there is such a run and another is wanted: it was asked for, or that one is in the trash."""
        try:
            return self._store.session(run_id).trashed_at is not None or self._options.again
        except NotFound:
            return False

    def _load(self, run_id: str) -> LabRecord | None:
        try:
            return LabRecord.load(self._store, self._runtime, run_id)
        except NotFound:
            return None

    def _check_models(self) -> None:
        """Raise ModelUnavailable for a name that cannot be called, before any money is spent."""
        if self._experiment.mode == "strict":
            return
        models = (self._options.model, self._options.baseline_model)
        names = [each for each in models if isinstance(each, str)]
        if self._options.baseline_model is None:
            names += [source.model for source in self.plan.cohort.sources if source.model is not None]
        for name in dict.fromkeys(names):
            self._models[name] = available_models([name])[0]

    def estimate(self, judge: Judge | None = None) -> Estimate:
        """Return what is left to do, and what it will cost if the answers are as long as the recorded ones."""
        record = self._load(self.run_id)
        done = {} if record is None else record.cells
        cells = list(self.plan.cells())
        calls = cost = unpriced = 0
        models: dict[str, bool] = {}
        for cell in cells:
            source = self._sources[cell.source]
            if judge is not None and (record is None or not record.has(_judged(judge, cell))):
                each = resolve_models(judge.model)[0]
                models[model_name(each) or each.model] = each.provider not in UNREAL_PROVIDERS
                calls += source.turns
                price = price_of(each, _judge_usage(source))
                cost += 0 if price is None else price.microcents
                unpriced += source.turns if price is None else 0
            if cell in done or cell.lane == "observed":
                continue
            model = self._model(cell, source)
            if model is None:
                continue
            calls += source.calls
            for each in resolve_models(model)[:1]:
                models[model_name(each) or each.model] = each.provider not in UNREAL_PROVIDERS
                used = source.usage
                usage = Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, 0)
                price = None if used.is_unknown or not used.calls else price_of(each, usage)
                cost += 0 if price is None else price.microcents
                unpriced += source.calls if price is None else 0
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
        """Return the plan and its estimate as lines of text."""
        lines = plan_lines(self.plan, self.estimate(judge))
        if self.planned_at is not None:
            day = datetime.fromtimestamp(self.planned_at / 1e6).strftime("%Y-%m-%d %H:%M")
            lines.insert(0, f"continues  {self.run_id}, planned at {day}; bough rm {self.run_id} forgets it")
        return lines

    def check(
        self,
        *,
        fail_if: Sequence[str] = (),
        max_cost_microcents: int | None = None,
        scorers: Sequence[ScoreFunction] = (),
        judge: Judge | None = None,
    ) -> RunChecks:
        """Return the gates and scorers; raise InvalidLab for what would stop the run after it has spent money."""
        functions = as_scorers(scorers, METRICS)
        names = [*METRICS, *(each.name for each in functions), *([] if judge is None else [judge.name])]
        gates = [parse_gate(text, names) for text in fail_if]
        if max_cost_microcents is not None:
            budget = CostBudget(max_cost_microcents)
            for model in self._all_models(judge):
                budget.check_price(model)
        return RunChecks(gates, functions)

    def _all_models(self, judge: Judge | None) -> Iterable[Model]:
        for cell in self.plan.cells():
            model = None if cell.lane == "observed" else self._model(cell, self._sources[cell.source])
            yield from () if model is None else resolve_models(model)
        yield from () if judge is None else resolve_models(judge.model)

    # -- running -----------------------------------------------------------------------------------

    async def run(
        self,
        *,
        workers: int = 4,
        max_cost_microcents: int | None = None,
        fail_if: Sequence[str] = (),
        scorers: Sequence[ScoreFunction] = (),
        judge: Judge | None = None,
        progress: Progress | None = None,
    ) -> LabReport:
        """Run what is not done yet, and return the report. Cancelled, it finishes the calls in flight first.

        No model call is made that could make the run cost more than `max_cost_microcents`. `scorers` are functions of a
        turn or a session; `judge` is a model that scores each turn. `fail_if` are gates, checked in the report.
        """
        if type(workers) is not int or workers < 1:
            raise InvalidArgument("workers", workers, "a number from 1 up")
        checks = self.check(
            fail_if=fail_if, max_cost_microcents=max_cost_microcents, scorers=scorers, judge=judge
        )
        record = await asyncio.to_thread(LabRecord.create, self._store, self._runtime, self.run_id, self.plan)
        spent, unknown = await asyncio.to_thread(self._cost_so_far, record)
        longest = max((source.longest_answer for source in self.plan.cohort.sources), default=0)
        budget = CostBudget(max_cost_microcents, spent + unknown, longest)
        runner = _Runner(self, record, budget, checks.scorers, judge, progress)
        await runner.run(workers)
        spent, _ = await asyncio.to_thread(self._cost_so_far, record)
        versions = {each.name: each.version for each in checks.scorers}
        versions |= {} if judge is None else {judge.name: judge.version}
        return build_report(
            self.run_id,
            self.plan,
            record.cells,
            record.scores.values(),
            versions,
            checks.gates,
            spent=spent,
            why=runner.why,
        )

    def run_sync(
        self,
        *,
        workers: int = 4,
        max_cost_microcents: int | None = None,
        fail_if: Sequence[str] = (),
        scorers: Sequence[ScoreFunction] = (),
        judge: Judge | None = None,
        progress: Progress | None = None,
    ) -> LabReport:
        """`run` for scripts."""
        running = self.run(
            workers=workers,
            max_cost_microcents=max_cost_microcents,
            fail_if=fail_if,
            scorers=scorers,
            judge=judge,
            progress=progress,
        )
        return asyncio.run(running)

    def _cost_so_far(self, record: LabRecord) -> tuple[int, int]:
        """Return what the run has cost so far, by the ledger: its replays, finished or not, and its judge; and the most
        that calls may have cost which a crash cut off."""
        spent, unknown = self._store.session(record.run_id).totals.cost_microcents, 0
        for cell in self.plan.cells():
            if cell.lane == "observed":
                continue
            session_id = cell.replay_id(self.run_id)
            try:
                used = self._store.session(session_id).totals
            except NotFound:
                continue
            spent += used.cost_microcents
            if used.unknown_calls:
                unknown += self._cost_of_cut_off_calls(cell, session_id)
        return spent, unknown

    def _cost_of_cut_off_calls(self, cell: Cell, session_id: str) -> int:
        """Return the most that calls may have cost which a crash cut off: as the longest call of the session."""
        count = sum(
            call.usage.input_tokens is None and not call.failed for call in self._store.calls(session_id)
        )
        source = self._sources[cell.source]
        model = self._model(cell, source)
        if model is None or not count:
            return 0
        usage = Usage(source.longest_request, 2 * source.longest_answer, 0, 0)
        price = price_of(resolve_models(model)[0], usage)
        return 0 if price is None else count * price.microcents

    def source_log(self, session_id: str) -> Log:
        """Return the log of a source, at the entry where it was when the run was planned."""
        row = self._store.session(session_id)
        return Log(self._store, replace(row, leaf=self._sources[session_id].leaf), self._runtime)

    def replay_log(self, session_id: str) -> Log:
        return Log(self._store, self._store.session(session_id), self._runtime)

    async def run_cell(self, cell: Cell, budget: CostBudget) -> CellResult:
        """Replay one cell, or continue its replay."""
        source = self._sources[cell.source]
        log = await asyncio.to_thread(self.source_log, cell.source)
        model = self._model(cell, source)
        tools = self._tools if cell.lane == "candidate" else self._baseline_tools
        return await run_cell(cell, log, self.run_id, self._experiment, CellSetup(model, tools), budget)

    def _model(self, cell: Cell, source: CohortSession) -> ModelLike | None:
        """Return the model of a cell; None for the recorded answers."""
        if self._experiment.mode == "strict":
            return None
        model = self._options.model if cell.lane == "candidate" else None
        model = model or self._options.baseline_model or source.model
        if model is None:
            return None
        if isinstance(model, str):  # one object for all cells, so that they share its connections
            return self._models[model]
        return model(cell) if is_model_of_cell(model) else cast("ModelLike", model)


class RunChecks(Struct, frozen=True):
    gates: list[Gate]
    scorers: list[Scorer]


class _Runner:
    """Carries out the cells of a run that are not done, several at a time, and scores them."""

    def __init__(
        self,
        lab: Lab,
        record: LabRecord,
        budget: CostBudget,
        scorers: Sequence[Scorer],
        judge: Judge | None,
        progress: Progress | None,
    ) -> None:
        self._lab, self._record, self._budget, self._progress = lab, record, budget, progress
        self._scorers, self._judge = scorers, judge
        self._judge_caller = None if judge is None else JudgeCaller(judge, record, budget)
        cells = list(lab.plan.cells())
        self._cells = [cell for cell in cells if cell not in record.cells or self._is_unscored(cell)]
        self._total, self._done = len(cells), len(cells) - len(self._cells)
        self.why: str | None = None
        """Why the run stopped before its end."""

    def _is_unscored(self, cell: Cell) -> bool:
        keys = [score_key(each.name, each.version, cell) for each in self._scorers]
        keys += [] if self._judge is None else [_judged(self._judge, cell)]
        return not all(map(self._record.has, keys))

    async def run(self, workers: int) -> None:
        log = self._record.log
        lease = Lease(log)
        row = await asyncio.to_thread(log.refresh)
        if row.status == "completed" and not self._cells:
            return
        try:
            await asyncio.to_thread(lease.take, row)
        except SessionRunning as running:
            raise LabRunning(self._record.run_id, running.holder) from None
        self._record.fence = lease.fence
        try:
            await self._run_workers(workers)
            await asyncio.to_thread(self._record.finish, is_complete=self._record.is_complete, why=self.why)
        finally:
            await asyncio.to_thread(lease.release)
            self._record.fence = None

    async def _run_workers(self, workers: int) -> None:
        pending = iter(self._cells)
        count = min(workers, len(self._cells))
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
                await self._finish(cell)
            except RunStopping:
                return
            except BudgetReached as reached:
                self._stop(reached.command_text)
                return
            except (ModelUnreachable, ModelUnavailable) as unreachable:
                self._stop(str(unreachable))
                return
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total, self._budget.spent)

    async def _finish(self, cell: Cell) -> None:
        """Replay a cell and score it, as far as that is not done."""
        result = self._record.cells.get(cell)
        if result is None:
            try:
                result = await self._lab.run_cell(cell, self._budget)
            except (StoreError, SessionRunning, Fenced, BudgetReached, ModelUnavailable):
                raise
            except BoughError as error:  # this session cannot be replayed so; the others can
                result = CellResult(cell, error=str(error))
            await asyncio.to_thread(self._record.add_cell, result)
        if self._is_unscored(cell):
            await self._score(cell, result)

    async def _score(self, cell: Cell, result: CellResult) -> None:
        session = await asyncio.to_thread(self._scored_session, result)
        for scorer in self._scorers:
            key = score_key(scorer.name, scorer.version, cell)
            if not self._record.has(key):
                scores = await apply_scorer(scorer, session, cell)
                await asyncio.to_thread(self._record.add_scores, scores, key)
        if self._judge is not None and self._judge_caller is not None:
            for turn in session.turns:
                await self._judge_caller.score(turn, cell)
            await asyncio.to_thread(self._record.add_scores, (), _judged(self._judge, cell))

    def _scored_session(self, result: CellResult) -> ScoredSession:
        """Read a cell for its scorers, beside what was observed."""
        cell = result.cell
        if result.error is not None:
            return ScoredSession(session_id=cell.source, lane=cell.lane, number=cell.number, turns=())
        source = self._lab.source_log(cell.source)
        path = source.path().entries
        recorded = observe(Cell(cell.source, "observed", 0), source)
        observed = scored_session(recorded, path, None)
        if cell.lane == "observed":
            return observed
        assert result.replay is not None
        replayed = self._lab.replay_log(result.replay).path().entries
        return scored_session(result, replayed, observed)

    def _stop(self, why: str) -> None:
        self._budget.is_stopping = True
        self.why = self.why or why


def _judged(judge: Judge, cell: Cell) -> str:
    """Return the key under which it is stored that the judge has scored all turns of a cell."""
    return score_key(judge.name, judge.version, cell)


def _judge_usage(source: CohortSession) -> Usage:
    """Estimate what a judge reads and writes about the turns of a session: what they say, and its prompt."""
    read = source.longest_request + source.usage.output_tokens + source.turns * JUDGE_PROMPT_TOKENS
    return Usage(read, source.turns * JUDGE_ANSWER_TOKENS, 0, 0)


def _experiment(
    cohort: Sequence[str],
    options: LabOptions,
    tools: Sequence[Tool] | None,
    baseline_tools: Sequence[Tool] | None,
) -> Experiment:
    mode = options.mode or "recorded"
    if mode not in get_args(LabMode):
        raise InvalidLab(f"mode={mode!r} is invalid", f"use {', '.join(get_args(LabMode))}")
    if options.after_divergence not in get_args(AfterDivergence):
        raise InvalidLab(
            f"after_divergence={options.after_divergence!r} is invalid",
            f"use {' or '.join(get_args(AfterDivergence))}",
        )
    if type(options.repeat) is not int or options.repeat < 1:
        raise InvalidArgument("repeat", options.repeat, "a number from 1 up")
    change = CandidateChange(
        model=_name(options.model),
        prompt=options.prompt,
        prompt_patch=options.prompt_patch,
        options=None if not options.options else dict(options.options),
        tools=None if tools is None else tuple(tool.name for tool in tools),
        tools_hash=_tools_hash(tools),
    )
    if mode == "strict" and not change.is_empty:
        raise InvalidLab(
            "mode strict repeats the recorded answers, so nothing can be changed",
            "leave out model=, prompt=, options= and tools=, or use another mode",
            "leave out --model, --prompt, -o and --tools, or use another mode",
        )
    return Experiment(
        cohort=tuple(cohort),
        sample=options.sample,
        seed=options.seed,
        change=change,
        baseline_model=_name(options.baseline_model),
        baseline_tools_hash=_tools_hash(baseline_tools),
        mode=mode,
        repeat=options.repeat,
        after_divergence=options.after_divergence,
    )


def _tools_hash(tools: Sequence[Tool] | None) -> str | None:
    return None if tools is None else digest([tool.spec for tool in tools])


def is_model_of_cell(model: ModelLike | ModelOfCell) -> TypeGuard[ModelOfCell]:
    """Whether it is a function that returns the model of a cell, and no model itself."""
    return callable(model) and not hasattr(model, "stream")


def _name(model: ModelLike | ModelOfCell | None) -> str | None:
    """Return the name of a model as the plan stores it."""
    if model is None or isinstance(model, str):
        return model
    if is_model_of_cell(model):
        return getattr(model, "__name__", type(model).__name__)
    models = resolve_models(cast("ModelLike", model))
    return ", ".join(model_name(each) or each.model for each in models)


def load_report(store: StoreBackend, runtime: Runtime, run_id: str) -> LabReport:
    """Return the report of a stored run, as far as it is done, with all its scores and without gates."""
    record = LabRecord.load(store, runtime, run_id)
    row = store.session(run_id)
    spent = row.totals.cost_microcents
    for cell, result in record.cells.items():
        spent += result.usage.cost_microcents if cell.lane != "observed" else 0
    return build_report(
        run_id,
        record.plan,
        record.cells,
        record.scores.values(),
        {score.scorer: score.version for score in record.scores.values()},  # of each the latest
        (),
        spent=spent,
        why=None if record.is_complete else row.error,
    )
