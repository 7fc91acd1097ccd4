"""A model that repeats the answers of a recorded path, found by the history before each.

Two histories are equal if they have the same inputs, summaries and answers, and as many results; the content of
results may differ, and call ids are ignored. An unknown history is a miss, never a guess.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from ..core import context as contexts
from ..core.context import Context, Item
from ..core.entries import Compaction, Entry, Uncompaction
from ..core.messages import Message, ToolCall
from ..core.usage import Usage
from ..errors import ModelError
from ..wire import Answer
from .model import Delta, Request


class RecordedModel:
    """Answers what a recorded session's model answered to the same history, and nothing else."""

    provider = "recorded"

    def __init__(self, path: Iterable[Entry], *, model: str = "recorded") -> None:
        self.model = model
        self._answers = dict(_answers(path))
        self._history: list[Message] = []
        self._keys: list[bytes] = []
        """The key behind each message of the latest history: the next one mostly extends it."""

    def find(self, context: Context) -> Entry | None:
        """The recorded answer to this history; None if it was not recorded."""
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
        return self._answers.get(self._keys[-1] if self._keys else b"")

    def answer(self, history: History) -> Answer:
        """The recorded answer to a history that was folded entry by entry, so that nothing is read again."""
        return self._answer(self._answers.get(history.key))

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        answer = self._answer(self.find(request.context))
        if answer.message.text:
            yield Delta(answer.message.text)
        yield answer

    def _answer(self, entry: Entry | None) -> Answer:
        if entry is None or entry.message is None:
            raise ModelError(self.model, "this history was not recorded", "replay with a real model")
        usage, finish = Usage(0, 0, 0, 0), entry.finish or "stop"
        return Answer(entry.message, usage, entry.evidence, self.provider, entry.model, finish)


class History:
    """The history at the end of a path as one key, updated per entry. Only a compaction or its cancellation folds the
    kept messages again."""

    def __init__(self) -> None:
        self.key = b""
        self._items: list[Item] = []
        self._summaries: list[Entry] = []

    def follow(self, entry: Entry) -> None:
        if isinstance(entry.payload, Compaction | Uncompaction):
            self._summaries.append(entry)
            self.key = _fold(b"", self._kept())
            return
        item = contexts.context_item(entry)
        if item is None or (not self._items and item.message.role == "system"):
            return  # the system prompt is not part of the key
        self._items.append(item)
        self.key = _fold(self.key, [item.message])

    def _kept(self) -> Iterator[Message]:
        shown = contexts.active_compactions(self._summaries)
        for seq, compaction in shown:
            yield contexts.summary_item(seq, compaction).message
        first = shown[-1][1].first_kept if shown else 1
        for item in self._items[bisect_left(self._items, first, key=lambda item: item.seq) :]:
            yield item.message


def _answers(path: Iterable[Entry]) -> Iterator[tuple[bytes, Entry]]:
    """Each answer with the history before it."""
    history = History()
    for entry in path:
        if entry.role == "assistant" and entry.turn:
            yield history.key, entry
        history.follow(entry)


def _fold(key: bytes, messages: Iterable[Message]) -> bytes:
    for message in messages:
        for identity in _identity(message):
            key = sha256(key + identity).digest()
    return key


def _identity(message: Message) -> list[bytes]:
    """The bytes that identify a message. Results count one by one, however they are grouped in messages."""
    if message.role == "tool":
        return [b"result" for _ in message.results]
    parts = [replace(part, id="") if isinstance(part, ToolCall) else part for part in message.parts]
    return [msgspec.json.encode([message.role, parts])]
