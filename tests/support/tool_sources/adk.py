"""ADK's database: two sessions, calls and responses, a rewind, changes of state, and usage with thoughts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from support.import_sources import write_sqlite
from support.tool_sources import Counts, Record, ToolSource

BASE = 1_772_359_200.0
MICROCENTS = (125, 1_000, 12.5)
"""Of one token of gemini-2.5-pro: input, output, cached input."""


def event(
    n: int, author: str, parts: list[Record] | None = None, session: str = "s1", run: str = "i1", **more: Any
) -> Record:
    role = "user" if author == "user" or "tool" in more else "model"
    more.pop("tool", None)
    content = {"content": {"role": role, "parts": parts}} if parts else {}
    data = {"id": f"e{n}", "author": author, "timestamp": BASE + n, "actions": {}, **content, **more}
    owner = {"app_name": "shop", "user_id": "ann", "session_id": session}
    about = {"id": f"e{n}", **owner, "invocation_id": run, "timestamp": BASE + n}
    return {"table": "events", **about, "event_data": data}


def used(prompt: int, answer: int, thoughts: int = 0, cached: int = 0) -> Record:
    counts = {
        "prompt_token_count": prompt,
        "candidates_token_count": answer,
        "thoughts_token_count": thoughts,
        "cached_content_token_count": cached,
    }
    return {"usage_metadata": counts, "model_version": "gemini-2.5-pro"}


def session(name: str, **state: Any) -> Record:
    times = {"create_time": "2026-03-01 10:00:00", "update_time": "2026-03-01 10:00:09"}
    return {"table": "sessions", "app_name": "shop", "user_id": "ann", "id": name, "state": state, **times}


ASK = {"function_call": {"id": "adk-1", "name": "look", "args": {"order": 41}}, "thought_signature": "c2-_"}
RESPONSE = {"function_response": {"id": "adk-1", "name": "look", "response": {"result": "lost"}}}
EVENTS: list[Record] = [
    event(1, "user", [{"text": "Where is 41?"}]),
    event(
        2,
        "guide",
        [{"text": "Look.", "thought": True}, {"text": "I look."}, ASK],
        **used(100, 30, 40, 64),
    ),
    event(3, "guide", [RESPONSE], tool=True, actions={"state_delta": {"cart": {"a": 1}}}),
    event(4, "guide", [{"text": "It is lost."}], finish_reason="STOP", **used(200, 50)),
    event(5, "user", [{"text": "And 42?"}], run="i2"),
    event(6, "guide", [{"text": "Here."}], run="i2", **used(300, 5, cached=128)),
    event(7, "user", run="i3", actions={"rewind_before_invocation_id": "i2"}),
    event(8, "user", [{"text": "And 43?"}], run="i4"),
    event(9, "guide", [{"inline_data": {"mime_type": "image/hologram"}}], run="i4", **used(10, 1)),
    event(10, "guide", [{"text": "Gone."}], run="i4", **used(310, 6)),
]
OTHER = [
    event(11, "user", [{"text": "Hello"}], "s2"),
    event(12, "guide", [{"text": "Hi"}], "s2", **used(9, 1)),
]
SAMPLE: list[Record] = [session("s1", cart={"a": 1}), session("s2"), *EVENTS, *OTHER]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_sqlite(folder / "adk.db", records)


def growth() -> Iterator[list[Record]]:
    """Yield the states: an event and the state of its session are written together."""
    for end in range(1, len(EVENTS) + 1):
        yield [session("s1", **({"cart": {"a": 1}} if end > 2 else {})), *EVENTS[:end]]
    yield SAMPLE


def count(source: Path) -> Counts:
    with contextlib.closing(apsw.Connection(str(source))) as connection:
        events = [json.loads(row[0]) for row in connection.execute("select event_data from events")]
        (sessions,) = next(connection.execute("select count(*) from sessions"))
    texts: list[str] = []
    calls = results = model_calls = 0
    tokens, cost = [0, 0, 0], 0.0
    for each in events:
        parts = each.get("content", {}).get("parts", [])
        calls += sum("function_call" in part for part in parts)
        results += sum("function_response" in part for part in parts)
        texts.append("".join(part["text"] for part in parts if "text" in part and not part.get("thought")))
        usage = each.get("usage_metadata")
        if usage is not None:
            model_calls += 1
            input_tokens, cached = usage["prompt_token_count"], usage["cached_content_token_count"]
            output = usage["candidates_token_count"] + usage["thoughts_token_count"]
            tokens = [a + b for a, b in zip(tokens, (input_tokens, output, cached), strict=True)]
            cost += (input_tokens - cached) * MICROCENTS[0] + output * MICROCENTS[1] + cached * MICROCENTS[2]
    total = (tokens[0], tokens[1], tokens[2], 0)
    return Counts(sessions, calls, results, sorted(filter(None, texts)), model_calls, total, round(cost))


SOURCE = ToolSource("adk", SAMPLE, write, count, growth)
