"""Import opencode: its SQLite file opencode.db, or the folder of JSON files that versions before 1.2 wrote.

A message has parts, and one of the model has one or more steps: each is an answer with its results. An answer that is still
being written, and an input before it has an answer, are left for the next import: their parts are written one by one.
Version 2 writes a message with its parts as one row of `session_message`; a session that both versions wrote is one session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from oakleaf.core.entries import Compaction, Evidence, Note
from oakleaf.core.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.usage import Usage
from oakleaf.errors import InvalidSource
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, recorded_price
from oakleaf.wire.parsing import parse_data_url, parse_tool_call
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    dicts_in,
    first_text,
    gemini_signature,
    json_object,
    known_texts,
    parse_time,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import read_json
from oakleaf_importers.formats.source_files import files_within, only_within
from oakleaf_importers.session_records import EntryList, with_source_losses, with_tasks
from oakleaf_importers.sqlite_files import SourceTables, open_tables

NAME = "opencode"
DATABASES = "opencode*.db"
PROVIDERS = {"google": "gemini", "google-vertex": "gemini"}
ISSUERS = {"anthropic": "anthropic", "openai": "openai", "google": "gemini"}
"""The provider whose signatures an answer holds, by opencode's name of it."""
BOOKKEEPING = {"snapshot", "patch", "step-start", "agent", "retry"}
SESSION_TABLES = ("session", "session_v2")
SWITCHES = {"agent-switched", "model-switched"}
"""Messages of version 2 that no model sees: each answer names its model."""
NOT_THERE = "a file that is not in the session"
UNANSWERED = "an input without an answer; import again when it has one"

Fields = dict[str, Any]


class SourceSession(Struct, frozen=True):
    """A session in either layout; messages and parts are read on demand."""

    session_id: str
    parent_id: str | None
    fields: Fields
    messages: Callable[[], list[tuple[Fields, list[Fields]]]]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    path = Path(source).expanduser()
    if not path.exists():
        raise InvalidSource(source, NAME, "there is no such file or folder")
    losses = LossReport()
    yield from with_source_losses(NAME, _read_places(path, losses), losses)


def _source_of(root: Path, file: Path) -> Path | None:
    if file.suffix != ".json" or "storage" not in file.parts:
        return None
    return Path(*file.parts[: file.parts.index("storage")])


IMPORTER = Importer(
    source="opencode.db, or the folder that opencode keeps it in",
    sessions=read_sessions,
    default_paths=("~/.local/share/opencode",),
    source_of=_source_of,
    versions="2, 1.18, and before",
)


def _read_places(path: Path, losses: LossReport) -> Iterator[SessionRecord]:
    """Yield the sessions of the databases, then the sessions found only in JSON files."""
    databases = [path] if path.is_file() else files_within(path, losses, DATABASES)
    storage = path / "storage" if (path / "storage").is_dir() else path
    if not databases and not losses and not (storage / "session").is_dir():
        raise InvalidSource(str(path), NAME, "the folder has neither opencode.db nor storage/session")
    session_ids: set[str] = set()
    for database in databases:
        with open_tables(str(database), NAME, *SESSION_TABLES) as tables:
            sessions = _database_sessions(tables, losses)
            session_ids |= sessions.keys()
            yield from _with_tasks(sessions)
    if path.is_dir() and (storage / "session").is_dir():
        files = _file_sessions(storage, losses)
        yield from _with_tasks({name: each for name, each in files.items() if name not in session_ids})


def _with_tasks(sessions: dict[str, SourceSession]) -> Iterator[SessionRecord]:
    def read(name: str, tasks: tuple[SessionRecord, ...]) -> SessionRecord | None:
        record = OpencodeSession(sessions[name]).record(tasks)
        return None if record.is_empty else record

    yield from with_tasks({name: session.parent_id for name, session in sessions.items()}, read)


# -- the two layouts -------------------------------------------------------------------------------


