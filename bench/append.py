"""Measure appends: by length, by durability, with one commit per step and one commit per message."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from statistics import mean
from time import perf_counter_ns

from oakleaf.core.usage import Usage
from oakleaf.models.prices import price

from .bare import Bare, Standard
from .floor import ByHand, OneRow
from .measure import Plan, System, Times, alternate, middle, ms, percentile, step_by_step
from .ours import Ours
from .report import Figure, Target, at_most
from .workload import turns_of

# `control` is a second bare system: its difference from the first is the noise of this machine. `sqlite3` is the driver
# that comes with Python. The last two measure the cost of the stored rows without Oakleaf's code.
KINDS = {
    "bare": Bare,
    "ours": Ours,
    "control": Bare,
    "sqlite3": Standard,
    "by hand": ByHand,
    "one row": OneRow,
}


def figures(plan: Plan) -> Iterator[Figure]:
    sizes = [(80, 2), (800, 1)] if plan.is_quick else [(80, 30), (800, 6), (8_000, 2)]
    for messages, rounds in sizes:
        times = _grow_stores(plan, messages, rounds, "full")
        yield _ratio(f"append_{messages}", f"append a step, {messages:,} messages", times, at_most(1.3))
        if messages == max(size for size, _ in sizes):
            yield _growth(times, rounds)
    times = _grow_stores(plan, plan.pick(800, 400), plan.pick(4, 1), "normal")
    yield _ratio("append_normal", "append a step, synchronous=normal", times, at_most(2))
    yield _one_by_one(plan)
    yield _pricing()


def _grow_stores(plan: Plan, messages: int, rounds: int, synchronous: str) -> Times:
    """Grow fresh stores in parallel for several rounds; return the times of all steps."""
    steps = [step for turn in turns_of(messages) for step in turn]
    by_kind: Times = {name: [] for name in KINDS}
    for number in range(rounds):
        systems: dict[str, System] = {
            name: kind(plan.path(f"append-{synchronous}-{messages}-{number}-{name}"), synchronous)
            for name, kind in KINDS.items()
        }
        for name, times in step_by_step(systems, steps, seed=number).items():
            by_kind[name] += times
        for system in systems.values():
            system.close()
    return by_kind


def _ratio(key: str, what: str, times: Times, target: Target) -> Figure:
    """Compare with the same rows written by hand; bare systems write the messages alone."""
    ours, bare = times["ours"], times["bare"]
    control = middle([*bare, *times["control"]])
    return Figure(
        key,
        what,
        middle(ours) / middle(times["by hand"]),
        "× same rows by hand",
        target,
        {
            "× bare": middle(ours) / control,
            "× sqlite3": middle(ours) / middle(times["sqlite3"]),
            "by hand × bare": middle(times["by hand"]) / control,
            "in one row × bare": middle(times["one row"]) / control,
            "mean": mean(ours) / mean([*bare, *times["control"]]),
            "more µs": (middle(ours) - control) / 1e3,
            "p50 ms": ms(middle(ours)),
            "bare": ms(control),
            "p99 ms": ms(percentile(ours, 0.99)),
            "bare p99": ms(percentile(bare, 0.99)),
            "noise ×": middle(times["control"]) / middle(bare),
        },
    )


def _growth(times: Times, rounds: int) -> Figure:
    """Compare the last tenth of each round with its first."""
    grown = {}
    for name, all_times in times.items():
        length = len(all_times) // rounds
        parts = [all_times[begin : begin + length] for begin in range(0, len(all_times), length)]
        first = [one for part in parts for one in part[: length // 10]]
        last = [one for part in parts for one in part[-length // 10 :]]
        grown[name] = middle(last) / middle(first)
    return Figure(
        "append_growth",
        "  last tenth against the first",
        grown["ours"],
        "×",
        at_most(1.15),
        {"bare": grown["bare"]},
    )


def _one_by_one(plan: Plan) -> Figure:
    """Compare `with session.turn()`, 8 commits a turn, with 8 bare commits, alternating by turn."""
    ours, bare = Ours(plan.path("turn-ours")), Bare(plan.path("turn-bare"))
    random = Random(5)
    times: Times = {"ours": [], "bare": []}
    for turn in turns_of(plan.pick(1_600, 160)):
        works = [("ours", ours.one_by_one), ("bare", bare.one_by_one)]
        random.shuffle(works)
        for name, work in works:
            began = perf_counter_ns()
            work(turn)
            times[name].append(perf_counter_ns() - began)
    ours.close()
    bare.close()
    return Figure(
        "append_turn",
        "a turn of 8 commits, session.turn()",
        middle(times["ours"]) / middle(times["bare"]),
        "× bare",
        None,
        {
            "mean": mean(times["ours"]) / mean(times["bare"]),
            "p50 ms": ms(middle(times["ours"])),
            "bare": ms(middle(times["bare"])),
        },
    )


def _pricing() -> Figure:
    usage = Usage(12_000, 400, 6_000, 1_000)
    began = perf_counter_ns()
    cost = price(usage, "anthropic", "claude-sonnet-4-5")
    first = perf_counter_ns() - began
    times = alternate({"price": lambda: price(usage, "anthropic", "claude-sonnet-4-5")}, 50)["price"]
    return Figure(
        "price_call",
        "pricing one call (genai-prices)",
        middle(times) / 1e3,
        "µs",
        None,
        {"first ms": ms(first), "priced": float(cost is not None)},
    )
