"""Import qwen-code: chats/SESSION.jsonl, each line a record after its parent; sub-agents in files of their own.

Contents are Gemini's, whichever model answered. A rewind is a record whose parent is an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Message, Text
from oakleaf.core.usage import Usage
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, LossReport, SessionRecord
from oakleaf.wire.gemini.parse import parse_history
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    dicts_in,
    known_texts,
    parse_time,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import read_objects
from oakleaf_importers.formats.source_files import find_files
from oakleaf_importers.session_records import EntryTree, with_source_losses, with_tasks, without_empty

NAME = "qwen-code"
SUBAGENTS = "subagents"
LEDGER = ".ledger.jsonl"
TOKENS = (
    *("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount"),
    *("thoughtsTokenCount", "totalTokenCount"),
)
INPUTS = (None, "mid_turn_user_message", "at_command", "agent_launch_prompt")
"""The subtypes of a user record that a user, or the agent that started a sub-agent, wrote."""
BOOKKEEPING = {
    *("slash_command", "ui_telemetry", "at_command", "attribution_snapshot", "session_source"),
    *("session_model", "rewind", "file_history_snapshot", "user_text_elements", "session_artifact_event"),
    *("session_artifact_snapshot", "branch_checkpoint", "goal_state", "turn_result", "agent_retry"),
    *("agent_bootstrap", "notification", "cron"),
}

Line = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Yield every session with the sub-agents."""
    losses = LossReport()
    named = find_files(source, NAME, losses, "**/*.jsonl")
    files = [path for path in named if not path.name.endswith(LEDGER)]
    main = {path.stem: path for path in files if SUBAGENTS not in path.parts}
    parents = {
        path: main.get(path.parent.name) if SUBAGENTS in path.parts else None
        for path in sorted(files, key=lambda path: SUBAGENTS in path.parts)
    }
    records = with_tasks(parents, lambda path, tasks: QwenSession(path).record(tasks))
    yield from with_source_losses(NAME, without_empty(records), losses)


def _source_of(root: Path, file: Path) -> Path | None:
    """Return a session file itself, and the folder above the sub-agents for a file of theirs."""
    if file.suffix != ".jsonl":
        return None
    agents = next((folder for folder in file.parents if folder.name == SUBAGENTS), None)
    if agents is not None:
        return agents.parent
    return file.parent if file.name.startswith("agent-") else file


IMPORTER = Importer(
    source="its folder ~/.qwen/projects, or one .jsonl file in it",
    sessions=read_sessions,
    default_paths=("~/.qwen/projects", "~/.qwen/tmp"),
    source_of=_source_of,
    versions="0.22",
)


