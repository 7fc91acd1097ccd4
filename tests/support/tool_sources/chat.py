"""Plain chats: a file of messages in the shapes of three providers, and a file of whole conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.import_sources import write_jsonl
from support.tool_sources import Counts, Record, ToolSource

FILE = "file"


def line(second: int, role: str, content: Any, **more: Any) -> Record:
    return {"role": role, "content": content, "timestamp": f"2026-03-01T10:00:{second:02d}Z", **more}


def function(name: str, tool: str, arguments: str) -> Record:
    return {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}


MESSAGES: list[Record] = [
    line(0, "system", "You help."),
    line(1, "user", "Where is 41?"),
    line(2, "assistant", "I look.", tool_calls=[function("c1", "look", '{"order":41}')], model="gpt-5-mini"),
    line(3, "tool", "lost", tool_call_id="c1"),
    line(
        4,
        "assistant",
        [
            {"type": "text", "text": "Once more."},
            {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
        ],
    ),
    line(5, "user", [{"type": "tool_result", "tool_use_id": "t2", "content": "lost"}]),
    line(6, "hologram", "x", rays=[1]),
    line(7, "assistant", "It is lost."),
]
CONVERSATIONS: list[Record] = [
    {FILE: "tuned", "messages": [line(10, "user", "Hello"), line(11, "assistant", "Hi")]},
    {
        FILE: "tuned",
        "id": "x7",
        "title": "Shared",
        "conversations": [{"from": "human", "value": "Bye", "time": "2026-03-01T10:00:12Z"}],
    },
]
SAMPLE: list[Record] = [*MESSAGES, *CONVERSATIONS]


def write(folder: Path, records: list[Record]) -> Path:
    files: dict[str, list[Record]] = {"said": []}
    for record in records:
        name = "tuned" if record.get(FILE) == "tuned" else "said"
        files.setdefault(name, []).append({key: value for key, value in record.items() if key != FILE})
    for name, lines in files.items():
        write_jsonl(folder / f"{name}.jsonl", lines)
    return folder


def count(source: Path) -> Counts:
    read = {path.stem: [*map(json.loads, path.read_text().splitlines())] for path in source.glob("*.jsonl")}
    lists = [each.get("messages", each.get("conversations")) for each in read["tuned"]]
    texts: list[str] = []
    calls = results = 0
    for message in [*read["said"], *(message for messages in lists for message in messages)]:
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        calls += len(message.get("tool_calls", ())) + sum(block["type"] == "tool_use" for block in blocks)
        results += (role == "tool") + sum(block["type"] == "tool_result" for block in blocks)
        if role in ("user", "human", "assistant"):
            texts.append("".join(block["text"] for block in blocks if block["type"] == "text"))
    return Counts(1 + len(lists), calls, results, sorted(filter(None, texts)))


SOURCE = ToolSource("chat", SAMPLE, write, count)
