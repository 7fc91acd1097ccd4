"""A model that repeats the answers of a recorded path, looked up by the history before each.

Two histories are equal if they have the same inputs, summaries and answers, and as many results; the content of
results may differ, and call ids are ignored. An unknown history has no answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from oakleaf.core import context as contexts
from oakleaf.core.context import Context, Item
from oakleaf.core.entries import INTERRUPTED, Compaction, Entry, Uncompaction
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.usage import Usage
from oakleaf.errors import ModelError
from oakleaf.models.base import Delta, Request
from oakleaf.models.prices import Rates
from oakleaf.wire import Answer


class RecordedModel:
    """Gives the recorded answer to the same history, or raises ModelError."""

    provider = "recorded"
    rates = Rates(0, 0)
    """Repeating an answer costs nothing."""
    name = None
    """A session is not named after a recording."""

    def __init__(self, path: Iterable[Entry], *, model: str = "recorded") -> None:
        self.model = model
        self._answers = dict(_answers(path))
        self._history: list[Message] = []
        self._keys: list[bytes] = []
        """The key after each message of the latest history, which the next history usually extends."""

    def find(self, context: Context) -> Entry | None:
        """Return the recorded answer to a history; None if no answer was recorded."""
        messages = [item.message for item in context.items]
        shared = 0
        for earlier, message in zip(self._history, messages, strict=False):
            if earlier is not message and earlier != message:
                break
            shared += 1
        self._history = messages
        del self._keys[shared:]
        for message in messages[shared:]:
            self._keys.append(_extend_key(self._keys[-1] if self._keys else b"", [message]))
        return self._answers.get(self._keys[-1] if self._keys else b"")

    def answer(self, history: History) -> Answer:
        """Return the recorded answer to a history that was followed entry by entry; nothing is read again."""
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
    """The history at the end of a path as a key, updated per entry. Only a compaction or its cancellation computes
    the key from all messages again.
    """

    def __init__(self) -> None:
        self.key = b""
        self._items: list[Item] = []
        self._summaries: list[Entry] = []

    def follow(self, entry: Entry) -> None:
        if isinstance(entry.payload, Compaction | Uncompaction):
            self._summaries.append(entry)
            self.key = _extend_key(b"", self._context_messages())
            return
        item = contexts.context_item(entry)
        if item is None or (not self._items and item.message.role == "system"):
            return  # the system prompt is not part of the key
        self._items.append(item)
        self.key = _extend_key(self.key, [item.message])

    def _context_messages(self) -> Iterator[Message]:
        """Yield the messages in context: the summaries, then the messages after the last summary."""
        replacement = contexts.read_replacement(self._summaries)
        for summary in replacement.summaries:
            yield summary.message
        first = self._index(replacement.first_kept) if replacement.summaries else 0
        input_index = self._index(replacement.kept_input)
        if input_index < first and replacement.keeps(
            self._items[input_index].seq, self._items[input_index].turn
        ):
            yield self._items[input_index].message
        for item in self._items[first:]:
            yield item.message

    def _index(self, seq: int) -> int:
        return bisect_left(self._items, seq, key=lambda item: item.seq)


def _answers(path: Iterable[Entry]) -> Iterator[tuple[bytes, Entry]]:
    """Yield each answer with the key of the history before the answer."""
    history = History()
    for entry in path:
        if entry.role == "assistant" and entry.turn and entry.finish != INTERRUPTED:
            yield history.key, entry
        history.follow(entry)


def _extend_key(key: bytes, messages: Iterable[Message]) -> bytes:
    for message in messages:
        for identity in _identity(message):
            key = sha256(key + identity).digest()
    return key


def _identity(message: Message) -> list[bytes]:
    """Return the identifying bytes of a message. Results count one by one, however they are grouped in messages."""
    if message.role == "tool":
        return [b"result" for _ in message.results]
    parts = [replace(part, id="") if isinstance(part, ToolCall) else part for part in message.parts]
    return [msgspec.json.encode([message.role, parts])]
