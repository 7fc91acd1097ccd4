"""Import `llm`, the command line tool: conversations in one SQLite file, logs.db.

Since 0.32 messages are a tree named by hashes, and a thread points at its tip; before, each response was a row with its
prompt. A conversation that was continued in a newer version is in both: the tree is imported, with the usage of the older
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from oakleaf.core.entries import Evidence, Settings
from oakleaf.core.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.usage import Usage, is_count
from oakleaf.errors import InvalidSource
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, unknown_note
from oakleaf.wire.parsing import parse_tool_call
from oakleaf_importers.formats.json_values import (
    as_dict,
    dicts_in,
    first_text,
    json_object,
    known_texts,
    parse_time,
    text_or_none,
)
from oakleaf_importers.formats.settings import known_options, option_changes, tool_specs
from oakleaf_importers.formats.source_files import LINK_OUT, config_folders, leads_to
from oakleaf_importers.sqlite_files import Row, SourceTables, open_tables

FILE_NAME = "logs.db"
PART_TYPES = ("text", "reasoning", "tool_call", "tool_result", "attachment")
EVIDENCE_FIELDS = {
    "anthropic": ("signature", "data"),
    "openai": ("id", "encrypted_content"),
    "gemini": ("signature",),
}


def read_sessions(source: str) -> Iterator[SessionRecord]:
    path = Path(source).expanduser()
    file = path / FILE_NAME if path.is_dir() else path
    if file != path and not leads_to(path.resolve(), file):
        raise InvalidSource(source, "llm", f"{FILE_NAME} is {LINK_OUT}")
    with open_tables(str(file), "llm", "threads", "responses") as tables:
        threads = set()
        for row in tables.rows("threads", order="id"):
            threads.add(row.get("id"))
            yield from LlmThread(tables, row).records()
        for row in tables.rows("conversations", order="id"):
            if row.get("id") not in threads:
                yield from _read_responses(tables, row, "conversation_id = ?", row.get("id"))
        for row in tables.rows("responses", "conversation_id is null", order="id"):
            yield from _read_responses(tables, {"id": row.get("id")}, "id = ?", row.get("id"))


IMPORTER = Importer(
    source="the logs.db of llm, or its folder",
    sessions=read_sessions,
    default_paths=config_folders("io.datasette.llm"),
    versions="0.32, and before",
)


def _usage(row: Row) -> Usage | None:
    """Return the tokens from the model's plugin; None without a report."""
    details = json_object(row.get("token_details"))
    inner = details.get("prompt_tokens_details", details.get("input_tokens_details"))
    cached = (inner if isinstance(inner, dict) else details).get("cached_tokens")
    values = [row.get("input_tokens"), row.get("output_tokens"), cached]
    counted = [value if is_count(value) else None for value in values]
    return Usage(*counted) if counted[0] is not None or counted[1] is not None else None


class PartTables:
    """Looks up fragments and attachments, stored once."""

    def __init__(self, tables: SourceTables, losses: LossReport) -> None:
        self.tables, self.losses = tables, losses

    def fragment(self, number: object) -> str:
        return text_or_none(self.tables.row("fragments", "id = ?", _key(number)).get("content")) or ""

    def fragments(self, table: str, response: object) -> list[str]:
        rows = self.tables.rows(table, "response_id = ?", _key(response), order='"order"')
        return [self.fragment(row.get("fragment_id")) for row in rows]

    def attachments(self, table: str, column: str, owner: object) -> list[Text | Attachment]:
        rows = self.tables.rows(table, f"{column} = ?", _key(owner), order='"order"')
        return [self.attachment(row.get("attachment_id")) for row in rows]

    def attachment(self, name: object) -> Text | Attachment:
        row = self.tables.row("attachments", "id = ?", _key(name))
        kind, content = text_or_none(row.get("type")) or "application/octet-stream", row.get("content")
        if isinstance(content, bytes) and content:
            return Attachment(content, kind)
        self.losses.add(
            "an attachment stored elsewhere; only its location is kept", str(row.get("path") or name)
        )
        return Text(f"[{kind}: {row.get('path') or row.get('url') or name}]")


def _key(value: object) -> str | int | None:
    return value if isinstance(value, str | int) else None