def _database_sessions(tables: SourceTables, losses: LossReport) -> dict[str, SourceSession]:
    sessions: dict[str, SourceSession] = {}
    order = "time_created, id"
    rows = (row for table in SESSION_TABLES for row in tables.rows(table, order=order))
    for row in rows:
        name = text_or_none(row.get("id"))
        if name is None:
            losses.misread("a session without an id")
            continue

        def messages(name: str = name) -> list[tuple[Fields, list[Fields]]]:
            parts: dict[object, list[Fields]] = {}
            for part in tables.rows("part", "session_id = ?", name, order="message_id, id"):
                parts.setdefault(part.get("message_id"), []).append(
                    {"id": part.get("id"), **json_object(part.get("data"))}
                )
            older = [
                ({"id": each.get("id"), **json_object(each.get("data"))}, parts.get(each.get("id"), []))
                for each in tables.rows("message", "session_id = ?", name, order=order)
            ]
            present = {each.get("id") for each, _ in older}
            newer = sorted(tables.rows("session_message", "session_id = ?", name, order=order), key=_seq)
            return older + [
                ({**json_object(each.get("data")), "id": each.get("id"), "type": each.get("type")}, [])
                for each in newer
                if each.get("id") not in present
            ]

        fields = {
            **row,
            "revert": json_object(row.get("revert")),
            "time": {"created": row.get("time_created")},
        }
        sessions[name] = SourceSession(name, text_or_none(row.get("parent_id")), fields, messages)
    return sessions


def _seq(row: Fields) -> int:
    seq = row.get("seq")
    return seq if type(seq) is int else 0


def _file_sessions(storage: Path, losses: LossReport) -> dict[str, SourceSession]:
    sessions: dict[str, SourceSession] = {}

    def stored(kind: str, name: str) -> list[Path]:
        folder = storage / kind / name
        return only_within(storage, files_within(folder, losses, "*.json"), losses) if folder.is_dir() else []

    for path in files_within(storage, losses, "session/*/*.json"):
        fields = _read_json(path, losses)
        name = text_or_none(fields.get("id"))
        if name is None or Path(name).name != name or name.startswith("."):
            losses.misread("a session file without an id", path.name)
            continue

        def messages(name: str = name) -> list[tuple[Fields, list[Fields]]]:
            messages_read = []
            for path in stored("message", name):
                parts = stored("part", path.stem)
                messages_read.append((_read_json(path, losses), [_read_json(part, losses) for part in parts]))
            return messages_read

        sessions[name] = SourceSession(name, text_or_none(fields.get("parentID")), fields, messages)
    return sessions


def _read_json(path: Path, losses: LossReport) -> Fields:
    value = read_json(path, losses)
    if isinstance(value, dict):  # without what the path says
        return {name: field for name, field in value.items() if name not in ("sessionID", "messageID")}
    losses.misread("a file that is not a JSON object", path.name)
    return {}


# -- one session -----------------------------------------------------------------------------------


