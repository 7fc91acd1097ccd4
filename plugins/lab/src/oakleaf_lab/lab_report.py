"""The report of a lab run: values only, built from the stored results, the same for the same results.

`LabReport` is what the command line, the page and `--json` show. Knows results and statistics; does not know stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import unified_diff
from functools import reduce
from statistics import median
from typing import Literal

from msgspec import Struct

from oakleaf.core.usage import MICROCENTS_PER_DOLLAR, Totals, add
from oakleaf.errors import ExitCode, plural
from oakleaf_lab.experiment import (
    LANES,
    TURN_CLASSES,
    Cell,
    CellResult,
    Experiment,
    LabPlan,
    Lane,
    TurnClass,
    TurnResult,
    digest,
)
from oakleaf_lab.gates import CALLS, Gate, GateResult, Operator, check_gate
from oakleaf_lab.record import Score
from oakleaf_lab.statistics import (
    Effect,
    PairedTurn,
    clustered_rate,
    describe,
    mean_difference,
    mean_ratio,
    rate_difference,
)

_PHRASES: dict[str, str] = {
    "same": "answers are the same",
    "reworded": "only words change",
    "arguments_changed": "arguments change",
    "tool_changed": "tools change",
    "missing": "answers are missing",
    "failed": "turns fail",
    "changed": "behaviour changes",
    "cost": "cost in dollars",
    "tokens": "tokens",
    "latency": "seconds",
}
_LESS_IS_BETTER = ("missing", "failed", "cost", "tokens", "latency")
_MORE_IS_BETTER = ("judge",)
CLASS_METRICS = {kind.replace(" ", "_"): kind for kind in TURN_CLASSES}
_CLASSES = (*CLASS_METRICS, "changed")
NOT_RECORDED = "ended at a call that was not recorded"
METRICS = tuple(_PHRASES)
"""What every run measures, beside its scorers."""


class Rate(Struct, frozen=True):
    """How many turns are of a class."""

    count: int
    turns: int
    low: float
    high: float
    """The 95 % interval of the rate."""

    @property
    def value(self) -> float:
        return self.count / self.turns if self.turns else 0.0


class ScoreSummary(Struct, frozen=True):
    """The scores of one scorer for a lane."""

    count: int
    mean: float | None
    failures: dict[str, int] = {}
    """How often it had no value, by reason."""


class LaneReport(Struct, frozen=True):
    """The report of a lane: the observation, the baseline, or the candidate."""

    lane: Lane
    cells: int
    turns: int
    classes: dict[str, Rate]
    usage: Totals
    latency_ms: int | None
    """The median of its turns."""
    calls: dict[str, Rate] = {}
    """Of each tool that was called in any lane, how many turns call it."""
    scores: dict[str, ScoreSummary] = {}
    repetitions: tuple[dict[str, float], ...] = ()
    """The rates of each repetition by itself: how much they vary by chance."""


class Comparison(Struct, frozen=True):
    """One metric of the candidate against the baseline."""

    metric: str
    effect: Effect
    text: str
    unscored: dict[str, int] = {}
    """How many replayed turns of both lanes have no value, by reason."""
    verdict: Literal["better", "worse"] | None = None
    """Of a real difference: whether it is an improvement, by the metric or by a gate on it; None: nobody said which way is better."""


class ReplayedTurn(Struct, frozen=True):
    """A turn of one replay."""

    kind: TurnClass
    replay: str
    replay_turn: int | None
    cost_microcents: int
    unpriced_calls: int
    milliseconds: int
    expected: str | None = None
    actual: str | None = None
    scores: dict[str, float] = {}


class TurnReport(Struct, frozen=True):
    """A turn of the recording and of every replay that reached it."""

    turn: int
    input: str
    baseline: tuple[ReplayedTurn, ...]
    candidate: tuple[ReplayedTurn, ...]


class SessionReport(Struct, frozen=True):
    """A session of the cohort."""

    session_id: str
    heading: str
    baseline: tuple[str, ...]
    """Its replays in the baseline."""
    candidate: tuple[str, ...]
    change: float
    """How many more turns the candidate changes than the baseline does, as a share of its turns."""
    turns: tuple[TurnReport, ...]
    errors: tuple[str, ...] = ()
    """Why it could not be replayed."""
    failures: tuple[str, ...] = ()
    """Why turns of its replays failed."""


class LabReport(Struct, frozen=True, kw_only=True):
    """The result of a lab run."""

    run_id: str
    status: Literal["complete", "incomplete"]
    why: str | None = None
    """Why it is incomplete."""
    experiment: Experiment
    change: str
    """What the candidate changes, in a few words."""
    prompt_diff: tuple[str, ...] = ()
    """The lines of the recorded prompt against those of the candidate's; of several the most frequent."""
    prompts: dict[str, int] = {}
    """The recorded prompts, and how many sessions have each."""
    skipped: dict[str, int]
    """How many sessions were left out, by reason."""
    cells: int
    """How many of `total_cells` are done."""
    total_cells: int
    spent_microcents: int
    """What the replays and the judge cost."""
    lanes: tuple[LaneReport, ...]
    comparisons: tuple[Comparison, ...]
    gates: tuple[GateResult, ...]
    sessions: tuple[SessionReport, ...]

    @property
    def is_passed(self) -> bool:
        return self.exit_code == ExitCode.OK

    @property
    def exit_code(self) -> ExitCode:
        """0 passed, 1 a gate failed, 4 incomplete or not decided."""
        outcomes = {gate.outcome for gate in self.gates}
        if self.status == "incomplete":
            return ExitCode.UNANSWERABLE
        if "failed" in outcomes:
            return ExitCode.PROBLEM
        return ExitCode.UNANSWERABLE if "undecided" in outcomes else ExitCode.OK

    def lane(self, lane: Lane) -> LaneReport:
        return next(each for each in self.lanes if each.lane == lane)

    def comparison(self, metric: str) -> Comparison:
        return next(each for each in self.comparisons if each.metric == metric)

    def lines(self) -> list[str]:
        from oakleaf_lab.report_text import report_lines

        return report_lines(self)


