"""Import Cline: SESSION.messages.json of versions since 4, and the task folders of earlier ones, which Roo Code writes as well.

A task folder has the messages as the model saw them (api_conversation_history.json), and what the screen showed
(ui_messages.json): there, each request has its tokens and cost. A request belongs to the answer that follows it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Message, Reasoning, Text, system
from oakleaf.core.usage import Price, Usage
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import LossReport, SessionRecord, recorded_price
from oakleaf_importers.formats.anthropic_blocks import read_blocks
from oakleaf_importers.formats.json_values import (
    as_dict,
    as_list,
    dicts_in,
    first_text,
    json_object,
    known_texts,
    parse_time,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import read_json
from oakleaf_importers.formats.source_files import config_folders, find_files
from oakleaf_importers.session_records import (
    EntryList,
    note_newer,
    with_source_losses,
    with_tasks,
    without_empty,
)

NAME = "cline"
HISTORY, SCREEN = "api_conversation_history.json", "ui_messages.json"
METADATA, ITEM, INDEX = "task_metadata.json", "history_item.json", "taskHistory.json"
SUFFIX = ".messages.json"
REQUESTS = ("api_req_started", "subagent_usage", "deleted_api_reqs")
TOKENS = ("tokensIn", "tokensOut", "cacheReads", "cacheWrites")
METRICS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
PROVIDERS = {"google": "gemini", "openai-native": "openai", "openai-codex": "openai", "vertex": "google"}
MODEL_IN_TEXT = re.compile(r"<model>([^<]+)</model>")

Fields = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    yield from read_tasks(source, NAME)


def task_source(root: Path, file: Path) -> Path | None:
    """Return the source of a task's file: with a parent task, the whole folder of tasks."""
    if file.name.endswith(SUFFIX):
        is_child = file.name.removesuffix(SUFFIX) != file.parent.name
        return file.parent if is_child else file
    history = file.with_name(HISTORY)
    if file.suffix != ".json" or not history.is_file():
        return None
    item = as_dict(read_json(file.with_name(ITEM), LossReport(), within=file.parent))
    return file.parent.parent if item.get("parentTaskId") else history


IMPORTER = Importer(
    source="its data folder ~/.cline/data, the extension's folder in globalStorage, or one file of a task",
    sessions=read_sessions,
    default_paths=("~/.cline/data", *config_folders("Code/User/globalStorage/saoudrizwan.claude-dev")),
    source_of=task_source,
    versions="4.1, and before",
)


def read_tasks(source: str, tool: str) -> Iterator[SessionRecord]:
    """Yield every session and task below a folder, or the session or task of a file."""
    losses = LossReport()
    files = find_files(source, tool, losses, f"**/{HISTORY}", f"**/*{SUFFIX}")
    transcripts: dict[str, ClineTranscript] = {
        path.parent.name: ClineTask(path.parent, tool, losses) for path in files if path.name == HISTORY
    }
    for path in files:
        if path.name != HISTORY:
            transcripts[path.name.removesuffix(SUFFIX)] = ClineSession(path, tool, losses)
    parents = {name: transcript.parent for name, transcript in transcripts.items()}
    records = with_tasks(parents, lambda name, tasks: transcripts[name].record(name, tasks))
    yield from with_source_losses(tool, without_empty(records), losses)


class RequestUsage(Struct, frozen=True):
    """The usage of one model call, as shown on the screen."""

    at: int
    usage: Usage
    price: Price | None


class ClineTranscript(EntryList):
    """The entries of one session: messages with Anthropic's blocks, whichever provider answered."""

    def __init__(self, path: Path, tool: str) -> None:
        super().__init__(tool)
        self.path = path
        self.seeds: tuple[Message, ...] = ()
        self.title: str | None = None
        self.agent = tool
        self.parent: str | None = None
        self.tags: dict[str, str] = {}
        self.started_at: int | None = None
        self._thoughts: list[Reasoning] = []

    def record(self, name: str, tasks: tuple[SessionRecord, ...]) -> SessionRecord:
        return self.to_record(
            name,
            seeds=self.seeds,
            title=self.title,
            agent=self.agent,
            started_at=self.started_at,
            tags=self.tags,
            tasks=tasks,
        )

    def add_message(self, message: Fields, at: int | None, about: Fields) -> None:
        """Add a message; `about` names the answering model and the usage."""
        if message.get("type") == "reasoning":  # an item of its own, before the answer
            self._add_thought(message)
            return
        blocks = read_blocks(self.tool, message.get("content"), self.losses)
        for note in blocks.notes:
            self.add(note, at)
        role = message.get("role")
        if role == "assistant":
            parts = (*self._thoughts, *blocks.parts)
            evidence = (
                blocks.evidence if about.get("provider") == "anthropic" and not self._thoughts else None
            )
            self._thoughts = []
            if parts:
                self.add(Message("assistant", parts), at, evidence=evidence, **about)
            elif about.get("usage") is not None:
                self.add(Note({self.tool: "an empty answer"}), at, **about)
        elif role == "user":
            for result in blocks.results:
                self.add(Message("tool", (result,)), at)
            if blocks.input_parts:
                self.add(Message("user", blocks.input_parts), at)
        elif not blocks.notes:
            self.add_unknown(f"role {role}", message, at)

    def _add_thought(self, message: Fields) -> None:
        texts = (each.get("text") for each in dicts_in(message.get("summary")))
        text = "\n\n".join(each for each in texts if isinstance(each, str)) or first_text(message, "text")
        if text:
            self._thoughts.append(Reasoning(text))
        else:
            self.losses.add("reasoning that only its provider can read")


