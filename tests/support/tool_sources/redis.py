"""Redis: LangChain's list, whose newest message is the first, a chat with its state as JSON, and other programs' keys.

The keys are files, a line for each item of a list, so that they can be damaged as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from support.redis_server import Server
from support.tool_sources import Counts, Record, ToolSource

ABOUT = {"model_name": "gpt-5-mini", "model_provider": "openai"}
MICROCENTS = (25, 200, 2.5)
"""Of one token of gpt-5-mini: input, output, cached input."""


def item(kind: str, content: str, **more: Any) -> Record:
    return {"key": "message_store:s1", "type": kind, "data": {"type": kind, "content": content, **more}}


def used(input_tokens: int, answered: int, cached: int) -> Record:
    counts = {
        "input_tokens": input_tokens,
        "output_tokens": answered,
        "input_token_details": {"cache_read": cached},
    }
    return {"usage_metadata": counts, "response_metadata": ABOUT}


CALL = {"name": "look", "args": {"order": 41}, "id": "c1", "type": "tool_call"}
SAMPLE: list[Record] = [
    item("human", "Where is 41?"),
    item("ai", "I look.", tool_calls=[CALL], **used(200, 30, 128)),
    item("tool", "lost", tool_call_id="c1", status="error"),
    item("hologram", "x", rays=[1]),
    item("ai", "It is lost.", **used(300, 8, 256)),
    {"key": "chat:ann", "role": "user", "content": "Hi"},
    {"key": "chat:ann", "role": "assistant", "content": "Ho"},
]


class KeyFiles(Mapping[str, Any]):
    """The keys of a folder: `NAME.list` is a list of its lines, `NAME.text` a text."""

    def __init__(self) -> None:
        self.folder = Path()

    def _files(self) -> dict[str, Path]:
        return {unquote(path.stem): path for path in self.folder.iterdir()}

    def __getitem__(self, key: str) -> Any:
        path = self._files()[key]
        lines = path.read_bytes().split(b"\n")
        return [line.decode(errors="replace") for line in lines] if path.suffix == ".list" else lines[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files())

    def __len__(self) -> int:
        return len(self._files())


KEYS = KeyFiles()
_servers: list[Server] = []


def write(folder: Path, records: list[Record]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    keys: dict[object, list[Record]] = {"message_store:s1": [], "chat:ann": []}
    for record in records:
        key = record.get("key")
        keys[key if isinstance(key, str) and key in keys else "chat:ann"].append(record)
    lines = [_line(record) for record in reversed(keys["message_store:s1"])]
    if lines:
        (folder / f"{quote('message_store:s1')}.list").write_text("\n".join(lines))
    value = {
        "messages": [json.loads(_line(record)) for record in keys["chat:ann"]],
        "state": {"mood": "calm"},
    }
    (folder / f"{quote('chat:ann')}.text").write_text(json.dumps(value))
    (folder / "queue.list").write_text("job\njob")
    KEYS.folder = folder
    if not _servers:  # one for all sources of this process
        _servers.append(Server(KEYS))
        threading.Thread(target=_servers[0].serve_forever, args=(0.01,), daemon=True).start()
    return f"redis://127.0.0.1:{_servers[0].server_address[1]}"


def _line(record: Record) -> str:
    return json.dumps({key: value for key, value in record.items() if key != "key"})


def count(source: object) -> Counts:
    lines = KEYS["message_store:s1"]
    messages = [json.loads(line)["data"] for line in lines]
    plain = json.loads(KEYS["chat:ann"])["messages"]
    answers = [message for message in messages if message["type"] == "ai"]
    texts = [message["content"] for message in messages if message["type"] in ("human", "ai")]
    tokens, cost = [0, 0, 0], 0.0
    for usage in (answer["usage_metadata"] for answer in answers):
        input_tokens, answered = usage["input_tokens"], usage["output_tokens"]
        cached = usage["input_token_details"]["cache_read"]
        tokens = [a + b for a, b in zip(tokens, (input_tokens, answered, cached), strict=True)]
        cost += (input_tokens - cached) * MICROCENTS[0] + answered * MICROCENTS[1] + cached * MICROCENTS[2]
    return Counts(
        2,
        sum(len(answer.get("tool_calls", ())) for answer in answers),
        sum(message["type"] == "tool" for message in messages),
        sorted([*texts, *(message["content"] for message in plain)]),
        len(answers),
        (tokens[0], tokens[1], tokens[2], 0),
        round(cost),
    )


SOURCE = ToolSource("redis", SAMPLE, write, count, has_times=False)