class QwenSession(EntryTree):
    """Reads one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(NAME)
        self.path = path
        self.keys: dict[str, str] = {}
        """By record: the key of its last entry, or of the one before it if it became none."""
        self.title: str | None = None
        self.tags: dict[str, str] = {}
        self.agent = NAME
        for number, line in enumerate(read_objects(path, self.losses)):
            self._read(line, number)

    def record(self, tasks: tuple[SessionRecord, ...]) -> SessionRecord:
        is_task = SUBAGENTS in self.path.parts
        name = f"{self.path.parent.name}-{self.path.stem}" if is_task else self.path.stem
        return self.to_record(
            name,
            title=self.title,
            agent=self.agent,
            tags=self.tags,
            tasks=tasks,
        )

    def _read(self, line: Line, number: int) -> None:
        name = text_or_none(line.get("uuid")) or f"#{number}"
        parent = text_or_none(line.get("parentUuid"))
        if name in self.keys and parent is not None:
            name = f"{name}#{number}"  # a further part of the same record
        elif "parentUuid" in line:
            self.tip = START if parent is None else self.keys.get(parent, parent)
        self._describe(line)
        at = parse_time(line.get("timestamp"))
        try:
            self._convert(line, at)
        except UNEXPECTED_SHAPE:
            self.add_unknown(line.get("type"), line, at)
        self.keys[name] = self.tip

    def _describe(self, line: Line) -> None:
        self.agent = text_or_none(line.get("agentName")) or self.agent
        origin = as_dict(line.get("forkedFrom")).get("sessionId")
        tags = known_texts(cwd=line.get("cwd"), git_branch=line.get("gitBranch"), forked_from=origin)
        for tag, text in tags.items():
            self.tags.setdefault(tag, text)

    def _convert(self, line: Line, at: int | None) -> None:
        kind, subtype = line.get("type"), text_or_none(line.get("subtype"))
        if kind == "assistant":
            self._answer(line, at)
        elif kind == "tool_result" or (kind == "user" and subtype in INPUTS):
            self._messages(line, at)
        elif kind == "user" and line.get("message") is not None:
            self._context(line, at)
        elif kind == "system" and subtype == "chat_compression":
            self._compaction(line, at)
        elif kind == "system" and subtype == "custom_title":
            self.title = text_or_none(_payload(line).get("customTitle")) or self.title
        elif kind == "system" and subtype == "parent_session":
            self.tags |= known_texts(parent=_payload(line).get("parentSessionId"))
        elif kind == "system" and subtype in BOOKKEEPING:
            self.losses.add("a bookkeeping record of the tool", str(subtype))
        else:
            self.add_unknown(f"{kind} {subtype or ''}".strip(), line, at)

    def _answer(self, line: Line, at: int | None) -> None:
        usage = _usage(line.get("usageMetadata"))
        about: Line = {"model": text_or_none(line.get("model")), "usage": usage}
        message = line.get("message")
        parsed = parse_history([{**message, "role": "model"}]) if isinstance(message, dict) else []
        if any(each.message.parts for each in parsed):
            self.add(parsed[0].message, at, **about)
        elif usage is not None:
            self.add(Note({NAME: "an empty answer"}), at, **about)

    def _messages(self, line: Line, at: int | None) -> None:
        message = line["message"]
        if not isinstance(message, dict):
            raise TypeError("a message that is not an object")
        details = _tool_details(line.get("toolCallResult"))
        for parsed in parse_history([{**message, "role": "user"}]):
            results = tuple(
                replace(result, details=details, error=result.error or _is_failed(line))
                for result in parsed.message.results
            )
            if parsed.message.parts:
                self.add(Message("tool", results) if results else parsed.message, at)

    def _context(self, line: Line, at: int | None) -> None:
        """Add the tool's texts in the user's role: a notification, a scheduled prompt, a goal."""
        for parsed in parse_history([{**line["message"], "role": "user"}]):
            texts = tuple(part for part in parsed.message.parts if isinstance(part, Text))
            if texts:
                self.add(Message("system", texts), at)

    def _compaction(self, line: Line, at: int | None) -> None:
        history = parse_history(dicts_in(_payload(line).get("compressedHistory")))
        texts = [parsed.message.text for parsed in history]
        if any(texts):
            self.add(Compaction("\n\n".join(filter(None, texts)), 0, replaces_earlier=True), at)
        else:
            self.losses.add("a compaction without a summary")


def _payload(line: Line) -> Line:
    return as_dict(line.get("systemPayload"))


def _is_failed(line: Line) -> bool:
    return as_dict(line.get("toolCallResult")).get("status") in ("error", "cancelled")


def _tool_details(result: object) -> dict[str, Any] | None:
    display = as_dict(as_dict(result).get("resultDisplay"))
    return {NAME: {"display": display}} if display else None


def _usage(usage: object) -> Usage | None:
    """Convert usage. Thoughts are part of the answer's tokens, except where Gemini itself counted: then the total says so."""
    counts = token_counts(usage, TOKENS)
    if counts is None or not any(counts):
        return None
    prompt, answer, cached, thoughts, total = counts
    return Usage(prompt, answer + thoughts if total == prompt + answer + thoughts else answer, cached)
