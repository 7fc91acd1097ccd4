"""Timing and percentiles. Two systems are always timed alternately, never one after the other."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter_ns
from typing import Protocol

import apsw
from msgspec import Struct

from .workload import Step

ROOT = Path(__file__).parent.parent


class System(Protocol):
    def step(self, step: Step) -> None: ...
    def close(self) -> None: ...


class Plan(Struct, frozen=True):
    """Where to write, and whether to run quickly."""

    directory: Path
    is_quick: bool = False

    def pick(self, whole: int, quick: int) -> int:
        return quick if self.is_quick else whole

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.db"


Times = dict[str, list[int]]


def alternate(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    seed: int = 3,
    clock: Callable[[], int] = perf_counter_ns,
) -> Times:
    """Time each function once per round in shuffled order, in nanoseconds. Garbage is collected before each one.

    With `process_time_ns` as the clock other programs on the machine count less.
    """
    random, names = Random(seed), list(works)
    times: Times = {name: [] for name in names}
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            gc.collect()
            began = clock()
            value = works[name]()
            times[name].append(clock() - began)
            del value
    return times


def step_by_step(systems: Mapping[str, System], steps: Sequence[Step], seed: int = 3) -> Times:
    """Time each step in every system, in shuffled order, before the next step; in nanoseconds."""
    random, names = Random(seed), list(systems)
    times: Times = {name: [] for name in names}
    for step in steps:
        random.shuffle(names)
        for name in names:
            began = perf_counter_ns()
            systems[name].step(step)
            times[name].append(perf_counter_ns() - began)
    return times


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def ms(nanoseconds: float) -> float:
    return nanoseconds / 1e6


def middle(times: Sequence[float]) -> float:
    return median(times)


def size_on_disk(path: Path) -> int:
    """Return the size of the file after a checkpoint that truncates the WAL."""
    connection = apsw.Connection(str(path))
    busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").get
    assert not busy, "another connection holds the WAL open"
    connection.close()
    wal = Path(f"{path}-wal")
    return path.stat().st_size + (wal.stat().st_size if wal.exists() else 0)


def run_python(code: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