class ClineTask(ClineTranscript):
    """A task folder."""

    def __init__(self, path: Path, tool: str, source_losses: LossReport) -> None:
        super().__init__(path, tool)
        messages = dicts_in(_read_file(path / HISTORY, source_losses))
        self._requests = self._read_requests()
        self._models = self._read_models()
        self._describe()
        self._read(messages)

    def _describe(self) -> None:
        item = read_json(self.path / ITEM, LossReport(), within=self.path)
        if not isinstance(item, dict):
            root = self.path.parent.parent
            index = dicts_in(read_json(root / "state" / INDEX, LossReport(), within=root))
            item = next((each for each in index if each.get("id") == self.path.name), {})
        self.title = text_or_none(item.get("task"))
        self.parent = text_or_none(item.get("parentTaskId"))
        cwd = first_text(item, "workspace", "cwdOnTaskInitialization")
        self.tags = known_texts(cwd=cwd, mode=item.get("mode"))
        if self.path.name.isdecimal():  # the id is the time it was started
            self.started_at = parse_time(int(self.path.name))

    def _read_requests(self) -> list[RequestUsage]:
        requests = []
        for each in dicts_in(_read_file(self.path / SCREEN, self.losses, within=self.path)):
            if each.get("say") not in REQUESTS:
                continue
            fields = json_object(each.get("text"))
            if "tokensIn" not in fields and "tokensOut" not in fields:
                continue  # it has not ended
            counts = token_counts({name: fields.get(name) or 0 for name in TOKENS}, TOKENS)
            if counts is None:
                self.losses.add("usage that is not a count of tokens")
            elif any(counts):
                at = parse_time(each.get("ts")) or 0
                requests.append(
                    RequestUsage(at, self._usage(counts), recorded_price(fields.get("cost"), self.tool))
                )
        return sorted(requests, key=lambda request: request.at)

    def _usage(self, counts: tuple[int, ...]) -> Usage:
        """Convert usage: Cline counts cached tokens beside the input, Roo Code within it."""
        tokens, output, read, written = counts
        is_within = self.tool != NAME and read + written <= tokens
        return Usage(tokens if is_within else tokens + read + written, output, read, written)

    def _read_models(self) -> list[tuple[int, str, str | None]]:
        metadata = as_dict(read_json(self.path / METADATA, LossReport(), within=self.path))
        return [
            (parse_time(each.get("ts")) or 0, each["model_id"], text_or_none(each.get("model_provider_id")))
            for each in dicts_in(metadata.get("model_usage"))
            if text_or_none(each.get("model_id"))
        ]

    def _read(self, messages: list[Fields]) -> None:
        times = [parse_time(each.get("ts")) for each in messages]
        answers = [
            index
            for index, each in enumerate(messages)
            if each.get("role") == "assistant" and "type" not in each
        ]
        used, unanswered = self._match(answers, times)
        named: str | None = None
        for index, message in enumerate(messages):
            for failed in unanswered.pop(index, ()):
                note = Note({self.tool: "a model call without an answer"})
                self.add(note, failed.at, **self._about(message, failed, failed.at, named))
            named = _named_model(message) or named
            request, at = used.get(index), times[index]
            about = self._about(message, request, at, named)
            if request is not None:
                at = at or request.at
            if message.get("isSummary") is True:
                texts = [
                    part.text
                    for part in read_blocks(self.tool, message.get("content"), self.losses).parts
                    if isinstance(part, Text)
                ]
                self.add(Compaction("\n\n".join(texts), 0, replaces_earlier=True), at)
            elif message.get("isTruncationMarker") is True:
                self.losses.add("the removal of old messages from the context")
            else:
                self.add_message(message, at, about if message.get("role") == "assistant" else {})

    def _match(
        self, answers: list[int], times: list[int | None]
    ) -> tuple[dict[int, RequestUsage], dict[int, list[RequestUsage]]]:
        """Match requests with answers, and requests without an answer with the message after their end."""
        used: dict[int, RequestUsage] = {}
        unanswered: dict[int, list[RequestUsage]] = {}
        if any(times[index] is None for index in answers):  # without times, in order
            used = dict(zip(answers, self._requests, strict=False))
            if len(self._requests) > len(answers):
                unmatched = len(self._requests) - len(answers)
                self.losses.add("the tokens of a call without an answer", count=unmatched)
            return used, unanswered
        starts = [request.at for request in self._requests]
        for index in answers:
            number = bisect_right(starts, times[index] or 0) - 1
            if number >= 0 and self._requests[number] not in used.values():
                used[index] = self._requests[number]
        for request in self._requests:
            if request not in used.values():
                later = [index for index in answers if (times[index] or 0) > request.at]
                if later:
                    unanswered.setdefault(later[0], []).append(request)
                else:
                    self.losses.add("the tokens of a call without an answer")
        return used, unanswered

    def _about(
        self, message: Fields, request: RequestUsage | None, at: int | None, named: str | None
    ) -> Fields:
        """Return the fields of an entry about its model call."""
        model, provider = _model_info(message)
        if model is None:
            at = at if request is None else request.at
            candidates = [each for each in self._models if at is None or each[0] <= at] or self._models[:1]
            model, provider = candidates[-1][1:] if candidates else (named, None)
        about = {"model": model, "provider": PROVIDERS.get(provider or "", provider)}
        return about if request is None else {**about, "usage": request.usage, "price": request.price}


