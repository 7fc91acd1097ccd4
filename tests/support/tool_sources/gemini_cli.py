"""gemini-cli's session file: messages written again as calls end, a rewind, a compaction, and a sub-agent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.import_sources import write_jsonl
from support.tool_sources import Counts, Record, ToolSource

MAIN, SUB = "aaaa1111-0000", "bbbb2222-0000"
QUIET = 1_772_360_000


def at(second: int) -> str:
    return f"2026-03-01T10:00:{second:02d}.000Z"


def head(name: str, **more: Any) -> Record:
    return {"sessionId": name, "projectHash": "p1", "startTime": at(0), "lastUpdated": at(0), **more}


def message(name: str, kind: str, second: int, content: Any, **more: Any) -> Record:
    return {"id": name, "timestamp": at(second), "type": kind, "content": content, **more}


def tokens(prompt: int, answer: int, cached: int = 0, thoughts: int = 0) -> Record:
    total = prompt + answer + thoughts
    counts = {"input": prompt, "output": answer, "cached": cached, "thoughts": thoughts}
    return {**counts, "tool": 0, "total": total}


def call(name: str, second: int, output: str, status: str = "success") -> Record:
    key = "output" if status == "success" else "error"
    response = {"id": name, "name": "read_file", "response": {key: output}}
    return {
        "id": name,
        "name": "read_file",
        "args": {"path": name},
        "result": [{"functionResponse": response}],
        "status": status,
        "timestamp": at(second),
        "resultDisplay": {"fileName": name},
    }


ANSWER = message(
    "g1",
    "gemini",
    3,
    "I look.",
    thoughts=[{"subject": "Plan", "description": "Read it.", "timestamp": at(3)}],
    tokens=tokens(100, 10, 60, 5),
    model="gemini-2.5-pro",
)
CALLED = {**ANSWER, "toolCalls": [call("c1", 4, "a shop"), call("c2", 5, "no such file", "error")]}
RESPONSES = [{"functionResponse": each["result"][0]["functionResponse"]} for each in CALLED["toolCalls"]]
SAMPLE = [
    {"file": "main", **head(MAIN, kind="main")},
    {"file": "main", **message("u0", "user", 1, [{"text": "<session_context>Linux</session_context>"}])},
    {"file": "main", **message("u1", "user", 2, [{"text": "What is here?"}])},
    {"file": "main", **ANSWER},
    {"file": "main", "$set": {"lastUpdated": at(3)}},
    {"file": "main", **CALLED},
    {"file": "main", **message("u1r", "user", 6, RESPONSES)},
    {"file": "main", **message("g2", "gemini", 7, "A shop.", tokens=tokens(130, 4), model="gemini-2.5-pro")},
    {"file": "main", **message("i1", "info", 8, "Saved.")},
    {"file": "main", **message("u2", "user", 9, "/stats")},
    {"file": "main", **message("u3", "user", 10, [{"text": "Mend it."}])},
    {"file": "main", **message("g3", "gemini", 11, "Mended.", tokens=tokens(150, 3), model="gemini-2.5-pro")},
    {"file": "main", "$rewindTo": "u3"},
    {"file": "main", **message("u4", "user", 12, [{"text": "Paint it."}])},
    {
        "file": "main",
        **message("g4", "gemini", 13, "Painted.", tokens=tokens(160, 6), model="gemini-2.5-pro"),
    },
    {"file": "main", **message("h1", "hologram", 14, "rays")},
    {
        "file": "main",
        "$set": {
            "messages": [
                message("s1", "user", 15, [{"text": "They painted a shop."}]),
                message("u4", "user", 12, [{"text": "Paint it."}]),
                message("g4", "gemini", 13, "Painted."),
                message("h1", "hologram", 14, "rays"),
            ]
        },
    },
    {"file": "main", **message("u5", "user", 16, [{"text": "Thanks."}])},
    {"file": "main", "$set": {"summary": "Paint the shop"}},
    {"file": "sub", **head(SUB, kind="subagent")},
    {"file": "sub", **message("v1", "user", 4, [{"text": "Find it."}])},
    {"file": "sub", **message("w1", "gemini", 5, "Found.", tokens=tokens(20, 2), model="gemini-2.5-flash")},
]


def write(folder: Path, records: list[Record]) -> Path:
    chats = folder / "p1/chats"
    places = {"main": chats / "session-2026-03-01T10-00-aaaa1111.jsonl", "sub": chats / MAIN / f"{SUB}.jsonl"}
    for name, path in places.items():
        lines = [
            {key: value for key, value in record.items() if key != "file"}
            for record in records
            if record.get("file", "main") == name
        ]
        if lines:
            write_jsonl(path, lines)
            os.utime(path, (QUIET, QUIET))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def growth() -> Iterator[list[Record]]:
    """Yield every state in which the last line is not an answer, which could still change."""
    for end in range(1, len(SAMPLE) + 1):
        last = SAMPLE[end - 1]
        if end == len(SAMPLE) or (
            last.get("type") != "gemini" and last.get("$set") != {"lastUpdated": at(3)}
        ):
            yield SAMPLE[:end]


def count(source: Path) -> Counts:
    messages: dict[str, Record] = {}
    files = sorted(source.rglob("*.jsonl"))
    for path in files:
        for line in map(json.loads, path.read_text().splitlines()):
            if "id" in line:
                messages[line["id"]] = line
    texts, used = [], [0, 0, 0]
    calls = model_calls = 0
    for each in messages.values():
        calls += len(each.get("toolCalls", ()))
        content = each["content"]
        words = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        if each["type"] in ("user", "gemini") and not words.startswith(("/", "<")):
            texts.append(words)
        if "tokens" in each:
            model_calls += 1
            used[0] += each["tokens"]["input"]
            used[1] += each["tokens"]["output"] + each["tokens"]["thoughts"]
            used[2] += each["tokens"]["cached"]
    # gemini-2.5-pro: 1.25, 10 and 0.125 dollars per million; gemini-2.5-flash: 0.3 and 2.5
    cost = round(((480 * 1.25 + 60 * 0.125 + 28 * 10) + (20 * 0.3 + 2 * 2.5)) * 100)
    return Counts(
        len(files),
        calls,
        calls,
        sorted(filter(None, texts)),
        model_calls,
        (used[0], used[1], used[2], 0),
        cost,
    )


SOURCE = ToolSource("gemini-cli", SAMPLE, write, count, growth)
