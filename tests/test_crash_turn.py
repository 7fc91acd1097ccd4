"""A loop of one's own, killed around every commit and effect and run again from the top, leaves what it leaves once."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from functools import partial
from pathlib import Path

import pytest

import oakleaf
from support import crash_turn
from support.processes import effect_keys, run_to_end_or_death

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
context = multiprocessing.get_context("fork")


run = partial(run_to_end_or_death, crash_turn.run_loop)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many points there are to die at in an uninterrupted run."""
    place = tmp_path_factory.mktemp("whole") / "agent.db"
    return int(run(place)[-1].split()[1])


def check(place: Path, reports: list[str]) -> None:
    effects = effect_keys(reports)
    with oakleaf.open(place) as store:
        session = store.session("ses_crash")
        assert session.verify() == []
        texts = [entry.message.text for entry in session.transcript() if entry.message]
        assert texts == ["first", "All done for first.", "second", "All done for second."]
        results = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert len(results) == 12, "each call has one result"
        done = {result.call_id for result in results if result.outcome == "done"}
        happened = {name.partition(":")[2] for name in effects}
        assert done <= happened
        unknown = {result.call_id for result in results if result.outcome == "unknown"}
        assert {call_id[-2:] for call_id in unknown} <= {"c0"}, "only an unsafe call has an unknown outcome"
        acknowledged = {line.split()[2] for line in reports if line.startswith("acknowledged result")}
        assert acknowledged <= {result.call_id for result in results}, "nothing acknowledged is lost"


def test_killed_before_or_after_any_commit_and_effect_it_leaves_what_it_leaves_once(
    tmp_path: Path, points: int
) -> None:
    numbers = range(1, points + 1) if SOAK else range(1 + int(time.time()) % 5, points + 1, 5)
    for kill_at in numbers:
        place = tmp_path / f"{kill_at}.db"
        reports = run(place, kill_at)
        assert any(line.startswith("killed") for line in reports), kill_at
        check(place, reports + run(place))


def test_killed_again_and_again_at_random_it_leaves_what_it_leaves_once(tmp_path: Path) -> None:
    chance = random.Random(41 if not SOAK else None)
    for n in range(200 if SOAK else 4):
        place, reports = tmp_path / f"{n}.db", []
        for _ in range(6):
            reports += run(place, after=chance.uniform(0.0, 0.08))
        check(place, reports + run(place))


def test_two_processes_with_the_same_mail_at_once_run_it_once(tmp_path: Path) -> None:
    """One of them is refused while the other runs, or returns what the other recorded."""
    for n in range(20 if SOAK else 3):
        place = tmp_path / f"{n}.db"
        with oakleaf.open(place) as store:
            store.start("crash", [oakleaf.system("You do as you are told.")], session_id="ses_crash")
        reading, writing = os.pipe()
        processes = [
            context.Process(target=crash_turn.run_unless_running, args=(str(place), writing))
            for _ in range(3)
        ]
        for process in processes:
            process.start()
        os.close(writing)
        with os.fdopen(reading) as lines:
            reports = lines.read().splitlines()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        check(place, reports + run(place))
