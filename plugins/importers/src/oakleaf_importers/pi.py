"""Import pi, the coding agent: one JSON Lines file per session, its entries a tree by id and parentId.

pi stores the signatures of each provider in fields of its own. The system prompt is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from oakleaf.core.entries import BranchSummary, Compaction, Evidence, Note, Payload, Settings
from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.core.messages import Attachment, Message, Part, Reasoning, Text, ToolResult
from oakleaf.core.usage import Usage
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, recorded_price, unknown_note
from oakleaf.wire.parsing import parse_base64, parse_tool_call
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    as_list,
    first_text,
    gemini_signature,
    known_texts,
    parse_time,
    required_text,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import read_objects
from oakleaf_importers.formats.settings import known_options
from oakleaf_importers.formats.source_files import find_files, jsonl_source
from oakleaf_importers.session_records import EntryList, note_newer, with_source_losses, without_empty

TOKENS = ("input", "output", "cacheRead", "cacheWrite")
ISSUERS = {
    ("anthropic-messages", "anthropic"): "anthropic",
    ("openai-responses", "openai"): "openai",
    ("google-generative-ai", "google"): "gemini",
}
"""The provider whose signatures an answer holds, by API and provider."""
PROVIDERS = {"google": "gemini"}

Line = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    """Yield the sessions, without pi's empty files of sessions without input."""
    losses = LossReport()
    files = find_files(source, "pi", losses, "**/*.jsonl")
    records = without_empty(PiSession(path).record() for path in files)
    yield from with_source_losses("pi", records, losses)


IMPORTER = Importer(
    source="its sessions folder, or one .jsonl file in it",
    sessions=read_sessions,
    default_paths=("~/.pi/agent/sessions",),
    source_of=jsonl_source,
    versions="session files of version 3",
    checked=date(2025, 12, 9),
)


