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

from ...core.entries import Compaction, Note, Payload
from ...core.messages import Message, Reasoning, Text, system
from ...core.usage import Price, Usage
from ...errors import InvalidSource
from ...formats.anthropic_blocks import read_blocks
from ...formats.jsonl import INVALID_JSON, decode_json, json_object, parse_time, text_or_none, token_counts
from ...formats.records import (
    EntryRecord,
    LossReport,
    SessionRecord,
    recorded_price,
    unknown_note,
    with_source_losses,
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
MAX_TASK_DEPTH = 20

Fields = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    yield from read_tasks(source, NAME)


def read_tasks(source: str, tool: str) -> Iterator[SessionRecord]:
    """Yield every session and task below a folder, or the one that a file belongs to."""
    path = Path(source).expanduser()
    losses = LossReport()
    if path.is_file():
        folders = [path.parent] if path.name == HISTORY else []
        files = [path] if not folders else []
    elif path.is_dir():
        folders = sorted(each.parent for each in path.rglob(HISTORY))
        files = sorted(path.rglob(f"*{SUFFIX}"))
    else:
        raise InvalidSource(source, tool, "there is no such file or folder")
    if not folders and not files:
        raise InvalidSource(source, tool, f"the folder has neither {HISTORY} nor *{SUFFIX}")
    tasks = {each.name: ClineTask(each, tool, losses) for each in folders}
    sessions = {each.name.removesuffix(SUFFIX): ClineSession(each, tool, losses) for each in files}
    yield from with_source_losses(tool, _with_children({**tasks, **sessions}), losses)


def _with_children(tasks: dict[str, ClineTranscript]) -> Iterator[SessionRecord]:
    children: dict[str, list[str]] = {}
    for name, task in tasks.items():
        if task.parent in tasks and task.parent != name:
            children.setdefault(task.parent or "", []).append(name)
    visited: set[str] = set()

    def read(name: str, depth: int = 0) -> SessionRecord:
        visited.add(name)
        own = children.get(name, ()) if depth < MAX_TASK_DEPTH else ()
        return tasks[name].record(
            name, tuple(read(child, depth + 1) for child in own if child not in visited)
        )

    child_names = {child for own in children.values() for child in own}
    for name in (*(name for name in tasks if name not in child_names), *tasks):  # a circle has no root
        if name not in visited:
            record = read(name)
            if record.entries or record.tasks or record.losses:
                yield record


class RequestUsage(Struct, frozen=True):
    """What one model call used, as the screen showed it."""

    at: int
    usage: Usage
    price: Price | None


class ClineTranscript:
    """The entries of one session: messages with Anthropic's blocks, whichever provider answered."""

    def __init__(self, path: Path, tool: str) -> None:
        self.path, self.tool = path, tool
        self.losses = LossReport()
        self.entries: list[EntryRecord] = []
        self.seeds: tuple[Message, ...] = ()
        self.title: str | None = None
        self.agent = tool
        self.parent: str | None = None
        self.tags: dict[str, str] = {}
        self.started_at: int | None = None
        self._thoughts: list[Reasoning] = []

    def record(self, name: str, tasks: tuple[SessionRecord, ...]) -> SessionRecord:
        return SessionRecord(
            self.tool,
            name,
            tuple(self.entries),
            self.seeds,
            title=self.title,
            agent=self.agent,
            started_at=self.started_at,
            tags=self.tags,
            losses=self.losses,
            tasks=tasks,
        )

    def add(self, payload: Payload, at: int | None, **more: Any) -> None:
        self.entries.append(EntryRecord(payload, str(len(self.entries) + 1), at=at, **more))

    def add_message(self, message: Fields, at: int | None, about: Fields) -> None:
        """Add a message; `about` says which model answered, and what that used."""
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
            self.add(unknown_note(self.tool, f"role {role}", message, self.losses), at)

    def _add_thought(self, message: Fields) -> None:
        summary = message.get("summary")
        texts = (
            [each.get("text") for each in summary if isinstance(each, dict)]
            if isinstance(summary, list)
            else []
        )
        text = "\n\n".join(each for each in texts if isinstance(each, str)) or text_or_none(
            message.get("text")
        )
        if text:
            self._thoughts.append(Reasoning(text))
        else:
            self.losses.add("reasoning that only its provider can read")


class ClineTask(ClineTranscript):
    """A task folder."""

    def __init__(self, path: Path, tool: str, source_losses: LossReport) -> None:
        super().__init__(path, tool)
        history = read_json(path / HISTORY, source_losses)
        messages = [each for each in history if isinstance(each, dict)] if isinstance(history, list) else []
        self._requests = self._read_requests()
        self._models = self._read_models()
        self._describe()
        self._read(messages)

    def _describe(self) -> None:
        item = read_json(self.path / ITEM, None)
        if not isinstance(item, dict):
            index = read_json(self.path.parent.parent / "state" / INDEX, None)
            entries = [each for each in index if isinstance(each, dict)] if isinstance(index, list) else []
            item = next((each for each in entries if each.get("id") == self.path.name), {})
        self.title = text_or_none(item.get("task"))
        self.parent = text_or_none(item.get("parentTaskId"))
        cwd = text_or_none(item.get("workspace")) or text_or_none(item.get("cwdOnTaskInitialization"))
        mode = text_or_none(item.get("mode"))
        self.tags = {**({"cwd": cwd} if cwd else {}), **({"mode": mode} if mode else {})}
        if self.path.name.isdigit():  # the id is the time it was started
            self.started_at = parse_time(int(self.path.name))

    def _read_requests(self) -> list[RequestUsage]:
        lines = read_json(self.path / SCREEN, self.losses)
        requests = []
        for each in lines if isinstance(lines, list) else ():
            if not isinstance(each, dict) or each.get("say") not in REQUESTS:
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
        metadata = read_json(self.path / METADATA, None)
        used = metadata.get("model_usage") if isinstance(metadata, dict) else None
        return [
            (parse_time(each.get("ts")) or 0, each["model_id"], text_or_none(each.get("model_provider_id")))
            for each in (used if isinstance(used, list) else ())
            if isinstance(each, dict) and text_or_none(each.get("model_id"))
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
                self.add(
                    note,
                    failed.at,
                    usage=failed.usage,
                    price=failed.price,
                    **self._model(message, failed.at, named),
                )
            named = _named_model(message) or named
            request = used.get(index)
            at = times[index]
            about = self._model(message, request.at if request is not None else at, named)
            if request is not None:
                about |= {"usage": request.usage, "price": request.price}
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
        """Return the request of each answer, and those that no answer followed, by the message before which they ended."""
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

    def _model(self, message: Fields, at: int | None, named: str | None) -> Fields:
        info = message.get("modelInfo")
        fields = info if isinstance(info, dict) else {}
        model = text_or_none(fields.get("modelId")) or text_or_none(fields.get("id"))
        provider = text_or_none(fields.get("providerId")) or text_or_none(fields.get("provider"))
        if model is None:
            candidates = [each for each in self._models if at is None or each[0] <= at] or self._models[:1]
            model, provider = candidates[-1][1:] if candidates else (named, None)
        return {"model": model, "provider": PROVIDERS.get(provider or "", provider)}


class ClineSession(ClineTranscript):
    """A file of messages with a version."""

    def __init__(self, path: Path, tool: str, source_losses: LossReport) -> None:
        super().__init__(path, tool)
        value = read_json(path, source_losses)
        self.file = value if isinstance(value, dict) else {}
        self._describe()
        prompt = text_or_none(self.file.get("system_prompt"))
        self.seeds = (system(prompt),) if prompt else ()
        messages = self.file.get("messages")
        last = self.started_at
        for message in messages if isinstance(messages, list) else ():
            if not isinstance(message, dict):
                self.losses.add("a message that is not a JSON object")
                continue
            last = parse_time(message.get("ts")) or last
            self.add_message(message, last, self._about(message))

    def _describe(self) -> None:
        folder = self.path.parent
        about = read_json(folder / f"{folder.name}.json", None)
        fields = about if isinstance(about, dict) else {}
        metadata = fields.get("metadata")
        named = metadata if isinstance(metadata, dict) else {}
        is_child = self.path.name.removesuffix(SUFFIX) != folder.name
        kind = text_or_none(self.file.get("agent"))
        self.agent = kind if kind and kind != "lead" else self.tool
        self.parent = folder.name if is_child else None
        self.title = None if is_child else text_or_none(named.get("title"))
        self.started_at = parse_time(fields.get("started_at"))
        cwd = text_or_none(fields.get("cwd"))
        self.tags = {"cwd": cwd} if cwd else {}

    def _about(self, message: Fields) -> Fields:
        if message.get("role") != "assistant":
            return {}
        info = message.get("modelInfo")
        fields = info if isinstance(info, dict) else {}
        provider = text_or_none(fields.get("provider"))
        about: Fields = {
            "model": text_or_none(fields.get("id")),
            "provider": PROVIDERS.get(provider or "", provider),
        }
        metrics = message.get("metrics")
        counts = token_counts(metrics, METRICS)
        if counts is not None and any(counts) and isinstance(metrics, dict):
            about |= {"usage": Usage(*counts), "price": recorded_price(metrics.get("cost"), self.tool)}
        return about


def read_json(path: Path, losses: LossReport | None) -> Any:
    """Return the value of a file; None if it cannot be read, which is counted unless `losses` is None."""
    try:
        return decode_json(path.read_bytes(), LossReport() if losses is None else losses, path.name)
    except (*INVALID_JSON, OSError):
        if losses is not None:
            losses.add("a file that cannot be read", str(Path(path.parent.name, path.name)))
        return None


def _named_model(message: Fields) -> str | None:
    """Return the model that Roo Code names in the environment it adds to an input."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    for block in reversed(blocks):
        text = block.get("text") if isinstance(block, dict) else None
        model = (
            MODEL_IN_TEXT.search(text) if isinstance(text, str) and "<environment_details>" in text else None
        )
        if model:
            return model[1]
    return None
