"""A lab report for pages: one row per session, and what is around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from oakleaf_lab.experiment import TURN_CLASSES
from oakleaf_lab.lab_report import LabReport, ReplayedTurn, SessionReport


class LaneSummary(Struct, frozen=True):
    """A session's behaviour in a lane, over all repetitions."""

    replays: tuple[str, ...]
    classes: dict[str, int]
    """How many turns are of each class."""
    cost_microcents: int
    unpriced_calls: int
    milliseconds: int


class SessionSummary(Struct, frozen=True):
    """A session of the cohort as one row."""

    session_id: str
    heading: str
    change: float
    turns: int
    baseline: LaneSummary
    candidate: LaneSummary
    errors: tuple[str, ...] = ()


def session_summaries(report: LabReport) -> list[SessionSummary]:
    """Return a row per session, the most changed sessions first."""
    rows = map(_summary, report.sessions)
    return sorted(rows, key=lambda row: (-row.change, -_weight(row), row.session_id))


def _weight(row: SessionSummary) -> int:
    """Return the candidate's difference from the recording, for sessions equal within noise."""
    return sum(TURN_CLASSES.index(kind) * count for kind, count in row.candidate.classes.items())


def _summary(session: SessionReport) -> SessionSummary:
    return SessionSummary(
        session.session_id,
        session.heading,
        session.change,
        len(session.turns),
        _lane(session.baseline, [turn for each in session.turns for turn in each.baseline]),
        _lane(session.candidate, [turn for each in session.turns for turn in each.candidate]),
        session.errors,
    )


def _lane(replays: tuple[str, ...], turns: Sequence[ReplayedTurn]) -> LaneSummary:
    return LaneSummary(
        replays,
        dict(Counter[str](turn.kind for turn in turns)),
        sum(turn.cost_microcents for turn in turns),
        sum(turn.unpriced_calls for turn in turns),
        sum(turn.milliseconds for turn in turns),
    )


def report_summary(report: LabReport) -> dict[str, Any]:
    """Return everything but the sessions, as JSON data."""
    data: dict[str, Any] = msgspec.to_builtins(report)
    del data["sessions"]
    comparisons = zip(data["comparisons"], report.comparisons, strict=True)
    data["comparisons"] = [{**view, "is_difference": each.effect.is_difference} for view, each in comparisons]
    data["classes"] = list(TURN_CLASSES)
    return data
