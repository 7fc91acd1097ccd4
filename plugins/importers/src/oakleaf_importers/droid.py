"""Import droid, Factory's agent: a .jsonl file per session, and a .settings.json beside it with its model and tokens.

The tokens are known only as sums of the session: one row of the ledger at its first answer, which grows with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oakleaf.core.entries import Compaction
from oakleaf.core.messages import Message, Text
from oakleaf.core.usage import Usage
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import LossReport, SessionRecord, stable_call_id
from oakleaf_importers.formats.anthropic_blocks import read_blocks
from oakleaf_importers.formats.json_values import (
    as_dict,
    first_text,
    known_texts,
    parse_time,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import read_objects, read_optional_json
from oakleaf_importers.formats.source_files import find_files
from oakleaf_importers.session_records import EntryList, note_newer, with_source_losses, without_empty

NAME = "droid"
SETTINGS = ".settings.json"
TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheCreationTokens", "thinkingTokens")
BOOKKEEPING = {"todo_state", "agent_turn_outcome"}
REMINDER = "<system-reminder>"

Line = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    files = find_files(source, NAME, losses, "**/*.jsonl")
    yield from with_source_losses(NAME, without_empty(DroidSession(path).record() for path in files), losses)


def _source_of(root: Path, file: Path) -> Path | None:
    if file.suffix != ".jsonl" and not file.name.endswith(".settings.json"):
        return None
    session = file.with_name(f"{file.name.removesuffix('.settings.json').removesuffix('.jsonl')}.jsonl")
    return session if session.is_file() else None


IMPORTER = Importer(
    source="its folder ~/.factory/sessions, or one .jsonl file in it",
    sessions=read_sessions,
    default_paths=("~/.factory/sessions",),
    source_of=_source_of,
    versions="session files of version 2",
)


class DroidSession(EntryList):
    """Reads one session."""

    def __init__(self, path: Path) -> None:
        super().__init__(NAME)
        self.path = path
        self.start: Line = {}
        settings = path.with_name(path.stem + SETTINGS)
        self.settings = read_optional_json(settings, self.losses, "the settings of a session")
        for line in read_objects(path, self.losses):
            self._read(line)
        note_newer(self.losses, self.start.get("version"), 2)
        self._add_usage()

    def record(self) -> SessionRecord:
        about = self._about
        return self.to_record(
            self.name,
            title=first_text(about, "sessionTitle", "title"),
            agent=NAME,
            tags=known_texts(cwd=about.get("cwd")),
        )

    @property
    def _about(self) -> Line:
        return {**self.start, **as_dict(self.start.get("session"))}

    @property
    def name(self) -> str:
        return text_or_none(self._about.get("id")) or self.path.stem

    def _read(self, line: Line) -> None:
        kind, at = line.get("type"), parse_time(line.get("timestamp"))
        if kind == "session_start":
            self.start = self.start or line
        elif kind == "message" and isinstance(line.get("message"), dict):
            self._message(line["message"], at)
        elif kind == "compaction_state":
            summary = first_text(line, "summaryText") or first_text(as_dict(line.get("summary")), "body")
            if summary:
                self.add(Compaction(summary, 0, replaces_earlier=True), at)
            else:
                self.losses.add("a compaction without a summary")
        elif isinstance(kind, str) and kind in BOOKKEEPING:
            self.losses.add("a bookkeeping line of the tool", kind)
        else:
            self.add_unknown(kind, line, at)

    def _message(self, message: Line, at: int | None) -> None:
        blocks = read_blocks(NAME, message.get("content"), self.losses)
        for note in blocks.notes:
            self.add(note, at)
        role = message.get("role")
        if role == "assistant":
            if blocks.parts:
                model = self._model
                is_anthropic = model is not None and "claude" in model
                evidence = blocks.evidence if is_anthropic else None
                self.add(Message("assistant", tuple(blocks.parts)), at, model=model, evidence=evidence)
        elif role == "user":
            for result in blocks.results:
                self.add(Message("tool", (result,)), at)
            self._input(blocks.input_parts, at)
        elif not blocks.notes:
            self.add_unknown(f"role {role}", message, at)

    def _input(self, parts: tuple[Any, ...], at: int | None) -> None:
        """Add an input; droid's additions become a system message before the input."""
        added = [part for part in parts if isinstance(part, Text) and part.text.lstrip().startswith(REMINDER)]
        own = tuple(part for part in parts if part not in added)
        if added:
            self.add(Message("system", tuple(added)), at)
        if own:
            self.add(Message("user", own), at)

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
        self.add_total_usage(usage, provider, call_id)
