"""Import logs of Inspect (`inspect_ai`): .eval archives and .json files, each sample a session.

Reads what `oakleaf export --format inspect` writes, and Inspect's own logs. Messages are those of the sample; its events say when they
were written, which model answered and what that used.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.core.messages import Attachment, Message, Outcome, Part, Reasoning, Text, ToolResult
from oakleaf.core.tree import parse_seq
from oakleaf.core.usage import Usage, is_count
from oakleaf.errors import InvalidSource
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import EntryRecord, LossReport, SessionRecord, recorded_price, unknown_note
from oakleaf.wire.parsing import parse_data_url, parse_tool_call
from oakleaf_importers.formats.archives import UNREADABLE_ARCHIVE, ZipArchive
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    as_list,
    dicts_in,
    first_text,
    known_texts,
    parse_time,
    required_text,
    text_or_none,
    token_counts,
)
from oakleaf_importers.formats.jsonl import decode_json
from oakleaf_importers.formats.source_files import find_files, read_bytes
from oakleaf_importers.session_records import EntryList, note_newer, with_source_losses

NAME = "inspect"
TOKENS = (
    *("input_tokens", "output_tokens", "input_tokens_cache_read", "input_tokens_cache_write", "total_tokens"),
)
UNKNOWN_MODEL = "none"
PROVIDERS = {"google": "gemini"}
BOOKKEEPING = {
    *("sample_init", "sample_limit", "sandbox", "state", "store", "tool", "approval", "branch", "checkpoint"),
    *(
        "input",
        "score",
        "score_edit",
        "logger",
        "info",
        "span_begin",
        "span_end",
        "step",
        "subtask",
        "anchor",
    ),
}
ATTACHMENT = "attachment://"
INVALID_CALL = "a tool call without an id or a name"
_RESULT_OF_THE_SAME_MESSAGE = re.compile(r"(.+)\.\d+")
_PARSE_ERROR = "the arguments are no JSON object: "

Fields = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    files = find_files(source, NAME, losses, "**/*.eval", "**/*.json")
    is_alone = Path(source).expanduser().is_file()
    sessions = (each for file in files for each in _read_log(file, losses, is_alone=is_alone))
    yield from with_source_losses(NAME, sessions, losses)


def _source_of(root: Path, file: Path) -> Path | None:
    return file if file.suffix in (".eval", ".json") else None


IMPORTER = Importer(
    source="a log of Inspect (.eval or .json), or a folder of them",
    sessions=read_sessions,
    default_paths=("logs",),
    source_of=_source_of,
    versions="log format 2",
    checked=date(2025, 12, 19),
)


def _read_log(path: Path, losses: LossReport, *, is_alone: bool) -> Iterator[SessionRecord]:
    try:
        if zipfile.is_zipfile(path):
            yield from _read_archive(path, losses)
            return
        log = decode_json(read_bytes(path), losses, path.name)
    except (*INVALID_JSON, *UNREADABLE_ARCHIVE, ValueError) as error:
        if is_alone:
            raise InvalidSource(str(path), NAME, str(error)) from None
        losses.misread("a file that cannot be read", f"{path.name}: {error}")
        return
    about = as_dict(log).get("eval")
    if not isinstance(about, dict):
        if is_alone:
            raise InvalidSource(str(path), NAME, "it is not a log of Inspect")
        return  # another JSON file, such as the list of logs
    note_newer(losses, as_dict(log).get("version"), 2)
    for number, sample in enumerate(as_list(as_dict(log).get("samples")), 1):
        if isinstance(sample, dict):
            yield InspectSample(sample, about).record(f"{path.stem}-{number}")
        else:
            losses.misread("a sample that is not a JSON object", f"{path.name}: {number}")


def _read_archive(path: Path, losses: LossReport) -> Iterator[SessionRecord]:
    with ZipArchive(path, NAME) as archive:
        names = set(archive.members)
        about: Fields = {}
        for name in ("header.json", "_journal/start.json"):  # the second is all that an unfinished log has
            if name in names and not about:
                header = decode_json(archive.read(name), losses, name)
                about = as_dict(as_dict(header).get("eval"))
                note_newer(losses, as_dict(header).get("version"), 2)
        if not about:
            raise InvalidSource(str(path), NAME, "the archive has no header.json")
        for name in sorted(each for each in names if each.startswith("samples/") and each.endswith(".json")):
            try:
                sample = decode_json(archive.read(name), losses, name)
            except (*INVALID_JSON, *UNREADABLE_ARCHIVE):
                sample = None
            if isinstance(sample, dict):
                yield InspectSample(sample, about).record(Path(name).stem)
            else:
                losses.misread("a sample that cannot be read", name)


class InspectSample(EntryList):
    """Reads one sample."""

    def __init__(self, sample: Fields, about: Fields) -> None:
        super().__init__(NAME)
        self.sample, self.about = sample, about
        self.seeds: list[Message] = []
        self._attachments: Mapping[str, object] = as_dict(sample.get("attachments"))
        self._chats = dicts_in(sample.get("messages"))
        self._positions = {str(chat["id"]): n for n, chat in enumerate(self._chats) if chat.get("id")}
        self._models: dict[int, Fields] = {}
        """By the position of an answer: the event of the call that made it."""
        self._results: dict[str, int | None] = {}
        """By call id: when it ended."""
        self._others: dict[int, list[EntryRecord]] = {}
        """By the position after which they belong: entries that are not messages."""
        self._read_events()
        self._read_messages()

    def record(self, fallback: str) -> SessionRecord:
        sample, about = self.sample, self.about
        fields = as_dict(sample.get("metadata"))
        names = (about.get("eval_id"), sample.get("id"), sample.get("epoch"))
        name = "-".join(str(each) for each in names if isinstance(each, str | int) and str(each).strip())
        return self.to_record(
            name if text_or_none(about.get("eval_id")) else fallback,
            seeds=tuple(self.seeds),
            title=first_text(fields, "title") or f"{about.get('task') or 'sample'} {sample.get('id')}",
            agent=first_text(fields, "agent") or first_text(about, "task"),
            started_at=parse_time(sample.get("started_at")) or parse_time(about.get("created")),
            tags=known_texts(task=about.get("task"), sample=str(sample.get("id") or "")),
        )

    # -- events ------------------------------------------------------------------------------------

    def _read_events(self) -> None:
        """Match the events with messages; other events belong before the answer of the next model call."""
        waiting: list[EntryRecord] = []
        for fields in map(as_dict, as_list(self.sample.get("events"))):
            kind = text_or_none(fields.get("event"))
            answer_id = as_dict(_first_choice(fields).get("message")).get("id")
            position = self._positions.get(str(answer_id)) if kind == "model" else None
            if position is not None and position not in self._models:
                self._models[position] = fields
                self._others.setdefault(position - 1, []).extend(waiting)
                waiting = []
            elif kind == "tool" and isinstance(fields.get("id"), str):
                self._results[fields["id"]] = parse_time(fields.get("completed"))
            elif kind == "compaction":
                self._read_compaction(fields, waiting)
            else:
                waiting.extend(self._other_event(kind, fields))
        self._others.setdefault(len(self._chats) - 1, []).extend(waiting)

    def _other_event(self, kind: str | None, event: Fields) -> Iterator[EntryRecord]:
        at = parse_time(event.get("completed")) or parse_time(event.get("timestamp"))
        if kind == "model":
            about = self._call(event)
            if about.get("usage") is not None:
                text = text_or_none(event.get("role")) or "a model call without an answer"
                yield EntryRecord(Note({NAME: text, "error": event.get("error")}), at=at, **about)
        elif kind == "error":
            yield EntryRecord(Note({NAME: "error", "data": event.get("error")}), at=at)
        elif kind not in BOOKKEEPING:
            yield EntryRecord(unknown_note(NAME, kind, event, self.losses), at=at)

    def _read_compaction(self, event: Fields, waiting: list[EntryRecord]) -> None:
        fields = as_dict(event.get("metadata"))
        summary, first = text_or_none(fields.get("summary")), fields.get("first_kept")
        if summary is None:
            self.losses.add("a compaction without a summary")
            return
        name, _, seq = str(event.get("uuid")).rpartition("/")
        first_kept = f"{name}@{first}" if f"{name}@{first}" in self._positions else None
        tokens = event.get("tokens_before")
        payload = Compaction(summary, 0, tokens if is_count(tokens) else 0, replaces_earlier=True)
        entry = EntryRecord(payload, at=parse_time(event.get("timestamp")), refers_to=first_kept)
        if (
            own := parse_seq(seq)
        ) is not None:  # Oakleaf's own: the numbers of the entries before it are smaller
            before = [n for chat, n in self._positions.items() if _seq(chat) < own]
            self._others.setdefault(max(before, default=-1), []).append(entry)
        else:
            waiting.append(entry)

    def _call(self, event: Fields) -> Fields:
        """Return the fields of an entry about its model call."""
        fields = as_dict(event.get("output"))
        provider, _, model = str(event.get("model") or "").partition("/")
        named = text_or_none(fields.get("model")) or model
        about: Fields = {
            "model": named if named and named != UNKNOWN_MODEL else None,
            "provider": PROVIDERS.get(provider, provider) if provider and provider != UNKNOWN_MODEL else None,
        }
        usage = fields.get("usage")
        known = {n: v for n, v in usage.items() if v is not None} if isinstance(usage, dict) else None
        counts = token_counts(known, TOKENS)
        if counts is not None:
            about["usage"] = _usage(counts)
            about["price"] = recorded_price(as_dict(known).get("total_cost"), NAME)
        elif usage is not None:
            self.losses.add("usage that is not a count of tokens")
        return about

    # -- messages ----------------------------------------------------------------------------------

    def _read_messages(self) -> None:
        self._flush(-1)
        for position, chat in enumerate(self._chats):
            try:
                self._read_message(chat, position)
            except UNEXPECTED_SHAPE:
                self.add_unknown(f"message of {chat.get('role')}", chat, None)
            self._flush(position)
        scores = self.sample.get("scores")
        if isinstance(scores, dict) and scores:
            self.add(Note({NAME: "scores", "scores": scores}), None)

    def _flush(self, position: int) -> None:
        for entry in self._others.pop(position, ()):
            self.append(entry)

    def _read_message(self, chat: Fields, position: int) -> None:
        role, name = chat.get("role"), text_or_none(chat.get("id"))
        if role == "assistant":
            event = self._models.get(position, {})
            about = {"model": text_or_none(chat.get("model")), **(self._call(event) if event else {})}
            finish = text_or_none(_first_choice(event).get("stop_reason"))
            calls = tuple(_call(each) for each in as_list(chat.get("tool_calls")))
            parts = (*self._parts(chat["content"]), *calls)
            at = parse_time(event.get("completed"))
            self.add(Message("assistant", parts), at, key=name, finish=finish, **about)
        elif role == "tool":
            self._result(chat, name)
        elif role in ("user", "system"):
            parts = tuple(self._parts(chat["content"]))
            texts = tuple(part for part in parts if isinstance(part, Text))
            message = Message("user", parts) if role == "user" else Message("system", texts)
            if role == "system" and not self.entries:
                self.seeds.append(message)
            else:
                self.add(message, self._asked_at(position), key=name)
        else:
            self.add_unknown(f"role {role}", chat, None)

    def _asked_at(self, position: int) -> int | None:
        """Return when the next model call was made."""
        event = self._models.get(min((n for n in self._models if n > position), default=-1), {})
        return parse_time(event.get("timestamp"))

    def _result(self, chat: Fields, name: str | None) -> None:
        call_id = required_text(chat["tool_call_id"], "a result without a call id")
        recorded = as_dict(chat.get("metadata")).get("outcome")
        outcome: Any = recorded if recorded in get_args(Outcome) else "done"
        error = chat.get("error")
        content = tuple(p for p in self._parts(chat["content"]) if isinstance(p, Text | Attachment))
        text = first_text(as_dict(error), "message")
        if text and text != outcome and not content:  # Oakleaf names the outcome if a result has no text
            content = (Text(text),)
        result = ToolResult(call_id, content, error is not None, outcome)
        last = self.entries[-1] if self.entries else None
        same = _RESULT_OF_THE_SAME_MESSAGE.fullmatch(name or "")
        if same and last is not None and last.key == same[1] and isinstance(last.payload, Message):
            self.entries[-1] = replace(last, payload=Message("tool", (*last.payload.parts, result)))
        else:
            self.add(Message("tool", (result,)), self._results.get(call_id), key=name)

    def _parts(self, content: object) -> Iterator[Part]:
        """Yield the parts of a content: text, or a list of blocks."""
        for block in [content] if isinstance(content, str) else as_list(content):
            if isinstance(block, str):
                text = self._resolve(block)
                if text:
                    yield Text(text)
                continue
            kind = block["type"]
            if kind == "text":
                yield Text(self._resolve(block["text"]))
            elif kind == "reasoning":
                summary = text_or_none(block.get("summary")) if block.get("redacted") else None
                yield Reasoning(
                    summary or ("" if block.get("redacted") else self._resolve(block["reasoning"]))
                )
            elif kind in ("image", "audio", "video", "document"):
                yield self._media(block, kind)
            else:
                raise ValueError(f"content of type {kind}")

    def _media(self, block: Fields, kind: str) -> Text | Attachment:
        url = self._resolve(block[kind])
        attachment = parse_data_url(url, block.get("filename"))
        if attachment is not None:
            return attachment
        self.losses.add("a file that is only named", url)
        return Text(f"[{kind} {url}]")

    def _resolve(self, text: object) -> str:
        """Return the text, or the referenced text: Inspect stores long texts once."""
        content = required_text(text, "content that is not text")
        if content.startswith(ATTACHMENT):
            attachment = self._attachments.get(content.removeprefix(ATTACHMENT))
            return attachment if isinstance(attachment, str) else content
        return content


def _call(call: Fields) -> Part:
    call_id, name = required_text(call["id"], INVALID_CALL), required_text(call["function"], INVALID_CALL)
    arguments, error = call.get("arguments"), text_or_none(call.get("parse_error"))
    if error is not None and not arguments:
        arguments = error.removeprefix(_PARSE_ERROR)
    return parse_tool_call(call_id, name, arguments)


def _usage(counts: tuple[int, ...]) -> Usage:
    """Convert usage: cached tokens are beside the input, unless the total includes cached tokens."""
    fresh, output, read, written, total = counts
    is_within = total == fresh + output and read + written <= fresh
    return Usage(fresh if is_within else fresh + read + written, output, read, written)


def _first_choice(event: Fields) -> Fields:
    choices = as_list(as_dict(event.get("output")).get("choices"))
    return as_dict(choices[0]) if choices else {}


def _seq(name: str) -> int:
    """Return the number of an Oakleaf entry from the message's id."""
    number = name.rpartition("@")[2].partition(".")[0]
    return parse_seq(number) or 0
