"""Convert the messages of a path to Inspect chat messages, and track what each model call received.

A message id is its reference on the command line (`ses_3f@7`). Media are named but not included. Does not know events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oakleaf.core.context import build_context
from oakleaf.core.entries import Entry, Note, Settings
from oakleaf.core.messages import Media, Message, ProviderBlock, Reasoning, Text, ToolCall, ToolResult
from oakleaf.exports.values import result_text, without_none
from oakleaf.wire.media import media_stub

Chat = dict[str, Any]
Range = tuple[int, int]

_ERRORS = {"denied": "approval", "interrupted": "cancelled"}
"""Inspect's tool error types by outcome; others are `unknown`."""


def chat_messages(session_id: str, path: Iterable[Entry]) -> dict[int, list[Chat]]:
    """Return the chat messages by seq. Our tool message holds one or more results, Inspect's exactly one."""
    messages: dict[int, list[Chat]] = {}
    waiting: list[ToolCall] = []
    for entry in path:
        message = entry.message
        if message is None:
            continue
        if message.role == "assistant":
            waiting = list(message.calls)
        name = f"{session_id}@{entry.seq}"
        if message.role == "tool":
            chats = [
                _result(f"{name}.{index}" if index else name, result, _answer_call(waiting, result))
                for index, result in enumerate(message.results)
            ]
        else:
            chats = [_chat(name, message, entry.model)]
        messages[entry.seq] = chats
    return messages


def _answer_call(waiting: list[ToolCall], result: ToolResult) -> str | None:
    """Return the name of the tool; of two open calls with the same id, the first is answered."""
    for call in waiting:
        if call.id == result.call_id:
            waiting.remove(call)
            return call.name
    return None


def _chat(name: str, message: Message, model: str | None = None) -> Chat:
    chat: Chat = {"id": name, "role": message.role, "content": content(message.parts)}
    if message.role != "assistant":
        return {**chat, "source": "input"}
    calls = [_call(call) for call in message.calls]
    return without_none({**chat, "tool_calls": calls or None, "source": "generate", "model": model})


def _call(call: ToolCall) -> Chat:
    error = None if call.malformed is None else f"the arguments are no JSON object: {call.malformed}"
    fields = {"id": call.id, "function": call.name, "arguments": call.arguments, "type": "function"}
    return without_none({**fields, "parse_error": error})


def _result(name: str, result: ToolResult, tool: str | None) -> Chat:
    chat = {
        "id": name,
        "role": "tool",
        "content": content(result.content),
        "tool_call_id": result.call_id,
        "function": tool,
    }
    return without_none({**chat, **outcome_fields(result)})


def outcome_fields(result: ToolResult) -> Chat:
    """Return a tool call's outcome, for the message and the event."""
    metadata = None if result.outcome == "done" else {"outcome": result.outcome}
    return {"error": _error(result), "metadata": metadata}


def _error(result: ToolResult) -> dict[str, str] | None:
    if not result.error and result.outcome not in (*_ERRORS, "unknown", "not_recorded"):
        return None
    kind = _ERRORS.get(result.outcome, "unknown")
    return {"type": kind, "message": result_text(result) or result.outcome}


def content(parts: Sequence[Any]) -> str | list[Chat]:
    """Return plain text as a string, anything else as a list. Calls are not part of the content."""
    pieces = [piece for part in parts if (piece := _piece(part)) is not None]
    if len(pieces) > 1 or (pieces and pieces[0]["type"] != "text"):
        return pieces
    return pieces[0]["text"] if pieces else ""


def _piece(part: Any) -> Chat | None:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Reasoning(text=text):
            return {"type": "reasoning", "reasoning": text}
        case ProviderBlock(stub=stub):
            return {"type": "text", "text": stub}
        case Media():
            return {"type": "text", "text": media_stub(part, "not included")}
    return None


class Inputs:
    """The input of each model call, as ranges of a pool: every message is written once, however often sent.

    From one call to the next most of it stays, so only what may change the rest, an entry that is no message, has the
    context built anew. A session of 20,000 entries would be built 10,000 times else.
    """

    def __init__(self, session_id: str, path: Sequence[Entry], chats: dict[int, list[Chat]]) -> None:
        self.pool: list[Chat] = []
        self._session_id, self._path, self._chats = session_id, path, chats
        self._is_trimmed = any(
            isinstance(entry.payload, Settings) and entry.payload.max_messages for entry in path
        )
        self._pooled: dict[tuple[str, int | str], Range] = {}
        self._ranges: list[Range] = []
        self._seq = -1

    def given_after(self, seq: int) -> list[Range]:
        """Return the model's input after the entry; call in the order of the path."""
        new = self._path[self._seq : seq] if 0 <= self._seq <= seq else None
        if new is None or self._is_trimmed or not all(map(_is_added, new)):
            self._build(seq)
        else:
            for entry in new:
                if entry.message is not None:
                    self._add(self._put(("entry", entry.seq), self._chats[entry.seq]))
        self._seq = seq
        return list(self._ranges)

    def _build(self, seq: int) -> None:
        context = build_context(self._path[:seq])
        self._ranges = []
        for text in context.system:
            name = f"{self._session_id}@prompt"
            chat = {"id": name, "role": "system", "content": text, "source": "input"}
            self._add(self._put(("system", text), [chat]))
        for item in context.items:
            is_entry = not item.pinned and self._path[item.seq - 1].message is not None
            if item.shortened:
                chats = [
                    {**chat, "content": content(result.content)}
                    for chat, result in zip(self._chats[item.seq], item.message.results, strict=True)
                ]
                self._add(
                    self._put(("shortened", f"{item.seq} {[chat['content'] for chat in chats]}"), chats)
                )
                continue
            name = f"{self._session_id}@{item.seq}"
            chats = self._chats[item.seq] if is_entry else [_chat(name, item.message)]
            self._add(self._put(("entry" if is_entry else "summary", item.seq), chats))

    def _put(self, key: tuple[str, int | str], chats: list[Chat]) -> Range:
        if key not in self._pooled:
            self._pooled[key] = (len(self.pool), len(self.pool) + len(chats))
            self.pool.extend(chats)
        return self._pooled[key]

    def _add(self, part: Range) -> None:
        if self._ranges and self._ranges[-1][1] == part[0]:
            self._ranges[-1] = (self._ranges[-1][0], part[1])
        else:
            self._ranges.append(part)


def _is_added(entry: Entry) -> bool:
    """Whether an entry only adds to the context: a message other than a prompt, or a note."""
    return isinstance(entry.payload, Note) or (entry.message is not None and entry.role != "system")
