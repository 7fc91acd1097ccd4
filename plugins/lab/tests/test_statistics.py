"""The laws of the lab's statistics, measured on cohorts whose truth is known: they must cover, not cry wolf, and find."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import pytest

from oakleaf.errors import InvalidArgument
from oakleaf_lab.statistics import (
    MIN_SESSIONS,
    Effect,
    Interval,
    PairedTurn,
    clustered_rate,
    describe,
    mean_difference,
    mean_ratio,
    rate_difference,
    wilson,
)

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
COHORTS = 2000 if SOAK else 150
# Three standard errors of a share of 0.95 among so many cohorts: a right method fails once in some hundred setups.
SLACK = 3 * (0.95 * 0.05 / COHORTS) ** 0.5


def approx(value: float, within: float = 0.001) -> object:
    return pytest.approx(value, abs=within)


@dataclass(frozen=True)
class Setup:
    """A population of sessions: how often a turn changes by noise, how often by the change, how alike turns are."""

    sessions: int
    noise: float
    effect: float
    likeness: float
    runs: int = 1

    def cohort(self, source: random.Random) -> list[PairedTurn]:
        turns = []
        for session in range(self.sessions):
            noise, effect = self.draw(self.noise, source), self.draw(self.effect, source)
            for _ in range(min(15, 1 + int(source.expovariate(1 / 3)))):
                changed = noise + (1 - noise) * effect
                turns.append(
                    PairedTurn(
                        f"s{session}",
                        [float(source.random() < noise) for _ in range(self.runs)],
                        [float(source.random() < changed) for _ in range(self.runs)],
                    )
                )
        return turns

    def draw(self, share: float, source: random.Random) -> float:
        if share == 0 or self.likeness == 0:
            return share
        weight = (1 - self.likeness) / self.likeness
        return source.betavariate(share * weight, (1 - share) * weight)

    @property
    def truth(self) -> float:
        return (1 - self.noise) * self.effect


def share(setup: Setup, holds: Callable[[Effect], bool], cohorts: int = COHORTS) -> float:
    source = random.Random(f"{setup}")
    return sum(holds(rate_difference(setup.cohort(source))) for _ in range(cohorts)) / cohorts


Z_95 = NormalDist().inv_cdf(0.975)


class TestWilson:
    @pytest.mark.parametrize(
        ("successes", "n", "low", "high"),
        [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
    )
    def test_equals_published_values(self, successes: int, n: int, low: float, high: float) -> None:
        interval = wilson(successes / n, n, Z_95)
        assert (interval.low, interval.high) == (approx(low), approx(high))

    @pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
    def test_covers_the_true_rate(self, rate: float) -> None:
        source = random.Random(rate)
        hits = 0
        for _ in range(COHORTS):
            interval = wilson(sum(source.random() < rate for _ in range(100)) / 100, 100, Z_95)
            hits += interval.low <= rate <= interval.high
        assert hits / COHORTS >= 0.93 - SLACK


class TestClusteredRate:
    def test_turns_that_are_copies_of_each_other_count_once(self) -> None:
        copies = clustered_rate([[float(i % 3 == 0)] * 10 for i in range(30)])
        single = clustered_rate([[float(i % 3 == 0)] for i in range(30)])
        assert (copies.low, copies.high) == (approx(single.low), approx(single.high))

    def test_independent_turns_count_each(self) -> None:
        source = random.Random(4)
        turns = [[float(source.random() < 0.3) for _ in range(10)] for _ in range(200)]
        interval, plain = clustered_rate(turns), wilson(sum(map(sum, turns)) / 2000, 2000, Z_95)
        assert interval.high - interval.low == pytest.approx(plain.high - plain.low, rel=0.2)

    def test_one_session_says_nothing(self) -> None:
        assert clustered_rate([[1.0, 1.0, 1.0]]) == Interval(0.0, 1.0)


NULL = [
    Setup(10, 0.08, 0, 0.3),
    Setup(20, 0.3, 0, 0.0),
    Setup(50, 0.01, 0, 0.3),
    Setup(50, 0.3, 0, 0.6),
    Setup(200 if SOAK else 80, 0.08, 0, 0.3, runs=3),
]
PLANTED = [
    Setup(10, 0.0, 0.25, 0.3),
    Setup(20, 0.08, 0.1, 0.3),
    Setup(50, 0.0, 0.03, 0.3),
    Setup(50, 0.3, 0.25, 0.0),
    Setup(200 if SOAK else 80, 0.08, 0.1, 0.3, runs=2),
]


class TestRateDifference:
    @pytest.mark.parametrize("setup", NULL, ids=str)
    def test_equal_lanes_are_called_different_no_more_often_than_claimed(self, setup: Setup) -> None:
        assert share(setup, lambda effect: effect.is_difference) <= 0.055 + SLACK

    @pytest.mark.parametrize("setup", PLANTED, ids=str)
    def test_the_interval_contains_the_true_difference(self, setup: Setup) -> None:
        def covers(effect: Effect) -> bool:
            assert effect.low is not None
            assert effect.high is not None
            return effect.low <= setup.truth <= effect.high

        assert share(setup, covers) >= 0.93 - SLACK

    def test_one_changed_call_in_ten_is_found_in_200_sessions(self) -> None:
        setup = Setup(200, 0.02, 0.1, 0.3)
        assert share(setup, lambda effect: effect.is_difference, 1000 if SOAK else 40) >= 0.95

    def test_counting_turns_as_independent_would_cry_wolf(self) -> None:
        """The reason for clustering: sessions in which every turn follows the first."""
        source = random.Random(3)
        by_session, by_turn = 0, 0
        for _ in range(COHORTS):
            turns = [
                PairedTurn(f"s{session}", [baseline], [candidate])
                for session in range(20)
                for baseline, candidate in [(float(source.random() < 0.3), float(source.random() < 0.3))]
                for _ in range(8)
            ]
            alone = [PairedTurn(f"t{i}", turn.baseline, turn.candidate) for i, turn in enumerate(turns)]
            by_session += rate_difference(turns).is_difference
            by_turn += rate_difference(alone).is_difference
        assert by_session / COHORTS <= 0.055 + SLACK
        assert by_turn / COHORTS > 0.3

    def test_no_change_in_any_turn_still_leaves_room_for_one(self) -> None:
        effect = rate_difference([PairedTurn(f"s{i}", [0.0], [0.0]) for i in range(100)])
        assert effect.estimate == 0
        assert (effect.low, effect.high) == (approx(-0.038), approx(0.038))
        assert not effect.is_difference

    def test_a_change_in_every_turn_is_a_difference(self) -> None:
        effect = rate_difference([PairedTurn(f"s{i}", [0.0], [1.0]) for i in range(20)])
        assert effect.is_difference
        assert (effect.low, effect.high) == (approx(0.75, 0.03), 1.0)

    def test_more_runs_of_a_turn_narrow_the_interval(self) -> None:
        one, five = (
            rate_difference(Setup(100, 0.3, 0, 0.0, runs=runs).cohort(random.Random(1))) for runs in (1, 5)
        )
        assert five.high - five.low < 0.6 * (one.high - one.low)  # type: ignore[operator]

    def test_the_order_of_turns_does_not_matter(self) -> None:
        turns = Setup(20, 0.3, 0.2, 0.3).cohort(random.Random(1))
        one, other = rate_difference(turns), rate_difference(list(reversed(turns)))
        assert [one.estimate, one.low, one.high] == pytest.approx([other.estimate, other.low, other.high])

    @pytest.mark.parametrize("value", [1.5, -0.1, float("nan")])
    def test_refuses_values_that_are_no_rate(self, value: float) -> None:
        with pytest.raises(InvalidArgument, match="value="):
            rate_difference([PairedTurn("s", [value], [0.0])])


class TestMeans:
    @staticmethod
    def scores(source: random.Random, shift: float, sessions: int = 20) -> list[PairedTurn]:
        turns = []
        for session in range(sessions):
            level = source.gauss(0.7, 0.2)
            turns += [
                PairedTurn(
                    f"s{session}", [level + source.gauss(0, 0.1)], [level + shift + source.gauss(0, 0.1)]
                )
                for _ in range(1 + int(source.expovariate(1 / 3)))
            ]
        return turns

    @staticmethod
    def costs(source: random.Random, factor: float, sessions: int = 30) -> list[PairedTurn]:
        turns = []
        for session in range(sessions):
            level = source.lognormvariate(-4, 1)
            turns += [
                PairedTurn(
                    f"s{session}",
                    [level * source.lognormvariate(0, 0.4)],
                    [level * factor * source.lognormvariate(0, 0.4)],
                )
                for _ in range(1 + int(source.expovariate(1 / 3)))
            ]
        return turns

    @pytest.mark.parametrize("shift", [0.0, -0.1])
    def test_the_interval_of_a_mean_contains_the_true_difference(self, shift: float) -> None:
        source = random.Random(5)
        effects = [mean_difference(self.scores(source, shift)) for _ in range(COHORTS)]
        assert sum(e.low <= shift <= e.high for e in effects) / COHORTS >= 0.94 - SLACK  # type: ignore[operator]

    @pytest.mark.parametrize("factor", [1.0, 1.2])
    def test_the_interval_of_a_ratio_contains_the_true_factor(self, factor: float) -> None:
        source = random.Random(6)
        effects = [mean_ratio(self.costs(source, factor)) for _ in range(COHORTS)]
        assert sum(e.low <= factor <= e.high for e in effects) / COHORTS >= 0.91 - SLACK  # type: ignore[operator]

    def test_pairing_takes_out_what_sessions_differ_in(self) -> None:
        turns = self.scores(random.Random(7), -0.1, 50)
        paired = mean_difference(turns)
        assert paired.is_difference
        assert paired.high - paired.low < 0.1  # type: ignore[operator]

    def test_equal_costs_are_exactly_one(self) -> None:
        effect = mean_ratio([PairedTurn(f"s{i}", [0.01 * i], [0.01 * i]) for i in range(1, 30)])
        assert (effect.estimate, effect.low, effect.high) == (1.0, approx(1.0), approx(1.0))
        assert not effect.is_difference

    def test_a_ratio_to_nothing_is_no_number_and_no_crash(self) -> None:
        effect = mean_ratio([PairedTurn(f"s{i}", [0.0], [1.0]) for i in range(30)])
        assert (effect.estimate, effect.low, effect.is_enough) == (None, None, False)
        assert "too few data for an interval" in describe(effect, "cost", "at the baseline")


class TestTooFewData:
    @pytest.mark.parametrize("compare", [rate_difference, mean_difference, mean_ratio])
    @pytest.mark.parametrize("sessions", [0, 1, 2, MIN_SESSIONS - 1])
    def test_is_a_value_and_never_a_difference(
        self, compare: Callable[[list[PairedTurn]], Effect], sessions: int
    ) -> None:
        effect = compare([PairedTurn(f"s{i}", [0.1], [0.9 - i / 100]) for i in range(sessions)])
        assert not effect.is_enough
        assert not effect.is_difference
        assert (effect.low is None) == (sessions < 2)
        assert ("nothing to compare" if sessions == 0 else "too few ") in describe(effect, "x")

    def test_a_turn_that_one_lane_lacks_is_left_out_and_counted(self) -> None:
        turns = [PairedTurn("a", [1.0], []), PairedTurn("a", [], [1.0]), PairedTurn("b", [1.0], [1.0])]
        effect = rate_difference(turns)
        assert (effect.turns, effect.sessions, effect.unpaired) == (1, 1, 2)


class TestDescribe:
    def effect(self, kind: str, baseline: float, candidate: float, low: float, high: float) -> Effect:
        return Effect(
            kind=kind,  # type: ignore[arg-type]
            baseline=baseline,
            candidate=candidate,
            estimate=candidate / baseline if kind == "ratio" else candidate - baseline,
            low=low,
            high=high,
            confidence=0.95,
            sessions=40,
            turns=200,
            unpaired=0,
            is_enough=True,
        )

    def test_a_rate_in_points(self) -> None:
        assert describe(self.effect("rate", 0.08, 0.31, 0.14, 0.31), "tools change") == (
            "tools change in 31 % of turns, 8 % by noise alone: +23 points, 95 % interval 14 to 31"
        )

    def test_a_rate_that_may_be_noise_says_so(self) -> None:
        assert describe(self.effect("rate", 0.08, 0.071, -0.03, 0.012), "tools change") == (
            "tools change in 7.1 % of turns, 8 % by noise alone: −0.9 points, 95 % interval −3 to 1.2; no clear difference"
        )

    def test_a_score(self) -> None:
        assert describe(self.effect("mean", 0.84, 0.81, -0.05, -0.01), "helpful", "at the baseline") == (
            "helpful 0.81 per turn, 0.84 at the baseline: −0.03, 95 % interval −0.05 to −0.01"
        )

    def test_a_cost(self) -> None:
        assert describe(self.effect("ratio", 0.0102, 0.01224, 1.1, 1.3), "dollars", "at the baseline") == (
            "dollars 0.01224 per turn, 0.0102 at the baseline: 1.2 times, 95 % interval 1.1 to 1.3"
        )


class TestNeed:
    """How much data would tell is computed: with so much of the same, it does."""

    def sessions(self, count: int, times: int = 1) -> list[PairedTurn]:
        """Return sessions of which the candidate changes one in four, the baseline one in eight."""
        return [
            PairedTurn(f"s{number} {copy}", [float(number % 8 == 0)], [float(number % 4 == 1)])
            for copy in range(times)
            for number in range(count)
        ]

    def test_so_many_sessions_of_the_same_show_the_difference(self) -> None:
        effect = rate_difference(self.sessions(40))
        assert not effect.is_difference
        assert effect.needed_sessions is not None
        assert 40 < effect.needed_sessions <= 200
        assert effect.need in describe(effect, "x")
        times = -(-effect.needed_sessions // 40)
        assert rate_difference(self.sessions(40, times)).is_difference
        assert not rate_difference(self.sessions(48)).is_difference

    def test_repetitions_help_where_they_vary_and_not_where_sessions_do(self) -> None:
        draw = random.Random(5)

        def runs(rate: float) -> list[float]:
            return [float(draw.random() < rate) for _ in range(2)]

        cohorts = [[PairedTurn(f"s{n}", runs(0.4), runs(0.5)) for n in range(40)] for _ in range(40)]
        effects = [effect for effect in map(rate_difference, cohorts) if effect.need]
        repeats = [effect.needed_repeat for effect in effects if effect.needed_repeat is not None]
        assert len(repeats) > len(effects) / 3
        assert all(2 < repeat <= 40 for repeat in repeats)
        steady = [
            PairedTurn(turn.session, list(turn.baseline) * 2, list(turn.candidate) * 2)
            for turn in self.sessions(40)
        ]
        effect = rate_difference(steady)
        assert (effect.needed_sessions is not None, effect.needed_repeat) == (True, None)

    def test_repetitions_do_not_replace_the_least_number_of_sessions(self) -> None:
        effect = rate_difference([PairedTurn(f"s{n}", [float(n < 3)], [1.0]) for n in range(5)])
        assert (effect.needed_sessions is not None, effect.needed_repeat) == (True, None)

    @pytest.mark.parametrize("compare", [rate_difference, mean_difference, mean_ratio])
    def test_a_difference_and_none_at_all_need_nothing(
        self, compare: Callable[[list[PairedTurn]], Effect]
    ) -> None:
        clear = compare([PairedTurn(f"s{n}", [0.2], [0.8 + n % 3 / 30]) for n in range(20)])
        equal = compare([PairedTurn(f"s{n}", [0.5 + n % 2 / 5], [0.5 + n % 2 / 5]) for n in range(20)])
        assert (clear.is_difference, clear.need) == (True, "")
        assert (equal.is_difference, equal.need) == (False, "")
