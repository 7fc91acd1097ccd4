"""A worker that runs the cells of a lab, in a process of its own, and may kill itself at a model call.

Its models are functions of the request alone, so that a cell is the same wherever it runs. Each call is a line in a file. The
clock stands still, so that latencies, which are measured, are equal in all runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from hashlib import sha256

from msgspec.structs import replace

import oakleaf
from oakleaf import ScriptedModel, Slow, Store, ToolCall, assistant
from oakleaf.log.runtime import real_runtime
from oakleaf.models.base import Request
from oakleaf_lab import Lab
from oakleaf_lab.scorers import Judge, ScoredTurn
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.worker import Worker
from support.lab_sessions import RATES, look_up, position, track

NOW = 2_000_000_000_000_000


def apologises(turn: ScoredTurn) -> bool:
    return "sorry" in turn.text


def open_store(url: str) -> Store:
    store = oakleaf.open(url)
    store.runtime = replace(store.runtime, now=lambda: NOW)
    return store


def model(
    name: str, tool_changed: float, on_call: Callable[[str], None] = lambda line: None, pause: float = 0.0
) -> ScriptedModel:
    """Return a model that changes tools in this share of the orders, and apologises in half of them."""

    def line(request: Request) -> object:
        order, step = position(request.context)
        on_call(f"{name} {order} {step}")
        draw = int.from_bytes(sha256(f"{name} {order}".encode()).digest()[:8]) / 2**64
        if step == 0:
            tool = "track" if draw < tool_changed else "look_up"
            reply: object = assistant(ToolCall(f"c{order}", tool, {"order": order}))
        else:
            reply = f"Order {order} is lost" + ("; sorry." if draw < 0.5 else ".")
        return Slow(pause, reply) if pause else reply  # type: ignore[arg-type]

    return ScriptedModel(line, model=name, rates=RATES)  # type: ignore[arg-type]


def judge(on_call: Callable[[str], None] = lambda line: None) -> ScriptedModel:
    def line(request: Request) -> str:
        on_call("judge")
        return "score: 0.5"

    return ScriptedModel(line, model="judge", rates=RATES)


def agents(on_call: Callable[[str], None], pause: float = 0.0) -> list[Agent]:
    return [
        Agent("old", model("old", 0.1, on_call, pause), [look_up, track]),
        Agent("new", model("new", 0.4, on_call, pause), [look_up, track]),
        Agent("judge", judge(on_call)),
    ]


def run_worker(
    url: str, queue: str, log_path: str, kill_at: int = 0, concurrency: int = 2, pause: float = 0.0
) -> None:
    """Run a worker until it is killed, by itself at the call of that number, or receives SIGTERM."""
    file = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    calls = 0

    def on_call(line: str) -> None:
        nonlocal calls
        calls += 1
        if calls == kill_at:
            os.write(file, b"killed\n")
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(file, f"{line}\n".encode())

    worker = Worker(
        url,
        agents(on_call, pause),
        queue=queue,
        concurrency=concurrency,
        lease=1,
        runtime=replace(real_runtime(), now=lambda: NOW),
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    os._exit(worker.run(grace=20))


def run_command(url: str, queue: str) -> None:
    """Run the lab of the tests on the workers of a queue, to be killed."""
    with open_store(url) as store:
        lab = Lab(
            store,
            "agent:support",
            baseline_model=model("old", 0.1),
            model=model("new", 0.4),
            after_divergence="continue",
            queue=queue,
        )
        lab.run_sync(scorers=[apologises], judge=Judge(judge(), "Is it polite?"))