class OpencodeSession(EntryList):
    """Reads one session."""

    def __init__(self, source: SourceSession) -> None:
        super().__init__(NAME)
        self.source = source
        self.unfinished = 0
        self.firsts: dict[str, int] = {}
        """By message: the index its entries start at."""
        self._messages = source.messages()
        for index, (message, parts) in enumerate(self._messages):
            self.firsts[str(message.get("id"))] = len(self.entries)
            self._read(message, parts, is_last=index == len(self._messages) - 1)

    def record(self, tasks: tuple[SessionRecord, ...]) -> SessionRecord:
        fields = self.source.fields
        return self.to_record(
            self.source.session_id,
            leaf=self._leaf(),
            title=text_or_none(fields.get("title")),
            agent=text_or_none(fields.get("agent")) or NAME,
            started_at=_time(fields, "created"),
            tags=known_texts(cwd=fields.get("directory"), version=fields.get("version")),
            tasks=tasks,
            unfinished=self.unfinished,
        )

    def _leaf(self) -> str | None:
        """Return the entry before the message of the user's rewind."""
        target = as_dict(self.source.fields.get("revert")).get("messageID")
        index = self.firsts.get(target) if isinstance(target, str) else None
        if index is None:
            return None
        return (self.entries[index - 1].key if index else START) if index <= len(self.entries) else None

    def _read(self, message: Fields, parts: list[Fields], *, is_last: bool) -> None:
        role = message.get("role")
        if "type" in message:
            self._read_newer(message, is_last=is_last)
        elif role == "user" and is_last:
            self.losses.add(UNANSWERED, str(message.get("id")))
        elif role == "user":
            self._input(message, parts)
        elif role == "assistant":
            if is_last and not _is_done(message):
                self.unfinished += 1
            elif message.get("summary") is True:
                self._summary(message, parts)
            else:
                OpencodeAnswer(self, message, parts)
        else:
            self.add_unknown(f"role {role}", message, _time(message, "created"))

    def _read_newer(self, message: Fields, *, is_last: bool) -> None:
        """Read a message of version 2."""
        kind, at, text = message["type"], _time(message, "created"), message.get("text")
        if is_last and kind in ("assistant", "shell") and not _is_done(message):
            self.unfinished += 1
        elif kind == "assistant":
            answer = {**message, **_model_names(message)}
            OpencodeAnswer(self, answer, [_older_part(part) for part in dicts_in(message.get("content"))])
        elif kind == "user" and isinstance(text, str):
            files = [self.attachment(file, "uri", "name") for file in dicts_in(message.get("files"))]
            texts = [Text(text)] if text else []
            if texts or files:
                self.add(Message("user", (*texts, *files)), at)
        elif kind in ("system", "synthetic") and isinstance(text, str):
            self.add(Message("system", (Text(text),)), at)
        elif kind == "shell":
            words = f"Shell command: {message.get('command')}\n\n{message.get('output')}"
            self.add(Message("system", (Text(words),)), at)
        elif kind == "compaction" and isinstance(message.get("summary"), str):
            summary = "\n\n".join(known_texts(a=message["summary"], b=message.get("recent")).values())
            self.add(Compaction(summary, 0, replaces_earlier=True), at)
        elif str(kind) not in SWITCHES:
            self.add_unknown(kind, message, at)

    def _input(self, message: Fields, parts: list[Fields]) -> None:
        """Add an input; opencode's additions, such as the text of a mentioned file, follow as a system message."""
        at = _time(message, "created")
        own: list[Text | Attachment] = []
        added: list[Text | Attachment] = []
        for part in parts:
            kind, text = part.get("type"), part.get("text")
            if kind == "text" and isinstance(text, str):
                if part.get("ignored") is True:
                    self.add(Note({NAME: "text the model did not see", "text": text}), at)
                elif text:
                    (added if part.get("synthetic") is True else own).append(Text(text))
            elif kind == "subtask" and isinstance(part.get("prompt"), str):
                own.append(Text(part["prompt"]))
            elif kind == "file":
                own.extend(self._file(part))
            elif kind not in ("compaction", *BOOKKEEPING):
                self.add_unknown(kind, part, at)
        if own:
            self.add(Message("user", tuple(own)), at)
            texts = tuple(part for part in added if isinstance(part, Text))
            if texts:
                self.add(Message("system", texts), at)
        elif added:
            self.add(Message("user", tuple(added)), at)

    def _file(self, part: Fields) -> Iterator[Text | Attachment]:
        if part.get("mime") not in (
            "text/plain",
            "application/x-directory",
        ):  # their text is a part of its own
            yield self.attachment(part, "url", "filename")

    def attachment(self, file: Fields, url: str, name: str) -> Text | Attachment:
        """Return a file; a text instead, and a loss, without the bytes."""
        shown = first_text(file, name, "mime")
        attachment = parse_data_url(text_or_none(file.get(url)), text_or_none(file.get(name)))
        if attachment is not None:
            return attachment
        self.losses.add(NOT_THERE, shown or "")
        return Text(f"[file {shown}: not in the session]")

    def _summary(self, message: Fields, parts: list[Fields]) -> None:
        """Add a compaction. The message it answers names the first message that was kept."""
        text = "".join(part["text"] for part in parts if part.get("type") == "text" and _is_text(part))
        finished = [part for part in parts if part.get("type") == "step-finish"]
        usage = _usage_fields(finished[-1] if finished else message, message)
        at = _time(message, "created")
        if not text:
            self.add(Note({NAME: "a failed compaction", "error": _json_error(message)}), at, **usage)
            return
        first_kept = self._first_kept(message)
        self.add(Compaction(text, 0, replaces_earlier=True), at, refers_to=first_kept, **usage)

    def _first_kept(self, message: Fields) -> str | None:
        parent = message.get("parentID")
        request = next((parts for each, parts in self._messages if parent and each.get("id") == parent), [])
        tails = [part.get("tail_start_id") for part in request if part.get("type") == "compaction"]
        index = self.firsts.get(str(tails[0])) if tails else None
        return self.entries[index].key if index is not None and index < len(self.entries) else None


