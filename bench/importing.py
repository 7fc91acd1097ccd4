"""Measure imports: a session of Claude Code against reading its lines with `json.loads`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import process_time_ns
from typing import Any

import oakleaf

from .measure import Plan, alternate, middle, ms
from .report import Figure, at_most

USAGE = {
    "input_tokens": 10,
    "output_tokens": 50,
    "cache_read_input_tokens": 900,
    "cache_creation_input_tokens": 70,
}


def figures(plan: Plan) -> Iterator[Figure]:
    path = plan.directory / "session.jsonl"
    _write(path, plan.pick(300, 60))
    os.utime(path, (0, 0))
    numbers = count()
    with oakleaf.open(plan.path("again")) as again:
        list(again.import_from("claude-code", str(path)))
        works = {
            "json": lambda: [json.loads(line) for line in path.read_bytes().splitlines()],
            "import": lambda: _import(plan.path(f"new-{next(numbers)}"), path),
            "again": lambda: list(again.import_from("claude-code", str(path))),
        }
        times = alternate(works, plan.pick(9, 5))
        cpu = alternate(works, plan.pick(9, 5), clock=process_time_ns)
    loads = middle(times["json"])
    beside = {"MB": path.stat().st_size / 1e6, "json ms": ms(loads)}
    for name, what in (
        ("import", "import a session of Claude Code"),
        ("again", "import it again, unchanged"),
    ):
        each = {**beside, "ms": ms(middle(times[name])), "CPU ×": min(cpu[name]) / min(cpu["json"])}
        yield Figure(f"importing_{name}", what, middle(times[name]) / loads, "× json.loads", at_most(6), each)


def _import(store: Path, source: Path) -> None:
    with oakleaf.open(store) as sessions:
        list(sessions.import_from("claude-code", str(source)))


def _write(path: Path, turns: int) -> None:
    """Write a session as the tool does: an answer has a line for each block; results are long, answers short."""
    parent: str | None = None
    with path.open("w") as file:
        for turn in range(turns):
            for number, (kind, message) in enumerate(_turn(turn)):
                uuid = f"{turn}-{number}"
                header = {
                    "uuid": uuid,
                    "parentUuid": parent,
                    "isSidechain": False,
                    "sessionId": "s",
                    "cwd": "/shop",
                }
                line = {"type": kind, **header, "timestamp": "2026-03-01T10:00:00.250Z", "message": message}
                file.write(json.dumps(line) + "\n")
                parent = uuid


def _turn(turn: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "user", {"role": "user", "content": f"Question {turn}. " + "Please look at the shop. " * 8}
    for step in range(4):
        call = f"toolu_{turn}_{step}"
        blocks: list[dict[str, Any]] = [
            {
                "type": "thinking",
                "thinking": "I should look at the file first. " * 12,
                "signature": "c2ln" * 60,
            },
            {"type": "text", "text": "I look at the file now. " * 4},
            {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "cat shop.py"}},
        ]
        for block in blocks:
            yield "assistant", _answer(f"msg_{turn}_{step}", block, "tool_use")
        content = [{"type": "tool_result", "tool_use_id": call, "content": "a line of the file\n" * 200}]
        yield "user", {"role": "user", "content": content}
    yield "assistant", _answer(f"msg_{turn}", {"type": "text", "text": "It is fixed now. " * 20}, "end_turn")


def _answer(name: str, block: dict[str, Any], stop: str) -> dict[str, Any]:
    about = {"id": name, "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    return {**about, "content": [block], "stop_reason": stop, "usage": USAGE}