# -- since 0.32: threads, turns and a tree of messages ---------------------------------------------------


class LlmThread:
    def __init__(self, tables: SourceTables, row: Row) -> None:
        self.tables, self.row = tables, row
        self.losses = LossReport()
        self.parts = PartTables(tables, self.losses)
        self.entries: dict[str, EntryRecord] = {}
        self.keys: dict[str, str] = {}
        """By message hash: the key of its last entry, or of the entry it would follow."""
        self._last_message: dict[str, str] = {}
        """The same without the notes after it."""

    def records(self) -> Iterator[SessionRecord]:
        name = text_or_none(self.row.get("id"))
        if name is None:
            return
        for turn in self.tables.rows("turns", "thread_id = ?", name, order="id"):
            self._add_path(turn.get("parent_message_hash"), parse_time(turn.get("datetime_utc")))
            self._add_path(turn.get("tip_message_hash"), _answer_time(turn))
            self._add_usage(turn)
            _count_options(turn, self.losses)
        tip = text_or_none(self.row.get("tip_message_hash"))
        self._add_path(tip, None)
        self._add_older_usage(name)
        older = self.tables.row("conversations", "id = ?", name)
        if self.entries:
            yield SessionRecord(
                "llm",
                name,
                tuple(self.entries.values()),
                leaf=self.keys.get(tip or START),
                title=first_text(older, "name") or first_text(self.row, "name"),
                tags=known_texts(forked_from=self.row.get("forked_from")),
                losses=self.losses,
                missing=("tool definitions", "options"),
            )

    def _add_path(self, tip: object, at: int | None) -> None:
        """Add the messages up to this message not added yet, oldest first."""
        rows: list[Row] = []
        names = set()
        while isinstance(tip, str) and tip not in self.keys and tip not in names:
            row = self.tables.row("messages", "hash = ?", tip)
            if not row:
                self.losses.add("a missing message", tip)
                break
            names.add(tip)
            rows.append(row)
            tip = row.get("parent_hash")
        for row in reversed(rows):
            self._add_message(row, at)

    def _add_message(self, row: Row, at: int | None) -> None:
        name, after = str(row["hash"]), row.get("parent_hash")
        follows = self.keys.get(after, START) if isinstance(after, str) else START
        messages, evidence = self._messages(row)
        for index, message in enumerate(messages):
            key = f"{name} {index}"
            self.entries[key] = EntryRecord(message, key, follows, at=at, evidence=evidence)
            follows = key
        self.keys[name] = self._last_message[name] = follows
        self._add_notes(name, at)

    def _add_notes(self, name: str, at: int | None) -> None:
        """Add notes of parts whose type is not known."""
        for row in self.tables.rows("parts", "message_hash = ?", name, order="position"):
            if row.get("type") not in PART_TYPES:
                key = f"{name} note {row.get('position')}"
                note = unknown_note("llm", row.get("type"), row, self.losses)
                self.entries[key] = EntryRecord(note, key, self.keys[name], at=at)
                self.keys[name] = key

    def _messages(self, row: Row) -> tuple[list[Message], Evidence | None]:
        role = row.get("role")
        parts: list[Part] = []
        proofs: dict[str, dict[str, dict[str, Any]]] = {}
        for value in self.tables.rows("parts", "message_hash = ?", row["hash"], order="position"):
            payload = json_object(value.get("payload"))
            new_parts = self._part(value, payload, _nth(row, parts))
            for issuer, proof in _proofs(payload) if new_parts else ():
                proofs.setdefault(issuer, {})[str(len(parts))] = proof
            parts.extend(new_parts)
        if role == "tool":
            return [Message("tool", (part,)) for part in _join_results(parts)], None
        signed = list(proofs.items()) if role == "assistant" else []
        evidence = Evidence(*signed[0]) if signed else None
        return [Message(role, tuple(parts))] if isinstance(role, str) else [], evidence  # type: ignore[arg-type]

    def _part(self, row: Row, payload: Row, unnamed: str) -> list[Part]:
        kind, literal = row.get("type"), row.get("text")
        text = literal if isinstance(literal, str) else self._resolve_text(payload)
        if payload.get("server_executed"):
            self.losses.add("a tool call the provider ran", str(payload.get("name")))
        elif kind == "text":
            return [Text(text)] if text else []
        elif kind == "reasoning":
            return [Reasoning(text)]
        elif kind == "tool_call" and isinstance(payload.get("name"), str):
            call_id = text_or_none(payload.get("tool_call_id")) or unnamed
            return [parse_tool_call(call_id, payload["name"], payload.get("arguments"))]
        elif kind == "tool_result":
            return [self._result(payload, unnamed)]
        elif kind == "attachment" and isinstance(payload.get("attachment"), dict):
            return [self.parts.attachment(payload["attachment"].get("id"))]
        elif kind in PART_TYPES:
            self.losses.misread("a part of unknown shape", str(kind))
        return []

    def _resolve_text(self, payload: Row) -> str:
        """Return a text; a text with fragments is stored as a list of pieces."""
        pieces = payload.get("text_ref")
        if not isinstance(pieces, list):
            return text_or_none(payload.get("text")) or ""
        return "".join(
            str(piece["literal"]) if "literal" in piece else self.parts.fragment(piece.get("fragment"))
            for piece in dicts_in(pieces)
        )

    def _result(self, payload: Row, unnamed: str) -> ToolResult:
        output = payload.get("output")
        content: list[Text | Attachment] = [Text(output)] if isinstance(output, str) and output else []
        content += [self.parts.attachment(item.get("id")) for item in dicts_in(payload.get("attachments"))]
        call_id = text_or_none(payload.get("tool_call_id")) or unnamed
        return ToolResult(call_id, tuple(content), bool(payload.get("exception")))

    def _add_usage(self, turn: Row) -> None:
        key = self._last_message.get(str(turn.get("tip_message_hash")), START)
        entry, usage = self.entries.get(key), _usage(turn)
        if entry is None or not entry.is_answer or entry.usage is not None:
            if usage is not None:
                self.losses.add("usage of an answer that already has one", str(turn.get("id")))
            return
        self.entries[key] = replace(entry, usage=usage, model=_model(turn))

    def _add_older_usage(self, name: str) -> None:
        """Add the usage from before the conversation was moved to the tree, matched by the text of the answers."""
        open_keys = [key for key, entry in self.entries.items() if entry.is_answer and entry.usage is None]
        for row in self.tables.rows("responses", "conversation_id = ?", name, order="id"):
            usage = _usage(row)
            key = next((key for key in open_keys if _has_text(self.entries[key], row.get("response"))), None)
            if key is not None:
                open_keys.remove(key)
                entry = self.entries[key]
                at = _answer_time(row) or entry.at
                self.entries[key] = replace(entry, usage=usage, model=_model(row), at=at)
            elif usage is not None:
                self.losses.add("usage of an answer missing from the thread")


