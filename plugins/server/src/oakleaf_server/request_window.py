"""Windows of a request: the newest messages that a model is given at a leaf, earlier ones by cursor, or all as a stream.

Reads a bounded part of the path, however long it is. The messages of a window are those of the request, with one
exception: the id of a tool call that repeats one before the window is written as it was recorded. Tools that
may not be called are shown if the window calls any. Does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from oakleaf.core.context import Context, Item, Replacement, head_length, read_replacement, whole_context
from oakleaf.core.fit import Budget
from oakleaf.core.tool_definitions import read_callable_tools
from oakleaf.core.tree import Leaf
from oakleaf.ext import SessionReader
from oakleaf.wire import HistoryPart, Provider
from oakleaf.wire.offered_tools import called_tools
from oakleaf.wire.parts import join_messages, part_starts
from oakleaf_server.truncate import json_size

STEP = 250
MAX_SCANNED = 2_000
"""Entries that one window is looked for in: a batch of tool calls longer than this is divided anywhere."""
ROOM = 500_000
ENCODE = msgspec.json.encode


class ItemWindow(Struct, frozen=True):
    """Consecutive messages of a context."""

    items: tuple[Item, ...]
    first: int
    """The seq from which on it has them."""
    is_start: bool
    is_end: bool


class PromptReader(Struct, frozen=True):
    """Reads parts of the context at a leaf."""

    session: SessionReader
    """At that leaf."""
    frame: Context
    """System prompt and settings; its items are those before `first`: summaries, and the input that they keep."""
    first: int
    """The seq of the first entry that the model sees in full."""
    replacement: Replacement = field(default_factory=Replacement)
    items: tuple[Item, ...] | None = None
    """All that come after `frame`, if they were read already."""

    @property
    def leaf(self) -> Leaf:
        return self.session.leaf

    def window(self, before: int | None, limit: int) -> ItemWindow:
        """Return the newest messages before seq `before`: about `limit`, fewer if long."""
        end = self.leaf.seq if before is None else min(before - 1, self.leaf.seq)
        items: list[Item] = []
        begin = end + 1
        while begin > self.first and end - begin < MAX_SCANNED:
            stop, begin = begin - 1, max(self.first, begin - STEP)
            items[:0] = self._read(begin, stop)
            start = _window_start(items, limit)
            if start:
                return ItemWindow(tuple(items[start:]), items[start].seq, False, before is None)
        if begin <= self.first:
            return ItemWindow((*self.frame.items, *items), self.first, True, before is None)
        return ItemWindow(tuple(items), begin, False, before is None)

    def parts(self) -> Iterator[ItemWindow]:
        """Yield the whole context in parts, the oldest first."""
        items, begin, is_start = list(self.frame.items), self.first, True
        for first in range(self.first, self.leaf.seq + 1, STEP):
            items += self._read(first, min(first + STEP - 1, self.leaf.seq))
            starts = part_starts(items)
            if starts:
                yield ItemWindow(tuple(items[: starts[-1]]), begin, is_start, False)
                items, begin, is_start = items[starts[-1] :], items[starts[-1]].seq, False
        yield ItemWindow(tuple(items), begin, is_start, True)

    def newest(self, count: int) -> ItemWindow:
        """Return the messages of the newest entries, wherever the cut falls."""
        first = max(self.first, self.leaf.seq - count + 1)
        is_start = first == self.first
        items = self._read(first, self.leaf.seq)
        return ItemWindow((*(self.frame.items if is_start else ()), *items), first, is_start, True)

    def continues_as(self, later: PromptReader) -> bool:
        """Whether the context of a later leaf of the same path has all messages of this context, unchanged."""
        if self.items is not None or later.items is not None:
            return False
        return (self.first, self.replacement) == (later.first, later.replacement)

    def within(self, later: PromptReader, window: ItemWindow) -> ItemWindow:
        """Return the messages of a later window found in this context; unchanged messages are not read again."""
        if not self.continues_as(later):
            return self.newest(later.leaf.seq - window.first + 1)
        items = tuple(item for item in window.items if item.pinned or item.seq <= self.leaf.seq)
        return replace(window, items=items)

    def context(self, window: ItemWindow) -> Context:
        """Return a window as a context; the system prompt belongs to the first window."""
        return replace(self.frame, system=self.frame.system if window.is_start else (), items=window.items)

    def project(self, provider: Provider, window: ItemWindow) -> dict[str, Any]:
        """Return the request of a window, with prompt, tools and options."""
        part = HistoryPart(is_start=window.is_start, is_end=window.is_end)
        request = provider.project(self.context(window), self.session.blob, part)
        if window.is_start:
            return request
        return {**self.around(provider, window), provider.history: request[provider.history]}

    def around(self, provider: Provider, newest: ItemWindow) -> dict[str, Any]:
        """Return the request without messages: prompt, tools and options, partly by the newest answer."""
        return self._around(provider, newest, called_tools(newest.items))

    def _around(self, provider: Provider, newest: ItemWindow, called: tuple[str, ...]) -> dict[str, Any]:
        answers = [n for n, item in enumerate(newest.items) if item.message.role == "assistant"]
        context = replace(self.frame, items=newest.items[answers[-1] :] if answers else ())
        part = HistoryPart(is_end=newest.is_end, called_tools=called)
        return {**provider.project(context, self.session.blob, part), provider.history: []}

    def stream(self, provider: Provider) -> Iterator[bytes]:
        """Yield the request as JSON, byte for byte as sent, without holding the whole request."""
        opening = b"{"
        recorded = read_callable_tools(self.frame.settings.tool_definitions, self.session.blob)
        called = () if recorded else called_tools(item for part in self.parts() for item in part.items)
        for key, value in self._around(provider, self.window(None, 1), called).items():
            yield opening + ENCODE(key) + b":"
            opening = b","
            if key != provider.history:
                yield ENCODE(value)
                continue
            yield b"["
            comma = b""
            for message in self._messages(provider):
                yield comma + ENCODE(message)
                comma = b","
            yield b"]"
        yield b"}"

    def _messages(self, provider: Provider) -> Iterator[dict[str, Any]]:
        part, waiting = HistoryPart(), list[dict[str, Any]]()
        for window in self.parts():
            part.is_start, part.is_end = part.is_start and not waiting, window.is_end
            context = self.context(window)
            join_messages(
                provider, waiting, provider.project(context, self.session.blob, part)[provider.history]
            )
            yield from waiting[:-1]  # the last one may be joined with the next part's first
            del waiting[:-1]
        yield from waiting

    def _read(self, first: int, last: int) -> list[Item]:
        if self.items is not None:
            return [item for item in self.items if first <= item.seq <= last]
        entries = self.session.entries(first, last)
        return [item for item in map(self.replacement.item, entries) if item is not None]


def _window_start(items: Sequence[Item], limit: int) -> int:
    """Return the index of the first item of a window; 0 if more must be read first."""
    room = ROOM
    start = 0
    for index in reversed(part_starts(items)):
        room -= sum(json_size(item.message) for item in items[index : start or len(items)])
        if room < 0 and start:
            return start
        start = index
        if len(items) - index >= limit or room < 0:
            return index
    return 0


def read_prompt(session: SessionReader) -> PromptReader:
    """Return a reader of the model's input after the leaf of a reader."""
    entries, leaf = session.prompt_frame(), session.leaf
    head, frame = head_length(entries), whole_context(entries)
    replacement = read_replacement(entries)
    if frame.settings.max_messages:
        return _trimmed(session, replacement)
    end_of_head = entries[head].seq if head < len(entries) else leaf.seq + 1
    frame = replace(frame, items=(*replacement.summaries, *_kept_input(session, replacement)))
    return PromptReader(session, frame, max(replacement.first_kept, end_of_head), replacement)


def _kept_input(session: SessionReader, replacement: Replacement) -> list[Item]:
    seq = replacement.kept_input
    if not 0 < seq < replacement.first_kept:
        return []
    entries = session.entries(seq, seq)
    return [item for item in map(replacement.item, entries) if item is not None]


def _trimmed(session: SessionReader, replacement: Replacement) -> PromptReader:
    """Return a reader of a context trimmed to the maximum of messages."""
    context = session.context_within(Budget())
    before = tuple(item for item in context.items if item.pinned or item.seq < replacement.first_kept)
    items = context.items[len(before) :]
    first = items[0].seq if items else session.leaf.seq + 1
    return PromptReader(session, replace(context, items=before), first, replacement, items)
