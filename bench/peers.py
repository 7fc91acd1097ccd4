"""Measure an append against OpenAI's `SQLiteSession`, the fastest peer, which stores the messages and nothing beside them.

The same steps go into both stores in turns, one after the other in shuffled order, with one commit each and the same
durability: the write-ahead log and `synchronous=full`, which is what that session runs with. It is awaited, as its users do.
The package is in the environment of the frameworks (`.venv-frameworks`), so this part runs there, as a process of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import perf_counter_ns, process_time_ns
from typing import Any

import msgspec
from msgspec import Struct

from .measure import ROOT, Plan, middle
from .ours import Ours
from .report import Figure, at_most
from .workload import Step, result_of, turns_of

PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"


class Side(Struct):
    """The steps of one store, in nanoseconds."""

    times: list[int] = []
    cpu: int = 0


def figures(plan: Plan) -> Iterator[Figure]:
    if not PYTHON.exists():
        raise SystemExit("peers: run `make .venv-frameworks/.test` first, which installs them")
    messages = plan.pick(8_000, 800)
    command = [str(PYTHON), "-m", "bench.peers", str(plan.directory), str(messages)]
    output = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE).stdout
    sides = msgspec.json.decode(output, type=dict[str, Side])
    ours, theirs = sides["ours"], sides["theirs"]
    beside = {
        "CPU ×": ours.cpu / theirs.cpu,
        "p50 µs": middle(ours.times) / 1e3,
        "theirs": middle(theirs.times) / 1e3,
    }
    what = f"append a step, {messages:,} messages, × OpenAI's SQLiteSession"
    yield Figure("append_peer", what, middle(ours.times) / middle(theirs.times), "×", at_most(0.7), beside)


async def _run(directory: Path, messages: int) -> dict[str, Side]:
    from agents.memory import SQLiteSession  # type: ignore[import-not-found]  # in the other environment

    sides = {"ours": Side(), "theirs": Side()}
    ours, theirs = Ours(directory / "ours.db"), SQLiteSession("bench", directory / "theirs.db")
    random, names = Random(3), list(sides)
    for step in (step for turn in turns_of(messages) for step in turn):
        items = _items(step)
        random.shuffle(names)
        for name in names:
            began, cpu = perf_counter_ns(), process_time_ns()
            if name == "ours":
                ours.step(step)
            else:
                await theirs.add_items(items)
            sides[name].times.append(perf_counter_ns() - began)
            sides[name].cpu += process_time_ns() - cpu
    ours.close()
    theirs.close()
    return sides


def _items(step: Step) -> list[dict[str, Any]]:
    """Return the step as the items of OpenAI's Responses API."""
    items: list[dict[str, Any]] = []
    for message in step.messages:
        if message.role == "tool":
            call_id, output = result_of(message)
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
            continue
        items.append({"role": message.role, "content": message.text})
        for call in message.calls:
            arguments = msgspec.json.encode(call.arguments).decode()
            item = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}
            items.append(item)
    return items


if __name__ == "__main__":
    print(msgspec.json.encode(asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2])))).decode())
