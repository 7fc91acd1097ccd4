"""qwen-code's session file: calls, a rewind, a compaction, a title, bookkeeping, and a sub-agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.import_sources import write_jsonl
from support.tool_sources import Counts, Record, ToolSource

SESSION = "0f0f0f0f-0000-4000-8000-000000000001"


def record(name: str, parent: str | None, kind: str, second: int, file: str = "main", **more: Any) -> Record:
    return {
        "file": file,
        "uuid": name,
        "parentUuid": parent,
        "sessionId": SESSION,
        "timestamp": f"2026-03-01T10:00:{second:02d}.000Z",
        "type": kind,
        "cwd": "/home/ann/shop",
        "version": "0.22.0",
        "gitBranch": "main",
        **more,
    }


def content(role: str, *parts: Record) -> Record:
    return {"role": role, "parts": list(parts)}


def usage(prompt: int, answer: int, cached: int = 0, thoughts: int = 0) -> Record:
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": answer,
        "cachedContentTokenCount": cached,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + answer,
    }


CALL = {"functionCall": {"id": "c1", "name": "run_shell_command", "args": {"command": "ls"}}}
RESPONSE = {"functionResponse": {"id": "c1", "name": "run_shell_command", "response": {"output": "shop.py"}}}
MODEL = "qwen3-coder-plus"
SAMPLE = [
    record("r0", None, "system", 0, subtype="session_model", systemPayload={"modelId": MODEL}),
    record("r1", "r0", "user", 1, message=content("user", {"text": "What is here?"})),
    record(
        "r2",
        "r1",
        "assistant",
        2,
        model=MODEL,
        message=content("model", {"text": "Look first.", "thought": True}, {"text": "I look."}, CALL),
        usageMetadata=usage(100, 12, 60, 5),
    ),
    record(
        "r3",
        "r2",
        "tool_result",
        3,
        message=content("user", RESPONSE),
        toolCallResult={"callId": "c1", "status": "success", "resultDisplay": {"type": "ansi"}},
    ),
    record(
        "r4",
        "r3",
        "assistant",
        4,
        model=MODEL,
        message=content("model", {"text": "A shop."}),
        usageMetadata=usage(130, 4),
    ),
    record("r5", "r4", "system", 5, subtype="ui_telemetry", systemPayload={"uiEvent": {}}),
    record("r6", "r5", "user", 6, message=content("user", {"text": "Mend it."})),
    record(
        "r7",
        "r6",
        "assistant",
        7,
        model=MODEL,
        message=content("model", {"text": "Mended."}),
        usageMetadata=usage(140, 3),
    ),
    record("r8", "r5", "system", 8, subtype="rewind", systemPayload={"truncatedCount": 2}),
    record("r9", "r8", "user", 9, message=content("user", {"text": "Paint it."})),
    record(
        "r10",
        "r9",
        "assistant",
        10,
        model=MODEL,
        message=content("model", {"text": "Painted."}),
        usageMetadata=usage(150, 6),
    ),
    record("r11", "r10", "system", 11, subtype="hologram", systemPayload={"rays": [1]}),
    record(
        "r12",
        "r11",
        "system",
        12,
        subtype="chat_compression",
        systemPayload={
            "info": {"originalTokenCount": 900},
            "compressedHistory": [
                content("user", {"text": "They painted."}),
                content("model", {"text": "Got it."}),
            ],
        },
    ),
    record("r13", "r12", "user", 13, subtype="notification", message=content("user", {"text": "It ended."})),
    record("r14", "r13", "system", 14, subtype="custom_title", systemPayload={"customTitle": "The shop"}),
    record(
        "s1", None, "user", 5, "agent-a", agentName="Explore", message=content("user", {"text": "Find it."})
    ),
    record(
        "s2",
        "s1",
        "assistant",
        6,
        "agent-a",
        agentName="Explore",
        model=MODEL,
        message=content("model", {"text": "Found."}),
        usageMetadata=usage(20, 2),
    ),
]


def write(folder: Path, records: list[Record]) -> Path:
    project = folder / "-home-ann-shop"
    lines: dict[str, list[Record]] = {}
    for each in records:
        name = each.get("file") if each.get("file") == "agent-a" else "main"
        lines.setdefault(str(name), []).append({key: value for key, value in each.items() if key != "file"})
    places = {"main": f"chats/{SESSION}.jsonl", "agent-a": f"subagents/{SESSION}/agent-a.jsonl"}
    for name, body in lines.items():
        write_jsonl(project / places[name], body)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def count(source: Path) -> Counts:
    texts, used = [], [0, 0, 0]
    calls = results = model_calls = 0
    files = sorted(source.rglob("*.jsonl"))
    for line in (json.loads(line) for path in files for line in path.read_text().splitlines()):
        parts = line.get("message", {}).get("parts", [])
        calls += sum("functionCall" in part for part in parts)
        results += sum("functionResponse" in part for part in parts)
        if line["type"] in ("user", "assistant") and "subtype" not in line:
            texts.append("".join(part.get("text", "") for part in parts if not part.get("thought")))
        if "usageMetadata" in line:
            counts = line["usageMetadata"]
            model_calls += 1
            used[0] += counts["promptTokenCount"]
            used[1] += counts["candidatesTokenCount"]
            used[2] += counts["cachedContentTokenCount"]
    return Counts(
        len(files), calls, results, sorted(filter(None, texts)), model_calls, (used[0], used[1], used[2], 0)
    )


SOURCE = ToolSource("qwen-code", SAMPLE, write, count)
