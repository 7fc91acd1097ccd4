"""Import droid, Factory's agent: a .jsonl file per session, and a .settings.json beside it with its model and tokens.

The tokens are known only as sums of the session: one row of the ledger at its first answer, which grows with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...core.entries import Compaction, Payload
from ...core.messages import Message, Text
from ...core.usage import Usage
from ...formats.anthropic_blocks import read_blocks
from ...formats.jsonl import (
    INVALID_JSON,
    decode_json,
    find_files,
    parse_time,
    read_objects,
    text_or_none,
    token_counts,
)
from ...formats.records import EntryRecord, LossReport, SessionRecord, stable_call_id, unknown_note

NAME = "droid"
SETTINGS = ".settings.json"
TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheCreationTokens", "thinkingTokens")
BOOKKEEPING = {"todo_state", "agent_turn_outcome"}
REMINDER = "<system-reminder>"

Line = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    for path in find_files(source, NAME):
        record = DroidSession(path).record()
        if record.entries or record.losses:
            yield record


class DroidSession:
    """Reads one session."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses = LossReport()
        self.start: Line = {}
        self.entries: list[EntryRecord] = []
        self.settings = self._settings()
        for line in read_objects(path, self.losses):
            self._read(line)
        self._add_usage()

    def record(self) -> SessionRecord:
        about = self._about
        tags = {"cwd": text_or_none(about.get("cwd"))}
        return SessionRecord(
            NAME,
            self.name,
            tuple(self.entries),
            title=text_or_none(about.get("sessionTitle")) or text_or_none(about.get("title")),
            agent=NAME,
            tags={name: value for name, value in tags.items() if value},
            losses=self.losses,
        )

    @property
    def _about(self) -> Line:
        return {**self.start, **_object(self.start.get("session"))}

    @property
    def name(self) -> str:
        return text_or_none(self._about.get("id")) or self.path.stem

    def _settings(self) -> Line:
        path = self.path.with_name(self.path.stem + SETTINGS)
        try:
            return _object(decode_json(path.read_bytes(), self.losses, path.name))
        except FileNotFoundError:
            return {}
        except (*INVALID_JSON, OSError):
            self.losses.add("the settings of a session", path.name)
            return {}

    def _read(self, line: Line) -> None:
        kind, at = line.get("type"), parse_time(line.get("timestamp"))
        if kind == "session_start":
            self.start = self.start or line
        elif kind == "message" and isinstance(line.get("message"), dict):
            self._message(line["message"], at)
        elif kind == "compaction_state":
            summary = text_or_none(line.get("summaryText"))
            summary = summary or text_or_none(_object(line.get("summary")).get("body"))
            if summary:
                self._add(Compaction(summary, 0, replaces_earlier=True), at)
            else:
                self.losses.add("a compaction without a summary")
        elif isinstance(kind, str) and kind in BOOKKEEPING:
            self.losses.add("a bookkeeping line of the tool", kind)
        else:
            self._add(unknown_note(NAME, kind, line, self.losses), at)

    def _message(self, message: Line, at: int | None) -> None:
        blocks = read_blocks(NAME, message.get("content"), self.losses)
        for note in blocks.notes:
            self._add(note, at)
        role = message.get("role")
        if role == "assistant":
            if blocks.parts:
                model = self._model
                is_anthropic = model is not None and "claude" in model
                evidence = blocks.evidence if is_anthropic else None
                self._add(Message("assistant", tuple(blocks.parts)), at, model=model, evidence=evidence)
        elif role == "user":
            for result in blocks.results:
                self._add(Message("tool", (result,)), at)
            self._input(blocks.input_parts, at)
        elif not blocks.notes:
            self._add(unknown_note(NAME, f"role {role}", message, self.losses), at)

    def _input(self, parts: tuple[Any, ...], at: int | None) -> None:
        """Add an input; what droid adds to it is a system message before it."""
        added = [part for part in parts if isinstance(part, Text) and part.text.lstrip().startswith(REMINDER)]
        own = tuple(part for part in parts if part not in added)
        if added:
            self._add(Message("system", tuple(added)), at)
        if own:
            self._add(Message("user", own), at)

    @property
    def _model(self) -> str | None:
        model = text_or_none(self.settings.get("model"))
        return model.removeprefix("custom:") if model else None

    def _add_usage(self) -> None:
        counts = token_counts(self.settings.get("tokenUsage"), TOKENS)
        if counts is None or not any(counts) or not self.entries:
            return
        fresh, output, read, written, thinking = counts
        usage = Usage(fresh + read + written, output + thinking, read, written)
        provider = text_or_none(self.settings.get("providerLock"))
        call_id = stable_call_id(NAME, self.name, "tokens")
        for index, entry in enumerate(self.entries):
            if isinstance(entry.payload, Message) and entry.payload.role == "assistant":
                self.entries[index] = replace(entry, usage=usage, provider=provider, call_id=call_id)
                return
        self.losses.add("the tokens of a session without an answer")

    def _add(self, payload: Payload, at: int | None, **more: Any) -> None:
        self.entries.append(EntryRecord(payload, str(len(self.entries) + 1), at=at, **more))


def _object(value: object) -> Line:
    return value if isinstance(value, dict) else {}
