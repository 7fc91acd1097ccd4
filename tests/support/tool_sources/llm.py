"""logs.db of llm: a thread in the tree that newer versions write, and a conversation in the rows of older ones."""

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


def row(table: str, **columns: Any) -> Record:
    return {"table": table, **columns}


def message(name: str, parent: str | None, role: str) -> Record:
    return row("messages", hash=name, parent_hash=parent, role=role, provider_metadata=None)


def part(owner: str, position: int, kind: str, words: str | None = None, **payload: Any) -> Record:
    return row("parts", message_hash=owner, position=position, type=kind, text=words, payload=payload or None)


def turn(name: str, parent: str, tip: str, tokens: tuple[int, int, int], second: int) -> Record:
    at = f"2026-03-01T10:00:{second:02d}+00:00"
    spent = {"input_tokens": tokens[0], "output_tokens": tokens[1], "token_details": _cached(tokens[2])}
    where = {"thread_id": "t1", "parent_message_hash": parent, "tip_message_hash": tip}
    about = {"model": "gpt-5-mini", "resolved_model": "gpt-5-mini-2025-08-07"}
    return row("turns", id=name, **where, **about, **spent, duration_ms=500, datetime_utc=at)


def _cached(tokens: int) -> Record:
    return {"prompt_tokens_details": {"cached_tokens": tokens}}


def response(name: str, prompt: str | None, answer: str, second: int) -> Record:
    spent = {"input_tokens": 100, "output_tokens": 20, "token_details": _cached(64)}
    about = {"model": "gpt-5-mini", "system": "You help.", "conversation_id": "c9"}
    at = f"2026-03-01T10:01:{second:02d}"
    return row("responses", id=name, prompt=prompt, response=answer, **about, **spent, datetime_utc=at)


THREAD = row("threads", id="t1", name="Order 41", tip_message_hash="m5", forked_from=None)
QUESTIONS = [
    message("m1", None, "system"),
    message("m2", "m1", "user"),
    part("m1", 0, "text", "You help."),
    part("m2", 0, "text", None, text_ref=[{"fragment": 1}, {"literal": "\nWhere is 41?"}]),
    row("fragments", id=1, content="The book of orders"),
    message("m3", "m2", "assistant"),
    part("m3", 0, "reasoning", "Look first."),
    part("m3", 1, "text", "I look."),
    part("m3", 2, "tool_call", name="look", arguments={"order": 41}),
    part("m3", 3, "tool_call", name="weigh", arguments={}, tool_call_id="c2"),
    turn("r1", "m2", "m3", (200, 30, 128), 0),
]
ANSWERED = [
    message("m4", "m3", "tool"),
    part("m4", 0, "tool_result", name="look", output="lost"),
    part("m4", 1, "tool_result", name="weigh", output="", tool_call_id="c2", exception="KeyError"),
    message("m5", "m4", "assistant"),
    part("m5", 0, "text", "It is lost."),
    part("m5", 1, "hologram", rays=[1]),
    turn("r2", "m4", "m5", (300, 8, 256), 2),
]
FORKED = [
    message("m6", "m1", "user"),
    part("m6", 0, "text", "Where is 42?"),
    message("m7", "m6", "assistant"),
    part("m7", 0, "text", "Here."),
    turn("r3", "m6", "m7", (80, 1, 0), 4),
]
OLDER = [
    row("conversations", id="c9", name="Old times", model="gpt-5-mini"),
    response("q1", "Where is 43?", "I look.", 1),
    row("tool_calls", id=1, response_id="q1", name="look", arguments={"order": 43}, tool_call_id="x"),
    response("q2", None, "It is here.", 2),
    row("tool_results", id=1, response_id="q2", name="look", output="here", tool_call_id="x"),
]
SAMPLE: list[Record] = [{**THREAD, "tip_message_hash": "m7"}, *QUESTIONS, *ANSWERED, *FORKED, *OLDER]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_sqlite(folder / "logs.db", records)
    return folder


def growth() -> Iterator[list[Record]]:
    """Yield the states: a turn is written at once, and moves the tip of its thread."""
    yield [{**THREAD, "tip_message_hash": "m3"}, *QUESTIONS]
    yield [THREAD, *QUESTIONS, *ANSWERED]
    yield [{**THREAD, "tip_message_hash": "m7"}, *QUESTIONS, *ANSWERED, *FORKED, *OLDER[:3]]
    yield SAMPLE


def count(source: Path) -> Counts:
    with contextlib.closing(apsw.Connection(str(source / "logs.db"))) as connection:

        def select(query: str) -> list[tuple[Any, ...]]:
            return list(connection.execute(query))

        fragments = dict(select("select id, content from fragments"))
        parts = select("select message_hash, type, text, payload from parts order by message_hash, position")
        roles = dict(select("select hash, role from messages"))
        older = select("select prompt, response from responses")
        used = select("select input_tokens, output_tokens, token_details from turns")
        used += select("select input_tokens, output_tokens, token_details from responses")
        sessions = len(select("select id from threads")) + len(select("select id from conversations"))
        calls, results = (len(select(f"select id from {table}")) for table in ("tool_calls", "tool_results"))
    by_message: dict[str, str] = {}
    for owner, kind, words, payload in parts:
        calls += kind == "tool_call"
        results += kind == "tool_result"
        if kind == "text" and roles[owner] in ("user", "assistant"):
            pieces = json.loads(payload)["text_ref"] if words is None else [{"literal": words}]
            joined = "".join(piece.get("literal") or fragments[piece["fragment"]] for piece in pieces)
            by_message[owner] = by_message.get(owner, "") + joined
    texts = [*by_message.values(), *(words for each in older for words in each if words)]
    tokens, cost = [0, 0, 0], 0.0
    for input_tokens, output_tokens, details in used:
        cached = json.loads(details)["prompt_tokens_details"]["cached_tokens"]
        tokens = [a + b for a, b in zip(tokens, (input_tokens, output_tokens, cached), strict=True)]
        cost += (
            (input_tokens - cached) * MICROCENTS[0] + output_tokens * MICROCENTS[1] + cached * MICROCENTS[2]
        )
    total = (tokens[0], tokens[1], tokens[2], 0)
    return Counts(sessions, calls, results, sorted(texts), len(used), total, round(cost))


SOURCE = ToolSource("llm", SAMPLE, write, count, growth)
