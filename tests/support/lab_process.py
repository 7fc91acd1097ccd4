"""A lab run in a process of its own, which kills itself at a model call or after a time: `python -m support.lab_process`.

The clock stands still, so that latencies, which are measured, are equal in all runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec
from msgspec.structs import replace

import oakleaf
from oakleaf import ScriptedModel, Store
from oakleaf_lab import Lab
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.scorers import Judge, ScoredTurn
from support.lab_sessions import RATES, noisy

MAX_TOKENS = 5_000
NOW = 2_000_000_000_000_000


def apologises(turn: ScoredTurn) -> bool:
    return "sorry" in turn.text


def open_store(path: Path) -> Store:
    store = oakleaf.open(path, synchronous="normal")
    store.runtime = replace(store.runtime, now=lambda: NOW)
    return store


class Death:
    """Kills the process at a model call. An object, because a number would make another lab of each moment."""

    def __init__(self, at_call: int) -> None:
        self.at_call, self.calls = at_call, 0

    def count(self) -> None:
        self.calls += 1
        if self.calls == self.at_call:
            os.kill(os.getpid(), signal.SIGKILL)


def run(store: Store, workers: int, kill_at_call: int = 0) -> LabReport:
    death = Death(kill_at_call)

    def count() -> None:
        death.count()

    def judge(request: oakleaf.Request) -> str:
        count()
        return "score: 0.5"

    lab = Lab(
        store,
        "agent:support",
        baseline_model=noisy(5, on_call=count),
        model=noisy(5, planted=0.2, name="new", on_call=count),
        after_divergence="continue",
    )
    return lab.run_sync(
        workers=workers,
        scorers=[apologises],
        judge=Judge(ScriptedModel(judge, model="judge", rates=RATES)),
        fail_if=["tool_changed > 50%"],
    )


def run_limited(store: Store, log: Path, limit: int, dies_in: str) -> LabReport:
    """Run a lab under a limit; the process dies at the first call of that kind, each of which is noted in `log`."""

    def model_for(kind: str, answer: str) -> ScriptedModel:
        def reply(request: oakleaf.Request) -> str:
            with log.open("a") as file:
                file.write(f"{kind}\n")
            if kind == dies_in:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return ScriptedModel(reply, model=kind, rates=RATES)

    options = {"max_tokens": MAX_TOKENS} if dies_in == "replay" else None
    baseline, candidate = model_for("baseline", "x"), model_for("replay", "x")
    lab = Lab(store, "agent:support", baseline_model=baseline, model=candidate, options=options)
    judge = Judge(model_for("judge", "score: 0.5")) if dies_in == "judge" else None
    return lab.run_sync(workers=1, max_cost_microcents=limit, judge=judge)


def main() -> None:
    if sys.argv[1] == "limited":
        with open_store(Path(sys.argv[2])) as store:
            report = run_limited(store, Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
        sys.stdout.buffer.write(msgspec.json.encode(report))
        return
    path, workers, point = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    kind, _, value = point.partition(":")
    if kind == "time":
        kill = threading.Timer(float(value), os.kill, (os.getpid(), signal.SIGKILL))
        kill.daemon = True
        kill.start()
    with open_store(path) as store:
        report = run(store, workers, int(value) if kind == "call" else 0)
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    from support.lab_process import main as imported  # the types of `__main__` have other names

    imported()
