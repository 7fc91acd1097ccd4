"""A file of LangGraph's SqliteSaver: every checkpoint holds all messages, one starts a branch, a subgraph has its own."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import apsw
import msgspec

from support.import_sources import write_sqlite
from support.tool_sources import Counts, Record, ToolSource

MICROCENTS = {"input": 300, "output": 1_500, "read": 30, "write_5m": 375, "write_1h": 600}
"""Of one token of claude-sonnet-4-5."""
ABOUT = {"model_name": "claude-sonnet-4-5", "model_provider": "anthropic", "stop_reason": "end_turn"}


def used(total: int, output: int, read: int = 0, short: int = 0, hour: int = 0) -> Record:
    """Return usage as langchain-anthropic writes it: the generic count of cache writes is 0 if there are others."""
    details = {
        "cache_read": read,
        "cache_creation": 0,
        "ephemeral_5m_input_tokens": short,
        "ephemeral_1h_input_tokens": hour,
    }
    return {"input_tokens": total, "output_tokens": output, "input_token_details": details}


def human(name: str, words: str) -> Record:
    return {"type": "human", "id": name, "content": words}


def ai(name: str, content: Any, usage: Record, *calls: Record) -> Record:
    about = {"usage_metadata": usage, "response_metadata": ABOUT}
    return {"type": "ai", "id": name, "content": content, "tool_calls": list(calls), **about}


def tool(name: str, call: str, words: str) -> Record:
    return {"type": "tool", "id": name, "content": words, "tool_call_id": call, "status": "success"}


CALL = {"name": "look", "args": {"order": 41}, "id": "c1", "type": "tool_call"}
LINE = [
    {"type": "system", "content": "You help.", "id": "m0"},
    human("m1", "Where is 41?"),
    ai(
        "m2",
        [{"type": "thinking", "thinking": "Look.", "signature": "sig"}, {"type": "text", "text": "I look."}],
        used(1_000, 30, 600, 100, 200),
        CALL,
    ),
    tool("m3", "c1", "lost"),
    {"type": "hologram", "content": "x", "id": "m4", "rays": [1]},
    ai("m5", "It is lost.", used(1_100, 8, 900)),
]
OTHER = [*LINE[:4], ai("m6", "Gone.", used(1_090, 4))]
INNER = [human("n1", "Count them"), ai("n2", "Three.", used(50, 2))]


def checkpoint(n: int, messages: list[Record], space: str = "", **channels: Any) -> Record:
    values = {"messages": messages, "branch:to:agent": None, **channels}
    state = {"v": 4, "id": str(n), "ts": f"2026-03-01T10:00:{n:02d}+00:00", "channel_values": values}
    where = {"thread_id": "t1", "checkpoint_ns": space, "checkpoint_id": f"{n:04d}", "type": "msgpack"}
    return {"table": "checkpoints", **where, "checkpoint": state}


SAMPLE: list[Record] = [
    checkpoint(1, LINE[:2]),
    checkpoint(2, LINE[:3], mood="calm"),
    checkpoint(3, LINE[:4], mood="calm"),
    checkpoint(4, LINE, mood="glad"),
    checkpoint(5, INNER[:1], "counter:7"),
    checkpoint(6, INNER, "counter:7"),
    checkpoint(7, OTHER, mood="calm"),
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**record, "checkpoint": _pack(record.get("checkpoint"))} for record in records]
    return write_sqlite(folder / "threads.db", rows)


def _pack(value: Any) -> Any:
    """Pack a state as LangGraph does: each message is an extension with its class and its fields."""
    if not isinstance(value, dict):
        return value
    state = json.loads(json.dumps(value).replace("\\ud800", ""))
    values = state.get("channel_values")
    try:
        if isinstance(values, dict) and isinstance(values.get("messages"), list):
            values["messages"] = [_pack_message(message) for message in values["messages"]]
        return msgspec.msgpack.encode(state)
    except OverflowError:
        return b""


def _pack_message(fields: Any) -> msgspec.msgpack.Ext:
    path = ("langchain_core.messages", "Message", fields, "model_validate_json")
    return msgspec.msgpack.Ext(5, msgspec.msgpack.encode(path))


def count(source: Path) -> Counts:
    with contextlib.closing(apsw.Connection(str(source))) as connection:
        states = [row[0] for row in connection.execute("select checkpoint from checkpoints")]
        spaces = set(connection.execute("select thread_id, checkpoint_ns from checkpoints"))
    messages: dict[str, Record] = {}
    for state in states:
        values = msgspec.msgpack.decode(state, ext_hook=lambda code, data: msgspec.msgpack.decode(data)[2])
        messages |= {message["id"]: message for message in values["channel_values"]["messages"]}
    texts: list[str] = []
    tokens, cost = [0, 0, 0, 0], 0
    answers = [message for message in messages.values() if message["type"] == "ai"]
    for message in messages.values():
        if message["type"] in ("human", "ai"):
            content = message["content"]
            blocks = [{"text": content}] if isinstance(content, str) else content
            texts.append("".join(block.get("text", "") for block in blocks))
    for usage in (answer["usage_metadata"] for answer in answers):
        input_tokens, output_tokens, details = (
            usage["input_tokens"],
            usage["output_tokens"],
            usage["input_token_details"],
        )
        read, short = details["cache_read"], details["ephemeral_5m_input_tokens"]
        hour = details["ephemeral_1h_input_tokens"]
        tokens = [
            a + b for a, b in zip(tokens, (input_tokens, output_tokens, read, short + hour), strict=True)
        ]
        cost += (input_tokens - read - short - hour) * MICROCENTS["input"] + output_tokens * MICROCENTS[
            "output"
        ]
        cost += read * MICROCENTS["read"] + short * MICROCENTS["write_5m"] + hour * MICROCENTS["write_1h"]
    return Counts(
        len(spaces),
        sum(len(answer["tool_calls"]) for answer in answers),
        sum(message["type"] == "tool" for message in messages.values()),
        sorted(filter(None, texts)),
        len(answers),
        (tokens[0], tokens[1], tokens[2], tokens[3]),
        cost,
    )


SOURCE = ToolSource("langgraph", SAMPLE, write, count)
