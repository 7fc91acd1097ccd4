"""`python -m bench`: Oakleaf against the bare driver. `--quick` for a short run, `--only append,load` for parts."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import (
    agents,
    append,
    crowd,
    fork,
    importing,
    lab,
    load,
    long_sessions,
    many_sessions,
    peers,
    postgres,
    proxy,
    runner,
    search,
    serving,
    simulation,
    start,
    viewer,
    workers,
)
from .measure import Plan
from .report import Figure, keep, others, versions

HERE = Path(__file__).parent
PARTS: dict[str, Callable[[Plan], Iterator[Figure]]] = {
    "append": append.figures,
    "peers": peers.figures,
    "load": load.figures,
    "long": long_sessions.figures,
    "many": many_sessions.figures,
    "fork": fork.figures,
    "crowd": crowd.figures,
    "agents": agents.figures,
    "start": start.figures,
    "runner": runner.figures,
    "postgres": postgres.figures,
    "workers": workers.figures,
    "simulation": simulation.figures,
    "search": search.figures,
    "serving": serving.figures,
    "viewer": viewer.figures,
    "proxy": proxy.figures,
    "lab": lab.figures,
    "importing": importing.figures,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument(
        "--dir", type=Path, default=HERE / ".tmp", help="a folder on the disk to measure, not on a tmpfs"
    )
    parser.add_argument("--to", type=Path, default=HERE / "result.json", help="file for the figures")
    arguments = parser.parse_args()
    arguments.parts = arguments.only.split(",")
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    return arguments


def run(parts: list[str], directory: Path, *, is_quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    for name in parts:
        print(f"{name}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=directory))
        try:
            for figure in PARTS[name](Plan(folder, is_quick)):
                print(figure.line(), flush=True)
                figures.append(figure)
        finally:
            shutil.rmtree(folder)
    return figures


def main() -> None:
    arguments = parse()
    is_new = not arguments.dir.exists()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    print("  ".join(f"{name} {version}" for name, version in versions().items()))
    if others() > (os.cpu_count() or 1):
        print("this machine is busy: prefer `more µs` and synchronous=normal to the ratios of synced steps")
    try:
        figures = run(arguments.parts, arguments.dir, is_quick=arguments.quick)
    finally:
        if is_new:
            shutil.rmtree(arguments.dir)
    keep(figures, arguments.to, is_quick=arguments.quick)
    missed = [figure.key for figure in figures if figure.verdict not in ("", "ok")]
    print(f"{time.monotonic() - began:.0f} s; goals missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
