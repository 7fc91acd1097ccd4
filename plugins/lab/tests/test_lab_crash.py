"""A lab run that is killed with kill -9 continues: the same report, byte by byte, and no answer paid for twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from oakleaf import Store
from oakleaf.core.facts import ModelCallStarted
from oakleaf.core.usage import Usage
from support.lab_process import open_store, run
from support.lab_sessions import ledger, write_cohort
from support.soak import SOAK

TESTS = Path(__file__).parents[3] / "tests"
SESSIONS = 12 if SOAK else 2
CALL_POINTS = ["call:1", "call:6", "call:2", "call:9", "call:13"]


def run_process(path: Path, workers: int, point: str) -> bytes | None:
    """Return the report, or None if the process was killed."""
    return run_arguments(str(path), str(workers), point)


def run_arguments(*arguments: str) -> bytes | None:
    command = [sys.executable, "-m", "support.lab_process", *arguments]
    process = subprocess.run(command, cwd=TESTS, capture_output=True, env=os.environ, check=False)
    if process.returncode == -9:
        return None
    assert process.returncode == 0, process.stderr.decode()
    return process.stdout


def cut_off(store: Store) -> int:
    return sum(
        call.usage == Usage()
        for row in store.all_sessions(relation="replay")
        for call in store.session(row.session_id).model_calls()
    )


def points(workers: int) -> list[str]:
    """Return where the processes kill themselves: at model calls, in the long form at random moments."""
    if not SOAK:
        return CALL_POINTS[workers - 1 :: 2]
    draw = random.Random(workers)
    return [f"time:{draw.uniform(0.01, 0.4):.3f}" for _ in range(50)]


@pytest.mark.attack
@pytest.mark.parametrize(("dies_in", "limit"), [("replay", 18_000_000), ("judge", 1_200_000)])
def test_killed_at_each_call_it_does_not_pass_its_limit(tmp_path: Path, dies_in: str, limit: int) -> None:
    """A provider charges the call of a process that was killed: all that was reserved for it counts."""
    path, log = write_cohort(tmp_path / "s.db", 1), tmp_path / "calls"
    report = None
    for _ in range(6):
        report = run_arguments("limited", str(path), str(log), str(limit), dies_in)
        if report is not None:
            break
    assert report is not None, "it never stopped"
    assert b"larger --max-cost" in report
    with open_store(path) as store:
        reserved = [
            fact.data["reserved"]
            for row in store.all_sessions(relation="replay")
            for fact in store.backend.facts_of(row.session_id, ModelCallStarted)
        ]
    calls = log.read_text().splitlines().count(dies_in)
    assert calls > 1
    assert calls * max(reserved) <= limit


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_anywhere_the_report_and_the_ledger_are_as_if_it_was_not(tmp_path: Path, workers: int) -> None:
    with open_store(write_cohort(tmp_path / "whole.db", SESSIONS)) as store:
        whole, paid = msgspec.json.encode(run(store, workers)), ledger(store)
        assert cut_off(store) == 0
    pending, kills = points(workers), 0
    while pending:
        path = write_cohort(tmp_path / f"killed{len(pending)}.db", SESSIONS)
        report, killed = None, 0
        while report is None:
            report = run_process(path, workers, pending.pop() if pending else "none")
            killed += report is None
        kills += killed
        assert report == whole
        with open_store(path) as store:
            assert ledger(store) == paid
            assert cut_off(store) <= killed * workers
            assert list(store.verify()) == []
    assert kills >= 2, "it was not killed"
