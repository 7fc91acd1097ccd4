"""Live events of runs in this server: deltas of answers in progress, which the journal does not contain.

Knows which connection watches which session. A watcher that falls behind loses deltas and gets the whole draft
instead, so it never shows a partial text. Durable facts are not sent through here; they are read from the store, which
one poller watches for all connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from msgspec import Struct

from oakleaf import Event, Run
from oakleaf.errors import OakleafError
from oakleaf.ext import StoreReader
from oakleaf.stores.base import SessionHead

MAX_QUEUED = 256
PAUSE = 0.1
"""Seconds between polls for facts of other processes: one indexed read for all watched sessions."""
PER_SECOND = 4_000
"""Heads read per second at most: a thousand take 1.3 ms, so this is half a percent of a core."""


class LiveEvent(Struct, frozen=True):
    """A live event, and the number of the latest fact at publication. Without a name it announces facts only."""

    event: str | None
    data: dict[str, Any]
    last_fact: int


class LiveWatcher:
    """The event queue of a connection. Used on the event loop only."""

    def __init__(self) -> None:
        self._events: deque[LiveEvent] = deque()
        self._has_events = asyncio.Event()
        self.has_lost_events = False
        self._has_changed = False

    def notice_change(self) -> None:
        """Have the connection look for new facts."""
        self._has_changed = True
        self._has_events.set()

    def take_change(self) -> bool:
        """Return whether a change was noticed since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def put(self, event: LiveEvent) -> None:
        if len(self._events) >= MAX_QUEUED:
            self.has_lost_events = True
            self._events.clear()
        self._events.append(event)
        self._has_events.set()

    @property
    def is_empty(self) -> bool:
        return not self._events

    async def next(self, seconds: float) -> LiveEvent | None:
        """Return the oldest event, or None after `seconds` or when a change was noticed."""
        if not self._events and not self._has_changed:
            self._has_events.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_events.wait(), seconds)
        return self._events.popleft() if self._events else None

    def skip_deltas(self) -> None:
        """Drop queued deltas: the draft sent instead contains the deltas, or the answer is already stored."""
        self.has_lost_events = False
        self._events = deque(event for event in self._events if event.event != "session:delta")


class LiveHub:
    def __init__(self) -> None:
        self.is_closing = asyncio.Event()
        """Set by `close`."""
        self._watchers: dict[str, list[LiveWatcher]] = {}
        self._drafts: dict[str, dict[str, str]] = {}
        self._numbers: dict[str, int] = {}
        self._runs: dict[str, Run] = {}

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

    def close(self) -> None:
        """End all streams, after the unsent events."""
        self.is_closing.set()
        for session_id in self.watched:
            self.notice_change(session_id)

    @property
    def stream_count(self) -> int:
        return sum(map(len, list(self._watchers.values())))

    @property
    def watched(self) -> list[str]:
        """The watched sessions."""
        return list(self._watchers)

    def notice_change(self, session_id: str) -> None:
        """Have the watchers of a session look for facts of other processes."""
        for watcher in self._watchers.get(session_id, ()):
            watcher.notice_change()

    def send_draft(self, session_id: str, text: str, last_fact: int) -> None:
        """Send the draft of a run in another process, after the facts up to `last_fact`."""
        self._put(session_id, LiveEvent("session:draft", {"text": text, "reasoning": ""}, last_fact))

    def draft(self, session_id: str) -> dict[str, str] | None:
        """Return the draft of the answer in progress; None without a run of the server on an answer."""
        return self._drafts.get(session_id)

    def last_fact(self, session_id: str) -> int:
        """Return the number of the latest fact published by a run of the server; the draft follows the fact."""
        return self._numbers.get(session_id, 0)

    def publish(self, session_id: str, event: Event) -> None:
        """Publish an event of a run."""
        if event.journal_number is not None:
            self._numbers[session_id] = event.journal_number
        if event.type == "session:delta":
            self._add_delta(session_id, event.data)
        elif event.type in ("session:answer", "session:turn_completed", "session:retry"):
            self._drafts.pop(session_id, None)
        if event.journal_number is None:
            self._send(session_id, event.type, dict(event.data))
        else:
            self._send(session_id, None, {})  # have the watchers send the facts up to this one

    def begin_run(self, session_id: str, run: Run) -> None:
        self._runs[session_id] = run

    def is_behind(self, session_id: str) -> bool:
        """Whether a run of the server has unpublished events: such events come before newer facts."""
        run = self._runs.get(session_id)
        return run is not None and run.has_waiting_events

    def end_run(self, session_id: str, problem: dict[str, Any] | None) -> None:
        """End a run's publication, with a problem after a failure."""
        self._drafts.pop(session_id, None)
        self._runs.pop(session_id, None)
        if problem is not None:
            self._send(session_id, "session:failed", problem)
        self._numbers.pop(session_id, None)

    def _add_delta(self, session_id: str, data: dict[str, Any]) -> None:
        draft = self._drafts.setdefault(session_id, {"text": "", "reasoning": ""})
        for name in draft:
            draft[name] += data.get(name, "")

    def _send(self, session_id: str, event: str | None, data: dict[str, Any]) -> None:
        self._put(session_id, LiveEvent(event, data, self.last_fact(session_id)))

    def _put(self, session_id: str, event: LiveEvent) -> None:
        for watcher in self._watchers.get(session_id, ()):
            watcher.put(event)


class StorePoller:
    """Notices changes of the watched sessions by other processes: a single read of the store for all
    sessions, however many watch.

    Runs while there are watchers.
    """

    def __init__(self, store: StoreReader, hub: LiveHub) -> None:
        self._store, self._hub = store, hub
        self._heads: dict[str, SessionHead] = {}
        self._drafts: dict[str, str | None] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def trashed_at(self, session_id: str) -> int | None:
        """Return when a watched session was moved to the trash, as of the last poll.

        A change after it is noticed, whatever a watcher read of the session meanwhile.
        """
        head = self._heads.get(session_id)
        return None if head is None else head.trashed_at

    async def _run(self) -> None:
        try:
            while (names := self._hub.watched) and not self._hub.is_closing.is_set():
                try:
                    await self._poll(names)
                except OakleafError:  # every stream reads the store itself and reports the problem
                    for name in names:
                        self._hub.notice_change(name)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hub.is_closing.wait(), max(PAUSE, len(names) / PER_SECOND))
        finally:
            self._task = None
            self._heads.clear()
            self._drafts.clear()

    async def _poll(self, names: list[str]) -> None:
        answering = {name for name in names if self._hub.draft(name) is not None}
        heads, drafts = await asyncio.to_thread(self._read, names, answering)
        for name in names:
            # Not there: purged, which ends the stream.
            if name not in heads or heads[name] != self._heads.get(name):
                self._hub.notice_change(name)
            draft = drafts.get(name)
            if draft != self._drafts.get(name) and name in heads and name not in answering:
                self._hub.send_draft(name, draft or "", heads[name].facts)
        self._heads, self._drafts = heads, drafts

    def _read(
        self, names: list[str], answering: set[str]
    ) -> tuple[dict[str, SessionHead], dict[str, str | None]]:
        """Read the heads, and the drafts of sessions running in another process."""
        heads = self._store.heads(names)
        running = [name for name, head in heads.items() if head.status == "running" and name not in answering]
        return heads, self._store.drafts(running)
