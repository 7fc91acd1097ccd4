"""opencode's database: a session with steps, a compaction, a file, a failed answer, and the session of a sub-agent."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from support.import_sources import write_sqlite
from support.tool_sources import Counts, Record, ToolSource

BASE = 1_772_359_200_000
PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n and the rest").decode()


def session(name: str, second: int, **more: Any) -> Record:
    row = {
        "id": name,
        "project_id": "p1",
        "parent_id": None,
        "slug": "calm-river",
        "directory": "/home/ann/shop",
        "title": f"Session {name}",
        "version": "1.18.18",
        "revert": None,
        "agent": None,
        "time_created": BASE + second * 1_000,
        "time_updated": BASE + second * 1_000,
    }
    return {"table": "session", **row, **more}


def message(name: str, session_id: str, second: int, role: str, **more: Any) -> Record:
    at = BASE + second * 1_000
    time: Record = {"created": at}
    if role == "assistant":
        time["completed"] = at + 900
        model = {"modelID": "claude-sonnet-4-5", "providerID": "anthropic", "mode": "build", "agent": "build"}
        more = {**model, "path": {"cwd": "/", "root": "/"}, "cost": 0, "tokens": tokens(), **more}
    data = {"role": role, "time": time, **more}
    row = {"id": name, "session_id": session_id, "time_created": at, "time_updated": at}
    return {"table": "message", **row, "data": data}


def part(name: str, message_id: str, session_id: str, kind: str, **more: Any) -> Record:
    row = {"id": name, "message_id": message_id, "session_id": session_id}
    return {
        "table": "part",
        **row,
        "time_created": BASE,
        "time_updated": BASE,
        "data": {"type": kind, **more},
    }


def tokens(fresh: int = 0, output: int = 0, reasoning: int = 0, read: int = 0, written: int = 0) -> Record:
    return {
        "input": fresh,
        "output": output,
        "reasoning": reasoning,
        "cache": {"read": read, "write": written},
    }


def finish(name: str, message_id: str, session_id: str, cost: float, used: Record) -> Record:
    return part(name, message_id, session_id, "step-finish", reason="stop", cost=cost, tokens=used)


def tool(name: str, message_id: str, session_id: str, call: str, second: int, **state: Any) -> Record:
    at = BASE + second * 1_000
    full = {"status": "completed", "input": {"command": "ls"}, "title": "ls", "metadata": {"exit": 0}}
    return part(
        name,
        message_id,
        session_id,
        "tool",
        callID=call,
        tool="bash",
        state={**full, "time": {"start": at, "end": at + 100}, **state},
    )


A, B = "ses_a", "ses_b"
SAMPLE = [
    session(A, 0),
    message("msg_1", A, 1, "user", agent="build", model={"providerID": "anthropic", "modelID": "m"}),
    part("prt_1a", "msg_1", A, "text", text="What is here?"),
    part("prt_1b", "msg_1", A, "text", text="Called the Read tool", synthetic=True),
    part("prt_1c", "msg_1", A, "file", mime="image/png", filename="shop.png", url=PIXEL),
    message("msg_2", A, 2, "assistant", parentID="msg_1", cost=0.0123, tokens=tokens(10, 5, 2, 400, 30)),
    part("prt_2a", "msg_2", A, "step-start"),
    part(
        "prt_2b",
        "msg_2",
        A,
        "reasoning",
        text="Look first.",
        time={"start": BASE},
        metadata={"anthropic": {"signature": "sig"}},
    ),
    part("prt_2c", "msg_2", A, "text", text="I look."),
    tool("prt_2d", "msg_2", A, "toolu_1", 2, output="shop.py"),
    tool("prt_2e", "msg_2", A, "toolu_2", 2, status="error", error="no such file"),
    part("prt_2f", "msg_2", A, "hologram", rays=[1]),
    finish("prt_2g", "msg_2", A, 0.0123, tokens(10, 5, 2, 400, 30)),
    part("prt_2h", "msg_2", A, "patch", hash="h", files=["shop.py"]),
    message("msg_3", A, 4, "assistant", parentID="msg_1", cost=0.002, tokens=tokens(3, 9, 0, 440, 0)),
    part("prt_3a", "msg_3", A, "text", text="A shop."),
    finish("prt_3b", "msg_3", A, 0.002, tokens(3, 9, 0, 440, 0)),
    message("msg_4", A, 5, "user", agent="build", model={"providerID": "anthropic", "modelID": "m"}),
    part("prt_4a", "msg_4", A, "compaction", auto=True, tail_start_id="msg_3"),
    message("msg_5", A, 6, "assistant", parentID="msg_4", summary=True, cost=0.004),
    part("prt_5a", "msg_5", A, "text", text="They looked."),
    finish("prt_5b", "msg_5", A, 0.004, tokens(100, 20)),
    message("msg_6", A, 7, "user", agent="build", model={"providerID": "anthropic", "modelID": "m"}),
    part("prt_6a", "msg_6", A, "text", text="Mend it."),
    message(
        "msg_7", A, 8, "assistant", parentID="msg_6", error={"name": "APIError", "data": {"message": "no"}}
    ),
    session(B, 3, parent_id=A, agent="explore"),
    message("msg_8", B, 3, "user", agent="explore", model={"providerID": "anthropic", "modelID": "m"}),
    part("prt_8a", "msg_8", B, "text", text="Find it."),
    message("msg_9", B, 4, "assistant", parentID="msg_8", cost=0.001, tokens=tokens(7, 3)),
    part("prt_9a", "msg_9", B, "text", text="Found."),
    finish("prt_9b", "msg_9", B, 0.001, tokens(7, 3)),
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_sqlite(folder / "opencode.db", records)
    return folder


def write_files(folder: Path, records: list[Record]) -> Path:
    """Write the JSON files of older versions."""
    for record in records:
        match record["table"]:
            case "session":
                about = {"id": record["id"], "parentID": record["parent_id"], "title": record["title"]}
                value = {
                    **about,
                    "time": {"created": record["time_created"]},
                    "directory": record["directory"],
                }
                path = folder / f"storage/session/p1/{record['id']}.json"
            case "message":
                value = {"id": record["id"], "sessionID": record["session_id"], **record["data"]}
                path = folder / f"storage/message/{record['session_id']}/{record['id']}.json"
            case _:
                value = {"id": record["id"], "messageID": record["message_id"], **record["data"]}
                path = folder / f"storage/part/{record['message_id']}/{record['id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


def count(source: Path) -> Counts:
    with contextlib.closing(apsw.Connection(str(source / "opencode.db"))) as connection:
        messages = {
            name: json.loads(data) for name, data in connection.execute("select id, data from message")
        }
        parts = [
            (name, json.loads(data)) for name, data in connection.execute("select message_id, data from part")
        ]
        (sessions,) = next(connection.execute("select count(*) from session"))
    texts: dict[str, str] = {}
    used = [0, 0, 0, 0]
    microcents = calls = finished = 0
    for name, each in parts:
        calls += each["type"] == "tool"
        if each["type"] == "text" and not each.get("synthetic") and not messages[name].get("summary"):
            texts[name] = texts.get(name, "") + each["text"]
        if each["type"] == "step-finish":
            tokens, cache = each["tokens"], each["tokens"]["cache"]
            finished += 1
            used[0] += tokens["input"] + cache["read"] + cache["write"]
            used[1] += tokens["output"] + tokens["reasoning"]
            used[2] += cache["read"]
            used[3] += cache["write"]
            microcents += round(each["cost"] * 100_000_000)
    return Counts(
        sessions,
        calls,
        calls,
        sorted(texts.values()),
        finished,
        (used[0], used[1], used[2], used[3]),
        microcents,
    )


def growth() -> Iterator[list[Record]]:
    """Yield the states: a message is written first, its parts one by one, and it is completed last."""
    sample = [record for record in SAMPLE if record.get("session_id", record["id"]) == A]
    sample += [record for record in SAMPLE if record not in sample]
    for end in range(1, len(sample) + 1):
        state = copy.deepcopy(sample[:end])
        last = next((record for record in reversed(state) if record["table"] == "message"), None)
        if last is not None and "completed" in last["data"]["time"]:
            del last["data"]["time"]["completed"]
            last["data"].pop("error", None)
        yield state
    yield SAMPLE


SOURCE = ToolSource("opencode", SAMPLE, write, count, growth)
