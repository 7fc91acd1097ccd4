"""A model that says what was said before: the answers of a recorded path, found by the history that led to them.

Two histories are one if the same inputs, summaries and answers stand in it and as many results; the words of a
result may differ, ids of calls do not count. A history that was not there then is a miss, never a guess.
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
        self._said = dict(_answers(path))
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

    def answer(self, history: History) -> Answer:
        """What was answered to a history that was followed entry by entry: nothing of it is looked at again."""
        return self._answer(self._said.get(history.key))

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        answer = self._answer(self.find(request.context))
        if answer.message.text:
            yield Delta(answer.message.text)
        yield answer

    def _answer(self, found: Entry | None) -> Answer:
        if found is None or found.message is None:
            raise ModelError(
                self.model, "this was not asked when it was recorded", "replay it with a real model"
            )
        usage, finish = Usage(0, 0, 0, 0), found.finish or "stop"
        return Answer(found.message, usage, found.evidence, self.provider, found.model, finish)


class History:
    """The history at the end of a path, as a key that grows with it: an entry costs what it adds.

    Only a summary, or the end of one, makes it fold again what is kept.
    """

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
            return  # the system prompt is no part of it
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
        for told in _told(message):
            key = sha256(key + told).digest()
    return key


def _told(message: Message) -> list[bytes]:
    """What tells one message from another here. Results count one by one, however they were put together."""
    if message.role == "tool":
        return [b"result" for _ in message.results]
    parts = [replace(part, id="") if isinstance(part, ToolCall) else part for part in message.parts]
    return [msgspec.json.encode([message.role, parts])]
