"""Import goose: its sessions.db, or the .jsonl files of versions before 1.10.

An answer may be several rows: text first, then a row for each call. The tokens are known only as sums of the session:
one row of the ledger at its first answer, which grows with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...core.entries import Compaction, Evidence, Note, Payload
from ...core.messages import Message, Part, Reasoning, Text, ToolResult, tool_result
from ...core.usage import Usage, is_count
from ...errors import InvalidSource
from ...formats.jsonl import UNEXPECTED_SHAPE, json_object, parse_time, read_objects, text_or_none
from ...formats.records import EntryRecord, LossReport, SessionRecord, stable_call_id, unknown_note
from ...wire.parsing import parse_base64, parse_tool_call
from .sqlite_files import open_tables

NAME = "goose"
DATABASE = "sessions.db"
SCREEN_ONLY = {"systemNotification", "toolConfirmationRequest", "actionRequired"}

Fields = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    path = Path(source).expanduser()
    if path.is_dir():
        databases, files = sorted(path.rglob(DATABASE)), sorted(path.rglob("*.jsonl"))
    elif path.is_file():
        databases, files = ([], [path]) if path.suffix == ".jsonl" else ([path], [])
    else:
        raise InvalidSource(source, NAME, "there is no such file or folder")
    if not databases and not files:
        raise InvalidSource(source, NAME, f"the folder has neither {DATABASE} nor *.jsonl")
    names: set[str] = set()
    for database in databases:
        for record in _database(database):
            names.add(record.source)
            yield record
    for file in files:
        if file.stem not in names:  # goose imports its own old files
            record = _file(file)
            if record.entries or record.losses:
                yield record


def _database(path: Path) -> Iterator[SessionRecord]:
    with open_tables(str(path), NAME, "sessions") as tables:
        for row in tables.rows("sessions", order="created_at, id"):
            name = text_or_none(row.get("id"))
            if name is None:
                continue
            session = GooseSession(row)
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
            session.add_usage(name)
            record = session.record(name)
            if record.entries or record.losses:
                yield record


def _file(path: Path) -> SessionRecord:
    losses = LossReport()
    lines = list(read_objects(path, losses))
    head = lines.pop(0) if lines and "role" not in lines[0] else {}
    session = GooseSession(head, losses)
    session.read(lines)
    session.add_usage(path.stem)
    return session.record(path.stem)


class GooseSession:
    """Reads one session."""

    def __init__(self, about: Fields, losses: LossReport | None = None) -> None:
        self.about = about
        self.losses = LossReport() if losses is None else losses
        self.entries: list[EntryRecord] = []
        self._answer: list[Part] = []
        self._proofs: dict[str, dict[str, Any]] = {}
        self._answer_at: int | None = None
        self._was_hidden = False
        config = json_object(about.get("model_config_json"))
        self.model = text_or_none(config.get("model_name")) or text_or_none(config.get("model"))

    def record(self, name: str) -> SessionRecord:
        about = self.about
        tags = {
            "cwd": text_or_none(about.get("working_dir")),
            "kind": text_or_none(about.get("session_type")),
        }
        return SessionRecord(
            NAME,
            name,
            tuple(self.entries),
            title=text_or_none(about.get("name")) or text_or_none(about.get("description")),
            agent=NAME,
            started_at=parse_time(about.get("created_at")),
            tags={tag: value for tag, value in tags.items() if value},
            losses=self.losses,
        )

    def read(self, messages: Iterable[Fields]) -> None:
        for message in messages:
            self._read(message)
        self._finish_answer()

    def _read(self, message: Fields) -> None:
        role, at = message.get("role"), parse_time(message.get("created"))
        content, metadata = message.get("content"), message.get("metadata")
        visibility = metadata if isinstance(metadata, dict) else {}
        is_for_model = visibility.get("agentVisible") is not False and visibility.get("userVisible") is False
        if role == "assistant" and not is_for_model:
            self._answer_at = at if not self._answer else self._answer_at
            for item in content if isinstance(content, list) else ():
                self._answer_item(item, at)
            self._was_hidden = visibility.get("agentVisible") is False
            return
        self._finish_answer()
        if role not in ("user", "assistant"):
            self._add(unknown_note(NAME, f"role {role}", message, self.losses), at)
            return
        parts = [
            part
            for item in (content if isinstance(content, list) else ())
            for part in self._input_item(item, at)
        ]
        texts = tuple(part for part in parts if isinstance(part, Text))
        if is_for_model and self._was_hidden and texts:
            summary = "\n\n".join(part.text for part in texts)
            self._add(Compaction(summary, 0, replaces_earlier=True), at)
        elif is_for_model and texts:
            self._add(Message("system", texts), at)
        elif parts:
            self._add(Message("user", tuple(parts)), at)
        self._was_hidden = visibility.get("agentVisible") is False

    def _answer_item(self, item: object, at: int | None) -> None:
        fields = item if isinstance(item, dict) else {}
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
            self._add(unknown_note(NAME, fields.get("type"), item, self.losses), at)

    def _call(self, fields: Fields) -> None:
        call, call_id = fields["toolCall"], fields["id"]
        if not isinstance(call_id, str):
            raise TypeError("a tool call without an id")
        if call.get("status") == "error":
            self._answer.append(parse_tool_call(call_id, "invalid", str(call.get("error"))))
            return
        value = call.get("value", call)
        if not isinstance(value["name"], str):
            raise TypeError("a tool call without a name")
        self._answer.append(parse_tool_call(call_id, value["name"], value.get("arguments") or {}))

    def _input_item(self, item: object, at: int | None) -> Iterator[Part]:
        fields = item if isinstance(item, dict) else {}
        try:
            match fields.get("type"):
                case "text" if isinstance(fields["text"], str):
                    if fields["text"]:
                        yield Text(fields["text"])
                case "image":
                    yield parse_base64(fields["data"], fields["mimeType"])
                case "toolResponse":
                    self._add(Message("tool", (_result(fields),)), at)
                case kind if kind in SCREEN_ONLY:
                    self._note({NAME: kind, "data": fields}, at)
                case kind:
                    raise ValueError(f"content of type {kind}")
        except UNEXPECTED_SHAPE:
            self._add(unknown_note(NAME, fields.get("type"), item, self.losses), at)

    def _note(self, data: Fields, at: int | None) -> None:
        self._finish_answer()
        self._add(Note(data), at)

    def _finish_answer(self) -> None:
        if not self._answer:
            return
        is_anthropic = "claude" in (self.model or "")
        evidence = Evidence("anthropic", self._proofs) if self._proofs and is_anthropic else None
        self._add(
            Message("assistant", tuple(self._answer)), self._answer_at, model=self.model, evidence=evidence
        )
        self._answer, self._proofs = [], {}

    def add_usage(self, name: str) -> None:
        """Add the sums of the session to its first answer."""
        names = ("input_tokens", "output_tokens")
        sums = [self.about.get(f"accumulated_{name}") or self.about.get(name) for name in names]
        tokens = [count if is_count(count) else None for count in sums]
        if not any(tokens):
            return
        provider = text_or_none(self.about.get("provider_name"))
        for index, entry in enumerate(self.entries):
            if isinstance(entry.payload, Message) and entry.payload.role == "assistant":
                usage = Usage(tokens[0], tokens[1])
                call_id = stable_call_id(NAME, name, "tokens")
                self.entries[index] = replace(entry, usage=usage, provider=provider, call_id=call_id)
                return
        self.losses.add("the tokens of a session without an answer")

    def _add(self, payload: Payload, at: int | None, **more: Any) -> None:
        self.entries.append(EntryRecord(payload, str(len(self.entries) + 1), at=at, **more))


def _result(fields: Fields) -> ToolResult:
    result, call_id = fields["toolResult"], fields["id"]
    if not isinstance(call_id, str):
        raise TypeError("a result without a call id")
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
    """Whether a block of a result is meant for the model: tools often repeat it for the user."""
    annotations = block.get("annotations") if isinstance(block, dict) else None
    audience = annotations.get("audience") if isinstance(annotations, dict) else None
    return not isinstance(audience, list) or "assistant" in audience
