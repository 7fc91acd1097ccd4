"""Gates: conditions under which a lab run fails, such as `calls:refund > baseline + 5%` or `cost > 1.2x`.

    METRIC > baseline + 5%      more than 5 points above the baseline (of a rate), or 5 % above it (of anything else)
    METRIC > 1.2x               more than 1.2 times the baseline
    METRIC > 10%                more than that, whatever the baseline is

A gate against the baseline fires if the candidate passes the bound and the difference is real: its interval excludes no
effect. So equal setups fire it in at most 5 of 100 runs, whatever the bound. A gate passes only over turns that all have a
value, and is not decided where more data would tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal

from msgspec import Struct

from oakleaf.errors import plural
from oakleaf_lab.errors import InvalidLab
from oakleaf_lab.statistics import Effect, describe_interval, why_unclear

Operator = Literal["<", "<=", ">", ">="]
_GATE = re.compile(
    r"(?P<metric>(?:calls:)?[A-Za-z_][\w.-]*)\s*(?P<operator>[<>]=?)\s*"
    r"(?:(?P<base>baseline)\s*(?:(?P<sign>[+−-])\s*(?P<margin>\d+(?:\.\d+)?)\s*(?P<percent>%?))?"
    r"|(?P<factor>\d+(?:\.\d+)?)\s*[x×]"
    r"|\$?(?P<bound>\d+(?:\.\d+)?)\s*(?P<bound_percent>%?))"
)
EXAMPLES = "'calls:refund > baseline + 5%', 'cost > 1.2x' or 'failed > 1%'"
CALLS = "calls:"
"""What the metric of a tool begins with: the share of turns that call it."""


class Gate(Struct, frozen=True):
    """A condition that fails the run."""

    text: str
    metric: str
    operator: Operator
    margin: float = 0.0
    """Added to the baseline: points of 1, or a part of the baseline with `is_part`."""
    is_part: bool = False
    """Whether the margin was written in percent."""
    factor: float | None = None
    """The bound is the baseline times this factor."""
    bound: float | None = None
    """The bound itself, independent of the baseline."""


class GateResult(Struct, frozen=True):
    """The outcome of a gate."""

    gate: str
    outcome: Literal["passed", "failed", "undecided"]
    why: str


def parse_gate(text: str, metrics: Sequence[str] | None) -> Gate:
    """Parse a gate; raise InvalidLab for anything else, or without any of the metrics. None: any metric."""
    match = _GATE.fullmatch(text.strip())
    if match is None:
        raise InvalidLab(f"the gate {text!r} cannot be parsed", f"write one like {EXAMPLES}")
    metric = match["metric"]
    if metrics is not None and metric not in metrics:
        raise _unknown_metric(text, metric, metrics)
    operator: Operator = match["operator"]  # type: ignore[assignment]
    if match["base"]:
        sign = -1 if match["sign"] in ("-", "−") else 1
        margin = sign * float(match["margin"] or 0) / (100 if match["percent"] else 1)
        return Gate(text, metric, operator, margin, bool(match["percent"]))
    if match["factor"]:
        return Gate(text, metric, operator, factor=float(match["factor"]))
    return Gate(text, metric, operator, bound=float(match["bound"]) / (100 if match["bound_percent"] else 1))


def _unknown_metric(text: str, metric: str, metrics: Sequence[str]) -> InvalidLab:
    tools = [each.removeprefix(CALLS) for each in metrics if each.startswith(CALLS)]
    others = [each for each in metrics if not each.startswith(CALLS)]
    close = get_close_matches(metric, metrics, 1) or [f"{CALLS}{tool}" for tool in tools if tool == metric]
    suggestion = f"did you mean {close[0]}? " if close else ""
    if metric.startswith(CALLS):
        known = f"tools are {', '.join(tools)}" if tools else "no session of the cohort has tools"
    else:
        known = f"metrics are {', '.join(others)}" + (f" and {CALLS}TOOL" if tools else "")
    return InvalidLab(
        f"the gate {text!r} names {metric}, which is not measured",
        f"{suggestion}{known}",
    )


def check_gate(gate: Gate, effect: Effect, unscored: Mapping[str, int] = {}, total: int = 0) -> GateResult:
    """Return whether the gate fires on the candidate's effect.

    `unscored` says how many of `total` replayed turns have no value, by reason: the gate fails on the others, and cannot pass.
    """
    missing = unscored_text(unscored, total)
    if effect.candidate is None or effect.baseline is None:
        return GateResult(gate.text, "undecided", missing or "no turn has a value in both lanes")
    bound = _bound(gate, effect, effect.baseline)
    basis = f"over {plural(effect.turns, 'turn')} of {plural(effect.sessions, 'session')}"
    figures = f"{_figure(effect.candidate, effect)} against a bound of {_figure(bound, effect)}, {basis}"
    figures += describe_interval(effect) if gate.bound is None else ""
    is_beyond = _compare(effect.candidate, gate.operator, bound)
    if is_beyond and (gate.bound is not None or effect.is_difference):
        return GateResult(gate.text, "failed", figures)
    if missing:
        return GateResult(gate.text, "undecided", f"{figures}; {missing}")
    if gate.bound is not None:
        return GateResult(gate.text, "passed", figures)
    is_none = effect.candidate == effect.baseline == 0
    if (is_beyond and effect.need) or (not effect.is_enough and not is_none):
        return GateResult(gate.text, "undecided", f"{figures}; {why_unclear(effect)}")
    return GateResult(gate.text, "passed", f"{figures}; {why_unclear(effect)}" if is_beyond else figures)


def unscored_text(unscored: Mapping[str, int], total: int) -> str:
    """Say the number of turns without a value, and the reason; empty if each has a value."""
    count = sum(unscored.values())
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in unscored.items())
    verb = "has" if count == 1 else "have"
    return f"{count:,} of {plural(total, 'replayed turn')} {verb} no value ({reasons})" if count else ""


def _bound(gate: Gate, effect: Effect, baseline: float) -> float:
    if gate.bound is not None:
        return gate.bound
    if gate.factor is not None:
        return baseline * gate.factor
    is_relative = gate.is_part and effect.kind != "rate"
    return baseline * (1 + gate.margin) if is_relative else baseline + gate.margin


def _compare(value: float, operator: Operator, bound: float) -> bool:
    # A sum of floats that should equal the bound must not pass it by its last digit.
    tolerance = 1e-9 * max(1.0, abs(bound))
    match operator:
        case ">":
            return value > bound + tolerance
        case ">=":
            return value >= bound - tolerance
        case "<":
            return value < bound - tolerance
    return value <= bound + tolerance


def _figure(value: float, effect: Effect) -> str:
    return f"{value * 100:.1f} %" if effect.kind == "rate" else f"{value:.4g}"
