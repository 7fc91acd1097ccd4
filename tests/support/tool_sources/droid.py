"""droid's session file: calls, a reminder, a compaction, and the settings beside it with the tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.import_sources import write_jsonl
from support.tool_sources import Counts, Record, ToolSource
from support.tool_sources.cline import outcome, text, use

SESSION = "d401d000-0000-4000-8000-000000000001"
USED = {
    "inputTokens": 100,
    "outputTokens": 50,
    "cacheCreationTokens": 20,
    "cacheReadTokens": 10,
    "thinkingTokens": 5,
}


def line(name: str, second: int, role: str, *blocks: Record, **more: Any) -> Record:
    at = f"2026-03-01T10:00:{second:02d}.000Z"
    message = {"role": role, "content": list(blocks)}
    return {"type": "message", "id": name, "timestamp": at, "message": message, "parentId": None, **more}


SAMPLE: list[Record] = [
    {
        "type": "session_start",
        "id": SESSION,
        "title": "The shop",
        "owner": "ann",
        "version": 2,
        "cwd": "/home/ann/shop",
    },
    line("m1", 1, "user", text("<system-reminder>Linux</system-reminder>"), text("What is here?")),
    line(
        "m2",
        2,
        "assistant",
        {"type": "thinking", "thinking": "Look first.", "signature": "sig"},
        text("I look."),
        use("t1", "LS", directory_path="."),
    ),
    line("m3", 3, "user", outcome("t1", "shop.py")),
    line("m4", 4, "assistant", text("A shop.")),
    {
        "type": "todo_state",
        "id": "x",
        "timestamp": "2026-03-01T10:00:05.000Z",
        "todos": {"todos": "1. [done]"},
    },
    {
        "type": "compaction_state",
        "id": "y",
        "timestamp": "2026-03-01T10:00:06.000Z",
        "summaryText": "They looked.",
    },
    {"type": "hologram", "timestamp": "2026-03-01T10:00:07.000Z", "rays": [1]},
    line("m5", 8, "user", text("Thanks.")),
]


def write(folder: Path, records: list[Record]) -> Path:
    project = folder / "-home-ann-shop"
    settings = project / f"{SESSION}.settings.json"
    write_jsonl(project / f"{SESSION}.jsonl", records)
    about = {"model": "claude-sonnet-4-5-20250929", "providerLock": "anthropic", "tokenUsage": USED}
    settings.write_text(json.dumps(about))
    return folder


def growth() -> Iterator[list[Record]]:
    """Yield the states from the first answer on: a session without one has no tokens."""
    for end in range(3, len(SAMPLE) + 1):
        yield SAMPLE[:end]


def count(source: Path) -> Counts:
    path = next(source.rglob("*.jsonl"))
    texts: list[str] = []
    calls = results = 0
    for each in map(json.loads, path.read_text().splitlines()):
        blocks = each.get("message", {}).get("content", ())
        calls += sum(block["type"] == "tool_use" for block in blocks)
        results += sum(block["type"] == "tool_result" for block in blocks)
        words = [block["text"] for block in blocks if block["type"] == "text"]
        texts.append("".join(each for each in words if not each.startswith("<system-reminder>")))
    used = json.loads(next(source.rglob("*.settings.json")).read_text())["tokenUsage"]
    read, written = used["cacheReadTokens"], used["cacheCreationTokens"]
    output = used["outputTokens"] + used["thinkingTokens"]
    cost = round((used["inputTokens"] * 3 + output * 15 + read * 0.3 + written * 3.75) * 100)
    tokens = (used["inputTokens"] + read + written, output, read, written)
    return Counts(1, calls, results, sorted(filter(None, texts)), 1, tokens, cost)


SOURCE = ToolSource("droid", SAMPLE, write, count, growth)