def _nth(message: Row, parts: list[Part]) -> str:
    """Return an id for a call without an id: the n-th result belongs to the n-th call of the previous message."""
    if message.get("role") == "tool":
        return f"{message.get('parent_hash')} {sum(isinstance(part, ToolResult) for part in parts)}"
    return f"{message['hash']} {sum(isinstance(part, ToolCall) for part in parts)}"


def _join_results(parts: list[Part]) -> list[ToolResult]:
    """Return the results of a tool message; other parts are added to the last result."""
    results: list[ToolResult] = []
    for part in parts:
        if isinstance(part, ToolResult):
            results.append(part)
        elif results and isinstance(part, Text | Attachment):
            results[-1] = replace(results[-1], content=(*results[-1].content, part))
    return results


def _proofs(payload: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    for issuer, names in EVIDENCE_FIELDS.items():
        fields = as_dict(as_dict(payload.get("provider_metadata")).get(issuer))
        proof = known_texts(**{name: fields.get(name) for name in names})
        if proof:
            yield issuer, proof


def _has_text(entry: EntryRecord, text: object) -> bool:
    return isinstance(entry.payload, Message) and entry.payload.text == text


def _model(row: Row) -> str | None:
    return first_text(row, "resolved_model", "model")


def _answer_time(row: Row) -> int | None:
    start, took = parse_time(row.get("datetime_utc")), row.get("duration_ms")
    return None if start is None else start + (took * 1_000 if type(took) is int and 0 < took < 10**9 else 0)


def _count_options(row: Row, losses: LossReport) -> None:
    if json_object(row.get("options_json")):
        losses.add("the options of a model call", str(row["options_json"]))
    _count_schema(row, losses)


def _count_schema(row: Row, losses: LossReport) -> None:
    if row.get("schema_id"):
        losses.add("the output schema of an answer", str(row["schema_id"]))


# -- before: a row for each response ---------------------------------------------------------------------


def _read_responses(tables: SourceTables, fields: Row, where: str, value: object) -> Iterator[SessionRecord]:
    losses = LossReport()
    parts = PartTables(tables, losses)
    entries: list[EntryRecord] = []
    prompt = ""
    options: dict[str, Any] = {}
    tools: tuple[ToolSpec, ...] = ()
    for row in tables.rows("responses", where, _key(value), order="datetime_utc, id"):
        at = parse_time(row.get("datetime_utc"))
        inputs = list(_read_inputs(parts, row))
        system = "\n\n".join(
            [*parts.fragments("system_fragments", row.get("id")), text_or_none(row.get("system")) or ""]
        )
        if system.strip() and system.strip() != prompt:
            prompt = system.strip()
            inputs.insert(0, Message("system", (Text(prompt),)))
        answer = _answer(tables, row)
        if answer.parts:
            new_options = known_options(json_object(row.get("options_json")), losses)
            new_tools = _tools(tables, row, losses)
            changes = option_changes(options, new_options)
            if changes or new_tools != tools:
                changed_tools = None if new_tools == tools else new_tools
                entries.append(EntryRecord(Settings(options=changes or None), at=at, tools=changed_tools))
            options, tools = new_options, new_tools
        entries.extend(EntryRecord(message, at=at) for message in inputs)
        if answer.parts:
            entries.append(EntryRecord(answer, at=_answer_time(row), model=_model(row), usage=_usage(row)))
        _count_schema(row, losses)
    name = text_or_none(fields.get("id"))
    if entries and name is not None:
        yield SessionRecord(
            "llm", name, tuple(entries), title=text_or_none(fields.get("name")), losses=losses
        )


def _tools(tables: SourceTables, row: Row, losses: LossReport) -> tuple[ToolSpec, ...]:
    definitions = []
    for link in tables.rows("tool_responses", "response_id = ?", _key(row.get("id"))):
        tool = tables.row("tools", "id = ?", _key(link.get("tool_id")))
        schema = json_object(tool.get("input_schema"))
        definition = {"name": tool.get("name"), "description": tool.get("description") or ""}
        definitions.append({**definition, "parameters": schema} if schema else definition)
    return tool_specs(definitions, losses)


def _read_inputs(parts: PartTables, row: Row) -> Iterator[Message]:
    for result in parts.tables.rows("tool_results", "response_id = ?", _key(row.get("id")), order="id"):
        output = result.get("output")
        texts = [Text(output)] if isinstance(output, str) and output else []
        files = parts.attachments("tool_results_attachments", "tool_result_id", result.get("id"))
        content = (*texts, *files)
        yield Message("tool", (ToolResult(_call_id(result), content, bool(result.get("exception"))),))
    pieces = [*parts.fragments("prompt_fragments", row.get("id")), text_or_none(row.get("prompt")) or ""]
    prompt_text = "\n".join(piece for piece in pieces if piece)
    attachments = parts.attachments("prompt_attachments", "response_id", row.get("id"))
    if prompt_text or attachments:
        yield Message("user", (*([Text(prompt_text)] if prompt_text else []), *attachments))


def _answer(tables: SourceTables, row: Row) -> Message:
    reasoning, text = text_or_none(row.get("reasoning")), text_or_none(row.get("response"))
    rows = tables.rows("tool_calls", "response_id = ?", _key(row.get("id")), order="id")
    calls: list[ToolCall] = [
        parse_tool_call(_call_id(call), call["name"], call.get("arguments"))
        for call in rows
        if text_or_none(call.get("name"))
    ]
    parts: list[Part] = [Reasoning(reasoning)] if reasoning else []
    return Message("assistant", (*parts, *([Text(text)] if text else []), *calls))


def _call_id(row: Row) -> str:
    """Return the call id, or an id made of the tool's name."""
    return text_or_none(row.get("tool_call_id")) or f"call of {row.get('name')}"