class ClineSession(ClineTranscript):
    """A file of messages with a version."""

    def __init__(self, path: Path, tool: str, source_losses: LossReport) -> None:
        super().__init__(path, tool)
        self.file = as_dict(_read_file(path, source_losses))
        note_newer(self.losses, self.file.get("version"), 1)
        self._describe()
        prompt = text_or_none(self.file.get("system_prompt"))
        self.seeds = (system(prompt),) if prompt else ()
        last = self.started_at
        for message in as_list(self.file.get("messages")):
            if not isinstance(message, dict):
                self.losses.misread("a message that is not a JSON object")
                continue
            last = parse_time(message.get("ts")) or last
            self.add_message(message, last, self._about(message))

    def _describe(self) -> None:
        folder = self.path.parent
        fields = as_dict(read_json(folder / f"{folder.name}.json", LossReport(), within=folder))
        is_child = self.path.name.removesuffix(SUFFIX) != folder.name
        kind = text_or_none(self.file.get("agent"))
        self.agent = kind if kind and kind != "lead" else self.tool
        self.parent = folder.name if is_child else None
        self.title = None if is_child else first_text(as_dict(fields.get("metadata")), "title")
        self.started_at = parse_time(fields.get("started_at"))
        self.tags = known_texts(cwd=fields.get("cwd"))

    def _about(self, message: Fields) -> Fields:
        if message.get("role") != "assistant":
            return {}
        model, provider = _model_info(message)
        about: Fields = {"model": model, "provider": PROVIDERS.get(provider or "", provider)}
        metrics = as_dict(message.get("metrics"))
        counts = token_counts(metrics, METRICS)
        if counts is not None and any(counts):
            about |= {"usage": Usage(*counts), "price": recorded_price(metrics.get("cost"), self.tool)}
        return about


def _read_file(path: Path, losses: LossReport, *, within: Path | None = None) -> object:
    """Return the value of a file every session has; None, with a counted loss, if unreadable."""
    value = read_json(path, losses, within=within)
    if value is None:
        losses.misread("a file that cannot be read", str(Path(path.parent.name, path.name)))
    return value


def _model_info(message: Fields) -> tuple[str | None, str | None]:
    """Return the model and the provider in a message."""
    fields = as_dict(message.get("modelInfo"))
    return first_text(fields, "modelId", "id"), first_text(fields, "providerId", "provider")


def _named_model(message: Fields) -> str | None:
    """Return the model in the environment that Roo Code adds to an input."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    for block in reversed(blocks):
        text = first_text(as_dict(block), "text") or ""
        model = MODEL_IN_TEXT.search(text) if "<environment_details>" in text else None
        if model:
            return model[1]
    return None
