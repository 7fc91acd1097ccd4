"""A ChatGPT export: an edited question, a regenerated answer, code that ran, an image, custom instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.tool_sources import Counts, Record, ToolSource

PNG = b"\x89PNG\r\n\x1a\n and the rest"
FILE = "file-Ab3dEf6hIj9kLm2pQr5tUv"
BASE = 1_772_359_200.25


def node(name: str, parent: str | None, role: str, content: Record, second: float = 0, **more: Any) -> Record:
    metadata = more.pop("metadata", {})
    message = {
        "id": name,
        "author": {"role": role, "name": more.pop("author", None), "metadata": {}},
        "create_time": BASE + second,
        "update_time": None,
        "content": content,
        "status": "finished_successfully",
        "end_turn": None,
        "weight": 1.0,
        "metadata": metadata,
        "recipient": "all",
        "channel": None,
        **more,
    }
    return {"id": name, "message": message, "parent": parent, "children": []}


def text(*parts: Any) -> Record:
    return {
        "content_type": "text" if all(isinstance(p, str) for p in parts) else "multimodal_text",
        "parts": list(parts),
    }


def conversation(name: str, title: str, nodes: list[Record], current: str) -> Record:
    mapping = {node["id"]: node for node in nodes}
    for each in nodes:
        if each["parent"] in mapping:
            mapping[each["parent"]]["children"].append(each["id"])
    return {
        "title": title,
        "create_time": BASE,
        "update_time": BASE + 60,
        "mapping": mapping,
        "moderation_results": [],
        "current_node": current,
        "conversation_id": name,
        "id": name,
        "gizmo_id": None,
        "default_model_slug": "gpt-5",
    }


MODEL = {"model_slug": "gpt-5", "finish_details": {"type": "stop"}}
IMAGE = {
    "content_type": "image_asset_pointer",
    "asset_pointer": f"file-service://{FILE}",
    "size_bytes": len(PNG),
    "width": 8,
    "height": 8,
}
SAMPLE = [
    conversation(
        "68a1-shop",
        "The shop",
        [
            {"id": "root", "message": None, "parent": None, "children": []},
            node("sys", "root", "system", text(""), metadata={"is_visually_hidden_from_conversation": True}),
            node(
                "custom",
                "sys",
                "user",
                {
                    "content_type": "user_editable_context",
                    "user_profile": "I run a shop.",
                    "user_instructions": "Be brief.",
                },
                metadata={"is_user_system_message": True},
            ),
            node("q1", "custom", "user", text(IMAGE, "What is on this picture?"), 1),
            node(
                "t1",
                "q1",
                "assistant",
                {
                    "content_type": "thoughts",
                    "thoughts": [{"summary": "Looking", "content": "A receipt.", "chunks": []}],
                },
                2,
                metadata=MODEL,
            ),
            node(
                "r1", "t1", "assistant", {"content_type": "reasoning_recap", "content": "Thought for 2s"}, 2
            ),
            node("a1", "r1", "assistant", text("A receipt over 12 Euro."), 3, metadata=MODEL),
            node("a1b", "q1", "assistant", text("It is a receipt."), 4, metadata=MODEL),
            node("q2", "a1", "user", text("Sum it."), 5),
            node("q2b", "a1", "user", text("Sum it with Python."), 6),
            node("a2", "q2", "assistant", text("Twelve."), 7, metadata=MODEL),
            node(
                "c2",
                "q2b",
                "assistant",
                {"content_type": "code", "language": "unknown", "text": "print(5 + 7)"},
                8,
                recipient="python",
                metadata=MODEL,
            ),
            node("o2", "c2", "tool", {"content_type": "execution_output", "text": "12"}, 9, author="python"),
            node("a2b", "o2", "assistant", text("It is 12."), 10, metadata=MODEL),
        ],
        "a2b",
    ),
    conversation(
        "68a1-web",
        "A search",
        [
            node("w1", None, "user", text("Who won?"), 20),
            node(
                "w2",
                "w1",
                "assistant",
                {"content_type": "code", "language": "unknown", "text": '{"query": "final"}'},
                21,
                recipient="web.search",
            ),
            node(
                "w3",
                "w2",
                "tool",
                {
                    "content_type": "tether_quote",
                    "url": "https://a.example",
                    "title": "A",
                    "text": "Ann won.",
                },
                22,
                author="web.search",
            ),
            node(
                "w4",
                "w3",
                "tool",
                {"content_type": "sonic_webpage", "url": "https://b.example", "title": "B", "text": "Ann."},
                23,
                author="web.search",
            ),
            node("w5", "w4", "assistant", {"content_type": "hologram", "rays": [1, 2]}, 24),
            node("w6", "w5", "assistant", text("Ann won."), 25, metadata=MODEL),
        ],
        "w6",
    ),
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conversations.json").write_text(json.dumps(records))
    (folder / f"{FILE}-receipt.png").write_bytes(PNG)
    return folder


def count(source: Path) -> Counts:
    texts: list[str] = []
    calls = results = 0
    conversations = json.loads((source / "conversations.json").read_text())
    for mapping in (each["mapping"] for each in conversations):
        for each in mapping.values():
            message = each["message"]
            if message is None:
                continue
            role, body = message["author"]["role"], message["content"]
            if message["recipient"] != "all":
                calls += 1
            elif role == "tool":  # consecutive nodes of one tool are one result
                results += mapping[each["parent"]]["message"]["author"]["role"] != "tool"
            elif role in ("user", "assistant") and "parts" in body:
                texts.append("".join(part for part in body["parts"] if isinstance(part, str)))
    return Counts(len(conversations), calls, results, sorted(filter(None, texts)))


SOURCE = ToolSource("chatgpt", SAMPLE, write, count)
