"""A Claude Code project: streamed answers, parallel calls, a rewind, a compaction, sub-agents in a file and in progress lines."""

from __future__ import annotations

import json
from pathlib import Path

from support.claude_transcripts import USAGE, Transcript, result, text, thinking, tool_use
from support.tool_sources import Counts, Record, ToolSource

FILE = "file"
HOUR = {**USAGE, "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 5}}
MICROCENTS = {"input": 300, "output": 1_500, "read": 30, "write_5m": 375, "write_1h": 600}
"""Of one token of claude-sonnet-4-5."""


def sub_agent(mark: str) -> Transcript:
    agent = Transcript(mark=mark)
    agent.user(f"Find {mark}")
    agent.answer(tool_use(f"toolu_{mark}", "Grep", pattern=mark))
    agent.results(result(f"toolu_{mark}", f"{mark}.py"))
    agent.answer(text(f"It is in {mark}.py."))
    return agent


def records() -> list[Record]:
    main = Transcript()
    main.user("Fix the shop")
    streamed = main.answer(
        thinking("two files"), text("I look."), tool_use("toolu_1"), tool_use("toolu_2"), stop=None
    )
    for index, line in enumerate(streamed):
        line["message"]["usage"] = {**HOUR, "output_tokens": index + 1}
    main.results(result("toolu_1", "a b"), result("toolu_2", [text("x = 1")]))
    main.answer(text("Fixed."))
    main.user("<command-name>/model</command-name>\n<command-message>model</command-message>")
    main.user("[Request interrupted by user]")
    (fork,) = (line["uuid"] for line in main.answer(tool_use("toolu_t", "Task", prompt="Find p")))
    for line in sub_agent("p").lines:
        data = {"type": "agent_progress", "agentId": "a1", "prompt": "Find p", "message": line}
        main.line("progress", data=data)
    main.results(result("toolu_t", "In p.py."))
    main.answer(text("In p.py."))
    main.line("hologram", rays=[1])
    main.user("Another way", parent=fork)
    main.answer(text("As you like."))
    main.compact("They fix the shop.")
    main.user("Go on")
    main.answer(text("Done."))
    main.detached_line("ai-title", aiTitle="Fixing the shop")
    agents = [{**line, "isSidechain": True, FILE: "agent-f"} for line in sub_agent("f").lines]
    return [*main.lines, *agents]


def write(folder: Path, records: list[Record]) -> Path:
    main = folder / "11111111-2222-4333-8444-555555555555"
    (main / "subagents").mkdir(parents=True, exist_ok=True)
    lines: dict[Path, list[str]] = {main.with_suffix(".jsonl"): []}
    for record in records:
        name = record.get(FILE)
        path = main / "subagents" / "agent-f.jsonl" if isinstance(name, str) else main.with_suffix(".jsonl")
        lines.setdefault(path, []).append(json.dumps({k: v for k, v in record.items() if k != FILE}))
    for path, texts in lines.items():
        path.write_text("".join(f"{line}\n" for line in texts))
    return folder


def count(source: Path) -> Counts:
    files = {
        path: [json.loads(line) for line in path.read_text().splitlines()] for path in source.rglob("*.jsonl")
    }
    conversations: dict[str, list[Record]] = {}
    for path, lines in files.items():
        for line in lines:
            inner = line["data"] if line["type"] == "progress" else None
            conversations.setdefault(f"{path}{inner['agentId']}" if inner else str(path), []).append(
                inner["message"] if inner else line
            )
    answers: dict[str, list[Record]] = {}
    texts: list[str] = []
    results = 0
    for line in (line for lines in conversations.values() for line in lines):
        if line["type"] == "assistant":
            answers.setdefault(line["message"]["id"], []).append(line["message"])
        elif line["type"] == "user" and not line.get("isCompactSummary"):
            content = line["message"]["content"]
            if isinstance(content, str):
                texts += [content] if not content.startswith(("<command-", "[Request")) else []
            else:
                results += sum(block["type"] == "tool_result" for block in content)
    calls, tokens, cost = 0, [0, 0, 0, 0], 0
    for messages in answers.values():
        blocks = [block for message in messages for block in message["content"]]
        calls += sum(block["type"] == "tool_use" for block in blocks)
        texts += ["".join(block["text"] for block in blocks if block["type"] == "text")]
        usage = max((message["usage"] for message in messages), key=lambda usage: usage["output_tokens"])
        read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        hour = usage.get("cache_creation", {}).get("ephemeral_1h_input_tokens", 0)
        fresh, output = usage["input_tokens"], usage["output_tokens"]
        tokens = [a + b for a, b in zip(tokens, (fresh + read + written, output, read, written), strict=True)]
        cost += fresh * MICROCENTS["input"] + output * MICROCENTS["output"] + read * MICROCENTS["read"]
        cost += hour * MICROCENTS["write_1h"] + (written - hour) * MICROCENTS["write_5m"]
    each = (tokens[0], tokens[1], tokens[2], tokens[3])
    return Counts(len(conversations), calls, results, sorted(filter(None, texts)), len(answers), each, cost)


SOURCE = ToolSource("claude-code", records(), write, count)
