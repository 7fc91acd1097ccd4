"""A real-shaped source of each tool, and a reader of its own that counts what is in the raw files.

The readers share no code with the importers: they say what a correct import must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from oakleaf.core.codec import decode
from oakleaf.core.messages import Message
from oakleaf.core.usage import total
from oakleaf.store import Store

Record = dict[str, Any]


class Counts(NamedTuple):
    """What a source, or a store after the import, holds."""

    sessions: int
    calls: int
    """Tool calls."""
    results: int
    texts: list[str]
    """The texts of users and models, sorted."""
    model_calls: int = 0
    """Those that reported their tokens."""
    tokens: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Input with what was cached, output, read from the cache, written to it."""
    microcents: int | None = None
    """None: the source has no cost and its models have no price."""


class ToolSource(NamedTuple):
    """How to write a source of a tool, and how to count it."""

    tool: str
    sample: list[Record]
    write: Callable[[Path, list[Record]], Path | str]
    """Writes records into an empty folder and returns what to import."""
    count: Callable[[Any], Counts]
    """Counts what `write` returned."""
    growth: Callable[[], Iterator[list[Record]]] | None = None
    """The states it passes through while the tool writes it; None: a record at a time."""
    has_times: bool = True
    """Whether the tool stores when a message was written."""

    def states(self) -> Iterator[list[Record]]:
        if self.growth is not None:
            yield from self.growth()
        else:
            yield from (self.sample[:end] for end in range(1, len(self.sample) + 1))


def stored_messages(store: Store, session_id: str) -> list[Message]:
    """Return the messages of every branch, in the order they were written."""
    payloads = (decode(stored.entry.kind, stored.entry.body) for stored in store.backend.entries(session_id))
    return [payload for payload in payloads if isinstance(payload, Message)]


def stored_counts(store: Store) -> Counts:
    """Count every branch of every session of a store."""
    messages: list[Message] = []
    calls = []
    names = [row.session_id for row in store.all_sessions(limit=500)]
    for name in names:
        messages += stored_messages(store, name)
        calls += list(store.backend.calls(name))
    totals = total(calls)
    return Counts(
        len(names),
        sum(len(message.calls) for message in messages),
        sum(len(message.results) for message in messages),
        sorted(m.text for m in messages if m.role in ("user", "assistant") and m.text),
        totals.calls,
        (
            totals.input_tokens,
            totals.output_tokens,
            totals.cache_read_tokens,
            totals.cache_write_tokens,
        ),
        totals.cost_microcents if any(call.price for call in calls) else None,
    )
