"""pi, the coding agent: a file of JSON lines per session, its entries a tree by id and parentId.

Knows its kinds of entries and messages, how its compactions and branch summaries name places, and where it keeps what each
provider wants back. The system prompt is in no file of pi's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...core.entries import BranchSummary, Compaction, Evidence, Note, Payload
from ...core.messages import Attachment, Message, Part, Reasoning, Text, ToolResult
from ...core.usage import Usage
from ...formats.jsonl import (
    INVALID_JSON,
    UNEXPECTED_SHAPE,
    find_files,
    gemini_signature,
    parse_time,
    read_objects,
    text_or_none,
    token_counts,
)
from ...formats.records import START, EntryRecord, LossReport, SessionRecord
from ...wire.parsing import parse_base64, parse_tool_call

TOKENS = ("input", "output", "cacheRead", "cacheWrite")
ISSUERS = {
    ("anthropic-messages", "anthropic"): "anthropic",
    ("openai-responses", "openai"): "openai",
    ("google-generative-ai", "google"): "gemini",
}
"""Whose signatures an answer holds, by its API and provider."""
PROVIDERS = {"google": "gemini"}

Line = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    for path in find_files(source, "pi"):
        told = File(path).foreign()
        if told is not None:
            yield told


class File:
    """One session, read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses = LossReport()
        self.head: Line = {}
        self.told: list[EntryRecord] = []
        self.title: str | None = None
        self.labels: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        """By the id of an entry there the key of the one it became, or of the one before if it became none."""
        self._parents: dict[str, str | None] = {}
        self._real: dict[str, EntryRecord] = {}
        self._model: tuple[str | None, str | None] = (None, None)
        last: str | None = None
        for number, line in enumerate(read_objects(path, self.losses)):
            if line.get("type") == "session":
                self.head = self.head or line
                continue
            last = self._read(line, number, last)
        self.leaf = self.keys.get(last or START)

    def foreign(self) -> SessionRecord | None:
        """None for a file without a word, as pi leaves one that was opened and left."""
        if not self.told and not self.losses:
            return None
        origin = text_or_none(self.head.get("parentSession"))
        tags = {
            "cwd": text_or_none(self.head.get("cwd")),
            "forked_from": Path(origin).stem if origin else None,
        }
        labels = {self.keys[name]: label for name, label in self.labels.items() if name in self.keys}
        return SessionRecord(
            "pi",
            text_or_none(self.head.get("id")) or self.path.stem,
            tuple(self.told),
            leaf=self.leaf,
            labels=labels,
            title=self.title,
            agent="pi",
            started_at=parse_time(self.head.get("timestamp")),
            tags={name: value for name, value in tags.items() if value},
            losses=self.losses,
        )

    def _read(self, line: Line, number: int, last: str | None) -> str:
        """Returns its id. The first version wrote none: each line follows the one before."""
        name = text_or_none(line.get("id")) or f"#{number}"
        parent = line.get("parentId") if "parentId" in line else last
        parent = parent if isinstance(parent, str) else None
        self._parents[name] = parent
        after = START if parent is None else self.keys.get(parent, parent)
        told = self._entry(line, name, parent)
        if told is None:
            self.keys[name] = after
            return name
        at = parse_time(line.get("timestamp"))
        self.told.append(msgspec.structs.replace(told, key=name, after=after, at=at))
        self._real[name] = self.told[-1]
        self.keys[name] = name
        return name

    def _entry(self, line: Line, name: str, parent: str | None) -> EntryRecord | None:
        kind = line.get("type")
        if kind == "message" and isinstance(line.get("message"), dict):
            return self._message(line["message"])
        if kind == "custom_message":
            return self._heard(line.get("content"))
        if kind == "compaction":
            return self._compaction(line, parent)
        if kind == "branch_summary":
            left = self.keys.get(str(line.get("fromId")))
            payload = BranchSummary(text_or_none(line.get("summary")) or "", 0, "")
            return (
                EntryRecord(payload, refers_to=left, usage=_usage(line.get("usage")))
                if payload.summary
                else None
            )
        if kind == "custom":
            return EntryRecord(Note({"pi": str(line.get("customType")), "data": line.get("data")}))
        if kind == "label":
            self._label(line.get("targetId"), line.get("label"))
        elif kind == "session_info":
            self.title = text_or_none(line.get("name"))
        elif kind == "model_change":
            self._model = (text_or_none(line.get("provider")), text_or_none(line.get("modelId")))
        elif kind == "thinking_level_change":
            self.losses.add("a change of the thinking level", str(line.get("thinkingLevel")))
        else:
            self.losses.add("an entry of unknown type", str(kind))
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
            return self._heard(message.get("content"))
        self.losses.add("a message of unknown role", str(role))
        return None

    def _heard(self, content: object) -> EntryRecord | None:
        """What an extension told the model. It opens no turn, unless it shows a picture: only an input can."""
        parts = self._parts(content)
        is_plain = all(isinstance(part, Text) for part in parts)
        return EntryRecord(Message("system" if is_plain else "user", tuple(parts))) if parts else None

    def _parts(self, content: object) -> list[Text | Attachment]:
        if isinstance(content, str):
            return [Text(content)] if content else []
        found: list[Text | Attachment] = []
        for block in content if isinstance(content, list) else ():
            made = self._block(block)
            if isinstance(made, Text | Attachment):
                found.append(made)
        return found

    def _block(self, block: object) -> Part | None:
        about = block if isinstance(block, dict) else {}
        kind = about.get("type")
        try:
            if kind == "text" and isinstance(about["text"], str):
                return Text(about["text"])
            if kind == "thinking" and isinstance(about["thinking"], str):
                return Reasoning(about["thinking"])
            if kind == "image":
                return parse_base64(about["data"], about["mimeType"])
            if kind == "toolCall" and isinstance(about["name"], str):
                return parse_tool_call(_call_id(about["id"]), about["name"], about["arguments"])
        except UNEXPECTED_SHAPE as error:
            self.losses.add("a part of a message of unknown shape", str(error))
            return None
        self.losses.add("a part of a message of unknown shape", str(kind))
        return None

    def _answer(self, message: Line) -> EntryRecord | None:
        issuer = ISSUERS.get((str(message.get("api")), str(message.get("provider"))))
        self._model = (text_or_none(message.get("provider")), text_or_none(message.get("model")))
        parts: list[Part] = []
        proofs: dict[str, dict[str, Any]] = {}
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            made = self._block(block)
            if made is None:
                continue
            proof = _proof(issuer, block)
            if proof:
                proofs[str(len(parts))] = proof
            parts.append(made)
        payload: Payload = Message("assistant", tuple(parts))
        if not parts:
            payload = Note({"pi": "a failed answer", "error": text_or_none(message.get("errorMessage"))})
        evidence = Evidence(issuer, proofs) if issuer and proofs else None
        provider, model = self._model
        return EntryRecord(
            payload,
            model=model,
            provider=PROVIDERS.get(provider or "", provider),
            finish=text_or_none(message.get("stopReason")),
            evidence=evidence,
            usage=_usage(message.get("usage")),
        )

    def _result(self, message: Line) -> EntryRecord | None:
        call_id = message.get("toolCallId")
        if not isinstance(call_id, str):
            self.losses.add("a tool result without a call id", str(message.get("toolName")))
            return None
        details = message.get("details")
        kept = {"pi": details} if isinstance(details, dict) and details else None
        content = tuple(self._parts(message.get("content")))
        result = ToolResult(_call_id(call_id), content, message.get("isError") is True, details=kept)
        return EntryRecord(Message("tool", (result,)), usage=_usage(message.get("usage")))

    # -- summaries ---------------------------------------------------------------------------------

    def _compaction(self, line: Line, parent: str | None) -> EntryRecord | None:
        summary, details, tokens = (
            text_or_none(line.get("summary")),
            line.get("details"),
            line.get("tokensBefore"),
        )
        if summary is None:
            self.losses.add("a compaction without a summary")
            return None
        about = details if isinstance(details, dict) else {}
        payload = Compaction(
            summary,
            0,
            tokens if type(tokens) is int and tokens >= 0 else 0,
            _names(about.get("readFiles")),
            _names(about.get("modifiedFiles")),
            replaces_earlier=True,
        )
        return EntryRecord(payload, refers_to=self._first_kept(line, parent), usage=_usage(line.get("usage")))

    def _first_kept(self, line: Line, parent: str | None) -> str | None:
        """The first entry of ours that it keeps: its own may be a change of the model, or it tells how many it keeps."""
        index, tail = line.get("firstKeptEntryIndex"), line.get("retainedTail")
        wanted = f"#{index}" if type(index) is int else line.get("firstKeptEntryId")
        many = len(tail) if isinstance(tail, list) else None
        found: str | None = None
        seen: set[str] = set()
        while parent is not None and parent not in seen:
            seen.add(parent)
            if many is not None and parent in self._real:
                many -= isinstance(self._real[parent].payload, Message)
            found = parent if parent in self._real else found
            if parent == wanted or many == 0:
                return found
            parent = self._parents.get(parent)
        return None


