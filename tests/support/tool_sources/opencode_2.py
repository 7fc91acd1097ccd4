"""opencode 2's database: a session as rows of `session_message`, with steps, a shell command, a compaction and a sub-agent."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from support.tool_sources import Counts, Record, ToolSource
from support.tool_sources.opencode import BASE, PIXEL, tokens, write
from support.tool_sources.opencode import session as older_session

A, B = "ses_c", "ses_d"
MODEL = {"id": "claude-sonnet-4-5", "providerID": "anthropic"}


def session(name: str, second: int, **more: Any) -> Record:
    return {**older_session(name, second, **more), "table": "session_v2", "version": "2.0.1"}


def message(name: str, session_id: str, seq: int, kind: str, **data: Any) -> Record:
    at = BASE + seq * 1_000
    time = {"created": at, "completed": at + 900} if kind in ("assistant", "shell") else {"created": at}
    row = {"id": name, "session_id": session_id, "type": kind, "seq": seq}
    return {
        "table": "session_message",
        **row,
        "time_created": at,
        "time_updated": at,
        "data": {"time": time, **data},
    }


def answer(name: str, session_id: str, seq: int, content: list[Record], cost: float, used: Record) -> Record:
    about = {"agent": "build", "model": MODEL, "finish": "stop", "cost": cost, "tokens": used}
    return message(name, session_id, seq, "assistant", content=content, **about)


def tool(call: str, second: int, status: str, *content: Record, **more: Any) -> Record:
    at = BASE + second * 1_000
    state = {"status": status, "input": {"command": "ls"}, "structured": {"exit": 0}, "content": content}
    return {
        "type": "tool",
        "id": call,
        "name": "bash",
        "state": {**state, **more},
        "time": {"created": at, "completed": at + 100},
    }


def text(words: str) -> Record:
    return {"type": "text", "id": "t", "text": words}


SAMPLE = [
    session(A, 0),
    message("msg_c1", A, 1, "user", text="What is here?", files=[{"uri": PIXEL, "mime": "image/png"}]),
    message("msg_c2", A, 2, "model-switched", model=MODEL),
    answer(
        "msg_c3",
        A,
        3,
        [
            {
                "type": "reasoning",
                "id": "r",
                "text": "Look first.",
                "providerMetadata": {"anthropic": {"signature": "sig"}},
            },
            text("I look."),
            tool(
                "toolu_1",
                3,
                "completed",
                {"type": "text", "text": "shop.py"},
                {"type": "file", "uri": PIXEL, "mime": "image/png"},
            ),
            tool("toolu_2", 3, "error", error={"type": "unknown", "message": "no such file"}),
        ],
        0.0123,
        tokens(10, 5, 2, 400, 30),
    ),
    message("msg_c4", A, 4, "hologram", rays=[1]),
    answer("msg_c5", A, 5, [text("A shop.")], 0.002, tokens(3, 9, 0, 440, 0)),
    message("msg_c6", A, 6, "shell", callID="sh_1", command="pwd", output="/home/ann/shop"),
    message("msg_c7", A, 7, "system", text="The folder changed."),
    message("msg_c8", A, 8, "compaction", reason="auto", summary="They looked.", recent="A shop."),
    message("msg_c9", A, 9, "user", text="Mend it."),
    answer("msg_ca", A, 10, [text("Mended.")], 0.001, tokens(7, 3)),
    session(B, 3, parent_id=A, agent="explore"),
    message("msg_d1", B, 4, "user", text="Find it."),
    answer("msg_d2", B, 5, [text("Found.")], 0.001, tokens(7, 3)),
]


def count(source: Path) -> Counts:
    with contextlib.closing(apsw.Connection(str(source / "opencode.db"))) as connection:
        rows = [
            (kind, json.loads(data))
            for kind, data in connection.execute("select type, data from session_message")
        ]
        (sessions,) = next(connection.execute("select count(*) from session_v2"))
    texts: list[str] = []
    used = [0, 0, 0, 0]
    microcents = calls = answers = 0
    for kind, data in rows:
        if kind == "user":
            texts.append(data["text"])
        if kind == "assistant":
            answers += 1
            calls += sum(part["type"] == "tool" for part in data["content"])
            texts.append("".join(part["text"] for part in data["content"] if part["type"] == "text"))
            spent, cache = data["tokens"], data["tokens"]["cache"]
            used[0] += spent["input"] + cache["read"] + cache["write"]
            used[1] += spent["output"] + spent["reasoning"]
            used[2] += cache["read"]
            used[3] += cache["write"]
            microcents += round(data["cost"] * 100_000_000)
    counts = (used[0], used[1], used[2], used[3])
    return Counts(sessions, calls, calls, sorted(texts), answers, counts, microcents)


def growth() -> Iterator[list[Record]]:
    """Yield the states: an answer is written first, and completed last."""
    sample = [record for record in SAMPLE if record.get("session_id", record["id"]) == A]
    sample += [record for record in SAMPLE if record not in sample]
    for end in range(1, len(sample) + 1):
        state = copy.deepcopy(sample[:end])
        if state[-1].get("type") in ("assistant", "shell"):
            del state[-1]["data"]["time"]["completed"]
            yield state
        yield sample[:end]


SOURCE = ToolSource("opencode", SAMPLE, write, count, growth)
