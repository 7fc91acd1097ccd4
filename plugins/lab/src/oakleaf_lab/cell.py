"""Run one cell: replay a session in one lane, into a session whose id is known before, and say what each turn did.

A cell that was interrupted is continued by the same call: what its replay has stored is not asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from oakleaf import ReplayReport, Session, Tool
from oakleaf.core.entries import Entry
from oakleaf.core.facts import (
    Appended,
    ApprovalRequested,
    StoredFact,
    ToolCallsStarted,
    TurnEnded,
    TurnLeft,
    TurnResumed,
    TurnStarted,
)
from oakleaf.core.tool_definitions import ToolSpec, read_tools
from oakleaf.core.turn_comparison import WEIGHTS, DiffRow, Divergence
from oakleaf.core.turn_reader import message_text
from oakleaf.core.usage import Call, Totals, Usage, total, totals_by_turn
from oakleaf.errors import ModelUnavailable, Overloaded, shorten
from oakleaf.ext import CallMeter, ReplayPlan, ReplayTarget, replay_session, store_of
from oakleaf.models.base import ModelLike
from oakleaf_lab.cohort import CohortSession
from oakleaf_lab.experiment import Cell, CellResult, Experiment, TurnClass, TurnResult

_RUNNING = (TurnStarted, TurnResumed, Appended, ToolCallsStarted, ApprovalRequested)
"""The facts of a turn that runs; what comes after the last of them, until it is resumed, is a crash."""
UNREACHABLE = (Overloaded.code, ModelUnavailable.code)
"""The codes of errors after which the same call may succeed later."""


class CellSetup(Struct, frozen=True):
    """The replay setup of a run's cells."""

    experiment: Experiment
    sources: Mapping[str, CohortSession]
    """The sessions of the cohort by id."""
    model_of: Callable[[Cell], ModelLike | None]
    """The model of a cell; None for the recorded answers."""
    tools: Sequence[Tool] | None
    """Those of the candidate; None: the recorded ones."""
    baseline_tools: Sequence[Tool] | None


class ModelUnreachable(Exception):
    """A model gave no answer now; the cell can be continued later."""


async def run_cell(
    cell: Cell, source: Session, run_id: str, setup: CellSetup, meter: CallMeter
) -> CellResult:
    """Replay the session, or read the observations."""
    if cell.lane == "observed":
        return await asyncio.to_thread(observe, cell, source)
    experiment, change = setup.experiment, setup.experiment.change
    is_candidate = cell.lane == "candidate"
    tools = setup.tools if is_candidate else await asyncio.to_thread(_baseline_tools, source, setup)
    plan = ReplayPlan(
        model=setup.model_of(cell),
        prompt=change.prompt if is_candidate else None,
        prompt_patch=change.prompt_patch if is_candidate else None,
        options=change.options if is_candidate else None,
        tools="recorded" if tools is None else tools,
        mode=experiment.mode,
        on_miss="stop" if experiment.after_divergence == "stop" else "next",
        target=ReplayTarget(
            cell.replay_id(run_id), {"lab": run_id, "lane": cell.lane, "repetition": str(cell.number)}
        ),
        meter=meter,
    )
    report = await replay_session(source, plan)
    if report.error_code in UNREACHABLE:
        raise ModelUnreachable(report.stop_reason)
    return await asyncio.to_thread(_result, cell, source, report)


def _baseline_tools(source: Session, setup: CellSetup) -> Sequence[Tool] | None:
    """Return the baseline's tools: the given tools, else the candidate's tools with the recorded definition."""
    if setup.baseline_tools is not None or setup.tools is None:
        return setup.baseline_tools
    given = {tool.name: tool for tool in setup.tools}
    recorded = recorded_tools(source) or ()
    same = [given[spec.name] for spec in recorded if spec.name in given and given[spec.name].spec == spec]
    return same if same and len(same) == len(recorded) else None


def recorded_tools(source: Session) -> tuple[ToolSpec, ...] | None:
    """Return the definitions in the model's last request; None without a record."""
    return read_tools(source.context().settings.tool_definitions, store_of(source).blob)