class PiSession(EntryList):
    """Reads one session file."""

    def __init__(self, path: Path) -> None:
        super().__init__("pi")
        self.path = path
        self.metadata: Line = {}
        self.title: str | None = None
        self.labels: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        """By pi's entry id: the key of our entry, or of the one before it if it became none."""
        self._parents: dict[str, str | None] = {}
        self._by_id: dict[str, EntryRecord] = {}
        self._model: tuple[str | None, str | None] = (None, None)
        last: str | None = None
        for number, line in enumerate(read_objects(path, self.losses)):
            if line.get("type") == "session":
                self.metadata = self.metadata or line
                continue
            last = self._read(line, number, last)
        self.leaf = self.keys.get(last or START)
        note_newer(self.losses, self.metadata.get("version"), 3)

    def record(self) -> SessionRecord:
        origin = text_or_none(self.metadata.get("parentSession"))
        labels = {self.keys[name]: label for name, label in self.labels.items() if name in self.keys}
        return self.to_record(
            text_or_none(self.metadata.get("id")) or self.path.stem,
            leaf=self.leaf,
            labels=labels,
            title=self.title,
            agent="pi",
            started_at=parse_time(self.metadata.get("timestamp")),
            tags=known_texts(cwd=self.metadata.get("cwd"), forked_from=Path(origin).stem if origin else None),
            missing=("system prompt", "tool definitions"),
        )

    def _read(self, line: Line, number: int, last: str | None) -> str:
        """Read an entry and return the id. The first version wrote no ids: each line follows the previous one."""
        name = text_or_none(line.get("id")) or f"#{number}"
        parent_id = line.get("parentId", last)
        parent = parent_id if isinstance(parent_id, str) else None
        self._parents[name] = parent
        after = START if parent is None else self.keys.get(parent, parent)
        entry = self._entry(line, parent)
        if entry is None:
            self.keys[name] = after
            return name
        at = parse_time(line.get("timestamp"))
        self.entries.append(replace(entry, key=name, after=after, at=at))
        self._by_id[name] = self.entries[-1]
        self.keys[name] = name
        return name

    def _entry(self, line: Line, parent: str | None) -> EntryRecord | None:
        kind = line.get("type")
        if kind == "message" and isinstance(line.get("message"), dict):
            return self._message(line["message"])
        if kind == "custom_message":
            return self._extension_message(line.get("content"))
        if kind == "compaction":
            return self._compaction(line, parent)
        if kind == "branch_summary":
            origin = self.keys.get(str(line.get("fromId")))
            summary = text_or_none(line.get("summary"))
            return _call_entry(BranchSummary(summary, 0, ""), line, refers_to=origin) if summary else None
        if kind == "custom":
            return EntryRecord(Note({"pi": str(line.get("customType")), "data": line.get("data")}))
        if kind == "label":
            self._label(line.get("targetId"), line.get("label"))
        elif kind == "session_info":
            self.title = text_or_none(line.get("name"))
        elif kind == "model_change":
            self._model = (text_or_none(line.get("provider")), text_or_none(line.get("modelId")))
        elif kind == "thinking_level_change":
            level = line.get("thinkingLevel")
            options = {"effort": None} if level == "off" else known_options({"effort": level}, self.losses)
            return EntryRecord(Settings(options=options)) if options else None
        else:
            return EntryRecord(unknown_note("pi", kind, line, self.losses))
        return None

    def _label(self, target: object, label: object) -> None:
        if isinstance(target, str) and text_or_none(label):
            self.labels[target] = str(label)
        elif isinstance(target, str):
            self.labels.pop(target, None)

    # -- messages ----------------------------------------------------------------------------------

    def _message(self, message: Line) -> EntryRecord | None:
        role = message.get("role")
        if role == "assistant":
            return self._answer(message)
        if role == "user":
            parts = self._parts(message.get("content"))
            return EntryRecord(Message("user", tuple(parts))) if parts else None
        if role == "toolResult":
            return self._result(message)
        if role == "bashExecution":
            return _bash(message)
        if role in ("custom", "hookMessage"):
            return self._extension_message(message.get("content"))
        self.losses.misread("a message of unknown role", str(role))
        return None

    def _extension_message(self, content: object) -> EntryRecord | None:
        """Convert a message of an extension. It opens no turn unless it shows an image, which only a user message may."""
        parts = self._parts(content)
        is_plain = all(isinstance(part, Text) for part in parts)
        return EntryRecord(Message("system" if is_plain else "user", tuple(parts))) if parts else None

    def _parts(self, content: object) -> list[Text | Attachment]:
        if isinstance(content, str):
            return [Text(content)] if content else []
        parts: list[Text | Attachment] = []
        for block in as_list(content):
            part = self._block(block)
            if isinstance(part, Text | Attachment):
                parts.append(part)
        return parts

    def _block(self, block: object) -> Part | None:
        fields = as_dict(block)
        kind = fields.get("type")
        try:
            if kind == "text" and isinstance(fields["text"], str):
                return Text(fields["text"])
            if kind == "thinking" and isinstance(fields["thinking"], str):
                return Reasoning(fields["thinking"])
            if kind == "image":
                return parse_base64(fields["data"], fields["mimeType"])
            if kind == "toolCall" and isinstance(fields["name"], str):
                return parse_tool_call(_call_id(fields["id"]), fields["name"], fields["arguments"])
            raise ValueError(kind)
        except UNEXPECTED_SHAPE as error:
            self.losses.misread("a part of a message of unknown shape", str(error))
        return None

    def _answer(self, message: Line) -> EntryRecord | None:
        issuer = ISSUERS.get((str(message.get("api")), str(message.get("provider"))))
        self._model = (text_or_none(message.get("provider")), text_or_none(message.get("model")))
        parts: list[Part] = []
        proofs: dict[str, dict[str, Any]] = {}
        for block in as_list(message.get("content")):
            part = self._block(block)
            if part is None:
                continue
            proof = _proof(issuer, block)
            if proof:
                proofs[str(len(parts))] = proof
            parts.append(part)
        payload: Payload = Message("assistant", tuple(parts))
        if not parts:
            payload = Note({"pi": "a failed answer", "error": text_or_none(message.get("errorMessage"))})
        evidence = Evidence(issuer, proofs) if issuer and proofs else None
        provider, model = self._model
        return _call_entry(
            payload,
            message,
            model=model,
            provider=PROVIDERS.get(provider or "", provider),
            finish=text_or_none(message.get("stopReason")),
            evidence=evidence,
        )

    def _result(self, message: Line) -> EntryRecord | None:
        call_id = message.get("toolCallId")
        if not isinstance(call_id, str):
            self.losses.add("a tool result without a call id", str(message.get("toolName")))
            return None
        fields = as_dict(message.get("details"))
        details = {"pi": fields} if fields else None
        content = tuple(self._parts(message.get("content")))
        result = ToolResult(_call_id(call_id), content, message.get("isError") is True, details=details)
        return _call_entry(Message("tool", (result,)), message)

    # -- summaries ---------------------------------------------------------------------------------

    def _compaction(self, line: Line, parent: str | None) -> EntryRecord | None:
        summary, tokens = text_or_none(line.get("summary")), line.get("tokensBefore")
        if summary is None:
            self.losses.add("a compaction without a summary")
            return None
        fields = as_dict(line.get("details"))
        payload = Compaction(
            summary,
            0,
            tokens if type(tokens) is int and tokens >= 0 else 0,
            _strings(fields.get("readFiles")),
            _strings(fields.get("modifiedFiles")),
            replaces_earlier=True,
        )
        return _call_entry(payload, line, refers_to=self._first_kept(line, parent))

    def _first_kept(self, line: Line, parent: str | None) -> str | None:
        """Return the first kept entry. pi may name an entry that has no counterpart here, or only how many it keeps."""
        index, tail = line.get("firstKeptEntryIndex"), line.get("retainedTail")
        first_id = f"#{index}" if type(index) is int else line.get("firstKeptEntryId")
        remaining = len(tail) if isinstance(tail, list) else None
        first_kept: str | None = None
        visited: set[str] = set()
        while parent is not None and parent not in visited:
            visited.add(parent)
            if remaining is not None and parent in self._by_id:
                remaining -= isinstance(self._by_id[parent].payload, Message)
            first_kept = parent if parent in self._by_id else first_kept
            if parent == first_id or remaining == 0:
                return first_kept
            parent = self._parents.get(parent)
        return None


