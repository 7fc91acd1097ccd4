"""The simulation of recorded arrivals: it keeps their shape, and three real workers finish what it sends."""

from __future__ import annotations

import pytest

from bench.arrivals import RECORDED, arrival_times
from bench.simulation import simulate
from support.postgres import Database, DatabaseHost


class TestArrivals:
    @pytest.mark.parametrize("pattern", RECORDED)
    def test_a_compressed_hour_keeps_its_rate_and_its_bursts(self, pattern: str) -> None:
        times = arrival_times(pattern, 60, 200)
        assert len(times) == 12_000
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= 60
        counts = [int(count) for count in RECORDED[pattern].split()]
        peak = counts.index(max(counts))
        width = 60 / len(counts)
        inside = sum(peak * width <= at < (peak + 1) * width for at in times)
        assert inside / len(times) == pytest.approx(max(counts) / sum(counts), rel=0.2)
        assert arrival_times(pattern, 60, 200) == times


def test_three_workers_finish_every_session_and_queue_times_are_told(postgres: DatabaseHost) -> None:
    outcome = simulate(Database(postgres, "simulation"), "sim", arrival_times("code", 1, 12))
    assert len(outcome.waits) == len(outcome.turns) == len(outcome.late) == 12
    assert all(
        0 <= wait < turn for wait, turn in zip(sorted(outcome.waits), sorted(outcome.turns), strict=True)
    )
    line = outcome.figure("code", 1).line()
    assert "p90 ms" in line
    assert "p99 ms" in line
    print(line)
