"""Many sessions at once in one store: 1, 2, 4, 8 and 64 threads that share a handle, and processes that share a file.

The threads' rounds alternate between the counts. Beside the time there are the commits of a step, each of which is one sync,
and its CPU time: on a busy machine these two tell more.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter_ns, process_time_ns

import apsw
import msgspec
from msgspec import Struct

import oakleaf
from oakleaf.store import Store

from .measure import ROOT, Plan, middle, ms, percentile
from .ours import add
from .report import Figure, at_least, at_most
from .workload import MESSAGES_PER_TURN, STEPS_PER_TURN, Step, turns_of

MANY = 8
COUNTS = (1, 2, 4, MANY, 64)
GOALS = {64: 1.5}


class Run(Struct):
    """One worker: nanoseconds of each step, start, end and errors."""

    times: list[int] = []
    began: int = 0
    ended: int = 0
    errors: list[str] = []


def drive(session: oakleaf.Session, turns: Sequence[Sequence[Step]]) -> Run:
    run = Run(began=perf_counter_ns())
    try:
        for turn in turns:
            for step in turn:
                began = perf_counter_ns()
                add(session, step)
                run.times.append(perf_counter_ns() - began)
    except oakleaf.OakleafError as error:
        run.errors.append(f"{type(error).__name__}: {error}")
    run.ended = perf_counter_ns()
    return run


class Crowd(Struct):
    """One round of several workers at once."""

    runs: list[Run]
    turns: int
    commits: int = 0
    cpu: int = 0

    @property
    def steps(self) -> int:
        return len(self.runs) * self.turns * STEPS_PER_TURN


def figures(plan: Plan) -> Iterator[Figure]:
    turns, rounds = plan.pick(60, 12), plan.pick(6, 1)
    threads: dict[int, list[Crowd]] = {count: [] for count in COUNTS}
    for number in range(rounds):
        with oakleaf.open(plan.path(f"crowd-threads-{number}")) as store:
            _threads(store, MANY, 2)  # threads and statements
            for count in COUNTS:
                threads[count].append(_threads(store, count, max(4, turns // count)))
    for count in COUNTS:
        yield _shared(count, threads)
    yield from _waits("threads", threads[MANY])
    alone, crowd = [], []
    for number in range(plan.pick(4, 1)):
        path = plan.path(f"crowd-processes-{number}")
        alone.append(_processes(path, 1, turns))
        crowd.append(_processes(path, MANY, turns))
    rate, one = _rate(crowd), _rate(alone)
    beside = {"messages/s": rate, "one": one}
    what = f"{MANY} sessions at once in processes"
    yield Figure("crowd_processes", what, rate / one, "× one", None, beside)
    yield from _waits("processes", crowd)


def _shared(count: int, threads: dict[int, list[Crowd]]) -> Figure:
    crowds, goal = threads[count], GOALS.get(count)
    rate = _rate(crowds)
    beside = {
        "messages/s": rate,
        "commits a step": middle([crowd.commits / crowd.steps for crowd in crowds]),
        "CPU µs a step": middle([crowd.cpu / crowd.steps / 1e3 for crowd in crowds]),
    }
    what = f"{count} session{'s' * (count > 1)} at once in threads"
    target = None if goal is None else at_least(goal)
    return Figure(f"crowd_threads_{count}", what, rate / _rate(threads[1]), "× one", target, beside)


def _waits(name: str, crowds: list[Crowd]) -> Iterator[Figure]:
    steps = [time for crowd in crowds for run in crowd.runs for time in run.times]
    worst = [max(time for run in crowd.runs for time in run.times) for crowd in crowds]
    errors = [error for crowd in crowds for run in crowd.runs for error in run.errors]
    yield Figure(
        f"crowd_{name}_p99",
        "  a step, p99",
        ms(percentile(steps, 0.99)),
        "ms",
        None,
        {"p50 ms": ms(middle(steps))},
    )
    yield Figure(
        f"crowd_{name}_worst",
        "  worst step (median of rounds)",
        ms(middle(worst)),
        "ms",
        None,
        {"of all": ms(max(worst))},
    )
    yield Figure(f"crowd_{name}_errors", "  steps refused", len(errors), "errors", at_most(0))


def _rate(crowds: list[Crowd]) -> float:
    """Messages per second from the first step of any worker to the last; the median of the rounds."""
    rates = []
    for crowd in crowds:
        lasted = max(run.ended for run in crowd.runs) - min(run.began for run in crowd.runs)
        rates.append(len(crowd.runs) * crowd.turns * MESSAGES_PER_TURN / (lasted / 1e9))
    return middle(rates)


def _threads(store: Store, many: int, turns: int) -> Crowd:
    barrier, crowd = Barrier(many), Crowd([Run() for _ in range(many)], turns)
    started = [store.start(agent="bench") for _ in range(many)]
    loads = [turns_of(MESSAGES_PER_TURN * turns, seed=number) for number in range(min(many, MANY))]

    def work(number: int) -> None:
        barrier.wait()
        crowd.runs[number] = drive(started[number], loads[number % len(loads)])

    threads = [Thread(target=work, args=(number,)) for number in range(many)]
    commits: list[int] = []

    def count() -> bool:
        commits.append(1)
        return False  # True would roll back

    writer: apsw.Connection = store.backend._connections._writer  # type: ignore[attr-defined]
    writer.set_commit_hook(count)
    began = process_time_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    crowd.cpu, crowd.commits = process_time_ns() - began, len(commits)
    writer.set_commit_hook(None)
    return crowd


def _processes(path: Path, many: int, turns: int) -> Crowd:
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.child", str(path), str(turns), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(many)
    ]
    for child in children:  # start only when all are ready
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
    runs = [msgspec.json.decode(child.communicate()[0], type=Run) for child in children]
    return Crowd(runs, turns)
