"""What a gate claims: equal setups fire it in at most 5 of 100 runs, and one changed tool call in ten is found in 95 of 100.

The models of `noisy` draw what they do from a seed. 100 gates are checked on the draws for 200 sessions, which one test
compares with what a real lab finds; the long form runs 100 real labs of 200 sessions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf_lab import Cell, Lab
from oakleaf_lab.gates import check_gate, parse_gate
from oakleaf_lab.lab_report import METRICS, LabReport
from oakleaf_lab.statistics import PairedTurn, rate_difference
from support.lab_sessions import TURNS, draw_class, noisy, write_cohort
from support.soak import SOAK

GATE = "tool_changed > baseline + 5%"
NOISE: dict[str, Any] = {"reworded": 0.2, "tool_changed": 0.05}
SESSIONS, LABS, PLANTED = (200, 100, 0.1) if SOAK else (12, 1, 0.6)


def drawn_classes(seed: int, planted: float, number: int) -> list[tuple[str, str]]:
    """Return what both lanes do in the turns of a session."""
    cells = [Cell(f"ses_case_{number:03d}", lane, 1) for lane in ("baseline", "candidate")]
    return [
        tuple(draw_class(seed, cell, number * 100 + turn, planted=planted, **NOISE) for cell in cells)
        for turn in range(TURNS)
    ]


def outcome(gate: str, seed: int, planted: float) -> str:
    pairs = [
        PairedTurn(f"s{number}", *([float(kind == "tool changed")] for kind in kinds))
        for number in range(200)
        for kinds in drawn_classes(seed, planted, number)
    ]
    return check_gate(parse_gate(gate, METRICS), rate_difference(pairs)).outcome


def lab_report(path: Path, seed: int, planted: float) -> LabReport:
    with oakleaf.open(path, synchronous="normal") as store:
        lab = Lab(
            store,
            "agent:support",
            baseline_model=noisy(seed, name=f"old {seed}", **NOISE),
            model=noisy(seed, name=f"new {seed} {planted}", planted=planted, **NOISE),
            after_divergence="continue",
        )
        return lab.run_sync(fail_if=[GATE])


def test_what_is_drawn_is_what_a_lab_finds(tmp_path: Path) -> None:
    report = lab_report(write_cohort(tmp_path / "lab.db", 4), 3, 0.3)
    kinds = [
        [(turn.baseline[0].kind, turn.candidate[0].kind) for turn in session.turns]
        for session in report.sessions
    ]
    assert kinds == [drawn_classes(3, 0.3, number) for number in range(4)]
    assert {kind for session in kinds for pair in session for kind in pair} == {
        "same",
        "reworded",
        "tool changed",
    }


@pytest.mark.parametrize(("gate", "passes"), [(GATE, 95), ("tool_changed > baseline", 60)])
def test_equal_setups_fire_no_gate_in_95_of_100(gate: str, passes: int) -> None:
    """Without a margin, some of the others ask for more data."""
    outcomes = [outcome(gate, seed, 0.0) for seed in range(100)]
    assert outcomes.count("failed") <= 5
    assert outcomes.count("passed") >= passes


def test_one_changed_tool_call_in_ten_is_found_in_95_of_100() -> None:
    assert [outcome(GATE, seed, 0.1) for seed in range(100)].count("failed") >= 95


@pytest.mark.parametrize("planted", [0.0, PLANTED])
def test_labs_keep_both_claims(tmp_path: Path, planted: float) -> None:
    fired = 0
    for seed in range(1, LABS + 1):
        report = lab_report(write_cohort(tmp_path / "lab.db", SESSIONS), seed, planted)
        assert "undecided" not in {gate.outcome for gate in report.gates}
        fired += report.exit_code == 1
        for file in tmp_path.glob("lab.db*"):
            file.unlink()
    assert fired >= 0.95 * LABS if planted else fired <= 0.05 * LABS