def build_report(
    run_id: str,
    plan: LabPlan,
    results: Mapping[Cell, CellResult],
    scores: Iterable[Score],
    versions: Mapping[str, str],
    gates: Sequence[Gate],
    *,
    spent: int,
    why: str | None = None,
) -> LabReport:
    """Build the report of the work so far. `versions` are those of the scorers whose scores count, by name."""
    scorers = list(versions)
    cells = list(plan.cells())
    done = {cell: results[cell] for cell in cells if cell in results}
    if len(done) == len(cells) and why is None and not any(result.replay for result in done.values()):
        why = "no session of the cohort could be replayed"
    is_complete = len(done) == len(cells) and why is None
    counted = [score for score in scores if versions.get(score.scorer) == score.version]
    view = _Results(plan, done, counted, scorers)
    gated = [gate.metric for gate in gates if gate.metric.startswith(CALLS)]
    called = dict.fromkeys((*(f"{CALLS}{name}" for name in view.called), *gated))
    worse = {gate.metric: gate.operator for gate in gates}
    comparisons = [
        Comparison(
            metric,
            effect,
            describe(effect, _phrase(metric), _against(metric)),
            view.unscored(metric),
            _verdict(metric, effect, worse.get(metric)),
        )
        for metric in (*METRICS, *called, *scorers)
        for effect in [view.effect(metric)]
    ]
    by_metric = {each.metric: each for each in comparisons}
    total = 2 * plan.experiment.repeat * plan.cohort.turns
    if is_complete:
        outcomes = [
            check_gate(gate, by_metric[gate.metric].effect, by_metric[gate.metric].unscored, total)
            if gate.metric in by_metric
            else GateResult(gate.text, "undecided", f"no score of {gate.metric} is stored")
            for gate in gates
        ]
    else:
        done_text = f"the run is incomplete: {len(done):,} of {plural(len(cells), 'cell')} are done"
        outcomes = [GateResult(gate.text, "undecided", done_text) for gate in gates]
    return LabReport(
        run_id=run_id,
        status="complete" if is_complete else "incomplete",
        why=why if why is not None or is_complete else "it was interrupted",
        experiment=plan.experiment,
        change=change_text(plan),
        prompt_diff=tuple(_prompt_diff(plan)),
        prompts=plan.cohort.prompts,
        skipped={each.reason: len(each.session_ids) for each in plan.cohort.skipped},
        cells=len(done),
        total_cells=len(cells),
        spent_microcents=spent,
        lanes=tuple(view.lane(lane) for lane in LANES),
        comparisons=tuple(comparisons),
        gates=tuple(outcomes),
        sessions=tuple(view.sessions()),
    )


