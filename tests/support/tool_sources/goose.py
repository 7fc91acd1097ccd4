"""goose's database: an answer of several rows, results, a compaction, and the sums of tokens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from support.import_sources import write_jsonl, write_sqlite
from support.tool_sources import Counts, Record, ToolSource

BASE = 1_772_359_200
SESSION = "20260301_1"
ABOUT = {
    "name": "The shop",
    "description": "",
    "session_type": "user",
    "working_dir": "/home/ann/shop",
    "created_at": "2026-03-01 10:00:00",
    "updated_at": "2026-03-01 10:00:30",
    "total_tokens": 900,
    "accumulated_total_tokens": 1_360,
    "accumulated_input_tokens": 1_200,
    "accumulated_output_tokens": 160,
    "provider_name": "anthropic",
    "model_config_json": {"model_name": "claude-sonnet-4-5", "context_limit": 200_000},
}


def row(number: int, role: str, *content: Record, second: int, **visibility: bool) -> Record:
    return {
        "table": "messages",
        "id": number,
        "message_id": f"m{number}",
        "session_id": SESSION,
        "role": role,
        "content_json": list(content),
        "created_timestamp": BASE + second,
        "metadata_json": {"userVisible": True, "agentVisible": True, **visibility},
    }


def text(words: str) -> Record:
    return {"type": "text", "text": words}


def request(name: str, tool: str, **arguments: Any) -> Record:
    call = {"status": "success", "value": {"name": tool, "arguments": arguments}}
    return {"type": "toolRequest", "id": name, "toolCall": call}


def response(name: str, *blocks: Record, **more: Any) -> Record:
    value = {"content": list(blocks), "isError": False, **more}
    return {"type": "toolResponse", "id": name, "toolResult": {"status": "success", "value": value}}


FOR_USER = {**text("shown to the user"), "annotations": {"audience": ["user"]}}
SAMPLE = [
    {"table": "sessions", "id": SESSION, **ABOUT},
    row(1, "user", text("What is here?"), second=1, agentVisible=False),
    row(2, "assistant", {"type": "thinking", "thinking": "Look first.", "signature": "sig"}, second=2),
    row(3, "assistant", text("I look."), request("c1", "developer__shell", command="ls"), second=2),
    row(4, "assistant", request("c2", "developer__shell", command="cat x"), second=2),
    row(5, "user", response("c1", text("shop.py"), FOR_USER), second=3),
    row(6, "user", response("c2", text("no such file"), isError=True), second=4),
    row(7, "assistant", text("A shop."), second=5, agentVisible=False),
    row(8, "user", text("They looked."), second=6, userVisible=False),
    row(9, "assistant", {"type": "hologram", "rays": [1]}, second=7),
    row(10, "user", text("Mend it."), second=8),
    row(11, "assistant", text("Mended."), second=9),
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_sqlite(folder / "sessions.db", records)
    return folder


def write_lines(folder: Path, records: list[Record]) -> Path:
    """Write the file of an older version."""
    lines: list[Record] = [
        {key: value for key, value in ABOUT.items() if key != "name"} | {"description": "The shop"}
    ]
    for each in records[1:]:
        about = {
            "role": each["role"],
            "created": each["created_timestamp"],
            "metadata": each["metadata_json"],
        }
        lines.append({**about, "content": each["content_json"]})
    return write_jsonl(folder / f"{SESSION}.jsonl", lines)


def growth() -> Iterator[list[Record]]:
    """Yield the states: the rows of one answer are written together, and the sums grow."""
    for end in (2, 5, 7, 8, 9, 10, 11, 12):
        yield [{**SAMPLE[0], "accumulated_input_tokens": 100 * end}, *SAMPLE[1:end]]
    yield SAMPLE


def count(source: Path) -> Counts:
    with contextlib.closing(apsw.Connection(str(source / "sessions.db"))) as connection:
        rows = list(connection.execute("select role, content_json, metadata_json from messages order by id"))
        sums = list(
            connection.execute("select accumulated_input_tokens, accumulated_output_tokens from sessions")
        )
    texts: list[str] = []
    calls = results = 0
    for _, content, visibility in rows:
        items = json.loads(content)
        calls += sum(item["type"] == "toolRequest" for item in items)
        results += sum(item["type"] == "toolResponse" for item in items)
        if json.loads(visibility)["userVisible"]:
            texts.append("".join(item["text"] for item in items if item["type"] == "text"))
    tokens = (sum(each[0] for each in sums), sum(each[1] for each in sums), 0, 0)
    cost = round((tokens[0] * 3 + tokens[1] * 15) * 100)  # dollars per million tokens
    return Counts(len(sums), calls, results, sorted(filter(None, texts)), len(sums), tokens, cost)


SOURCE = ToolSource("goose", SAMPLE, write, count, growth)
