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

import bough
from bough import ScriptedModel, Store
from bough.lab.report import LabReport
from bough.lab.scorers import Judge, ScoredTurn
from support.lab_sessions import RATES, noisy

NOW = 2_000_000_000_000_000


def apologises(turn: ScoredTurn) -> bool:
    return "sorry" in turn.text


def open_store(path: Path) -> Store:
    store = bough.open(path, synchronous="normal")
    store.runtime = replace(store.runtime, now=lambda: NOW)
    return store


def run(store: Store, workers: int, kill_at_call: int = 0) -> LabReport:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == kill_at_call:
            os.kill(os.getpid(), signal.SIGKILL)

    def judge(request: bough.Request) -> str:
        count()
        return "score: 0.5"

    lab = store.lab(
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


def main() -> None:
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
    main()
