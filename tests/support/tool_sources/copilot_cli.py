"""Copilot CLI's events: calls, a rewind, a compaction, a sub-agent, and the tokens that two shutdowns tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.import_sources import write_jsonl
from support.tool_sources import Counts, Record, ToolSource

SESSION = "5e551011-0000-4000-8000-000000000001"
_parents: list[str | None] = [None]


def event(name: str, kind: str, second: int, data: Record, **more: Any) -> Record:
    at = f"2026-03-01T10:00:{second:02d}.000Z"
    return {"type": kind, "data": data, "id": name, "timestamp": at, "parentId": None, **more}


def request(call: str, name: str, **arguments: Any) -> Record:
    return {"toolCallId": call, "name": name, "arguments": arguments, "type": "function"}


def result(call: str, content: str) -> Record:
    return {"toolCallId": call, "success": True, "result": {"content": content, "detailedContent": content}}


def shutdown(units: int, **usage: int) -> Record:
    counts = {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 0, "cacheWriteTokens": 0, **usage}
    metric = {"requests": {"count": 3, "cost": 1}, "usage": counts, "totalNanoAiu": units}
    return {
        "shutdownType": "routine",
        "sessionStartTime": 1_772_359_200_000,
        "modelMetrics": {"gpt-5": metric},
    }


CONTEXT = {"cwd": "/home/ann/shop", "repository": "ann/shop", "branch": "main"}
SAMPLE = [
    event(
        "e0",
        "session.start",
        0,
        {
            "sessionId": SESSION,
            "startTime": "2026-03-01T10:00:00Z",
            "context": CONTEXT,
            "selectedModel": "gpt-5",
        },
    ),
    event("e1", "system.message", 1, {"role": "system", "content": "You are Copilot."}),
    event(
        "e2", "user.message", 1, {"content": "What is here?", "transformedContent": "What is here? Now: …"}
    ),
    event("e3", "assistant.turn_start", 2, {"turnId": "0"}),
    event(
        "e4",
        "assistant.message",
        3,
        {
            "messageId": "m1",
            "content": "I look.",
            "reasoningText": "Look first.",
            "toolRequests": [request("c1", "bash", command="ls"), request("c2", "task", prompt="Find it.")],
            "outputTokens": 12,
        },
    ),
    event("e5", "tool.execution_start", 3, {"toolCallId": "c1", "toolName": "bash"}),
    event("e6", "tool.execution_complete", 4, result("c1", "shop.py")),
    event("e7", "subagent.started", 4, {"toolCallId": "c2", "agentName": "explore"}),
    event(
        "e8",
        "assistant.message",
        5,
        {"messageId": "m2", "content": "Found.", "parentToolCallId": "c2"},
        agentId="c2",
    ),
    event(
        "e9",
        "tool.execution_complete",
        6,
        {"toolCallId": "c2", "success": False, "error": {"message": "it failed"}},
    ),
    event("e10", "assistant.message", 7, {"messageId": "m3", "content": "A shop.", "outputTokens": 4}),
    event("e11", "session.hologram", 8, {"rays": [1]}),
    event(
        "e12",
        "session.shutdown",
        9,
        shutdown(386_345_000, inputTokens=19_849, outputTokens=113, cacheReadTokens=5_888),
    ),
    event("e13", "session.resume", 10, {"eventCount": 13, "context": CONTEXT}),
    event("e14", "user.message", 11, {"content": "Mend it."}),
    event("e15", "assistant.message", 12, {"messageId": "m4", "content": "Mended."}),
    event("e16", "session.snapshot_rewind", 13, {"upToEventId": "e14", "eventsRemoved": 2}),
    event("e17", "user.message", 14, {"content": "Paint it."}),
    event("e18", "assistant.message", 15, {"messageId": "m5", "content": "Painted."}),
    event(
        "e19",
        "session.compaction_complete",
        16,
        {"success": True, "summaryContent": "They painted.", "preCompactionTokens": 900},
    ),
    event(
        "e20",
        "session.shutdown",
        17,
        shutdown(486_345_000, inputTokens=24_849, outputTokens=213, cacheReadTokens=6_888),
    ),
]


def write(folder: Path, records: list[Record]) -> Path:
    write_jsonl(folder / SESSION / "events.jsonl", records)
    return folder


def count(source: Path) -> Counts:
    texts: list[str] = []
    calls = results = 0
    agents: set[str] = set()
    last: Record = {}
    for line in map(json.loads, (source / SESSION / "events.jsonl").read_text().splitlines()):
        data = line["data"]
        if line["type"] in ("user.message", "assistant.message"):
            texts.append(data["content"])
        calls += len(data.get("toolRequests", ()))
        results += line["type"] == "tool.execution_complete"
        agents |= {line["agentId"]} if "agentId" in line else set()
        last = data["modelMetrics"]["gpt-5"] if "modelMetrics" in data else last
    texts += ["Find it."] * len(agents)  # a sub-agent begins with the prompt of its call
    usage = last["usage"]
    tokens = (
        usage["inputTokens"],
        usage["outputTokens"],
        usage["cacheReadTokens"],
        usage["cacheWriteTokens"],
    )
    cost = round(last["totalNanoAiu"] / 1e9 * 1e6)  # a unit is a cent
    return Counts(1 + len(agents), calls, results, sorted(texts), 2, tokens, cost)


SOURCE = ToolSource("copilot-cli", SAMPLE, write, count)
