"""A Claude.ai export: an edited question, calls and results within one message, files, and a conversation without parents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.tool_sources import Counts, Record, ToolSource

ROOT = "00000000-0000-4000-8000-000000000000"


def at(second: int) -> str:
    return f"2026-03-01T10:00:{second:02d}.250000Z"


def message(name: str, parent: str | None, sender: str, second: int, *blocks: Record, **more: Any) -> Record:
    record = {
        "uuid": name,
        "text": "\n\n".join(block["text"] for block in blocks if block["type"] == "text"),
        "content": list(blocks),
        "sender": sender,
        "created_at": at(second),
        "updated_at": at(second),
        "attachments": [],
        "files": [],
        **more,
    }
    return record if parent is None else {**record, "parent_message_uuid": parent}


def text(words: str) -> Record:
    return {
        "start_timestamp": None,
        "stop_timestamp": None,
        "flags": None,
        "type": "text",
        "text": words,
        "citations": [],
    }


def thinking(words: str) -> Record:
    return {"type": "thinking", "thinking": words, "summaries": [], "cut_off": False}


def call(name: str | None, tool: str, arguments: Record, second: int) -> Record:
    return {
        "start_timestamp": at(second),
        "stop_timestamp": at(second),
        "type": "tool_use",
        "id": name,
        "name": tool,
        "input": arguments,
        "message": tool,
        "integration_name": None,
    }


def result(name: str | None, tool: str, words: str, *, error: bool = False) -> Record:
    return {
        "type": "tool_result",
        "tool_use_id": name,
        "name": tool,
        "content": [{"type": "text", "text": words, "uuid": "x"}],
        "is_error": error,
        "display_content": None,
    }


PASTE = {"file_name": "", "file_size": 20, "file_type": "txt", "extracted_content": "A long paste."}
SAMPLE = [
    {
        "uuid": "34bd-calendar",
        "name": "The calendar",
        "summary": "",
        "created_at": at(0),
        "updated_at": at(50),
        "account": {"uuid": "c1a9"},
        "chat_messages": [
            message("m1", ROOT, "human", 1, text("Tidy my calendar.")),
            message(
                "m2",
                "m1",
                "assistant",
                10,
                thinking("Look first."),
                text("I look."),
                call("toolu_1", "calendar:list", {"days": 7}, 2),
                call("toolu_2", "calendar:list", {"days": 14}, 3),
                result("toolu_1", "calendar:list", "three events"),
                result("toolu_2", "calendar:list", "it timed out", error=True),
                text("You have three events."),
                {"type": "token_budget", "remaining": 9},
            ),
            message("m3", "m2", "human", 20, text("Delete them.")),
            message("m4", "m3", "assistant", 21, text("Done.")),
            message("m3b", "m2", "human", 30, text("Keep them."), attachments=[PASTE]),
            message("m4b", "m3b", "assistant", 31, text("Good."), {"type": "hologram", "rays": [1]}),
        ],
    },
    {
        "uuid": "34bd-older",
        "name": "",
        "created_at": at(0),
        "updated_at": at(50),
        "account": {"uuid": "c1a9"},
        "chat_messages": [
            message("n1", None, "human", 40, text("Run it."), files=[{"file_name": "a.png"}]),
            message(
                "n2",
                None,
                "assistant",
                41,
                call(None, "repl", {"code": "1+1"}, 41),
                result(None, "repl", "2"),
                text("Two."),
            ),
        ],
    },
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conversations.json").write_text(json.dumps(records))
    return folder


def count(source: Path) -> Counts:
    texts: list[str] = []
    calls = results = 0
    conversations = json.loads((source / "conversations.json").read_text())
    for each in (each for conversation in conversations for each in conversation["chat_messages"]):
        run = ""
        for block in each["content"]:
            calls += block["type"] == "tool_use"
            results += block["type"] == "tool_result"
            if block["type"] == "tool_result":  # an answer ends where its results begin
                texts.append(run)
                run = ""
            run += block["text"] if block["type"] == "text" else ""
        files = [file["extracted_content"] for file in each["attachments"]]
        files += [f"[file {file['file_name']}: not in the export]" for file in each["files"]]
        texts.append(run + "".join(files))
    return Counts(len(conversations), calls, results, sorted(filter(None, texts)))


SOURCE = ToolSource("claude-ai", SAMPLE, write, count)
