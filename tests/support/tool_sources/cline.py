"""Cline's files: a session of version 4 with a sub-agent, and a task folder of an earlier version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.tool_sources import Counts, Record, ToolSource

BASE = 1_772_359_200_000
SESSION, TASK = "1772359200000_abcde", "1772359200000"
MODEL = {"id": "claude-sonnet-4-6", "provider": "anthropic"}


def text(words: str) -> Record:
    return {"type": "text", "text": words}


def use(name: str, tool: str, **arguments: Any) -> Record:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def outcome(name: str, words: Any, *, error: bool = False) -> Record:
    return {"type": "tool_result", "tool_use_id": name, "content": words, "is_error": error}


def metrics(tokens: int, output: int, read: int, written: int, cost: float) -> Record:
    cached = {"cacheReadTokens": read, "cacheWriteTokens": written}
    return {"inputTokens": tokens, "outputTokens": output, **cached, "cost": cost}


def message(file: str, role: str, second: int, *blocks: Record, **more: Any) -> Record:
    return {"file": file, "role": role, "content": list(blocks), "ts": BASE + second * 1_000, **more}


def request(second: int, cost: float, **tokens: int) -> Record:
    body = json.dumps({"request": "…", **tokens, "cost": cost})
    return {
        "file": "screen",
        "type": "say",
        "say": "api_req_started",
        "ts": BASE + second * 1_000,
        "text": body,
    }


SAMPLE = [
    message("session", "user", 1, text("What is here?"), id="a1"),
    message(
        "session",
        "assistant",
        2,
        {"type": "thinking", "thinking": "Look first.", "signature": "sig"},
        text("I look."),
        use("t1", "run_commands", commands=["ls"]),
        use("t2", "read_files", path="x"),
        id="a2",
        modelInfo=MODEL,
    ),
    message(
        "session",
        "user",
        3,
        outcome("t1", "shop.py"),
        outcome("t2", [text("no such file")], error=True),
        id="a3",
    ),
    message(
        "session",
        "assistant",
        4,
        text("A shop."),
        {"type": "hologram", "rays": [1]},
        id="a4",
        modelInfo=MODEL,
        metrics=metrics(2_100, 80, 300, 100, 0.13),
    ),
    message("agent", "user", 2, text("Find it."), id="b1"),
    message(
        "agent", "assistant", 3, text("Found."), id="b2", modelInfo=MODEL, metrics=metrics(20, 2, 0, 0, 0.002)
    ),
    message("task", "user", 10, text("<task>Mend it.</task>"), text("<environment_details>…")),
    request(11, 0.05, tokensIn=100, tokensOut=20, cacheReads=400, cacheWrites=30),
    message("task", "assistant", 12, text("I mend."), use("t3", "write_to_file", path="shop.py")),
    message("task", "user", 13, outcome("t3", [text("written")])),
    request(14, 0.01, tokensIn=7, tokensOut=1),
    request(15, 0.02, tokensIn=9, tokensOut=2, cacheReads=500),
    message("task", "assistant", 16, text("Mended.")),
]


def write(folder: Path, records: list[Record]) -> Path:
    lines: dict[str, list[Record]] = {}
    for each in records:
        name = each.get("file") if isinstance(each.get("file"), str) else "task"
        lines.setdefault(str(name), []).append({key: value for key, value in each.items() if key != "file"})
    sessions, task = folder / "sessions" / SESSION, folder / "tasks" / TASK
    for place in (sessions, task, folder / "state"):
        place.mkdir(parents=True, exist_ok=True)
    head = {"version": 1, "updated_at": "2026-03-01T10:00:09Z"}
    bodies: list[tuple[str, Path, Any]] = [
        ("session", sessions / f"{SESSION}.messages.json", {**head, "agent": "lead", "sessionId": SESSION}),
        ("agent", sessions / "agent_1.messages.json", {**head, "agent": "subagent", "sessionId": "x"}),
    ]
    for name, path, body in bodies:
        if name in lines:
            path.write_text(json.dumps({**body, "messages": lines[name]}))
    about = {"started_at": "2026-03-01T10:00:00Z", "cwd": "/home/ann/shop", "metadata": {"title": "The shop"}}
    (sessions / f"{SESSION}.json").write_text(json.dumps({"version": 1, "session_id": SESSION, **about}))
    if "task" in lines:
        (task / "api_conversation_history.json").write_text(json.dumps(lines["task"]))
    (task / "ui_messages.json").write_text(json.dumps(lines.get("screen", [])))
    used = [{"ts": BASE, "model_id": "claude-sonnet-4-5", "model_provider_id": "anthropic", "mode": "act"}]
    (task / "task_metadata.json").write_text(json.dumps({"model_usage": used}))
    (folder / "state/taskHistory.json").write_text(json.dumps([{"id": TASK, "task": "Mend it."}]))
    return folder


def count(source: Path) -> Counts:
    files = sorted(source.rglob("*.messages.json"))
    sessions = [json.loads(path.read_text())["messages"] for path in files]
    task = source / "tasks" / TASK
    sessions.append(json.loads((task / "api_conversation_history.json").read_text()))
    used, cost, model_calls = [0, 0, 0, 0], 0.0, 0
    for each in (each for messages in sessions for each in messages if "metrics" in each):
        names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
        used = [sum(pair) for pair in zip(used, (each["metrics"][name] for name in names), strict=True)]
        cost, model_calls = cost + each["metrics"]["cost"], model_calls + 1
    for each in json.loads((task / "ui_messages.json").read_text()):
        body = json.loads(each["text"])
        read, written = body.get("cacheReads", 0), body.get("cacheWrites", 0)
        counts = (body["tokensIn"] + read + written, body["tokensOut"], read, written)
        used = [sum(pair) for pair in zip(used, counts, strict=True)]
        cost, model_calls = cost + body["cost"], model_calls + 1
    blocks = [block for messages in sessions for each in messages for block in each["content"]]
    texts = [
        "".join(b["text"] for b in each["content"] if b["type"] == "text")
        for messages in sessions
        for each in messages
    ]
    return Counts(
        len(sessions),
        sum(block["type"] == "tool_use" for block in blocks),
        sum(block["type"] == "tool_result" for block in blocks),
        sorted(filter(None, texts)),
        model_calls,
        (used[0], used[1], used[2], used[3]),
        round(cost * 100_000_000),
    )


def growth() -> Iterator[list[Record]]:
    """Yield the states: a request without an answer is one whose answer is still written."""
    for end in range(1, len(SAMPLE) + 1):
        yield SAMPLE[:end]


SOURCE = ToolSource("cline", SAMPLE, write, count, growth)
