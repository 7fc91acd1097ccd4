"""A lab report for people: a table of the lanes, the effects in words, what changed most, the gates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oakleaf.core.usage import format_cost, format_dollars
from oakleaf.errors import plural
from oakleaf_lab.experiment import LabPlan
from oakleaf_lab.gates import CALLS, parse_gate
from oakleaf_lab.lab_report import (
    CLASS_METRICS,
    NOT_RECORDED,
    Comparison,
    LabReport,
    LaneReport,
    Rate,
    SessionReport,
    change_text,
)

if TYPE_CHECKING:
    from oakleaf_lab.lab import Estimate

MOST_CHANGED = 5
MOST_PROMPT_LINES = 40


def report_lines(report: LabReport) -> list[str]:
    """Return the report as lines of text."""
    lines = [_heading(report), *_prompt(report), "", *_table(report)]
    if effects := _effects(report):
        lines += ["", *effects]
    changed = sorted(report.sessions, key=lambda each: (-each.change, each.session_id))
    rows = [each for each in changed[:MOST_CHANGED] if each.change > 0]
    if rows:
        lines += ["", "changed most:", *map(_session_line, rows)]
    if errors := _errors(report):
        lines += ["", *errors]
    if report.gates:
        lines += ["", *gate_lines(report)]
    if report.status == "incomplete":
        lines += ["", f"incomplete, {report.cells} of {report.total_cells} cells: {report.why}"]
    return lines


def gate_lines(report: LabReport) -> list[str]:
    """Return the outcome of each gate, and the way to decide an open gate."""
    return [*(f"{gate.outcome:<9}  {gate.gate}: {gate.why}" for gate in report.gates), *_hint(report)]


def _heading(report: LabReport) -> str:
    experiment = report.experiment
    sessions = sum(bool(each.baseline or each.candidate) for each in report.sessions)
    turns = report.lane("observed").turns
    return (
        f"{report.run_id}  {' '.join(experiment.cohort)}\n"
        f"{plural(sessions, 'session')}, {plural(turns, 'turn')}, {experiment.mode}, {experiment.repeat} × each lane; "
        f"candidate: {report.change}; spent {format_dollars(report.spent_microcents)}"
    )


def _prompt(report: LabReport) -> list[str]:
    """Return the tested prompt, as a difference from the recorded prompt."""
    if not report.prompt_diff:
        return []
    counts = list(report.prompts.values())
    old = (
        f"that of {counts[0]:,} of {plural(sum(counts), 'session')}"
        if len(counts) > 1
        else "the recorded one"
    )
    lines = [f"  {line}" for line in report.prompt_diff[2:]]
    if (left := len(lines) - MOST_PROMPT_LINES) > 0:
        lines[MOST_PROMPT_LINES:] = [f"  … {plural(left, 'more line')}; --json and the page have all"]
    return ["", f"the prompt against {old}:", *lines]


def _hint(report: LabReport) -> list[str]:
    """Say the way to decide a gate left open by a call without an answer."""
    if not any(NOT_RECORDED in gate.why for gate in report.gates):
        return []
    return [
        "calls that were not recorded are answered by your tools that read or have a dry_run: --set tools=FILE.py"
    ]


def _table(report: LabReport) -> list[str]:
    lanes = report.lanes
    rows: list[tuple[str, ...]] = [("", *(lane.lane for lane in lanes))]
    rows.append(("turns", *(f"{lane.turns:,}" for lane in lanes)))
    rows += [(kind, *(_rate(lane, name) for lane in lanes)) for name, kind in CLASS_METRICS.items()]
    for name in lanes[0].calls:
        rows.append(
            (f"calls {name}", *(_share(lane.calls.get(name), lane, f"{CALLS}{name}") for lane in lanes))
        )
    rows.append(("cost", *(format_cost(lane.usage) for lane in lanes)))
    rows.append(
        ("tokens", *(f"{lane.usage.input_tokens:,} + {lane.usage.output_tokens:,}" for lane in lanes))
    )
    rows.append(
        (
            "latency",
            *("" if lane.latency_ms is None else f"{lane.latency_ms / 1_000:.2f} s" for lane in lanes),
        )
    )
    for scorer in lanes[0].scores:
        rows.append((scorer, *(_score(lane, scorer) for lane in lanes)))
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _rate(lane: LaneReport, metric: str) -> str:
    return _share(lane.classes.get(metric), lane, metric)


def _share(rate: Rate | None, lane: LaneReport, metric: str) -> str:
    if rate is None or not rate.turns:
        return ""
    text = f"{rate.value * 100:.1f} %"
    values = [each[metric] for each in lane.repetitions]
    if len(values) > 1:
        text += f" ({min(values) * 100:.1f} to {max(values) * 100:.1f})"
    return text


def _score(lane: LaneReport, scorer: str) -> str:
    score = lane.scores[scorer]
    text = "" if score.mean is None else f"{score.mean:.3g}"
    failures = sum(score.failures.values())
    return f"{text} ({failures} failed)" if failures else text


def _effects(report: LabReport) -> list[str]:
    """Return the effects in words: tools and behaviour always, other effects if notable."""
    always = {"tool_changed", "changed", "cost", *report.lanes[0].scores}
    gated = {parse_gate(gate.gate, None).metric for gate in report.gates}
    return [
        each.text + (f": {each.verdict}" if each.verdict else "")
        for each in report.comparisons
        if each.effect.candidate is not None
        and (each.metric in always or each.metric in gated or _may_differ(each))
        and not (each.effect.candidate == each.effect.baseline == 0)
    ]


def _may_differ(comparison: Comparison) -> bool:
    effect = comparison.effect
    return effect.is_difference or (
        comparison.metric.startswith(CALLS) and effect.candidate != effect.baseline and bool(effect.need)
    )


def _session_line(session: SessionReport) -> str:
    compare = f"oakleaf diff {session.session_id} {session.candidate[0]}"
    return f"  {session.change * 100:+4.0f} points  {session.heading[:48]:<48}  {compare}"


def _errors(report: LabReport) -> list[str]:
    counts: dict[str, int] = dict(report.skipped)
    lines = [f"left out: {count:,} {reason}" for reason, count in counts.items()]
    errors = Counter(error for session in report.sessions for error in session.errors)
    failures = Counter(why for session in report.sessions for why in session.failures)
    lines += [f"not replayed: {plural(count, 'session')}: {error}" for error, count in errors.items()]
    lines += [f"failed turns: {plural(count, 'session')}: {why}" for why, count in failures.items()]
    for lane in report.lanes:
        lines += [
            f"scorer {name} had no value in {plural(count, 'case')} ({lane.lane}): {why}"
            for name, score in lane.scores.items()
            for why, count in score.failures.items()
        ]
    return lines


def plan_lines(plan: LabPlan, estimate: Estimate) -> list[str]:
    """Say a run's work and cost, before the run costs anything."""
    experiment, cohort = plan.experiment, plan.cohort
    sessions = plural(estimate.sessions, "session")
    if cohort.total > estimate.sessions:
        sessions += f" of {cohort.total:,} (sample, seed {experiment.seed})"
    lines = [
        f"cohort     {' '.join(experiment.cohort)}: {sessions}, {plural(estimate.turns, 'turn')}",
        *(f"           left out: {len(each.session_ids):,} {each.reason}" for each in cohort.skipped),
        f"lanes      observed, baseline × {experiment.repeat}, candidate × {experiment.repeat}; {experiment.mode}",
        f"candidate  {change_text(plan)}",
    ]
    if estimate.cells_done:
        lines.append(f"done       {estimate.cells_done:,} of {estimate.total_cells:,} cells")
    if estimate.calls:
        unpriced = (
            f", {estimate.unpriced_calls:,} calls without a known price" if estimate.unpriced_calls else ""
        )
        lines.append(
            f"will make  about {estimate.calls:,} calls of {', '.join(estimate.models)}, "
            f"about {format_dollars(estimate.cost_microcents)}{unpriced}, if answers are as long as recorded"
        )
    else:
        lines.append("will make  no model calls")
    return lines
