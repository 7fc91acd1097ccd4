"""What runs in this server tell whoever watches: pieces of answers in flight, which no journal has.

Knows who watches which session. A watcher that cannot keep up loses pieces, and is told to show the whole draft
instead: so it never shows half. Durable facts do not come through here; they are read from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from msgspec import Struct

from ..agent.events import Event

MOST_WAITING = 256


class LiveEvent(Struct, frozen=True):
    """Something live, and the number of the latest fact when it was told."""

    event: str
    data: dict[str, Any]
    n: int


class AnswerDraft(Struct):
    text: str = ""
    reasoning: str = ""


class LiveWatcher:
    """One connection's share of a session's pieces. Belongs to the event loop."""

    def __init__(self) -> None:
        self._pieces: deque[LiveEvent] = deque()
        self._has_news = asyncio.Event()
        self.has_lost_events = False

    def put(self, piece: LiveEvent) -> None:
        if len(self._pieces) >= MOST_WAITING:
            self.has_lost_events = True
            self._pieces.clear()
        self._pieces.append(piece)
        self._has_news.set()

    async def next(self, seconds: float) -> LiveEvent | None:
        """The oldest piece; None if none came in time."""
        if not self._pieces:
            self._has_news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_news.wait(), seconds)
        return self._pieces.popleft() if self._pieces else None

    def skip_deltas(self) -> None:
        """Drop those that wait: the draft told instead has them, or its answer is there already."""
        self.has_lost_events = False
        self._pieces = deque(piece for piece in self._pieces if piece.event != "delta")


class LiveHub:
    def __init__(self) -> None:
        self.is_closing = asyncio.Event()
        """Set when the server ends: streams end with it."""
        self._watchers: dict[str, list[LiveWatcher]] = {}
        self._drafts: dict[str, AnswerDraft] = {}
        self._numbers: dict[str, int] = {}

    def watch(self, session_id: str) -> LiveWatcher:
        watcher = LiveWatcher()
        self._watchers.setdefault(session_id, []).append(watcher)
        return watcher

    def unwatch(self, session_id: str, watcher: LiveWatcher) -> None:
        watching = self._watchers.get(session_id, [])
        if watcher in watching:
            watching.remove(watcher)
        if not watching:
            self._watchers.pop(session_id, None)

    def draft(self, session_id: str) -> dict[str, str] | None:
        """What the answer in flight has said so far; None: no run of this server is answering."""
        found = self._drafts.get(session_id)
        return None if found is None else {"text": found.text, "reasoning": found.reasoning}

    def last_fact(self, session_id: str) -> int:
        """The latest fact a run of this server has told: what its draft follows."""
        return self._numbers.get(session_id, 0)

    def publish(self, session_id: str, event: Event) -> None:
        """One event of a run."""
        if event.journal_number is not None:
            self._numbers[session_id] = event.journal_number
        if event.type == "session:delta":
            self._add(session_id, event.data)
            self._pass_on(session_id, "delta", dict(event.data))
            return
        if event.type in ("session:answer", "session:turn_completed", "session:retry"):
            self._drafts.pop(session_id, None)
        told = {"type": event.type.removeprefix("session:"), "data": event.data}
        self._pass_on(session_id, "run", told)

    def end_run(self, session_id: str, problem: dict[str, Any] | None) -> None:
        """A run is over; with a problem if it broke."""
        self._drafts.pop(session_id, None)
        if problem is not None:
            self._pass_on(session_id, "run", {"type": "failed", "data": problem})
        self._numbers.pop(session_id, None)

    def _add(self, session_id: str, data: dict[str, Any]) -> None:
        draft = self._drafts.setdefault(session_id, AnswerDraft())
        draft.text += data.get("text", "")
        draft.reasoning += data.get("reasoning", "")

    def _pass_on(self, session_id: str, event: str, data: dict[str, Any]) -> None:
        piece = LiveEvent(event, data, self._numbers.get(session_id, 0))
        for watcher in self._watchers.get(session_id, ()):
            watcher.put(piece)
