"""Roo Code's task folders: a task and the one it started, a summary, and reasoning as an item of its own."""

from __future__ import annotations

import json
from pathlib import Path

from support.tool_sources import Counts, Record, ToolSource
from support.tool_sources.cline import message, outcome, request, text, use

MAIN, CHILD = "0199-main", "0199-child"
ENVIRONMENT = text(
    "<environment_details>\n# Current Mode\n<model>claude-sonnet-4-5</model>\n</environment_details>"
)
REASONING = {
    "file": MAIN,
    "type": "reasoning",
    "role": "assistant",
    "summary": [{"type": "summary_text", "text": "Look."}],
}
SAMPLE = [
    message(MAIN, "user", 1, text("<user_message>What is here?</user_message>"), ENVIRONMENT),
    {
        **request(2, 0.05, tokensIn=500, tokensOut=20, cacheReads=400, cacheWrites=30),
        "file": f"{MAIN} screen",
    },
    {**REASONING, "ts": 1_772_359_203_000},
    message(MAIN, "assistant", 3, text("I look."), use("t1", "list_files", path=".")),
    message(MAIN, "user", 4, outcome("t1", "shop.py"), ENVIRONMENT),
    {**request(5, 0.02, tokensIn=700, tokensOut=5), "file": f"{MAIN} screen"},
    message(MAIN, "assistant", 6, text("A shop.")),
    message(MAIN, "user", 7, text("They looked."), isSummary=True, condenseId="x"),
    message(MAIN, "hologram", 8, text("rays")),
    message(CHILD, "user", 8, text("Find it."), ENVIRONMENT),
    {**request(9, 0.01, tokensIn=9, tokensOut=2), "file": f"{CHILD} screen"},
    message(CHILD, "assistant", 10, text("Found.")),
]


def write(folder: Path, records: list[Record]) -> Path:
    lines: dict[str, list[Record]] = {}
    for each in records:
        name = each.get("file") if isinstance(each.get("file"), str) else MAIN
        lines.setdefault(str(name), []).append({key: value for key, value in each.items() if key != "file"})
    for name in (MAIN, CHILD):
        task = folder / "tasks" / name
        if name in lines:
            task.mkdir(parents=True, exist_ok=True)
            (task / "api_conversation_history.json").write_text(json.dumps(lines[name]))
            (task / "ui_messages.json").write_text(json.dumps(lines.get(f"{name} screen", [])))
            item = {"id": name, "task": f"Task {name}", "workspace": "/home/ann/shop", "mode": "code"}
            parent = {"parentTaskId": MAIN} if name == CHILD else {}
            (task / "history_item.json").write_text(json.dumps({**item, **parent}))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def count(source: Path) -> Counts:
    used, cost, model_calls = [0, 0, 0, 0], 0.0, 0
    texts: list[str] = []
    calls = results = 0
    tasks = sorted((source / "tasks").iterdir())
    for task in tasks:
        for each in json.loads((task / "ui_messages.json").read_text()):
            body = json.loads(each["text"])
            counts = (
                body["tokensIn"],
                body["tokensOut"],
                body.get("cacheReads", 0),
                body.get("cacheWrites", 0),
            )
            used = [sum(pair) for pair in zip(used, counts, strict=True)]
            cost, model_calls = cost + body["cost"], model_calls + 1
        for each in json.loads((task / "api_conversation_history.json").read_text()):
            blocks = each.get("content", ())
            calls += sum(block["type"] == "tool_use" for block in blocks)
            results += sum(block["type"] == "tool_result" for block in blocks)
            if each["role"] in ("user", "assistant") and "isSummary" not in each:
                texts.append("".join(block["text"] for block in blocks if block["type"] == "text"))
    tokens = (used[0], used[1], used[2], used[3])
    return Counts(
        len(tasks),
        calls,
        results,
        sorted(filter(None, texts)),
        model_calls,
        tokens,
        round(cost * 100_000_000),
    )


SOURCE = ToolSource("roo-code", SAMPLE, write, count)