def _failure(result: CellResult) -> str | None:
    """Return the reason for the failure of a replay's last turn, if any."""
    return result.stop_reason if any(turn.kind == "failed" for turn in result.turns) else None


def _phrase(metric: str) -> str:
    called = f"{metric.removeprefix(CALLS)} is called"
    return called if metric.startswith(CALLS) else _PHRASES.get(metric, metric)


def _verdict(metric: str, effect: Effect, gate: Operator | None) -> Literal["better", "worse"] | None:
    """Return whether a difference is an improvement. A gate on more of it says that less is better."""
    is_less_better = metric in _LESS_IS_BETTER if gate is None else gate in (">", ">=")
    is_more_better = metric in _MORE_IS_BETTER if gate is None else not is_less_better
    if not effect.is_difference or not (is_less_better or is_more_better):
        return None
    assert effect.candidate is not None
    assert effect.baseline is not None
    return "better" if (effect.candidate < effect.baseline) == is_less_better else "worse"


def change_text(plan: LabPlan) -> str:
    """Return the candidate's changes, in a few words."""
    experiment, change = plan.experiment, plan.experiment.change
    recorded = {digest(each) for each in plan.cohort.tools}
    has_other_tools = change.tools_hash != experiment.baseline_tools_hash and recorded != {change.tools_hash}
    pieces = [
        f"model {change.model}" if change.model else "",
        "another prompt" if change.prompt is not None else "",
        "an addition to the prompt" if change.prompt_patch is not None else "",
        ", ".join(f"{name}={value}" for name, value in (change.options or {}).items()),
        f"tools {', '.join(change.tools)}" if change.tools is not None and has_other_tools else "",
    ]
    return ", ".join(filter(None, pieces)) or "nothing changed"


def _prompt_diff(plan: LabPlan) -> Iterable[str]:
    """Return the lines of the most frequent recorded prompt against the candidate's."""
    change = plan.experiment.change
    if change.prompt is None and change.prompt_patch is None:
        return ()
    old = next(iter(plan.cohort.prompts), "")
    new = [old if change.prompt is None else change.prompt, change.prompt_patch or ""]
    return unified_diff(
        old.splitlines(), "\n\n".join(filter(None, new)).splitlines(), "recorded", "candidate", lineterm=""
    )


def _against(metric: str) -> str:
    return "by noise alone" if metric in _CLASSES else "in the baseline"