class OpencodeAnswer:
    """Adds the steps of one message of the model."""

    def __init__(self, session: OpencodeSession, message: Fields, parts: list[Fields]) -> None:
        self.session, self.message = session, message
        self.at = _time(message, "created")
        self.issuer = ISSUERS.get(str(message.get("providerID")))
        self._parts: list[Part] = []
        self._proofs: dict[str, dict[str, Any]] = {}
        self._results: list[EntryRecord] = []
        self._has_usage = any(part.get("type") == "step-finish" for part in parts)
        for part in parts:
            try:
                self._read(part)
            except UNEXPECTED_SHAPE:
                self._unknown(part)
        usage = {} if self._has_usage else _usage_fields(message, message)
        if self._parts or self._results or usage.get("usage") is not None or "error" in message:
            self._finish(usage)

    def _read(self, part: Fields) -> None:
        kind = part.get("type")
        if kind == "text" and isinstance(part["text"], str):
            self._add(Text(part["text"]) if part["text"] else None, part)
        elif kind == "reasoning" and isinstance(part["text"], str):
            self._add(Reasoning(part["text"]), part)
        elif kind == "tool" and isinstance(part["tool"], str) and isinstance(part["callID"], str):
            call = parse_tool_call(part["callID"], part["tool"], part["state"].get("input"))
            self._results.append(self._result(call, part["state"]))
            self._add(call, part)
        elif kind == "file":
            attachment = parse_data_url(part.get("url"), part.get("filename"))
            if attachment is None:
                raise ValueError("a file without bytes")
            self._add(attachment, part)
        elif kind == "step-finish":
            self._finish(_usage_fields(part, self.message))
        elif kind not in BOOKKEEPING:
            self._unknown(part)

    def _unknown(self, part: Fields) -> None:
        self.session.add_unknown(part.get("type"), part, self.at)

    def _add(self, piece: Part | None, part: Fields) -> None:
        if piece is None:
            return
        proof = _proof(self.issuer, part.get("metadata"))
        if proof:
            self._proofs[str(len(self._parts))] = proof
        self._parts.append(piece)

    def _result(self, call: ToolCall, state: Fields) -> EntryRecord:
        status = state["status"]
        at = _time(state, "end")
        details = {name: state[name] for name in ("title", "metadata") if state.get(name)}
        extra = {NAME: details} if details else None
        if status == "error":
            content: list[Text | Attachment] = [Text(str(state.get("error")))]
            result = ToolResult(call.id, tuple(content), True, details=extra)
        elif status == "completed":
            content = [Text(state["output"])] if state.get("output") else []
            content += [
                self.session.attachment(file, "url", "filename") for file in state.get("attachments") or ()
            ]
            result = ToolResult(call.id, tuple(content), details=extra)
        else:  # the process ended before the tool did
            result = ToolResult(call.id, (Text("The call was interrupted."),), True, "interrupted")
        return EntryRecord(Message("tool", (result,)), at=at)

    def _finish(self, usage: Fields) -> None:
        """Add the answer of one step, then the results."""
        error = _json_error(self.message) if "error" in self.message else None
        if not self._parts:
            if usage.get("usage") is not None or error:
                self.session.add(Note({NAME: "a failed answer", "error": error}), self.at, **usage)
            return
        evidence = Evidence(self.issuer, self._proofs) if self.issuer and self._proofs else None
        self.session.add(Message("assistant", tuple(self._parts)), self.at, evidence=evidence, **usage)
        for entry in self._results:
            self.session.append(entry)
            self.at = entry.at or self.at
        self._parts, self._proofs, self._results = [], {}, []


