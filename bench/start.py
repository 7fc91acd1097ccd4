"""Measure a new process: the import, the first append, resuming a session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .filled import fill
from .measure import Plan, Times, alternate, middle, ms, run_python
from .report import Figure, Target, at_most

OURS = "import oakleaf, sys; s = oakleaf.open(sys.argv[1]); assert s.session(sys.argv[2]).path()"
BARE = """
import apsw, msgspec, sys
decode = msgspec.json.Decoder().decode
rows = apsw.Connection(sys.argv[1]).execute("select body from entry order by id").fetchall()
assert [decode(body) for (body,) in rows]
"""
USE = """
import oakleaf, sys
with oakleaf.open(sys.argv[1]) as s:
    s.start(agent="a").append([oakleaf.user("hello")])
"""
IMPORTS = {
    "pass": "pass",
    "oakleaf": "import oakleaf",
    "open": "import oakleaf; oakleaf.open",
    "driver": "import apsw, msgspec",
}


def figures(plan: Plan) -> Iterator[Figure]:
    times = _imports(plan)
    base = middle(times["pass"])

    def over(name: str) -> float:
        return ms(middle(times[name]) - base)

    beside = {"apsw+msgspec": over("driver"), "python ms": ms(base)}
    yield Figure("import", "import oakleaf", over("oakleaf"), "ms", at_most(80), beside)
    yield Figure("import_open", "import oakleaf; oakleaf.open", over("open"), "ms", at_most(80), beside)
    yield Figure("first_use", "import, new store, start, append", over("use"), "ms", None, beside)
    for messages in [800] if plan.is_quick else [800, 8_000]:
        yield _resume(plan, messages, at_most(150) if messages == 800 else None)


def _imports(plan: Plan) -> Times:
    fresh = (plan.path(f"use-{number}") for number in range(10_000))
    works = {name: partial(run_python, code) for name, code in IMPORTS.items()}
    return alternate({**works, "use": lambda: run_python(USE, str(next(fresh)))}, plan.pick(25, 5))


def _resume(plan: Plan, messages: int, target: Target | None) -> Figure:
    """Measure a complete process that opens the store and reads the path."""
    filled = fill(plan, "start", messages)
    ours, bare, session_id = filled.ours.path, filled.bare.path, filled.ours.session.session_id
    filled.close()

    def run(code: str, path: Path, *arguments: str) -> None:
        run_python(code, str(path), *arguments)

    times = alternate(
        {"ours": partial(run, OURS, ours, session_id), "bare": partial(run, BARE, bare)}, plan.pick(15, 5)
    )
    return Figure(
        f"resume_{messages}",
        f"new process, open, load {messages:,}",
        ms(middle(times["ours"])),
        "ms",
        target,
        {
            "bare": ms(middle(times["bare"])),
            "best": ms(min(times["ours"])),
            "bare best": ms(min(times["bare"])),
        },
    )
