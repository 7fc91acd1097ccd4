"""Measure the tree: a fork in the middle, and a path that crosses a thousand branches."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns

import apsw

import oakleaf

from .filled import fill
from .measure import Plan, alternate, middle, ms, percentile, size_on_disk
from .ours import Ours, add, messages_of
from .report import Figure, at_most
from .workload import Step, turns_of


def figures(plan: Plan) -> Iterator[Figure]:
    for messages in [80, 800] if plan.is_quick else [80, 800, 8_000]:
        yield from _middle(plan, messages)
    yield from _deep(plan)


def _middle(plan: Plan, messages: int) -> Iterator[Figure]:
    """Measure the time of a durable fork and the growth of the file per fork, over many forks at one entry."""
    filled = fill(plan, "fork", messages)
    filled.ours.close()
    filled.bare.close()
    ours = Ours(filled.ours.path, session_id=filled.ours.session.session_id)
    before, pages, count = size_on_disk(ours.path), _pages(ours), 50
    times = []
    for _ in range(count):
        began = perf_counter_ns()
        ours.session.fork(messages // 2)
        times.append(perf_counter_ns() - began)
    grown = (_pages(ours) - pages) / count
    growth = (size_on_disk(ours.path) - before) / count
    ours.close()
    yield Figure(
        f"fork_{messages}",
        f"fork at the middle of {messages:,}",
        ms(middle(times)),
        "ms",
        at_most(2),
        {"p99 ms": ms(percentile(times, 0.99)), "first ms": ms(times[0])},
    )
    yield Figure(
        f"fork_bytes_{messages}",
        "bytes it adds to the file",
        growth,
        "bytes",
        at_most(4_096),
        {"pages": grown},
    )


def _pages(ours: Ours) -> int:
    connection = apsw.Connection(str(ours.path))
    count = int(connection.execute("pragma page_count").get)
    connection.close()
    return count


def _deep(plan: Plan) -> Iterator[Figure]:
    """Compare a chain of forks, one turn each, with the same turns in one branch."""
    depth = plan.pick(1_000, 100)
    turns = turns_of(8 * depth)
    flat = Ours(plan.path("deep-flat"), "normal")
    deep = Ours(plan.path("deep-deep"), "normal")
    for turn in turns:
        flat.session.append(messages_of(turn))
        deep.session.append(messages_of(turn))
        deep.session = deep.session.fork()
    assert len(deep.load()) == len(flat.load()) == 8 * depth
    times = alternate({"deep": deep.load, "flat": flat.load}, plan.pick(15, 10))
    yield Figure(
        "load_deep",
        f"load a path of {depth:,} branches",
        middle(times["deep"]) / middle(times["flat"]),
        "× flat",
        at_most(1.3),
        {"ms": ms(middle(times["deep"])), "flat": ms(middle(times["flat"]))},
    )
    forks = alternate({"deep": deep.session.fork, "flat": flat.session.fork}, plan.pick(30, 10))
    yield Figure(
        "fork_deep",
        f"fork {depth:,} branches deep (normal)",
        ms(middle(forks["deep"])),
        "ms",
        at_most(2),
        {"flat": ms(middle(forks["flat"]))},
    )
    yield _appending(deep.session, flat.session, turns[: plan.pick(40, 10)])
    flat.close()
    deep.close()


def _appending(deep: oakleaf.Session, flat: oakleaf.Session, turns: list[list[Step]]) -> Figure:
    steps = iter([step for turn in turns for step in turn])

    def both() -> Iterator[tuple[int, int]]:
        for step in steps:
            began = perf_counter_ns()
            add(deep, step)
            between = perf_counter_ns()
            add(flat, step)
            yield between - began, perf_counter_ns() - between

    pairs = list(both())
    ours, beside = middle([one for one, _ in pairs]), middle([other for _, other in pairs])
    return Figure(
        "append_deep", "append there (normal)", ours / beside, "× flat", at_most(1.15), {"ms": ms(ours)}
    )