def _bash(message: Line) -> EntryRecord:
    """What the user ran by hand; the model saw it unless it was told not to."""
    command, output, code = (message.get(name) for name in ("command", "output", "exitCode"))
    if message.get("excludeFromContext") is True:
        return EntryRecord(Note({"pi": "bash", "command": command, "output": output, "exit_code": code}))
    ended = "was cancelled" if message.get("cancelled") is True else f"ended with {code}"
    return EntryRecord(
        Message("system", (Text(f"The user ran `{command}`, which {ended}:\n\n{output or '(no output)'}"),))
    )


def _call_id(value: object) -> str:
    """OpenAI's calls have two names there, the call's and its item's."""
    if not isinstance(value, str):
        raise TypeError("a call without an id")
    return value.partition("|")[0] or value


def _proof(issuer: str | None, block: Line) -> dict[str, Any]:
    """What the issuer of a part wants back with it."""
    thinking, said = text_or_none(block.get("thinkingSignature")), text_or_none(block.get("textSignature"))
    if issuer == "anthropic" and thinking:
        return {"data" if block.get("redacted") is True else "signature": thinking}
    if issuer == "gemini":
        signed = gemini_signature(thinking or said or block.get("thoughtSignature"))
        return {"signature": signed} if signed else {}
    if issuer == "openai" and block.get("type") == "toolCall":
        item = str(block.get("id")).partition("|")[2]
        return {"id": item} if item else {}
    if issuer == "openai":
        about = _object(thinking or said)
        wanted = ("id", "encrypted_content") if thinking else ("id", "phase")
        return {key: about[key] for key in wanted if text_or_none(about.get(key))}
    return {}


def _object(signed: str | None) -> Line:
    """An item of OpenAI's as JSON, or, before that, only its id."""
    try:
        found = msgspec.json.decode(signed or "")
    except (*INVALID_JSON, UnicodeEncodeError):
        return {"id": signed}
    return found if isinstance(found, dict) else {}


def _usage(usage: object) -> Usage | None:
    """pi counts what the cache gave or took beside the input; ours is all the model read."""
    found = token_counts(usage, TOKENS)
    if found is None or not any(found):
        return None
    fresh, output, read, written = found
    return Usage(fresh + read + written, output, read, written)


def _names(found: object) -> tuple[str, ...]:
    return tuple(name for name in found if isinstance(name, str)) if isinstance(found, list) else ()
