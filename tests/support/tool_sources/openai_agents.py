"""A SQLite file of OpenAI Agents in the advanced layout: two branches that share rows, usage by turn."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from support.import_sources import write_sqlite
from support.tool_sources import Counts, Record, ToolSource

MICROCENTS = (25, 200, 2.5)
"""Of one token of gpt-5-mini: input, output, cached input."""


def answer_item(words: str) -> Record:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    about = {"type": "message", "status": "completed", "provider_data": {"model": "gpt-5-mini"}}
    return {"role": "assistant", "id": f"msg_{len(words)}", "content": content, **about}


ITEMS: list[Record] = [
    {"role": "user", "content": "Where is 41?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {**answer_item("I look."), "id": "msg_1"},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"order":41}'},
    {"type": "function_call_output", "call_id": "c1", "output": "lost"},
    answer_item("It is lost."),
    {"role": "user", "content": "Thanks"},
    {"type": "hologram", "rays": [1]},
    answer_item("Bye."),
    {"role": "user", "content": "And 42?"},
    answer_item("Here."),
]


def row(number: int) -> Record:
    at = f"2026-03-01 10:00:{number:02d}"
    about = {"id": number, "session_id": "s1", "message_data": ITEMS[number - 1], "created_at": at}
    return {"table": "agent_messages", **about}


def place(branch: str, n: int, number: int, turn: int) -> Record:
    where = {"session_id": "s1", "message_id": number, "branch_id": branch}
    index = number if branch == "main" else 100 + n
    return {
        "table": "message_structure",
        "id": index,
        **where,
        "sequence_number": n,
        "user_turn_number": turn,
    }


def used(number: int, branch: str, turn: int, tokens: tuple[int, int, int]) -> Record:
    where = {"id": number, "session_id": "s1", "branch_id": branch, "user_turn_number": turn}
    counts = {"requests": 1, "input_tokens": tokens[0], "output_tokens": tokens[1]}
    return {
        "table": "turn_usage",
        **where,
        **counts,
        "input_tokens_details": {"cached_tokens": tokens[2]},
    }


ABOUT: Record = {"table": "agent_sessions", "session_id": "s1", "created_at": "2026-03-01 10:00:00"}
FIRST = [ABOUT, *map(row, range(1, 7)), *(place("main", n, n, 1) for n in range(1, 7))]
FIRST += [used(1, "main", 1, (300, 60, 128))]
SECOND = [*map(row, range(7, 10)), *(place("main", n, n, 2) for n in range(7, 10))]
SECOND += [used(2, "main", 2, (400, 10, 256))]
BRANCH = [*map(row, range(10, 12)), *(place("other", n, n, 1) for n in range(1, 7))]
BRANCH += [place("other", n, n + 3, 2) for n in (7, 8)]
BRANCH += [used(3, "other", 2, (410, 20, 0))]
SAMPLE: list[Record] = [*FIRST, *SECOND, *BRANCH]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_sqlite(folder / "agents.db", records)


def growth() -> Iterator[list[Record]]:
    """Yield the states: a turn's items, their places and its usage are written when it ends."""
    yield FIRST
    yield [*FIRST, *SECOND]
    yield SAMPLE


def count(source: Path) -> Counts:
    def select(query: str) -> list[Any]:
        return list(connection.execute(query))

    with contextlib.closing(apsw.Connection(str(source))) as connection:
        items = [json.loads(row[0]) for row in select("select message_data from agent_messages order by id")]
        rows = select("select input_tokens, output_tokens, input_tokens_details from turn_usage")
        sessions = len(select("select distinct session_id from agent_messages"))
    texts: list[str] = []
    for item in items:
        content = item.get("content", "")
        texts.append(content if isinstance(content, str) else "".join(piece["text"] for piece in content))
    tokens, cost = [0, 0, 0], 0.0
    for input_tokens, answered, details in rows:
        cached: int = json.loads(details)["cached_tokens"]
        tokens = [a + b for a, b in zip(tokens, (input_tokens, answered, cached), strict=True)]
        cost += (input_tokens - cached) * MICROCENTS[0] + answered * MICROCENTS[1] + cached * MICROCENTS[2]
    kinds = [item.get("type") for item in items]
    calls, results = kinds.count("function_call"), kinds.count("function_call_output")
    total = (tokens[0], tokens[1], tokens[2], 0)
    return Counts(sessions, calls, results, sorted(filter(None, texts)), len(rows), total, round(cost))


SOURCE = ToolSource("openai-agents", SAMPLE, write, count, growth)
