"""A session file of pi: a branch with a summary of the one it left, a compaction, results, and the cost of each call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.import_sources import write_jsonl
from support.tool_sources import Counts, Record, ToolSource

DOLLARS = 0.000435


def entry(kind: str, name: str, parent: str | None, second: int, /, **fields: Any) -> Record:
    at = f"2026-03-01T10:00:{second:02d}.000Z"
    return {"type": kind, "id": name, "parentId": parent, "timestamp": at, **fields}


def message(name: str, parent: str | None, second: int, role: str, content: Any, **more: Any) -> Record:
    return entry("message", name, parent, second, message={"role": role, "content": content, **more})


def used(dollars: float) -> Record:
    tokens = {"input": 10, "output": 3, "cacheRead": 40, "cacheWrite": 5, "totalTokens": 58}
    return {**tokens, "cost": {"input": 0.00003, "total": dollars}}


def answer(name: str, parent: str, second: int, *blocks: Record, dollars: float = DOLLARS) -> Record:
    about = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-sonnet-4-5"}
    return message(name, parent, second, "assistant", list(blocks), **about, usage=used(dollars))


def text(words: str) -> Record:
    return {"type": "text", "text": words}


def call(name: str) -> Record:
    return {"type": "toolCall", "id": name, "name": "bash", "arguments": {"command": "ls"}}


def result(name: str, parent: str, second: int, call_id: str, words: str) -> Record:
    about = {"toolCallId": call_id, "toolName": "bash", "isError": False}
    return message(name, parent, second, "toolResult", [text(words)], **about)


SAMPLE: list[Record] = [
    {"type": "session", "version": 3, "id": "5e55", "timestamp": "2026-03-01T10:00:00.000Z", "cwd": "/shop"},
    entry("model_change", "a0", None, 0, provider="anthropic", modelId="claude-sonnet-4-5"),
    message("a1", "a0", 1, "user", "Why does it fail?"),
    answer("a2", "a1", 2, {"type": "thinking", "thinking": "Look."}, text("I look."), call("t1"), call("t2")),
    result("a3", "a2", 3, "t1", "shop.py"),
    result("a4", "a3", 4, "t2", "no such file"),
    answer("a5", "a4", 5, text("A typo."), dollars=0.1),
    message("b1", "a5", 6, "user", [text("Mend it.")]),
    answer("b2", "b1", 7, text("Mended.")),
    entry("branch_summary", "c0", "a5", 8, fromId="b2", summary="It was mended.", usage=used(0.00005)),
    entry("hologram", "c1", "c0", 9, rays=[1]),
    message("c2", "c1", 10, "user", "Rather not."),
    answer("c3", "c2", 11, text("As it was.")),
    entry("compaction", "c4", "c3", 12, summary="They talked.", firstKeptEntryId="c2", tokensBefore=900),
    message("c5", "c4", 13, "user", "Thanks."),
    answer("c6", "c5", 14, text("Bye."), dollars=0),
    entry("label", "c7", "c6", 15, targetId="b2", label="mended"),
    entry("session_info", "c8", "c7", 16, name="A typo"),
]


def write(folder: Path, records: list[Record]) -> Path:
    write_jsonl(folder / "2026-03-01T10-00-00_5e55.jsonl", records)
    return folder


def count(source: Path) -> Counts:
    lines = [json.loads(line) for path in source.glob("*.jsonl") for line in path.read_text().splitlines()]
    texts: list[str] = []
    calls = results = model_calls = cost = 0
    tokens = [0, 0, 0, 0]
    for line in lines:
        message = line.get("message", {})
        blocks = message.get("content", ())
        blocks = [text(blocks)] if isinstance(blocks, str) else blocks
        calls += sum(block["type"] == "toolCall" for block in blocks)
        results += message.get("role") == "toolResult"
        if message.get("role") in ("user", "assistant"):
            texts.append("".join(block["text"] for block in blocks if block["type"] == "text"))
        usage = message.get("usage", line.get("usage"))
        if usage is None:
            continue
        model_calls += 1
        fresh, output, read, written = (
            usage[name] for name in ("input", "output", "cacheRead", "cacheWrite")
        )
        each = (fresh + read + written, output, read, written)
        tokens = [a + b for a, b in zip(tokens, each, strict=True)]
        by_table = fresh * 300 + output * 1_500 + read * 30 + written * 375  # if pi did not know the price
        cost += round(usage["cost"]["total"] * 100_000_000) or by_table
    sessions = sum(line["type"] == "session" for line in lines)
    total = (tokens[0], tokens[1], tokens[2], tokens[3])
    return Counts(sessions, calls, results, sorted(filter(None, texts)), model_calls, total, cost)


SOURCE = ToolSource("pi", SAMPLE, write, count)