class _Results:
    """The results of a run, grouped by lane, session and turn."""

    def __init__(
        self,
        plan: LabPlan,
        results: Mapping[Cell, CellResult],
        scores: Sequence[Score],
        scorers: Sequence[str],
    ) -> None:
        self._plan, self._scorers = plan, scorers
        self._scores: dict[Cell, dict[str, dict[int | None, Score]]] = {}
        for score in scores:
            self._scores.setdefault(score.cell, {}).setdefault(score.scorer, {})[score.turn] = score
        self._of_lane: dict[Lane, list[CellResult]] = {lane: [] for lane in LANES}
        self._of_source: dict[str, list[CellResult]] = {}
        for cell, result in results.items():
            self._of_lane[cell.lane].append(result)
            self._of_source.setdefault(cell.source, []).append(result)
        turns = [turn for result in results.values() for turn in result.turns]
        self.called = sorted({name for turn in turns for name in turn.calls})
        """The tools that any lane calls."""

    # -- lanes -------------------------------------------------------------------------------------

    def lane(self, lane: Lane) -> LaneReport:
        results = self._of_lane[lane]
        turns = [turn for result in results for turn in result.turns]
        usage = reduce(add, (result.usage for result in results), Totals())
        classes = {} if lane == "observed" else {name: self._rate(lane, name) for name in _CLASSES}
        numbers = sorted({result.cell.number for result in results})
        return LaneReport(
            lane,
            len(results),
            len(turns),
            classes,
            usage,
            round(median(turn.milliseconds for turn in turns)) if turns else None,
            {name: self._rate(lane, f"{CALLS}{name}") for name in self.called},
            {scorer: self._summary(lane, scorer) for scorer in self._scorers},
            tuple(self._repetition(lane, number) for number in numbers) if lane != "observed" else (),
        )

    def _rate(self, lane: Lane, metric: str) -> Rate:
        value = _turn_value(metric)
        by_session: dict[str, list[float]] = {}
        for result in self._of_lane[lane]:
            by_session.setdefault(result.cell.source, []).extend(map(value, result.turns))
        interval = clustered_rate(by_session.values())
        values = [each for session in by_session.values() for each in session]
        return Rate(round(sum(values)), len(values), interval.low, interval.high)

    def _repetition(self, lane: Lane, number: int) -> dict[str, float]:
        turns = [t for r in self._of_lane[lane] if r.cell.number == number for t in r.turns]
        metrics = (*_CLASSES, *(f"{CALLS}{name}" for name in self.called))
        return {
            metric: sum(map(_turn_value(metric), turns)) / len(turns) if turns else 0.0 for metric in metrics
        }

    def _summary(self, lane: Lane, scorer: str) -> ScoreSummary:
        results = self._of_lane[lane]
        scores = [score for each in results for score in self._scores_of(each.cell, scorer).values()]
        values = [score.value for score in scores if score.value is not None]
        failures = Counter(score.error or "no value" for score in scores if score.value is None)
        return ScoreSummary(len(values), sum(values) / len(values) if values else None, dict(failures))

    def _scores_of(self, cell: Cell, scorer: str) -> dict[int | None, Score]:
        return self._scores.get(cell, {}).get(scorer, {})

    # -- candidate against baseline ----------------------------------------------------------------

    def effect(self, metric: str) -> Effect:
        pairs = list(self._pairs(metric))
        if metric in _CLASSES or metric.startswith(CALLS):
            return rate_difference(pairs)
        if metric in _PHRASES:
            return mean_ratio(pairs)
        values = {value for pair in pairs for value in (*pair.baseline, *pair.candidate)}
        return rate_difference(pairs) if values and values <= {0.0, 1.0} else mean_difference(pairs)

    def _pairs(self, metric: str) -> Iterable[PairedTurn]:
        """Yield each turn, or each session for a score of sessions, with the values in both lanes."""
        for source in self._plan.cohort.sources:
            values: dict[int | None, tuple[list[float], list[float]]] = {}
            is_of_session = self._is_of_session(metric)
            for result in self._of_source.get(source.session_id, ()):
                if result.cell.lane == "observed":
                    # A turn that no lane has a value of counts as one that is left out.
                    turns = [None] if is_of_session else [turn.turn for turn in result.turns]
                    values |= {turn: ([], []) for turn in turns if turn not in values}
                    continue
                for turn, value in self._values(metric, result):
                    lanes = values.setdefault(turn, ([], []))
                    lanes[result.cell.lane == "candidate"].append(value)
            for baseline, candidate in values.values():
                yield PairedTurn(source.session_id, baseline, candidate)

    def _values(self, metric: str, result: CellResult) -> Iterable[tuple[int | None, float]]:
        if metric in _PHRASES or metric.startswith(CALLS):
            value = _turn_value(metric)
            return [(turn.turn, value(turn)) for turn in result.turns if _is_measured(metric, turn)]
        scores = self._scores_of(result.cell, metric)
        return [(turn, score.value) for turn, score in scores.items() if score.value is not None]

    def _is_of_session(self, metric: str) -> bool:
        """Whether a function is a scorer of whole sessions."""
        scores = (scorers.get(metric, {}) for scorers in self._scores.values())
        return any(None in turns for turns in scores)

    def unscored(self, metric: str) -> dict[str, int]:
        """Count the replayed turns without a value, by reason; a session's missing score counts all turns of
        the replay.
        """
        reasons: Counter[str] = Counter()
        is_of_session = self._is_of_session(metric)
        for source in self._plan.cohort.sources:
            for result in self._of_source.get(source.session_id, ()):
                if result.cell.lane == "observed":
                    continue
                whys = list(self._whys(metric, result, source.turns))
                if is_of_session and any(whys):
                    whys = [next(filter(None, whys))] * source.turns
                reasons.update(filter(None, whys))
        return dict(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])))

    def _whys(self, metric: str, result: CellResult, turns: int) -> Iterable[str | None]:
        """Yield for each turn of a replay the reason for a missing value; None with a value."""
        for turn in result.turns:
            yield self._why(metric, result, turn)
        missing = f"not replayed: {result.error}" if result.error else "not reached"
        yield from [missing] * (turns - len(result.turns))

    def _why(self, metric: str, result: CellResult, turn: TurnResult) -> str | None:
        cut = "failed" if turn.kind == "failed" else NOT_RECORDED
        if metric.startswith(CALLS):
            return cut if turn.is_cut and metric.removeprefix(CALLS) not in turn.calls else None
        if metric in _PHRASES:
            return None if _is_measured(metric, turn) else cut if turn.is_cut else f"of unknown {metric}"
        scores = self._scores_of(result.cell, metric)
        score = scores.get(turn.turn) or scores.get(None)
        if turn.is_cut:
            return cut
        if score is None:
            return "not scored"
        return None if score.value is not None else score.error or "not scored"

    # -- sessions ----------------------------------------------------------------------------------

    def sessions(self) -> Iterable[SessionReport]:
        for source in self._plan.cohort.sources:
            results = self._of_source.get(source.session_id, [])
            lanes = {lane: [r for r in results if r.cell.lane == lane] for lane in LANES}
            inputs = {turn.turn: turn.input for result in lanes["observed"] for turn in result.turns}
            turns = [
                TurnReport(n, text, self._turns(lanes["baseline"], n), self._turns(lanes["candidate"], n))
                for n, text in inputs.items()
            ]
            yield SessionReport(
                source.session_id,
                source.heading,
                _replays(lanes["baseline"]),
                _replays(lanes["candidate"]),
                round(_change(turns), 4),
                tuple(turns),
                tuple(dict.fromkeys(r.error for r in results if r.error is not None)),
                tuple(dict.fromkeys(filter(None, map(_failure, results)))),
            )

    def _turns(self, results: Sequence[CellResult], number: int) -> tuple[ReplayedTurn, ...]:
        return tuple(
            self._replayed_turn(result, turn)
            for result in results
            for turn in result.turns
            if turn.turn == number and result.replay is not None
        )

    def _replayed_turn(self, result: CellResult, turn: TurnResult) -> ReplayedTurn:
        divergence = turn.divergence
        scores = {
            scorer: score.value
            for scorer in self._scorers  # not in the order in which the scores were made
            if (score := self._scores_of(result.cell, scorer).get(turn.turn)) is not None
            and score.value is not None
        }
        assert result.replay is not None
        return ReplayedTurn(
            turn.kind,
            result.replay,
            turn.replay_turn,
            turn.usage.cost_microcents,
            turn.usage.unpriced_calls,
            turn.milliseconds,
            None if divergence is None else divergence.expected,
            None if divergence is None else divergence.actual,
            scores,
        )


