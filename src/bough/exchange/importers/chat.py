"""Plain chats: JSON lines of messages, or of conversations.

A line is a message of any provider's shape, and the file one session; or it holds a whole conversation (`messages` as
fine-tuning takes them, `conversations` with `from` and `value` as ShareGPT wrote them), and is a session itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ...core.messages import Message
from ...formats.jsonl import UNEXPECTED_SHAPE, find_files, parse_time, read_objects
from ...formats.records import EntryRecord, LossReport, SessionRecord
from ...wire import parse_messages

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
}
TIMES = ("timestamp", "created_at", "time", "at", "date")


def sessions(place: str) -> Iterator[SessionRecord]:
    for path in find_files(place, "chat"):
        yield from _of_file(path)


def _of_file(path: Path) -> Iterator[SessionRecord]:
    losses = LossReport()
    lines = read_objects(path, losses)
    first = next(lines, {})
    if _conversation(first) is None:
        yield _session(path.stem, [first, *lines] if first else (), losses)
        return
    for number, line in enumerate(chain([first], lines), 1):
        found = _conversation(line)
        if found is None:
            losses.add("a line without a conversation", f"{path.name}:{number}")
            continue
        name = line.get("id") or line.get("conversation_id") or number
        yield _session(f"{path.stem}-{name}", found, losses, line.get("title"))
        losses = LossReport()


def _conversation(line: dict[str, Any]) -> list[dict[str, Any]] | None:
    found = line.get("messages", line.get("conversations"))
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else None


def _session(
    name: str, lines: Sequence[dict[str, Any]], losses: LossReport, title: object = None
) -> SessionRecord:
    told = told_of(lines, losses)
    seeds = 0
    while seeds < len(told) and _role(told[seeds]) == "system":
        seeds += 1
    opening = tuple(one.payload for one in told[:seeds] if isinstance(one.payload, Message))
    named = title if isinstance(title, str) else None
    return SessionRecord("chat", name, tuple(told[seeds:]), opening, title=named, losses=losses)


def told_of(lines: Iterable[dict[str, Any]], losses: LossReport) -> list[EntryRecord]:
    """Messages of any provider's shape, each with what its line says of it."""
    told: list[EntryRecord] = []
    for line in lines:
        at = next((time for time in map(parse_time, map(line.get, TIMES)) if time is not None), None)
        told.extend(EntryRecord(message, at=at, model=_model(line)) for message in _messages(line, losses))
    return told


def _messages(line: dict[str, Any], losses: LossReport) -> list[Message]:
    if "from" in line and "value" in line:
        line = {"role": ROLES.get(str(line["from"]), line["from"]), "content": line["value"]}
    kept = {name: value for name, value in line.items() if name not in (*TIMES, "model")}
    try:
        return parse_messages([kept])
    except UNEXPECTED_SHAPE as error:
        losses.add("a message of no shape we know", str(error))
        return []


def _role(told: EntryRecord) -> str | None:
    return told.payload.role if isinstance(told.payload, Message) else None


def _model(line: dict[str, Any]) -> str | None:
    found = line.get("model")
    return found if isinstance(found, str) else None