def observe(cell: Cell, source: Session) -> CellResult:
    """Return the usage and the duration of the recorded turns."""
    path, calls = source.path(), source.model_calls("path")
    costs = totals_by_turn(calls, path)
    durations = turn_milliseconds(path, source.journal())
    called = called_tools(path)
    turns = [
        TurnResult(
            entry.turn,
            "same",
            None,
            costs.get(entry.turn, Totals()),
            durations[entry.turn],
            input=shorten(" ".join(message_text(entry.message).split()), 120),
            calls=called.get(entry.turn, ()),
        )
        for entry in path
        if entry.is_input and entry.message is not None
    ]
    return CellResult(cell, None, tuple(turns), total(calls))


def _result(cell: Cell, source: Session, report: ReplayReport) -> CellResult:
    replayed = store_of(source).session(report.replay)
    path = replayed.path()
    calls = answered_calls(replayed.model_calls())
    usage = totals_by_turn(calls, path)
    durations = turn_milliseconds(path, replayed.journal())
    cut, called = _cut_turns(path), called_tools(path)
    recorded = [row for row in report.rows if row.turn_a is not None]
    turns: list[TurnResult] = []
    for number, row in enumerate(recorded[: report.turns], 1):
        assert row.turn_a is not None
        is_failed = report.is_unanswered and number == report.turns
        turns.append(
            TurnResult(
                row.turn_a,
                "failed" if is_failed else classify(row),
                row.turn_b,
                usage.get(row.turn_b or 0, Totals()),
                durations.get(row.turn_b or 0, 0),
                is_cut=row.turn_b in cut or is_failed,
                divergence=_heaviest(row.differences),
                calls=called.get(row.turn_b or 0, ()),
            )
        )
    return CellResult(cell, report.replay, tuple(turns), total(calls), report.stop_reason)


def answered_calls(calls: Iterable[Call]) -> list[Call]:
    """Leave out calls cut off by a crash: such calls say nothing about the lane. Their cost is not known."""
    return [call for call in calls if call.failed or call.usage != Usage()]


def called_tools(path: Sequence[Entry]) -> dict[int, tuple[str, ...]]:
    """Return the names of each turn's called tools, each once."""
    names: dict[int, dict[str, None]] = {}
    for entry in path:
        for call in () if entry.message is None else entry.message.calls:
            names.setdefault(entry.turn, {})[call.name] = None
    return {turn: tuple(called) for turn, called in names.items() if turn}


def _cut_turns(path: Sequence[Entry]) -> set[int]:
    """Return the turns with an unrecorded call."""
    return {
        entry.turn
        for entry in path
        if entry.message is not None
        and any(result.outcome == "not_recorded" for result in entry.message.results)
    }


def classify(row: DiffRow) -> TurnClass:
    """Return the model's differences in a turn. Another result of the same call is not its doing."""
    kinds = [each.kind for each in row.differences if each.kind != "result changed"]
    heaviest = max(kinds, key=lambda kind: WEIGHTS[kind], default="same")
    return "missing" if heaviest in ("missing", "input changed") else heaviest  # type: ignore[return-value]


def _heaviest(differences: Iterable[Divergence]) -> Divergence | None:
    heaviest = max(differences, key=lambda each: WEIGHTS[each.kind], default=None)
    if heaviest is None:
        return None
    return replace(heaviest, expected=shorten(heaviest.expected, 300), actual=shorten(heaviest.actual, 300))


def turn_milliseconds(path: Sequence[Entry], facts: Iterable[StoredFact]) -> dict[int, int]:
    """Return each turn's running time in milliseconds, from the input to the last entry, without waits for a
    person and interruptions.
    """
    pauses = _pauses(facts)
    ends: dict[int, Entry] = {}
    starts: dict[int, Entry] = {}
    for entry in path:
        if entry.is_input:
            starts[entry.turn] = entry
        if entry.turn:
            ends[entry.turn] = entry
    return {
        turn: max(0, ends[turn].at - start.at - pauses.get(turn, 0)) // 1_000
        for turn, start in starts.items()
    }


def _pauses(facts: Iterable[StoredFact]) -> dict[int, int]:
    """Return each turn's time before a resumption, in microseconds."""
    pauses: dict[int, int] = {}
    stopped: int | None = None
    active = 0
    for stored in facts:
        fact = stored.fact
        if isinstance(fact, TurnResumed):
            pause = stored.at - (active if stopped is None else stopped)
            pauses[fact.turn] = pauses.get(fact.turn, 0) + pause
        if isinstance(fact, _RUNNING):
            active = stored.at
        if isinstance(fact, TurnStarted | TurnResumed):
            stopped = None
        elif isinstance(fact, TurnEnded | TurnLeft):
            stopped = stored.at
    return pauses
