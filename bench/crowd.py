"""Eight sessions at once in one store: threads that share a handle, and processes that share a file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter_ns

import msgspec
from msgspec import Struct

import bough

from .measure import ROOT, Plan, middle, ms, percentile
from .ours import add
from .report import Figure, at_least, at_most
from .workload import MESSAGES_PER_TURN, Step, turns_of

MANY = 8


class Run(Struct):
    """One worker: nanoseconds of each step, start, end and errors."""

    times: list[int] = []
    began: int = 0
    ended: int = 0
    errors: list[str] = []


def drive(session: bough.Session, turns: Sequence[Sequence[Step]]) -> Run:
    run = Run(began=perf_counter_ns())
    try:
        for turn in turns:
            for step in turn:
                began = perf_counter_ns()
                add(session, step)
                run.times.append(perf_counter_ns() - began)
    except bough.BoughError as error:
        run.errors.append(f"{type(error).__name__}: {error}")
    run.ended = perf_counter_ns()
    return run


def figures(plan: Plan) -> Iterator[Figure]:
    turns, rounds = plan.pick(60, 12), plan.pick(4, 1)
    for name, at_once in (("threads", _threads), ("processes", _processes)):
        alone: list[list[Run]] = []
        crowd: list[list[Run]] = []
        for number in range(rounds):
            path = plan.path(f"crowd-{name}-{number}")
            alone.append(at_once(path, 1, turns))
            crowd.append(at_once(path, MANY, turns))
        yield from _figures(name, alone, crowd, turns)


def _figures(name: str, alone: list[list[Run]], crowd: list[list[Run]], turns: int) -> Iterator[Figure]:
    one, many = middle([_rate(runs, turns) for runs in alone]), middle([_rate(runs, turns) for runs in crowd])
    steps = [time for runs in crowd for run in runs for time in run.times]
    worst = [max(time for run in runs for time in run.times) for runs in crowd]
    errors = [error for runs in (*alone, *crowd) for run in runs for error in run.errors]
    shared = name == "threads"  # the only goal for processes is that no step is refused
    yield Figure(
        f"crowd_{name}",
        f"{MANY} sessions at once in {name}",
        many / one,
        "× one",
        at_least(2.5) if shared else None,
        {"messages/s": many, "one": one},
    )
    yield Figure(
        f"crowd_{name}_p99",
        "  a step, p99",
        ms(percentile(steps, 0.99)),
        "ms",
        at_most(5) if shared else None,
        {"p50 ms": ms(middle(steps))},
    )
    yield Figure(
        f"crowd_{name}_worst",
        "  worst step (median of rounds)",
        ms(middle(worst)),
        "ms",
        at_most(20) if shared else None,
        {"of all": ms(max(worst))},
    )
    yield Figure(f"crowd_{name}_errors", "  steps refused", len(errors), "errors", at_most(0))


def _rate(runs: list[Run], turns: int) -> float:
    """Messages per second from the first step of any worker to the last."""
    lasted = max(run.ended for run in runs) - min(run.began for run in runs)
    return len(runs) * turns * MESSAGES_PER_TURN / (lasted / 1e9)


def _threads(path: Path, many: int, turns: int) -> list[Run]:
    barrier, runs = Barrier(many), [Run() for _ in range(many)]
    with bough.open(path) as sessions:
        started = [sessions.start(agent="bench") for _ in range(many)]
        loads = [turns_of(MESSAGES_PER_TURN * turns, seed=number) for number in range(many)]

        def work(number: int) -> None:
            barrier.wait()
            runs[number] = drive(started[number], loads[number])

        threads = [Thread(target=work, args=(number,)) for number in range(many)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return runs


def _processes(path: Path, many: int, turns: int) -> list[Run]:
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
    return [msgspec.json.decode(child.communicate()[0], type=Run) for child in children]
