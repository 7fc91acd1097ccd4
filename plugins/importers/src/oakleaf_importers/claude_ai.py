"""Import a Claude.ai data export: conversations.json in a folder or the .zip as it was downloaded.

One message of Claude holds all steps of a turn: its calls and their results become entries of their own. Messages name
their parent since 2025; without parents a conversation is one line. The export has no models and no token counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oakleaf.core.entries import Payload
from oakleaf.core.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, tool_result
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, LossReport, SessionRecord, unknown_note
from oakleaf.wire.parsing import parse_tool_call
from oakleaf_importers.formats.export_files import ExportFiles, export_source
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    as_dict,
    dicts_in,
    known_texts,
    parse_time,
    text_or_none,
)
from oakleaf_importers.session_records import EntryList, with_source_losses, without_empty

NAME = "claude-ai"
PROVIDER = "anthropic"
ROOTS = {"00000000-0000-4000-8000-000000000000", "00000000-0000-0000-0000-000000000000"}
"""The parent that the first message names."""
SCREEN_ONLY = {"token_budget", "flag"}

Block = dict[str, Any]


def read_sessions(source: str) -> Iterator[SessionRecord]:
    losses = LossReport()
    with ExportFiles(source, NAME) as files:
        conversations = files.conversations("chat_messages", list, losses)
        records = (ClaudeConversation(each).record(name) for name, each in conversations)
        yield from with_source_losses(NAME, without_empty(records), losses)


IMPORTER = Importer(
    source="conversations.json of a data export, its folder or its .zip",
    sessions=read_sessions,
    source_of=export_source,
    versions="exports of March 2026",
)


class ClaudeConversation(EntryList):
    """Reads one conversation."""

    def __init__(self, conversation: Block) -> None:
        super().__init__(NAME)
        self.conversation = conversation
        self.keys: dict[str, str] = {}
        """By message: the key of its last entry, or of the one before it if it became none."""
        self._last = START
        for number, message in enumerate(conversation["chat_messages"]):
            if isinstance(message, dict):
                self._read(message, number)
            else:
                self.losses.misread("a message that is not a JSON object", f"message {number}")
        if text_or_none(conversation.get("summary")):
            self.losses.add("the summary Claude.ai wrote for its own search")

    def record(self, fallback: str) -> SessionRecord:
        about = self.conversation
        leaf = about.get("current_leaf_message_uuid")
        return self.to_record(
            text_or_none(about.get("uuid")) or fallback,
            leaf=self.keys.get(leaf) if isinstance(leaf, str) else None,
            title=text_or_none(about.get("name")),
            agent=NAME,
            started_at=parse_time(about.get("created_at")),
            tags=known_texts(project=as_dict(about.get("project")).get("name")),
        )

    def _read(self, message: Block, number: int) -> None:
        name = text_or_none(message.get("uuid")) or f"#{number}"
        parent = text_or_none(message.get("parent_message_uuid"))
        after = self._last if parent is None else START if parent in ROOTS else self.keys.get(parent, parent)
        at = parse_time(message.get("created_at"))
        sender = message.get("sender")
        if sender == "human":
            last = self._input(message, name, after, at)
        elif sender == "assistant":
            last = ClaudeAiAnswer(self, message, name, after, at).last
        else:
            last = self.add_unknown(f"sender {sender}", message, at, key=name, after=after)
        self.keys[name] = self._last = last

    def _input(self, message: Block, name: str, after: str, at: int | None) -> str:
        parts: list[Text] = []
        last = after
        for index, block in enumerate(_blocks(message)):
            if block.get("type") in ("text", "voice_note") and isinstance(block.get("text"), str):
                parts += [Text(block["text"])] if block["text"] else []
            else:
                last = self.add_unknown(block.get("type"), block, at, key=f"{name}#{index}", after=last)
        parts += self._files(message)
        if parts:
            last = self.add(Message("user", tuple(parts)), at, key=name, after=last)
        return last

    def _files(self, message: Block) -> Iterator[Text]:
        """Yield the texts of attached files; the export has no bytes, and only the names of images."""
        for item in dicts_in(message.get("attachments")):
            name, text = text_or_none(item.get("file_name")), text_or_none(item.get("extracted_content"))
            if text is not None:
                yield Text(f"[file {name}]\n{text}" if name else text)
            else:
                self.losses.add("a file that is not in the export", name or "attachment")
                yield Text(f"[file {name or 'attachment'}: not in the export]")
        names = {str(item.get("file_uuid") or item.get("file_name")): item for item in _uploads(message)}
        for item in names.values():
            name = text_or_none(item.get("file_name")) or "file"
            self.losses.add("a file that is not in the export", name)
            yield Text(f"[file {name}: not in the export]")


class ClaudeAiAnswer:
    """Reads one message of Claude: answers, each followed by the results of the calls."""

    def __init__(
        self, session: ClaudeConversation, message: Block, name: str, after: str, at: int | None
    ) -> None:
        self.session, self.name, self.last, self.at = session, name, after, at
        self._parts: list[Part] = []
        self._open: dict[str, str] = {}
        """The names of open calls, by id."""
        self._count = 0
        for index, block in enumerate(_blocks(message)):
            try:
                self._read(block, index)
            except UNEXPECTED_SHAPE:
                self._note(block)
        if _uploads(message):
            session.losses.add("a file that is not in the export", "of an answer")
        self._finish()

    def _read(self, block: Block, index: int) -> None:
        kind = block.get("type")
        if kind == "tool_result":
            self._result(block)
        elif kind == "text" and isinstance(block["text"], str):
            self._add(Text(block["text"]) if block["text"].strip() else None, block)
        elif kind == "thinking" and isinstance(block["thinking"], str):
            self._add(Reasoning(block["thinking"]) if block["thinking"] else None, block)
        elif kind == "tool_use" and isinstance(block["name"], str):
            call_id = text_or_none(block.get("id")) or f"{self.name}-{index}"
            self._add(parse_tool_call(call_id, block["name"], block.get("input")), block)
        elif kind in SCREEN_ONLY:
            self.session.losses.add("content that only the screen shows", str(kind))
        else:
            self._note(block)

    def _add(self, part: Text | Reasoning | ToolCall | None, block: Block) -> None:
        if part is None:
            return
        self._parts.append(part)
        self.at = parse_time(block.get("start_timestamp")) or self.at

    def _result(self, block: Block) -> None:
        self._finish()
        call_id = text_or_none(block.get("tool_use_id"))
        if call_id is None:  # older exports have no ids
            named = [one for one, name in self._open.items() if name == block.get("name")]
            call_id = next(iter(named or self._open), "")
        self._open.pop(call_id, None)
        self.at = parse_time(block.get("stop_timestamp")) or self.at
        is_error = block.get("is_error") is True
        (result,) = tool_result(call_id, _content(block.get("content")), error=is_error).results
        self._entry(Message("tool", (result,)))

    def _note(self, block: Block) -> None:
        self._finish()
        self._entry(unknown_note(NAME, block.get("type"), block, self.session.losses))

    def _finish(self) -> None:
        if not self._parts:
            return
        message = Message("assistant", tuple(self._parts))
        self._open |= {call.id: call.name for call in message.calls}
        self._parts = []
        self._entry(message)

    def _entry(self, payload: Payload) -> None:
        self._count += 1
        key = f"{self.name}#{self._count}"
        is_answer = isinstance(payload, Message) and payload.role == "assistant"
        provider = PROVIDER if is_answer else None
        self.last = self.session.add(payload, self.at, key=key, after=self.last, provider=provider)


def _content(content: object) -> object:
    """Return the texts and media of a result; other blocks stay as JSON."""
    blocks = content if isinstance(content, list) else [content]
    parts: list[Text | Attachment] = []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            parts.append(Text(block["text"]))
        elif isinstance(block, str):
            parts.append(Text(block))
        elif block is not None:
            (result,) = tool_result("", [block]).results
            parts += [part for part in result.content if isinstance(part, Text | Attachment)]
    return parts


def _blocks(message: Block) -> list[Block]:
    """Return the content; the oldest exports have only the text."""
    blocks = dicts_in(message.get("content"))
    text = message.get("text")
    if not blocks and isinstance(text, str) and text:
        return [{"type": "text", "text": text}]
    return blocks


def _uploads(message: Block) -> list[Block]:
    return [*dicts_in(message.get("files")), *dicts_in(message.get("files_v2"))]
