"""Import goose: its sessions.db, or the .jsonl files of versions before 1.10.

An answer may be several rows: text first, then a row for each call. The tokens are known only as sums of the session:
one row of the ledger at its first answer, which grows with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from oakleaf.core.entries import Compaction, Evidence, Note
from oakleaf.core.messages import Message, Part, Reasoning, Text, ToolResult, tool_result
from oakleaf.core.usage import Usage, is_count
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import LossReport, SessionRecord, stable_call_id
from oakleaf.wire.parsing import parse_base64, parse_tool_call
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    as_list,
    first_text,
    json_object,
    known_texts,
    parse_time,
    required_text,
    text_or_none,
)
from oakleaf_importers.formats.jsonl import read_objects
from oakleaf_importers.formats.source_files import find_files, jsonl_source
from oakleaf_importers.session_records import EntryList, with_source_losses, without_empty
from oakleaf_importers.sqlite_files import open_tables

NAME = "goose"
DATABASE = "sessions.db"
SCREEN_ONLY = {"systemNotification", "toolConfirmationRequest", "actionRequired"}

Fields = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    files = find_files(source, NAME, losses, f"**/{DATABASE}", "**/*.jsonl")
    yield from with_source_losses(NAME, _sessions(files), losses)


IMPORTER = Importer(
    source="its folder of sessions, sessions.db in it, or an older .jsonl file",
    sessions=read_sessions,
    default_paths=("~/.local/share/goose/sessions", "~/AppData/Roaming/Block/goose/data/sessions"),
    source_of=jsonl_source,
    versions="1.30, and before",
)


def _sessions(files: list[Path]) -> Iterator[SessionRecord]:
    names: set[str] = set()
    for database in (file for file in files if file.suffix != ".jsonl"):
        for record in without_empty(_database(database)):
            names.add(record.source)
            yield record
    older = (file for file in files if file.suffix == ".jsonl" and file.stem not in names)
    yield from without_empty(map(_file, older))  # goose imports its own old files


def _database(path: Path) -> Iterator[SessionRecord]:
    with open_tables(str(path), NAME, "sessions") as tables:
        for row in tables.rows("sessions", order="created_at, id"):
            name = text_or_none(row.get("id"))
            if name is None:
                continue
            session = GooseSession(name, row)
            rows = tables.rows("messages", "session_id = ?", name, order="created_timestamp, id")
            session.read(
                {
                    "role": each.get("role"),
                    "created": each.get("created_timestamp"),
                    "content": json_object(f'{{"content": {each.get("content_json")}}}').get("content"),
                    "metadata": json_object(each.get("metadata_json")),
                }
                for each in rows
            )
            yield session.record()


def _file(path: Path) -> SessionRecord:
    losses = LossReport()
    lines = list(read_objects(path, losses))
    head = lines.pop(0) if lines and "role" not in lines[0] else {}
    session = GooseSession(path.stem, head, losses)
    session.read(lines)
    return session.record()


class GooseSession(EntryList):
    """Reads one session."""

    def __init__(self, name: str, about: Fields, losses: LossReport | None = None) -> None:
        super().__init__(NAME, losses)
        self.name, self.about = name, about
        self._answer: list[Part] = []
        self._proofs: dict[str, dict[str, Any]] = {}
        self._answer_at: int | None = None
        self._was_hidden = False
        config = json_object(about.get("model_config_json"))
        self.model = first_text(config, "model_name", "model")

    def record(self) -> SessionRecord:
        about = self.about
        return self.to_record(
            self.name,
            title=first_text(about, "name", "description"),
            agent=NAME,
            started_at=parse_time(about.get("created_at")),
            tags=known_texts(cwd=about.get("working_dir"), kind=about.get("session_type")),
        )

    def read(self, messages: Iterable[Fields]) -> None:
        for message in messages:
            self._read(message)
        self._finish_answer()
        self._add_usage()

    def _read(self, message: Fields) -> None:
        role, at = message.get("role"), parse_time(message.get("created"))
        content, visibility = as_list(message.get("content")), as_dict(message.get("metadata"))
        is_for_model = visibility.get("agentVisible") is not False and visibility.get("userVisible") is False
        if role == "assistant" and not is_for_model:
            self._answer_at = at if not self._answer else self._answer_at
            for item in content:
                self._answer_item(item, at)
            self._was_hidden = visibility.get("agentVisible") is False
            return
        self._finish_answer()
        if role not in ("user", "assistant"):
            self.add_unknown(f"role {role}", message, at)
            return
        parts = [part for item in content for part in self._input_item(item, at)]
        texts = tuple(part for part in parts if isinstance(part, Text))
        if is_for_model and self._was_hidden and texts:
            summary = "\n\n".join(part.text for part in texts)
            self.add(Compaction(summary, 0, replaces_earlier=True), at)
        elif is_for_model and texts:
            self.add(Message("system", texts), at)
        elif parts:
            self.add(Message("user", tuple(parts)), at)
        self._was_hidden = visibility.get("agentVisible") is False

    def _answer_item(self, item: object, at: int | None) -> None:
        fields = as_dict(item)
        try:
            match fields.get("type"):
                case "text" if isinstance(fields["text"], str):
                    self._answer += [Text(fields["text"])] if fields["text"] else []
                case "thinking" if isinstance(fields["thinking"], str):
                    if text_or_none(fields.get("signature")):
                        self._proofs[str(len(self._answer))] = {"signature": fields["signature"]}
                    self._answer.append(Reasoning(fields["thinking"]))
                case "redactedThinking" if text_or_none(fields["data"]):
                    self._proofs[str(len(self._answer))] = {"data": fields["data"]}
                    self._answer.append(Reasoning(""))
                case "toolRequest" | "frontendToolRequest":
                    self._call(fields)
                case "image":
                    self._answer.append(parse_base64(fields["data"], fields["mimeType"]))
                case kind if kind in SCREEN_ONLY:
                    self._note({NAME: kind, "data": fields}, at)
                case kind:
                    raise ValueError(f"content of type {kind}")
        except UNEXPECTED_SHAPE:
            self._finish_answer()
            self.add_unknown(fields.get("type"), item, at)

    def _call(self, fields: Fields) -> None:
        call, call_id = fields["toolCall"], required_text(fields["id"], "a tool call without an id")
        if call.get("status") == "error":
            self._answer.append(parse_tool_call(call_id, "invalid", str(call.get("error"))))
            return
        value = call.get("value", call)
        name = required_text(value["name"], "a tool call without a name")
        self._answer.append(parse_tool_call(call_id, name, value.get("arguments") or {}))

    def _input_item(self, item: object, at: int | None) -> Iterator[Part]:
        fields = as_dict(item)
        try:
            match fields.get("type"):
                case "text" if isinstance(fields["text"], str):
                    if fields["text"]:
                        yield Text(fields["text"])
                case "image":
                    yield parse_base64(fields["data"], fields["mimeType"])
                case "toolResponse":
                    self.add(Message("tool", (_result(fields),)), at)
                case kind if kind in SCREEN_ONLY:
                    self._note({NAME: kind, "data": fields}, at)
                case kind:
                    raise ValueError(f"content of type {kind}")
        except UNEXPECTED_SHAPE:
            self.add_unknown(fields.get("type"), item, at)

    def _note(self, data: Fields, at: int | None) -> None:
        self._finish_answer()
        self.add(Note(data), at)

    def _finish_answer(self) -> None:
        if not self._answer:
            return
        is_anthropic = "claude" in (self.model or "")
        evidence = Evidence("anthropic", self._proofs) if self._proofs and is_anthropic else None
        self.add(
            Message("assistant", tuple(self._answer)), self._answer_at, model=self.model, evidence=evidence
        )
        self._answer, self._proofs = [], {}

    def _add_usage(self) -> None:
        """Add the sums of the session to its first answer."""
        names = ("input_tokens", "output_tokens")
        sums = [self.about.get(f"accumulated_{name}") or self.about.get(name) for name in names]
        tokens = [count if is_count(count) else None for count in sums]
        if not any(tokens):
            return
        provider = text_or_none(self.about.get("provider_name"))
        self.add_total_usage(Usage(*tokens), provider, stable_call_id(NAME, self.name, "tokens"))


def _result(fields: Fields) -> ToolResult:
    result, call_id = fields["toolResult"], required_text(fields["id"], "a result without a call id")
    if result.get("status") == "error":
        return tool_result(call_id, str(result.get("error")), error=True).results[0]
    value = result.get("value", result)
    content = value.get("content") if isinstance(value, dict) else value
    blocks = content if isinstance(content, list) else [content]
    is_error = isinstance(value, dict) and value.get("isError") is True
    visible: list[Any] = [block for block in blocks if _is_for_model(block)]
    if all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in visible):
        parts = tuple(Text(block["text"]) for block in visible if block["text"])
        return ToolResult(call_id, parts, is_error)
    return tool_result(call_id, visible, error=is_error).results[0]


def _is_for_model(block: object) -> bool:
    """Whether a block of a result is meant for the model: tools often repeat the block for the user."""
    audience = as_dict(as_dict(block).get("annotations")).get("audience")
    return not isinstance(audience, list) or "assistant" in audience
