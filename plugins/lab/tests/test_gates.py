"""Gates: parsed as people write them; against the baseline they fire only on a difference that is real."""

from __future__ import annotations

import pytest

from oakleaf_lab.errors import InvalidLab
from oakleaf_lab.gates import check_gate, parse_gate
from oakleaf_lab.lab_report import METRICS
from oakleaf_lab.statistics import Effect, PairedTurn, mean_ratio, rate_difference


def rates(baseline: float, candidate: float, sessions: int = 100) -> Effect:
    """Return the effect of rates that are exact: in each of ten sessions so many turns."""
    return rate_difference(
        PairedTurn(f"s{n}", [float(n % 100 < baseline * 100)], [float((n * 37) % 100 < candidate * 100)])
        for n in range(sessions)
    )


def costs(factor: float, sessions: int = 20) -> Effect:
    return mean_ratio(PairedTurn(f"s{n}", [1.0 + n % 3], [factor * (1.0 + n % 3)]) for n in range(sessions))


@pytest.mark.parametrize(
    ("gate", "effect", "outcome"),
    [
        ("tool_changed > baseline + 5%", rates(0.1, 0.4), "failed"),
        ("tool_changed > baseline + 5%", rates(0.1, 0.1), "passed"),
        ("tool_changed > baseline + 50%", rates(0.1, 0.4), "passed"),
        ("tool_changed > baseline", rates(0.1, 0.4), "failed"),
        ("tool_changed>baseline+5%", rates(0.1, 0.4), "failed"),
        ("same < baseline - 5%", rates(0.9, 0.6), "failed"),
        ("same < baseline − 5%", rates(0.9, 0.9), "passed"),
        ("tool_changed > 2x", rates(0.1, 0.4), "failed"),
        ("failed > 1%", rates(0.0, 0.02), "failed"),
        ("failed > 1%", rates(0.0, 0.0), "passed"),
        ("cost > 1.2x", costs(1.3), "failed"),
        ("cost > 1.2x", costs(1.1), "passed"),
        ("cost > baseline + 20%", costs(1.3), "failed"),
        ("cost > baseline + 20%", costs(1.2), "passed"),
        ("cost >= 1.2x", costs(1.2), "failed"),
        ("cost > $1.5", costs(1.0), "failed"),
        ("cost > 1.2x", costs(2.0, sessions=9), "undecided"),
        ("tool_changed > baseline + 5%", rates(0.1, 0.5, sessions=9), "undecided"),
    ],
)
def test_a_gate_fires_beyond_its_bound(gate: str, effect: Effect, outcome: str) -> None:
    assert check_gate(parse_gate(gate, METRICS), effect).outcome == outcome


def test_a_difference_that_may_be_noise_is_not_decided() -> None:
    effect = rates(0.10, 0.17)
    result = check_gate(parse_gate("tool_changed > baseline + 5%", METRICS), effect)
    assert (result.outcome, effect.is_difference) == ("undecided", False)
    assert "over 100 turns of 100 sessions, 95 % interval −" in result.why
    assert result.why.endswith(f"; too few to tell: {effect.need} would")


def test_a_difference_too_small_to_tell_does_not_fire() -> None:
    result = check_gate(parse_gate("tool_changed > baseline", METRICS), rates(0.10, 0.11))
    assert (result.outcome, result.why.rpartition("; ")[2]) == ("passed", "no clear difference")


def test_a_gate_fails_on_some_turns_and_passes_on_all() -> None:
    gate, unscored = parse_gate("tool_changed > baseline + 5%", METRICS), {"not reached": 3}
    assert check_gate(gate, rates(0.1, 0.4), unscored, 200).outcome == "failed"
    result = check_gate(gate, rates(0.1, 0.1), unscored, 200)
    assert (result.outcome, "3 of 200 replayed turns have no value (3 not reached)" in result.why) == (
        "undecided",
        True,
    )


@pytest.mark.parametrize(
    "text", ["", "cost", "cost > ", "cost > x", "cost ~ 5%", "cost > baseline * 2", "cost > 1.2x extra"]
)
def test_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(InvalidLab, match="write one like"):
        parse_gate(text, METRICS)