def _is_measured(metric: str, turn: TurnResult) -> bool:
    """Whether a turn is known in full: a cut turn, or a call without a price or tokens, is not cheap."""
    if metric in ("cost", "tokens", "latency") and turn.is_cut:
        return False
    if metric == "cost" and turn.usage.unpriced_calls:
        return False
    return metric not in ("cost", "tokens") or not turn.usage.unknown_calls


def _turn_value(metric: str) -> Callable[[TurnResult], float]:
    """Return the function for reading a metric from a turn."""
    match metric:
        case "cost":
            return lambda turn: turn.usage.cost_microcents / MICROCENTS_PER_DOLLAR
        case "tokens":
            return lambda turn: float(turn.usage.input_tokens + turn.usage.output_tokens)
        case "latency":
            return lambda turn: turn.milliseconds / 1_000
        case "changed":
            return lambda turn: float(turn.kind not in ("same", "reworded"))
    if metric.startswith(CALLS):
        name = metric.removeprefix(CALLS)
        return lambda turn: float(name in turn.calls)
    kind = CLASS_METRICS[metric]
    return lambda turn: float(turn.kind == kind)


def _replays(results: Sequence[CellResult]) -> tuple[str, ...]:
    return tuple(result.replay for result in results if result.replay is not None)


def _change(turns: Sequence[TurnReport]) -> float:
    shares = [
        _share(turn.candidate) - _share(turn.baseline) for turn in turns if turn.candidate and turn.baseline
    ]
    return sum(shares) / len(shares) if shares else 0.0


def _share(turns: Sequence[ReplayedTurn]) -> float:
    return sum(turn.kind not in ("same", "reworded") for turn in turns) / len(turns)
