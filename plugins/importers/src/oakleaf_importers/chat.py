"""Import plain chats: JSON Lines files of messages, or of conversations.

If each line is a message in any provider's shape, the file is one session. If each line is a conversation (`messages` as
for fine-tuning, or ShareGPT's `conversations` with `from` and `value`), each line is a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from oakleaf.core.entries import Settings
from oakleaf.core.messages import Message
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import EntryRecord, LossReport, SessionRecord, unknown_note
from oakleaf.wire import parse_history
from oakleaf.wire.base import HistoryMessage
from oakleaf.wire.options import COMMON
from oakleaf_importers.formats.json_values import UNEXPECTED_SHAPE, dicts_in, parse_time
from oakleaf_importers.formats.jsonl import read_objects
from oakleaf_importers.formats.settings import known_options, tool_specs
from oakleaf_importers.formats.source_files import find_files, jsonl_source
from oakleaf_importers.session_records import with_source_losses

SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
}
TIME_FIELDS = ("timestamp", "created_at", "time", "at", "date")


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    files = find_files(source, "chat", losses, "**/*.jsonl")
    yield from with_source_losses("chat", (each for path in files for each in _read_file(path)), losses)


IMPORTER = Importer(
    source="a JSON Lines file of messages, or of conversations in a fine-tuning format",
    sessions=read_sessions,
    source_of=jsonl_source,
)


def _read_file(path: Path) -> Iterator[SessionRecord]:
    losses = LossReport()
    lines = read_objects(path, losses)
    first = next(lines, {})
    if _conversation(first) is None:
        yield _session(path.stem, [first, *lines] if first else (), losses)
        return
    for number, line in enumerate(chain([first], lines), 1):
        messages = _conversation(line)
        if messages is None:
            losses.add("a line without a conversation", f"{path.name}:{number}")
            continue
        name = line.get("id") or line.get("conversation_id") or number
        yield _session(f"{path.stem}-{name}", messages, losses, line.get("title"), _setup(line, losses))
        losses = LossReport()


def _setup(line: dict[str, Any], losses: LossReport) -> EntryRecord | None:
    """Return the recorded tools and options of a conversation, if any."""
    tools = line.get("tools", line.get("functions"))
    definitions = tool_specs(tools, losses) if isinstance(tools, list) else None
    named = {name: line[name] for name in COMMON if line.get(name) is not None}
    options = known_options(named, losses)
    if definitions is None and not options:
        return None
    return EntryRecord(Settings(options=options or None), tools=definitions)


def _conversation(line: dict[str, Any]) -> list[dict[str, Any]] | None:
    messages = line.get("messages", line.get("conversations"))
    return dicts_in(messages) if isinstance(messages, list) else None


def _session(
    name: str,
    lines: Sequence[dict[str, Any]],
    losses: LossReport,
    title: object = None,
    setup: EntryRecord | None = None,
) -> SessionRecord:
    entries = read_chat_messages(lines, losses)
    if not has_messages(entries):  # lines of another program
        entries = []
    messages = [entry.payload for entry in entries if isinstance(entry.payload, Message)]
    seeds = messages[: len(list(takewhile(_is_instruction, entries)))]
    return SessionRecord(
        "chat",
        name,
        (*([setup] if setup else []), *entries[len(seeds) :]) if len(entries) > len(seeds) else (),
        tuple(seeds),
        title=title if isinstance(title, str) else None,
        losses=losses,
        missing=() if setup is not None and setup.tools is not None else ("tool definitions",),
    )


def _is_instruction(entry: EntryRecord) -> bool:
    return isinstance(entry.payload, Message) and entry.payload.role == "system"


def has_messages(entries: Iterable[EntryRecord]) -> bool:
    return any(isinstance(entry.payload, Message) for entry in entries)


def read_chat_messages(lines: Iterable[dict[str, Any]], losses: LossReport) -> list[EntryRecord]:
    """Convert messages in any provider's shape, with time and model per line; other lines become notes."""
    entries: list[EntryRecord] = []
    for line in lines:
        at = next((time for time in map(parse_time, map(line.get, TIME_FIELDS)) if time is not None), None)
        model = line.get("model")
        try:
            history = _read_line(line)
        except UNEXPECTED_SHAPE as error:
            entries.append(EntryRecord(unknown_note("chat", error, line, losses), at=at))
            continue
        for parsed in history:
            model_name = model if isinstance(model, str) else None
            entries.append(EntryRecord(parsed.message, at=at, model=model_name, evidence=parsed.evidence))
    return entries


def _read_line(line: dict[str, Any]) -> list[HistoryMessage]:
    if "from" in line and "value" in line:
        line = {"role": SHAREGPT_ROLES.get(str(line["from"]), line["from"]), "content": line["value"]}
    message = {name: value for name, value in line.items() if name not in (*TIME_FIELDS, "model")}
    return parse_history([message])
