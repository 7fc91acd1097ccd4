"""A model that says what was said before: the answers of a recorded path, found by the history that led to them.

Two histories are one if the same inputs, summaries and answers stand in it and as many results; the words of a
result may differ, ids of calls do not count. A history that was not there then is a miss, never a guess.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from ..core import context as contexts
from ..core.context import Context
from ..core.entries import BranchSummary, Compaction, Entry, Uncompaction
from ..core.messages import Message, ToolCall
from ..core.usage import Usage
from ..errors import ModelError
from ..wire import Answer
from .model import Delta, Request


class RecordedModel:
    provider = "recorded"

    def __init__(self, path: Iterable[Entry], *, model: str = "recorded") -> None:
        self.model = model
        self._said = dict(_answers(list(path)))
        self._history: list[Message] = []
        self._keys: list[bytes] = []
        """Of the history that was asked about last, behind each of its messages: the next one mostly goes on from it."""

    def find(self, context: Context) -> Entry | None:
        """What was answered to this history; None: it was not asked then."""
        asked = [item.message for item in context.items]
        same = 0
        for known, message in zip(self._history, asked, strict=False):
            if known is not message and known != message:
                break
            same += 1
        self._history = asked
        del self._keys[same:]
        for message in asked[same:]:
            self._keys.append(_fold(self._keys[-1] if self._keys else b"", [message]))
        return self._said.get(self._keys[-1] if self._keys else b"")

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        found = self.find(request.context)
        if found is None or found.message is None:
            raise ModelError(
                self.model, "this was not asked when it was recorded", "replay it with a real model"
            )
        if found.message.text:
            yield Delta(found.message.text)
        usage, finish = Usage(0, 0, 0, 0), found.finish or "stop"
        yield Answer(found.message, usage, found.evidence, self.provider, found.model, finish)


def _answers(path: Sequence[Entry]) -> Iterator[tuple[bytes, Entry]]:
    """Each answer with the history before it. One pass, but for what changes the history before: a summary."""
    key, is_head = b"", True
    for n, entry in enumerate(path, 1):
        message = entry.message
        if message is not None and message.role == "assistant" and entry.turn:
            yield key, entry
        if isinstance(entry.payload, Compaction | Uncompaction | BranchSummary):
            is_head = is_head and not isinstance(entry.payload, BranchSummary)
            key = _fold(b"", (item.message for item in contexts.build(path[:n]).items))
        elif message is not None:
            is_head = is_head and message.role == "system"
            key = key if is_head else _fold(key, [message])


def _fold(key: bytes, messages: Iterable[Message]) -> bytes:
    for message in messages:
        for told in _told(message):
            key = sha256(key + told).digest()
    return key


def _told(message: Message) -> list[bytes]:
    """What tells one message from another here. Results count one by one, however they were put together."""
    if message.role == "tool":
        return [b"result" for _ in message.results]
    parts = [replace(part, id="") if isinstance(part, ToolCall) else part for part in message.parts]
    return [msgspec.json.encode([message.role, parts])]