def _model_names(message: Fields) -> Fields:
    """Return the names of the model in version 1's form."""
    model = as_dict(message.get("model"))
    return {"modelID": model.get("id"), "providerID": model.get("providerID")}


def _older_part(part: Fields) -> Fields:
    """Return a part of an answer of version 2 in version 1's form."""
    if part.get("type") != "tool":
        return {**part, "metadata": part.get("providerMetadata")}
    state, time = as_dict(part.get("state")), as_dict(part.get("time"))
    content = dicts_in(state.get("content"))
    output = "\n".join(piece["text"] for piece in content if _is_text(piece))
    files = [
        {"url": piece.get("uri"), "filename": piece.get("name"), "mime": piece.get("mime")}
        for piece in content
        if piece.get("type") == "file"
    ]
    error = "\n".join(known_texts(a=as_dict(state.get("error")).get("message"), b=output).values())
    about = {"metadata": state.get("structured"), "time": {"end": time.get("completed")}}
    older = {"status": state.get("status"), "input": state.get("input"), "output": output, "error": error}
    return {
        "type": "tool",
        "callID": part.get("id"),
        "tool": part.get("name"),
        "metadata": as_dict(part.get("provider")).get("metadata"),
        "state": {**older, "attachments": files, **about},
    }


def _usage_fields(step: Fields, message: Fields) -> Fields:
    """Return the fields of an entry about its model call."""
    provider = text_or_none(message.get("providerID"))
    fields: Fields = {
        "model": text_or_none(message.get("modelID")),
        "provider": PROVIDERS.get(provider or "", provider),
        "finish": first_text(step, "reason") or first_text(message, "finish"),
    }
    tokens = as_dict(step.get("tokens"))
    counts = token_counts(tokens, ("input", "output", "reasoning"))
    cached = token_counts(tokens.get("cache", {}), ("read", "write"))
    if counts is not None and cached is not None and any((*counts, *cached)):
        fresh, output, reasoning = counts
        fields["usage"] = Usage(fresh + sum(cached), output + reasoning, *cached)
        fields["price"] = recorded_price(step.get("cost"), NAME)
    return fields


def _proof(issuer: str | None, metadata: object) -> dict[str, Any]:
    """Return the signatures and ids the provider expects back with a part."""
    fields = as_dict(as_dict(metadata).get("google" if issuer == "gemini" else issuer or ""))
    if issuer == "anthropic":
        return known_texts(signature=fields.get("signature"), data=fields.get("redactedData"))
    if issuer == "gemini":
        return known_texts(signature=gemini_signature(fields.get("thoughtSignature")))
    encrypted = fields.get("reasoningEncryptedContent")
    return known_texts(id=fields.get("itemId"), encrypted_content=encrypted)


def _json_error(message: Fields) -> str:
    error = message.get("error")
    text = first_text(as_dict(as_dict(error).get("data")), "message") or first_text(as_dict(error), "message")
    return text or (str(error.get("name")) if isinstance(error, dict) else "unknown")


def _time(fields: Fields, name: str) -> int | None:
    return parse_time(as_dict(fields.get("time")).get(name))


def _is_done(message: Fields) -> bool:
    return bool(as_dict(message.get("time")).get("completed")) or "error" in message


def _is_text(part: Fields) -> bool:
    return isinstance(part.get("text"), str)
