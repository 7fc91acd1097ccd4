"""Measure a lab of scripted models: the time for 50, 100 and 200 sessions × 3 lanes, and the memory it needs.

Each size runs in a process of its own, so that its peak of memory is its own. Processor time, because it is what the lab
uses; the time on the clock is beside it.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oakleaf
from oakleaf import Rates, Request, ScriptedModel, ToolCall, assistant, system
from oakleaf_lab import Cell, Lab

from .measure import Plan
from .report import Figure, at_most

TURNS = 3
RATES = Rates(input=3, output=15)


def figures(plan: Plan) -> Iterator[Figure]:
    sizes = (50, 100, 200) if not plan.is_quick else (5, 10, 20)
    context = multiprocessing.get_context("spawn")
    each: dict[int, dict[str, float]] = {}
    for size in sizes:
        results = context.Queue()
        process = context.Process(target=_measure, args=(str(plan.path(f"lab{size}")), size, results))
        process.start()
        each[size] = results.get(timeout=900)
        process.join()
        yield Figure(
            f"lab_{size}",
            f"lab, {size} sessions × 3 lanes",
            each[size]["processor"],
            "s",
            None,
            {"on the clock s": each[size]["clock"], "peak of memory MB": each[size]["memory"]},
        )
    first, last = each[sizes[0]], each[sizes[-1]]
    growth = (last["processor"] / sizes[-1]) / (first["processor"] / sizes[0])
    yield Figure(
        "lab_time_per_session", f"time per session, {sizes[-1]} : {sizes[0]}", growth, "×", at_most(1.3), {}
    )
    yield Figure(
        "lab_memory",
        f"peak of memory, {sizes[-1]} : {sizes[0]}",
        last["memory"] / first["memory"],
        "×",
        at_most(1.2),
        {},
    )


def _measure(place: str, sessions: int, results: Any) -> None:
    with oakleaf.open(Path(place), synchronous="normal") as store:
        _record(store, sessions)
        lab = Lab(store, "agent:support", baseline_model=_old, model=_new)
        began, used = time.perf_counter(), time.process_time()
        report = lab.run_sync(workers=2)
        assert report.status == "complete"
        results.put(
            {
                "clock": time.perf_counter() - began,
                "processor": time.process_time() - used,
                "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )


@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, object]:
    """Look an order up."""
    return {"order": order, "status": "lost"}


def _record(store: oakleaf.Store, sessions: int) -> None:
    for number in range(sessions):
        session = store.start("support", [system("You help customers.")])
        for turn in range(TURNS):
            session.send_sync(f"Where is order {number * 10 + turn}?", model=_model("old"), tools=[look_up])


def _model(name: str) -> ScriptedModel:
    return ScriptedModel(_answer, model=name, rates=RATES)


def _old(cell: Cell) -> ScriptedModel:
    return _model("old")


def _new(cell: Cell) -> ScriptedModel:
    """A model for each cell: a scripted one keeps every request it was sent."""
    return _model("new")


def _answer(request: Request) -> str | oakleaf.Message:
    last = request.context.items[-1].message
    if last.role == "user":
        order = int(last.text.split()[-1].rstrip("?"))
        return assistant(ToolCall(f"c{order}", "look_up", {"order": order}))
    return "It is lost."
