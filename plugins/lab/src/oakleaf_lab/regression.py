"""Run a regression case: replay its bundle in memory, without effects, and check each turn against what it expects.

Without a model or a prompt the replay is strict: the recorded answers are given again, so that a case passes offline and
at no cost. With another model or prompt the same inputs are asked anew and tools answer from the recording.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import ReplayReport, Session, Store
from oakleaf.core.messages import ToolCall
from oakleaf.core.turn_reader import TurnView, message_text, read_turns
from oakleaf.core.usage import to_microcents
from oakleaf.errors import ExitCode, ModelError, OakleafError
from oakleaf.ext import ReplayPlan, replay_session, scratch_store
from oakleaf_lab.budget import CostBudget, RunStopping
from oakleaf_lab.case_file import SUFFIX, Case, ExpectedTurn, call_text, read_case, text_pattern
from oakleaf_lab.case_judges import CaseJudges
from oakleaf_lab.case_scorers import apply_scorer
from oakleaf_lab.cell import classify, turn_milliseconds
from oakleaf_lab.errors import BudgetReached, InvalidCase
from oakleaf_lab.scorers import ScoredTurn, turn_values

Status = Literal["passed", "failed", "incomplete", "invalid"]


class Failure(Struct, frozen=True):
    """An expectation a turn did not meet."""

    seq: int
    """The turn, by the entry of its input in the bundle."""
    expected: str
    actual: str

    @property
    def text(self) -> str:
        return f"turn {self.seq}: expected {self.expected}; {self.actual}"


class CaseResult(Struct, frozen=True):
    name: str
    path: str
    status: Status
    failures: tuple[Failure, ...] = ()
    error: str | None = None
    """Why the case is incomplete (a model gave no answer) or invalid."""
    diff: tuple[str, ...] = ()
    """The recording against the replay, as `oakleaf replay` prints it; empty if they are the same."""
    cost_microcents: int = 0
    runs: int = 1
    """How often it was run; a case without a live model or judge is run once."""
    passes: int = 0
    pass_rate: float = 1.0
    """The share of its runs that must pass."""

    @property
    def is_judged(self) -> bool:
        return self.status in ("passed", "failed")

    def lines(self) -> list[str]:
        """Return the verdict, then the failures, then the difference from the recording."""
        lines = [f"{self.status:<10} {self.name}"]
        if self.runs > 1:
            lines[0] += f"  {self.passes} of {self.runs} runs passed, {self.pass_rate:.0%} must"
        if self.status == "passed":
            return lines
        lines += [f"  {self.error}"] if self.error else []
        lines += [f"  {failure.text}" for failure in self.failures]
        return [*lines, *(f"    {line}" for line in self.diff)]


class ReplayedCase(Struct, frozen=True):
    """A replayed case, before the verdict."""

    case: Case
    report: ReplayReport
    source: Session
    """The recording."""
    replay: Session
    """The replay."""
    turns: tuple[TurnView, ...]
    """The turns of the replay after `case.start`, in the order of the recorded inputs."""
    recorded: tuple[TurnView, ...]

    @property
    def turn_numbers(self) -> dict[int, int]:
        """The index of each turn in `recorded` and `turns`, by the entry of the input in the bundle."""
        return {turn.turn: number for number, turn in enumerate(self.recorded)}


def case_name(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


async def run_case(
    path: Path,
    overrides: ReplayPlan = ReplayPlan(),
    *,
    budget: CostBudget | None = None,
    repeat: int | None = None,
    pass_rate: float | None = None,
) -> CaseResult:
    """Run one case. What is wrong with it is part of the result, so that one bad case does not end a run of many.

    `overrides` says what to change: the model, the prompt, options, tools. No model call is made that could pass the
    `budget`, which cases may share. With a live model or a judge it is run `repeat` times, and passes if at least
    `pass_rate` of the runs do; by default as the case says.
    """
    try:
        case = await asyncio.to_thread(read_case, path)
    except OakleafError as error:
        return CaseResult(case_name(path), str(path), "invalid", error=error.command_text)
    rate = case.replay.pass_rate if pass_rate is None else pass_rate
    runs: list[CaseResult] = []
    is_live = True
    while not runs or (is_live and len(runs) < (repeat or case.replay.repeat) and runs[-1].is_judged):
        result, is_live = await _run_once(path, case, overrides, budget)
        runs.append(result)
    return _sum_up(runs, rate)


def _sum_up(runs: Sequence[CaseResult], rate: float) -> CaseResult:
    """Return the verdict over all runs. One that was not judged leaves it open."""
    passes = sum(run.status == "passed" for run in runs)
    status = "passed" if passes >= rate * len(runs) - 1e-9 else "failed"
    first = next((run for run in runs if run.status != "passed"), runs[0])
    return replace(
        first if runs[-1].is_judged else runs[-1],
        status=status if runs[-1].is_judged else runs[-1].status,
        failures=tuple(dict.fromkeys(failure for run in runs for failure in run.failures)),
        cost_microcents=sum(run.cost_microcents for run in runs),
        runs=len(runs),
        passes=passes,
        pass_rate=rate,
    )


async def _run_once(
    path: Path, case: Case, overrides: ReplayPlan, budget: CostBudget | None
) -> tuple[CaseResult, bool]:
    """Return the result of a run, and whether another run could differ: a model or a judge was asked."""
    result = CaseResult(case_name(path), str(path), "passed")
    judges: CaseJudges | None = None
    is_live = bool(case.judge)
    try:
        replayed = await replay_case(path, overrides, case=case, budget=budget)
        report = replayed.report
        is_live = is_live or report.mode != "strict"
        diff = () if report.is_same else tuple(report.lines())
        result = replace(result, diff=diff, cost_microcents=report.usage_after.cost_microcents)
        if report.is_unanswered:
            return replace(result, status="incomplete", error=report.stop_reason), is_live
        judges = CaseJudges(case, path, budget)
        failures = tuple(await judge_case(replayed, path, judges))
        result = replace(result, status="failed" if failures else "passed", failures=failures)
    except (ModelError, BudgetReached, RunStopping) as error:
        result = replace(result, status="incomplete", error=_stop_text(error, budget))
    except OakleafError as error:
        result = replace(result, status="invalid", error=error.command_text)
    judged = 0 if judges is None else judges.cost
    return replace(result, cost_microcents=result.cost_microcents + judged), is_live


def _stop_text(error: Exception, budget: CostBudget | None) -> str:
    """Return why a case has no answer; once the budget is reached no further call is made, of any case."""
    if isinstance(error, RunStopping):
        return "the budget is reached; run it again with a larger --max-cost"
    if isinstance(error, BudgetReached):
        assert budget is not None
        budget.is_stopping = True
        return f"{error.problem}; run it again with a larger --max-cost"
    return error.command_text if isinstance(error, OakleafError) else str(error)


async def replay_case(
    path: Path,
    overrides: ReplayPlan = ReplayPlan(),
    *,
    case: Case | None = None,
    store: Store | None = None,
    budget: CostBudget | None = None,
) -> ReplayedCase:
    """Import the case's bundle, into memory unless a store is passed, and replay the bundle. Without `case`
    it is read from `path`.
    """
    if case is None:
        case = await asyncio.to_thread(read_case, path)
    store = store or scratch_store()
    source = await asyncio.to_thread(_import, path, case, store)
    if budget is not None:
        budget.expect_answers_of(await asyncio.to_thread(_longest_answer, source))
    report = await replay_session(source, replace(_plan(path, case, overrides), meter=budget))
    replayed = await asyncio.to_thread(store.session, report.replay)
    recorded = read_turns(await asyncio.to_thread(source.path))
    turns = read_turns(await asyncio.to_thread(replayed.path))
    return ReplayedCase(
        case, report, source, replayed, _after(turns, report.cut.at), _after(recorded, report.cut.at)
    )


def _longest_answer(source: Session) -> int:
    """Return the tokens of the longest recorded answer; without a record, the bytes as an upper bound."""
    counts = [call.usage.output_tokens for call in source.model_calls()]
    tokens = [count for count in counts if count is not None]
    if len(tokens) < len(counts) or not counts:
        messages = (entry.message for entry in source.path())
        tokens += [
            len(msgspec.json.encode(message))
            for message in messages
            if message is not None and message.role == "assistant"
        ]
    return max(tokens, default=0)


def _after(turns: Iterable[TurnView], seq: int) -> tuple[TurnView, ...]:
    return tuple(turn for turn in turns if turn.last > seq)


def _import(path: Path, case: Case, store: Store) -> Session:
    bundle = path.parent / case.bundle
    if not bundle.is_file():
        raise InvalidCase(str(path), f"its bundle {bundle} is missing")
    try:
        session_id = store.import_bundle(bundle).session_id
    except OakleafError as error:
        raise InvalidCase(str(path), f"its bundle cannot be imported: {error.command_text}") from error
    source = store.session(session_id)
    if case.start > source.leaf.seq:
        raise InvalidCase(
            str(path), f"its start is {case.start}, and its bundle has {source.leaf.seq:,} entries"
        )
    return source


def _plan(path: Path, case: Case, overrides: ReplayPlan) -> ReplayPlan:
    """Return the plan of the replay: arguments win over the case."""
    own = case.replay
    prompt = overrides.prompt
    if prompt is None and overrides.prompt_patch is None:
        prompt = own.prompt if own.prompt_file is None else _prompt_text(path, own.prompt_file)
    return replace(
        overrides,
        model=overrides.model if overrides.model is not None else own.model,
        prompt=prompt,
        options=overrides.options if overrides.options is not None else own.options,
        tools=overrides.tools or "recorded",
        start=case.start,
        on_miss=own.on_miss,
    )


def _prompt_text(path: Path, name: str) -> str:
    try:
        return (path.parent / name).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCase(str(path), f"its prompt_file {name} cannot be read ({error})") from None


# -- judge -------------------------------------------------------------------------------------------------------


async def judge_case(replayed: ReplayedCase, path: Path, judges: CaseJudges | None = None) -> list[Failure]:
    """Return every unmet expectation, scorers last; raise `InvalidCase` for a failing scorer."""
    judges = judges or CaseJudges(replayed.case, path, None)
    return [*judge(replayed), *await _judge_scores(replayed, path, judges)]


def judge(replayed: ReplayedCase) -> list[Failure]:
    """Return every unmet expectation except scorers, in the order of turns."""
    failures: list[Failure] = []
    numbers = replayed.turn_numbers
    for expected in replayed.case.turn:
        number = numbers.get(expected.seq)
        if number is None:
            seqs = ", ".join(map(str, numbers)) or "none"
            failures.append(Failure(expected.seq, "a replayed turn", f"the bundle has turns {seqs}"))
        elif number >= len(replayed.turns):
            why = replayed.report.stop_reason or "the replay ended before it"
            failures.append(Failure(expected.seq, "an answer", f"the replay did not reach it: {why}"))
        else:
            failures += judge_turn(expected, replayed.turns[number])
    if replayed.report.mode == "strict" and not replayed.report.is_same and not failures:
        seq = replayed.report.cut.at
        failures.append(
            Failure(seq, "the recorded answers to repeat the recording", "the replay differs from it")
        )
    return failures


def judge_turn(expected: ExpectedTurn, turn: TurnView) -> list[Failure]:
    """Return the unmet expectations of the turn."""
    calls = [view.call for step in turn.steps for view in step.calls]
    texts = [message_text(step.message) for step in turn.steps]
    answer = texts[-1] if texts else ""
    failures = [] if expected.tools is None else _judge_calls(expected, calls)
    for forbidden in expected.forbidden_calls:
        if match := next(filter(forbidden.matches, calls), None):
            failures.append(Failure(expected.seq, f"no call of {forbidden}", f"it called {call_text(match)}"))
    for text in expected.says:
        if not text_pattern(text).search(answer):
            failures.append(Failure(expected.seq, f"the answer to say {text!r}", f"it says {_quote(answer)}"))
    for text in expected.never_says:
        if hit := next(filter(None, map(text_pattern(text).search, texts)), None):
            failures.append(Failure(expected.seq, f"never to say {text!r}", f"it says {hit[0]!r}"))
    return failures


async def _judge_scores(replayed: ReplayedCase, path: Path, judges: CaseJudges) -> list[Failure]:
    failures: list[Failure] = []
    for expected in replayed.case.turn:
        number = replayed.turn_numbers.get(expected.seq)
        if not expected.scorers or number is None or number >= len(replayed.turns):
            continue  # a turn that was not reached has failed already
        turn = await asyncio.to_thread(_scored_turn, replayed, number)
        for scorer in expected.case_scorers:
            if scorer.is_judge:
                problem = await judges.problem(scorer, turn)
            else:
                try:
                    function = scorer.load(path.parent)
                except ValueError as error:
                    raise InvalidCase(str(path), f"turn {expected.seq}: {error}") from None
                problem = await apply_scorer(scorer, function, turn)
            if problem is not None:
                failures.append(Failure(expected.seq, f"{scorer} to pass", problem))
    return failures


def _scored_turn(replayed: ReplayedCase, number: int) -> ScoredTurn:
    recorded, turn, source = replayed.recorded[number], replayed.turns[number], replayed.report.source
    row = next((row for row in replayed.report.rows if row.turn_a == recorded.turn), None)
    observed = ScoredTurn(
        session_id=source,
        lane="observed",
        number=0,
        turn=recorded.turn,
        kind="same",
        cost_microcents=row.a.cost_microcents if row else 0,
        milliseconds=_milliseconds(replayed.source, recorded),
        **turn_values(recorded),
    )
    return replace(
        observed,
        lane="candidate",
        number=1,
        kind=classify(row) if row else "same",
        cost_microcents=row.b.cost_microcents if row else 0,
        milliseconds=_milliseconds(replayed.replay, turn),
        observed=observed,
        **turn_values(turn),
    )


def _milliseconds(session: Session, turn: TurnView) -> int:
    return turn_milliseconds(session.path(), session.journal()).get(turn.turn, 0)


def _judge_calls(expected: ExpectedTurn, calls: Sequence[ToolCall]) -> list[Failure]:
    expected_calls = expected.expected_calls
    if expected.match == "exact":
        is_met = len(expected_calls) == len(calls) and all(
            want.matches(call) for want, call in zip(expected_calls, calls, strict=True)
        )
    else:
        remaining = iter(calls)
        is_met = all(any(want.matches(call) for call in remaining) for want in expected_calls)
    if is_met:
        return []
    words = "the calls" if expected.match == "exact" else "among its calls, in this order,"
    return [
        Failure(
            expected.seq,
            f"{words} {', '.join(map(str, expected_calls)) or '(none)'}",
            f"it called {', '.join(map(call_text, calls)) or 'no tool'}",
        )
    ]


def _quote(text: str, limit: int = 300) -> str:
    return repr(text if len(text) <= limit else f"{text[:limit]}…") if text else "nothing"


# -- many --------------------------------------------------------------------------------------------------------


class RegressionReport(Struct, frozen=True):
    """The result of a run of cases."""

    cases: tuple[CaseResult, ...]

    def count(self, status: Status) -> int:
        return sum(case.status == status for case in self.cases)

    @property
    def exit_code(self) -> ExitCode:
        """2 with an unusable case, else 1 with a failed case, else 4 if a model gave no answer, else 0."""
        if self.count("invalid"):
            return ExitCode.USAGE
        if self.count("failed"):
            return ExitCode.PROBLEM
        return ExitCode.UNANSWERABLE if self.count("incomplete") else ExitCode.OK


async def run_cases(
    paths: Sequence[Path],
    overrides: ReplayPlan = ReplayPlan(),
    *,
    workers: int = 4,
    max_cost_microcents: int | None = None,
    max_cost_dollars: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    repeat: int | None = None,
    pass_rate: float | None = None,
) -> RegressionReport:
    """Run cases side by side, as many at once as there are workers; results are in the order of `paths`.

    No model call is made that could make all of them together cost more than `max_cost_dollars`, or `max_cost_microcents`.
    `repeat` and `pass_rate` are those of `run_case`.
    """
    limit = to_microcents(max_cost_dollars, max_cost_microcents)
    budget = None if limit is None else CostBudget(limit)
    places = asyncio.Semaphore(workers)
    done = 0

    async def run(path: Path) -> CaseResult:
        nonlocal done
        async with places:
            result = await run_case(path, overrides, budget=budget, repeat=repeat, pass_rate=pass_rate)
        done += 1
        if progress is not None:
            progress(done, len(paths))
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(path)) for path in paths]
    return RegressionReport(tuple(task.result() for task in tasks))
