"""Import gemini-cli: chats/session-….jsonl, or the .json files of older versions, with the files of sub-agents.

A message is written again whenever its calls or tokens are known, and once more when older results are cut from the context:
the last version before another message follows is the one that counts. Nothing marks the end of an answer, so the last
one is left for the next import until its file has been quiet for a while: calls may still be added to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Message, Part, Reasoning, Text, ToolResult
from oakleaf.core.usage import Usage
from oakleaf.errors import InvalidSource
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, LossReport, SessionRecord, stable_call_id
from oakleaf.wire.gemini.parse import parse_history
from oakleaf.wire.parsing import parse_tool_call
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    as_list,
    dicts_in,
    known_texts,
    parse_time,
    required_text,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import read_json, read_objects, seconds_since_written
from oakleaf_importers.formats.source_files import find_files
from oakleaf_importers.session_records import EntryTree, with_source_losses, with_tasks, without_empty

NAME = "gemini-cli"
PROVIDER = "gemini"
QUIET_SECONDS = 120
"""An answer of a file that was written within this time may not be finished: its calls may still run."""
SCREEN_TYPES = ("info", "error", "warning")
COMMAND_PREFIXES = ("/", "?")
CONTEXT_PREFIXES = ("<session_context>", "<hook_context>")
TOKENS = ("input", "output", "cached", "thoughts", "tool")

Line = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    yield from with_source_losses(NAME, _sessions(source, losses), losses)


def _source_of(root: Path, file: Path) -> Path | None:
    if file.suffix not in (".json", ".jsonl") or "chats" not in file.parts:
        return None
    return file if file.name.startswith("session-") else file.parent.parent.parent


IMPORTER = Importer(
    source="its folder ~/.gemini/tmp, or one session file in it",
    sessions=read_sessions,
    default_paths=("~/.gemini/tmp",),
    source_of=_source_of,
    versions="0.56, and before",
)


def _sessions(source: str, losses: LossReport) -> Iterator[SessionRecord]:
    """Yield every session with the sub-agents, stored in a folder of the same name."""
    try:
        files = find_files(source, NAME, losses, "**/chats/**/*.jsonl", "**/chats/**/session-*.json")
    except InvalidSource:
        files = find_files(source, NAME, losses, "**/session-*.jsonl", "**/session-*.json")
    files = [each for each in files if each.suffix == ".jsonl" or each.with_suffix(".jsonl") not in files]
    chats = [GeminiChat(each, losses) for each in files]
    by_name = {chat.name: chat for chat in chats}
    parents = {chat: by_name.get(chat.path.parent.name) if chat.is_task else None for chat in chats}
    yield from without_empty(with_tasks(parents, GeminiChat.record))


class GeminiChat(EntryTree):
    """Reads one session file."""

    def __init__(self, path: Path, source_losses: LossReport) -> None:
        super().__init__(NAME)
        self.path = path
        self.metadata: Line = {}
        self._messages: dict[str, Line] = {}
        """The messages on the current path that are not converted yet, by id: only the last one may change."""
        self._path: list[tuple[str, str]] = []
        """The ids of the converted messages of the current path, and the key of the last entry of each."""
        self._known: set[str] = set()
        """The ids in `_path`."""
        self._answered: set[str] = set()
        self._without_id: list[tuple[str, str]] = []
        """The calls of the last answer that Gemini gave no id: name, and the id here. Their responses have one of the tool's."""
        for line in self._lines(source_losses):
            self._read(line)
        self.unfinished = 0
        is_finished = seconds_since_written(path) >= QUIET_SECONDS
        for message in self._messages.values():
            if message.get("type") == "gemini" and not is_finished:
                self.unfinished += 1
            else:
                self._convert(message)

    @property
    def name(self) -> str:
        return text_or_none(self.metadata.get("sessionId")) or self.path.stem

    @property
    def is_task(self) -> bool:
        return self.metadata.get("kind") == "subagent"

    def record(self, tasks: tuple[SessionRecord, ...]) -> SessionRecord:
        about = self.metadata
        return self.to_record(
            self.name,
            title=text_or_none(about.get("summary")),
            agent="subagent" if self.is_task else NAME,
            started_at=parse_time(about.get("startTime")),
            tags=known_texts(project=about.get("projectHash")),
            tasks=tasks,
            unfinished=self.unfinished,
        )

    def _lines(self, source_losses: LossReport) -> Iterator[Line]:
        if self.path.suffix == ".jsonl":
            yield from read_objects(self.path, self.losses)
            return
        value = read_json(self.path, self.losses)
        if isinstance(value, dict):
            yield value
        else:
            source_losses.misread("a file that is not a JSON object", self.path.name)

    # -- lines -------------------------------------------------------------------------------------

    def _read(self, line: Line) -> None:
        if isinstance(line.get("$rewindTo"), str):
            self._rewind(line["$rewindTo"])
        elif isinstance(line.get("id"), str):
            self._read_message(line)
        elif isinstance(line.get("$set"), dict):
            changes = line["$set"]
            if isinstance(changes.get("messages"), list):
                self._read_checkpoint(dicts_in(changes["messages"]))
            self.metadata |= {name: value for name, value in changes.items() if name != "messages"}
        elif isinstance(line.get("sessionId"), str):
            self.metadata |= {name: value for name, value in line.items() if name != "messages"}
            for message in as_list(line.get("messages")):
                if isinstance(message, dict) and isinstance(message.get("id"), str):
                    self._read_message(message)
                else:
                    self.losses.misread("a message without an id")
        else:
            self.add_unknown("line", line, None)

    def _read_message(self, message: Line) -> None:
        name = message["id"]
        if name in self._messages:
            self._messages[name] = message
        elif name not in self._known:
            self._convert_waiting()
            self._messages[name] = message

    def _convert_waiting(self) -> None:
        for message in self._messages.values():
            self._convert(message)
        self._messages.clear()

    def _rewind(self, name: str) -> None:
        """Go back to before a message: later messages form a branch."""
        self._convert_waiting()
        index = next((n for n, (message_id, _) in enumerate(self._path) if message_id == name), 0)
        self._known.difference_update(message_id for message_id, _ in self._path[index:])
        del self._path[index:]
        self.tip = self._path[-1][1] if self._path else START

    def _read_checkpoint(self, messages: list[Line]) -> None:
        """Add a compaction if new messages replace the beginning. Results cut from old messages stay as they were."""
        ids = self._known | self._messages.keys()
        names = [text_or_none(each.get("id")) for each in messages]
        new = [each for each, name in zip(messages, names, strict=True) if name not in ids]
        known_ids = [name for name in names if name in ids]
        if not new or len(known_ids) == len(ids):
            for message in new:
                if isinstance(message.get("id"), str):
                    self._read_message(message)
            return
        self._convert_waiting()
        summary = "\n\n".join(filter(None, (_text(each.get("content")) for each in new)))
        first = next((key for name, key in self._path if name in known_ids), None)
        if summary:
            at = parse_time(new[0].get("timestamp"))
            self.add(Compaction(summary, 0, replaces_earlier=True), at, refers_to=first)
        for each in new:
            self._remember(str(each.get("id")))

    # -- messages ----------------------------------------------------------------------------------

    def _convert(self, message: Line) -> None:
        kind, at = message.get("type"), parse_time(message.get("timestamp"))
        try:
            if kind == "user":
                self._input(message, at)
            elif kind == "gemini":
                self._answer(message, at)
            elif kind in SCREEN_TYPES:
                self.add(Note({NAME: kind, "text": _text(message.get("content"))}), at)
            else:
                self.add_unknown(kind, message, at)
        except UNEXPECTED_SHAPE:
            self.add_unknown(kind, message, at)
        self._remember(message["id"])

    def _remember(self, name: str) -> None:
        self._path.append((name, self.tip))
        self._known.add(name)

    def _input(self, message: Line, at: int | None) -> None:
        text = _text(message.get("content")).strip()
        if text.startswith(COMMAND_PREFIXES):
            self.add(Note({NAME: "command", "text": text}), at)
            return
        if text.startswith(CONTEXT_PREFIXES):
            self.add(Message("system", (Text(text),)), at)
            return
        parts = [self._with_call_id(part) for part in _parts(message.get("content"))]
        for parsed in parse_history([{"role": "user", "parts": parts}]):
            results = [result for result in parsed.message.results if result.call_id in self._answered]
            if parsed.message.parts and not results:
                self.add(parsed.message, at)

    def _answer(self, message: Line, at: int | None) -> None:
        calls = [call for call in message.get("toolCalls") or () if isinstance(call, dict)]
        parts = self._with_ids(_parts(message.get("content")), message["id"], calls)
        (parsed,) = parse_history([{"role": "model", "parts": parts}])
        message_parts: list[Part] = list(parsed.message.parts)
        is_complete = any(isinstance(part, Reasoning) for part in message_parts) or parsed.message.calls
        if not is_complete:
            message_parts = [*map(_reasoning, message.get("thoughts") or ()), *message_parts]
            message_parts += [
                parse_tool_call(_call_id(call), call["name"], call.get("args")) for call in calls
            ]
        usage = _usage(message.get("tokens"))
        about: dict[str, Any] = {
            "model": text_or_none(message.get("model")),
            "provider": PROVIDER,
            "call_id": stable_call_id(NAME, self.name, message["id"]),
        }
        if message_parts:
            evidence = parsed.evidence if is_complete else None
            self.add(Message("assistant", tuple(message_parts)), at, evidence=evidence, usage=usage, **about)
        elif usage is not None:
            self.add(Note({NAME: "an empty answer"}), at, usage=usage, **about)
        for call in calls:
            self._result(call, at)

    def _with_ids(self, parts: list[Any], message_id: str, calls: list[Line]) -> list[Any]:
        """Return the parts of an answer with an id for each call, if possible from the tool's record."""
        records, self._without_id = list(calls), []
        named = []
        for index, part in enumerate(parts):
            call = as_dict(as_dict(part).get("functionCall"))
            if call and not call.get("id"):
                record = next((each for each in records if each.get("name") == call.get("name")), None)
                if record is not None:
                    records.remove(record)
                    call = {**call, "id": _call_id(record)}
                else:
                    call = {**call, "id": f"{message_id}-{index}"}
                    self._without_id.append((str(call.get("name")), call["id"]))
                part = {**part, "functionCall": call}
            named.append(part)
        return named

    def _with_call_id(self, part: Any) -> Any:
        """Return a response with the id of the answered call: the first call of the name, if calls came
        without ids.
        """
        response = as_dict(as_dict(part).get("functionResponse"))
        waiting = next((each for each in self._without_id if each[0] == response.get("name")), None)
        if not response or waiting is None:
            return part
        self._without_id.remove(waiting)
        return {**part, "functionResponse": {**response, "id": waiting[1]}}

    def _result(self, call: Line, at: int | None) -> None:
        status, name = call.get("status"), _call_id(call)
        value = call.get("result")
        if value is None and status not in ("success", "error", "cancelled"):
            return
        content: list[Any] = []
        is_error = status in ("error", "cancelled")
        for part in _parts(value):
            for parsed in parse_history([{"role": "user", "parts": [part]}]):
                for piece in parsed.message.parts:
                    if isinstance(piece, ToolResult):
                        content += piece.content
                        is_error = is_error or piece.error
                    else:
                        content.append(piece)
        outcome: Any = "interrupted" if status == "cancelled" else "done"
        display = as_dict(call.get("resultDisplay"))
        details = {NAME: {"display": display}} if display else None
        result = ToolResult(name, tuple(content), is_error, outcome, details=details)
        self._answered.add(name)
        self.add(Message("tool", (result,)), parse_time(call.get("timestamp")) or at)


def _call_id(call: Line) -> str:
    required_text(call.get("name"), "a tool call without a name")
    return required_text(call.get("id"), "a tool call without an id")


def _parts(content: object) -> list[Any]:
    """Return a content as a list of parts: text alone, one part, or a list of both."""
    if content is None or content == "":
        return []
    parts = content if isinstance(content, list) else [content]
    return [{"text": part} if isinstance(part, str) else part for part in parts]


def _text(content: object) -> str:
    texts = (part.get("text") for part in _parts(content) if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _reasoning(data: object) -> Reasoning:
    fields = as_dict(data)
    texts = known_texts(subject=fields.get("subject"), description=fields.get("description"))
    return Reasoning("\n".join(texts.values()))


def _usage(tokens: object) -> Usage | None:
    counts = token_counts(tokens, TOKENS)
    if counts is None or not any(counts):
        return None
    prompt, answer, cached, thoughts, tool = counts
    return Usage(prompt + tool, answer + thoughts, cached)