def _bash(message: Line) -> EntryRecord:
    """Convert a command of the user; the model saw the command unless `excludeFromContext` is set."""
    command, output, code = (message.get(name) for name in ("command", "output", "exitCode"))
    if message.get("excludeFromContext") is True:
        return EntryRecord(Note({"pi": "bash", "command": command, "output": output, "exit_code": code}))
    ended = "was cancelled" if message.get("cancelled") is True else f"ended with {code}"
    return EntryRecord(
        Message("system", (Text(f"The user ran `{command}`, which {ended}:\n\n{output or '(no output)'}"),))
    )


def _call_id(value: object) -> str:
    """Return the call id; for OpenAI, pi joins call id and item id."""
    name = required_text(value, "a tool call without an id")
    return name.partition("|")[0] or name


def _proof(issuer: str | None, block: Line) -> dict[str, Any]:
    """Return the signatures and ids the provider expects back with a part."""
    thinking, text_signature = first_text(block, "thinkingSignature"), first_text(block, "textSignature")
    if issuer == "anthropic" and thinking:
        return {"data" if block.get("redacted") is True else "signature": thinking}
    if issuer == "gemini":
        signed = thinking or text_signature or block.get("thoughtSignature")
        return known_texts(signature=gemini_signature(signed))
    if issuer == "openai" and block.get("type") == "toolCall":
        return known_texts(id=str(block.get("id")).partition("|")[2])
    if issuer == "openai":
        fields = _object(thinking or text_signature)
        names = ("id", "encrypted_content") if thinking else ("id", "phase")
        return known_texts(**{name: fields.get(name) for name in names})
    return {}


def _object(signed: str | None) -> Line:
    """Return OpenAI's item as stored: JSON, or only the id in older versions."""
    try:
        value = msgspec.json.decode(signed or "")
    except (*INVALID_JSON, UnicodeEncodeError):
        return {"id": signed}
    return as_dict(value)


def _call_entry(payload: Payload, about: Line, **more: Any) -> EntryRecord:
    """Return the entry of a model call, with the usage."""
    usage = as_dict(about.get("usage"))
    price = recorded_price(as_dict(usage.get("cost")).get("total"), "pi")
    return EntryRecord(payload, usage=_usage(usage), price=price, **more)


def _usage(usage: Line) -> Usage | None:
    """Convert usage: pi counts cached tokens beside the input, here they are part of it."""
    tokens = token_counts(usage, TOKENS)
    if tokens is None or not any(tokens):
        return None
    fresh, output, read, written = tokens
    return Usage(fresh + read + written, output, read, written)


def _strings(value: object) -> tuple[str, ...]:
    return tuple(name for name in as_list(value) if isinstance(name, str))
