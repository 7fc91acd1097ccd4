"""Codex rollouts: repeated totals, commands and patches, a rolled back turn, a compaction, a sub-agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.tool_sources import Counts, Record, ToolSource

MAIN, CHILD = "0199aaaa-0000-7000-8000-000000000001", "0199aaaa-0000-7000-8000-000000000002"
MICROCENTS = (125, 1_000, 12.5)
"""Of one token of gpt-5-codex: input, output, cached input."""


def line(second: int, kind: str, thread: str = MAIN, **payload: Any) -> Record:
    return {
        "timestamp": f"2026-03-01T10:00:{second:02d}.500Z",
        "type": kind,
        "payload": payload,
        "thread": thread,
    }


def meta(thread: str, **more: Any) -> Record:
    base = {"cwd": "/home/ann/shop", "model_provider": "openai", "timestamp": "2026-03-01T10:00:00Z"}
    return line(0, "session_meta", thread, id=thread, **base, base_instructions={"text": "You code."}, **more)


def message_line(second: int, role: str, words: str, thread: str = MAIN) -> Record:
    part = "output_text" if role == "assistant" else "input_text"
    content = [{"type": part, "text": words}]
    return line(second, "response_item", thread, type="message", role=role, content=content)


def spent(second: int, total: tuple[int, int, int], thread: str = MAIN) -> Record:
    names = ("input_tokens", "output_tokens", "cached_input_tokens")
    info = {"total_token_usage": dict(zip(names, total, strict=True))}
    return line(second, "event_msg", thread, type="token_count", info=info)


def item(second: int, kind: str, **fields: Any) -> Record:
    return line(second, "response_item", type=kind, **fields)


TURN = {"model": "gpt-5-codex", "effort": "high"}
SAMPLE = [
    meta(MAIN, git={"branch": "main"}),
    message_line(1, "user", "<environment_context>here</environment_context>"),
    line(1, "turn_context", **TURN),
    message_line(1, "user", "Why does it fail?"),
    line(1, "event_msg", type="user_message", message="Why does it fail?"),
    item(
        2,
        "reasoning",
        id="rs_1",
        summary=[{"type": "summary_text", "text": "Look."}],
        encrypted_content="gAAA",
    ),
    message_line(2, "assistant", "I look."),
    item(2, "function_call", id="fc_1", name="shell", arguments='{"command":["ls"]}', call_id="call_1"),
    item(2, "function_call", id="fc_2", name="shell", arguments='{"command":["pwd"]}', call_id="call_2"),
    spent(3, (100, 10, 40)),
    spent(3, (100, 10, 40)),
    line(3, "event_msg", type="exec_command_end", call_id="call_1", exit_code=1),
    item(3, "function_call_output", call_id="call_1", output="no such file"),
    item(4, "function_call_output", call_id="call_2", output="/home"),
    item(5, "custom_tool_call", call_id="call_3", name="apply_patch", input="*** Begin Patch"),
    spent(5, (250, 30, 90)),
    item(6, "custom_tool_call_output", call_id="call_3", output="Done"),
    message_line(7, "assistant", "It is mended."),
    spent(7, (450, 36, 190)),
    line(7, "event_msg", type="task_complete"),
    line(8, "hologram", rays=[1]),
    message_line(9, "user", "Undo it."),
    message_line(10, "assistant", "Undone."),
    spent(10, (500, 40, 200)),
    line(11, "event_msg", type="thread_rolled_back", num_turns=1),
    line(12, "turn_context", **{**TURN, "effort": "low"}),
    message_line(12, "user", "Leave it."),
    message_line(13, "assistant", "Left."),
    spent(13, (600, 50, 300)),
    line(14, "event_msg", type="thread_name_updated", thread_name="The test"),
    meta(CHILD, parent_thread_id=MAIN),
    line(15, "turn_context", CHILD, **TURN),
    message_line(15, "user", "Search.", CHILD),
    message_line(16, "assistant", "Found.", CHILD),
    spent(16, (20, 2, 4), CHILD),
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {MAIN: []}
    for record in records:
        thread = CHILD if record.get("thread") == CHILD else MAIN
        lines.setdefault(thread, []).append(json.dumps({k: v for k, v in record.items() if k != "thread"}))
    for thread, texts in lines.items():
        (folder / f"rollout-{thread}.jsonl").write_text("".join(f"{line}\n" for line in texts))
    return folder


def count(source: Path) -> Counts:
    texts: list[str] = []
    calls = results = model_calls = 0
    tokens, cost = [0, 0, 0], 0.0
    files = sorted(source.glob("rollout-*.jsonl"))
    for path in files:
        last = (0, 0, 0)
        for record in map(json.loads, path.read_text().splitlines()):
            payload = record["payload"]
            kind = payload.get("type", "")
            calls += kind in ("function_call", "custom_tool_call")
            results += kind.endswith("_output")
            if kind == "message":
                texts.append(payload["content"][0]["text"])
            if kind == "token_count":
                usage = payload["info"]["total_token_usage"]
                total = (usage["input_tokens"], usage["output_tokens"], usage["cached_input_tokens"])
                growth = tuple(new - old for new, old in zip(total, last, strict=True))
                last, model_calls = total, model_calls + any(growth)
                tokens = [a + b for a, b in zip(tokens, growth, strict=True)]
                cost += (
                    (growth[0] - growth[2]) * MICROCENTS[0]
                    + growth[1] * MICROCENTS[1]
                    + growth[2] * MICROCENTS[2]
                )
    counts = (tokens[0], tokens[1], tokens[2], 0)
    return Counts(len(files), calls, results, sorted(texts), model_calls, counts, round(cost))


SOURCE = ToolSource("codex", SAMPLE, write, count)
