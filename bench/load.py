"""Measure reads: complete paths, their ends, the list of sessions; and the space on disk."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

import oakleaf
from oakleaf.stores.sql.rows import SESSION_COLUMNS

from .filled import FilledStore, fill
from .measure import Plan, alternate, middle, ms, size_on_disk
from .report import Figure, Target, at_most


def figures(plan: Plan) -> Iterator[Figure]:
    for messages in [80, 800] if plan.is_quick else [80, 800, 8_000]:
        filled = fill(plan, "load", messages)
        yield _path(filled, messages, plan.pick(20 if messages == 8_000 else 60, 15))
        if messages != 80:
            yield _tail(filled, messages, 8, None, plan.pick(200, 50))
            yield _tail(filled, messages, 20, at_most(0.5) if messages == 8_000 else None, plan.pick(200, 50))
            yield _space(filled, messages)
        filled.close()
    yield _listing(plan)


def _path(filled: FilledStore, messages: int, rounds: int) -> Figure:
    assert len(filled.ours.load()) == len(filled.bare.load()) == messages
    times = alternate({"ours": filled.ours.load, "bare": filled.bare.load}, rounds)
    ours, bare = middle(times["ours"]), middle(times["bare"])
    return Figure(
        f"load_{messages}",
        f"load a path of {messages:,}",
        ours / bare,
        "× bare",
        at_most(1.3),
        {"ms": ms(ours), "bare": ms(bare), "best ×": min(times["ours"]) / min(times["bare"])},
    )


def _tail(filled: FilledStore, messages: int, count: int, target: Target | None, rounds: int) -> Figure:
    times = alternate(
        {"ours": lambda: filled.ours.tail(count), "bare": lambda: filled.bare.tail(count)}, rounds
    )
    ours, bare = ms(middle(times["ours"])), ms(middle(times["bare"]))
    return Figure(
        f"load_last_{count}_of_{messages}",
        f"load the last {count} of {messages:,}",
        ours,
        "ms",
        target,
        {"bare": bare},
    )


def _space(filled: FilledStore, messages: int) -> Figure:
    ours, bare = size_on_disk(filled.ours.path), size_on_disk(filled.bare.path)
    return Figure(
        f"space_{messages}",
        f"file of {messages:,}",
        ours / filled.json_bytes,
        "× JSON",
        at_most(1.3),
        {"kB": ours / 1e3, "bare ×": bare / filled.json_bytes, "json kB": filled.json_bytes / 1e3},
    )


def _listing(plan: Plan) -> Figure:
    """Compare 1,000 session rows with the same rows and columns read by the bare driver."""
    path, count = plan.path("list"), plan.pick(1_000, 200)
    with oakleaf.open(path, synchronous="normal") as sessions:
        for number in range(count):
            sessions.start(agent="bench", title=f"Session {number}", tags={"number": str(number)})
        connection = apsw.Connection(str(path))
        query = f"select {SESSION_COLUMNS} from session where space = ? and trashed_at is null order by number desc"
        times = alternate(
            {
                "ours": lambda: sessions.sessions(limit=count).sessions,
                "bare": lambda: connection.execute(query, ("default",)).fetchall(),
            },
            plan.pick(60, 20),
        )
        connection.close()
    ours, bare = middle(times["ours"]), middle(times["bare"])
    return Figure(
        "list_sessions",
        f"list {count:,} sessions",
        ours / bare,
        "× bare",
        at_most(2),
        {"ms": ms(ours), "bare": ms(bare)},
    )
