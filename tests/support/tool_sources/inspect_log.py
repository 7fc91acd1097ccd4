"""Logs of Inspect: a sample with calls, a failed call, scores, and one with an image stored as an attachment."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from support.tool_sources import Counts, Record, ToolSource
from support.tool_sources.opencode import PIXEL

MODEL = "anthropic/claude-sonnet-4-5"
ABOUT = {
    "eval_id": "ev1",
    "run_id": "run1",
    "created": "2026-03-01T10:00:00+00:00",
    "task": "shop",
    "task_id": "t1",
    "dataset": {"name": "shops", "samples": 2},
    "model": MODEL,
    "config": {},
}


def at(second: int) -> str:
    return f"2026-03-01T10:00:{second:02d}.000000+00:00"


def usage(fresh: int, output: int, read: int = 0, written: int = 0) -> Record:
    return {
        "input_tokens": fresh,
        "output_tokens": output,
        "total_tokens": fresh + output + read + written,
        "input_tokens_cache_read": read,
        "input_tokens_cache_write": written,
        "reasoning_tokens": None,
    }


def model(name: str, second: int, message: Record | None, used: Record) -> Record:
    choices = [] if message is None else [{"message": message, "stop_reason": "stop"}]
    output = {"model": "claude-sonnet-4-5", "choices": choices, "usage": used, "time": 1.0}
    times = {"timestamp": at(second), "completed": at(second + 1), "working_start": 0.0}
    return {
        "event": "model",
        "uuid": name,
        **times,
        "model": MODEL,
        "input": [],
        "tools": [],
        "output": output,
    }


QUESTION = {"id": "u1", "role": "user", "content": "What is here?", "source": "input"}
CALLED = {
    "id": "a1",
    "role": "assistant",
    "content": [
        {"type": "reasoning", "reasoning": "Look first.", "signature": "sig"},
        {"type": "text", "text": "I look."},
    ],
    "source": "generate",
    "tool_calls": [
        {"id": "c1", "function": "bash", "arguments": {"cmd": "ls"}, "type": "function"},
        {"id": "c2", "function": "bash", "arguments": {"cmd": "cat x"}, "type": "function"},
    ],
    "model": "claude-sonnet-4-5",
}
RESULTS: list[Record] = [
    {"id": "r1", "role": "tool", "content": "shop.py", "tool_call_id": "c1", "function": "bash"},
    {
        "id": "r2",
        "role": "tool",
        "content": "",
        "tool_call_id": "c2",
        "function": "bash",
        "error": {"type": "timeout", "message": "it took too long"},
    },
]
ANSWER = {
    "id": "a2",
    "role": "assistant",
    "content": "A shop.",
    "source": "generate",
    "model": "claude-sonnet-4-5",
}
TOOLS = [
    {
        "event": "tool",
        "uuid": f"x{n}",
        "id": f"c{n}",
        "function": "bash",
        "timestamp": at(4),
        "completed": at(5),
    }
    for n in (1, 2)
]
SAMPLE: list[Record] = [
    {
        "id": "s1",
        "epoch": 1,
        "input": "What is here?",
        "target": "a shop",
        "messages": [
            {"id": "p", "role": "system", "content": "You look."},
            QUESTION,
            CALLED,
            *RESULTS,
            ANSWER,
        ],
        "events": [
            {"event": "span_begin", "uuid": "b", "timestamp": at(1), "id": "b", "name": "solver"},
            model("e0", 1, None, usage(5, 0)),
            model("e1", 2, CALLED, usage(100, 12, 60, 30)),
            *TOOLS,
            {"event": "hologram", "uuid": "h", "timestamp": at(6), "rays": [1]},
            model("e2", 7, ANSWER, usage(150, 4)),
        ],
        "scores": {"match": {"value": "C", "answer": "a shop"}},
        "started_at": at(1),
    },
    {
        "id": "s2",
        "epoch": 1,
        "input": "See?",
        "messages": [
            {"id": "u9", "role": "user", "content": [{"type": "image", "image": "attachment://abc"}]},
            {"id": "a9", "role": "assistant", "content": "I see.", "source": "generate"},
        ],
        "events": [model("e9", 8, {"id": "a9", "role": "assistant", "content": "I see."}, usage(9, 2))],
        "attachments": {"abc": PIXEL},
        "started_at": at(8),
    },
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    log = {"version": 2, "status": "success", "eval": ABOUT, "samples": records}
    (folder / "2026-03-01_shop_ev1.json").write_text(json.dumps(log))
    return folder


def write_archive(
    path: Path, records: list[Record], writer: type[zipfile.ZipFile] = zipfile.ZipFile, method: int = 8
) -> Path:
    with writer(path, "w", method) as archive:
        archive.writestr("header.json", json.dumps({"version": 2, "status": "success", "eval": ABOUT}))
        for record in records:
            archive.writestr(f"samples/{record['id']}_epoch_1.json", json.dumps(record))
        archive.writestr("summaries.json", "[]")
    return path


def count(source: Path) -> Counts:
    log: Any = json.loads((source / "2026-03-01_shop_ev1.json").read_text())
    texts: list[str] = []
    used = [0, 0, 0, 0]
    calls = results = model_calls = 0
    for sample in log["samples"]:
        for each in sample["messages"]:
            calls += len(each.get("tool_calls", ()))
            results += each["role"] == "tool"
            content = (
                each["content"]
                if isinstance(each["content"], list)
                else [{"type": "text", "text": each["content"]}]
            )
            if each["role"] in ("user", "assistant"):
                texts.append("".join(block["text"] for block in content if block["type"] == "text"))
        for each in (event["output"]["usage"] for event in sample["events"] if event["event"] == "model"):
            read, written = each["input_tokens_cache_read"], each["input_tokens_cache_write"]
            counts = (each["input_tokens"] + read + written, each["output_tokens"], read, written)
            used = [sum(pair) for pair in zip(used, counts, strict=True)]
            model_calls += 1
    cost = round(((used[0] - used[2] - used[3]) * 3 + used[1] * 15 + used[2] * 0.3 + used[3] * 3.75) * 100)
    tokens = (used[0], used[1], used[2], used[3])
    return Counts(len(log["samples"]), calls, results, sorted(filter(None, texts)), model_calls, tokens, cost)


SOURCE = ToolSource("inspect", SAMPLE, write, count)
