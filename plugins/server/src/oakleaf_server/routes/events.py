"""Route for live events: every fact once and in order, from any process, and deltas of answers in progress.

Facts are read from the journal by number, so a resumed stream misses nothing and repeats nothing. Deltas come from
runs of this server and carry the number of the latest fact before them; a late delta is replaced by the whole draft.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import Stream

from oakleaf.core.entries import Entry
from oakleaf.core.facts import Appended, Started, StoredFact, kind_of
from oakleaf.errors import InvalidArgument, NotFound, OakleafError
from oakleaf.ext import fact_event_type, read
from oakleaf.session import Session
from oakleaf.stores.base import SessionRow
from oakleaf_server.auth import Caller
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller
from oakleaf_server.json_views import client_entry, to_json
from oakleaf_server.live import PAUSE, LiveEvent, LiveWatcher
from oakleaf_server.path_window import truncated_entry
from oakleaf_server.problems import problem_of
from oakleaf_server.truncate import SizedPage, truncate_value

HEARTBEAT = 20.0  # seconds: proxies close a silent connection after 30 or 60
MAX_MISSED = 1_000
BATCH = 100
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@get(
    "/api/sessions/{session_id:str}/events",
    opt={"client": True},
    tags=["events"],
    media_type="text/event-stream",
)
async def events(
    request: ApiRequest,
    session_id: FromPath[str],
    after: Annotated[int | None, QueryParameter(ge=0, le=2**31, description="Start after this fact")] = None,
    last_event_id: Annotated[str | None, HeaderParameter(name="Last-Event-ID")] = None,
) -> Stream:
    """Stream the facts of a session as they happen, and its answers as they are written."""
    context, caller = context_and_caller(request)
    session = await asyncio.to_thread(context.session, caller, session_id)
    row = await asyncio.to_thread(lambda: session.row)
    last_fact = _begin(after, last_event_id, row.facts)
    return Stream(
        EventStream(context, caller, session, last_fact).stream(),
        media_type="text/event-stream",
        headers=STREAM_HEADERS,
    )


def _begin(after: int | None, last: str | None, facts: int) -> int:
    if last is not None:
        if not (last.isdecimal() and len(last) < 12):
            raise InvalidArgument("Last-Event-ID", last, "the number of a fact")
        after = int(last)
    return facts if after is None else after


def sse_event(event: str, data: Any, number: int | None = None) -> bytes:
    """Encode a server-sent event. JSON contains no raw line breaks, so it fits one data line."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))


class EventStream:
    """The event stream of a connection for a session."""

    def __init__(self, context: ServerContext, caller: Caller, session: Session, last_fact: int) -> None:
        self.context, self.caller, self.session, self.last_fact = context, caller, session, last_fact
        self.is_trashed = False

    async def stream(self) -> AsyncIterator[bytes]:
        live, name = self.context.live, self.session.session_id
        watcher = live.watch(name)
        self.context.poller.start()
        try:
            yield b"retry: 1000\n\n"
            row = await asyncio.to_thread(lambda: self.session.row)
            async for event_bytes in self._catch_up(watcher, row):
                yield event_bytes
            if not self.caller.is_client and live.draft(name) is not None:
                async for event_bytes in self._send_draft(watcher):
                    yield event_bytes
            elif not self.caller.is_client and (draft := await self._foreign_draft(row)):
                yield sse_event("session:draft", {"text": draft, "reasoning": ""})
            async for event_bytes in self._follow(watcher):
                yield event_bytes
        except OakleafError as error:  # purged meanwhile, or the store failed: report it and end
            yield sse_event("session:problem", msgspec.to_builtins(problem_of(error)))
        finally:
            live.unwatch(name, watcher)

    async def _follow(self, watcher: LiveWatcher) -> AsyncIterator[bytes]:
        while not self.context.live.is_closing.is_set():
            live_event = await watcher.next(HEARTBEAT)
            if live_event is not None:
                async for event_bytes in self._live_event(watcher, live_event):
                    yield event_bytes
            elif watcher.take_change():
                row = await asyncio.to_thread(lambda: self.session.row)
                async for event_bytes in self._catch_up(watcher, row):
                    yield event_bytes
            else:
                yield b": still here\n\n"

    async def _live_event(self, watcher: LiveWatcher, live_event: LiveEvent) -> AsyncIterator[bytes]:
        """Send the facts before a live event, then the event; if newer facts were sent, send the current draft instead."""
        if live_event.last_fact > self.last_fact:
            async for event_bytes in self._new_facts(live_event.last_fact):
                yield event_bytes
        if self.caller.is_client or live_event.event is None:
            return
        if live_event.event == "session:delta" and (
            watcher.has_lost_events or live_event.last_fact < self.last_fact
        ):
            async for event_bytes in self._send_draft(watcher):
                yield event_bytes
            return
        yield sse_event(live_event.event, live_event.data)

    async def _send_draft(self, watcher: LiveWatcher) -> AsyncIterator[bytes]:
        """Send the facts before the draft, then the draft, without a suspension point between reading and sending."""
        live, name = self.context.live, self.session.session_id
        while live.last_fact(name) > self.last_fact:
            async for event_bytes in self._new_facts():
                yield event_bytes
        watcher.skip_deltas()
        yield sse_event("session:draft", live.draft(name) or {"text": "", "reasoning": ""})

    async def _catch_up(self, watcher: LiveWatcher, row: SessionRow) -> AsyncIterator[bytes]:
        """Send the facts of the row, unless live events were queued since: queued events come first, with the
        facts before.
        """
        if not watcher.is_empty or self.context.live.is_behind(row.session_id):
            asyncio.get_running_loop().call_later(PAUSE, watcher.notice_change)
        elif row.facts != self.last_fact:
            async for event_bytes in self._new_facts(row.facts):
                yield event_bytes
        if change := self._trash_change():
            yield change

    def _trash_change(self) -> bytes:
        """Return the event of a session's trashing or restoring, if any since the last event.

        The journal has no fact of it. For a client a session in the trash does not exist.
        """
        trashed_at = self.context.poller.trashed_at(self.session.session_id)
        if self.is_trashed == (trashed_at is not None):
            return b""
        if self.caller.is_client:
            raise NotFound(self.session.session_id)
        self.is_trashed = trashed_at is not None
        return (
            sse_event("session:trashed", {"trashed_at": trashed_at})
            if self.is_trashed
            else sse_event("session:restored", {})
        )

    async def _foreign_draft(self, row: SessionRow) -> str | None:
        if row.status != "running":
            return None
        return await asyncio.to_thread(read(self.session).draft)

    async def _new_facts(self, until: int | None = None) -> AsyncIterator[bytes]:
        """Send the facts after the last sent fact, up to `until` or all."""
        row = await asyncio.to_thread(lambda: self.session.row)
        end = row.facts if until is None else min(until, row.facts)
        if end - self.last_fact > MAX_MISSED or self.last_fact > row.facts:
            self.last_fact = row.facts
            yield sse_event("session:resync", {"last_fact": row.facts}, row.facts)
            return
        while self.last_fact < end:
            for number, event_bytes in await asyncio.to_thread(self._facts, end):
                self.last_fact = number
                yield event_bytes

    def _facts(self, end: int) -> list[tuple[int, bytes]]:
        row = self.session.row
        facts = self.session.journal(self.last_fact, min(BATCH, end - self.last_fact))
        return [(fact.number, self._fact_event(fact, row)) for fact in facts]

    def _fact_event(self, fact: StoredFact, row: SessionRow) -> bytes:
        entries = read(self.session).appended_entries(fact)
        if self.caller.is_client:
            return sse_event(*client_fact(fact, entries), fact.number)
        about = fact.view
        if isinstance(fact.fact, Started):  # as the event of a run in Python has it
            about = about | read(self.session).about()
        data, _ = truncate_value(to_json(about), 8_000, 2_000)
        page, omitted = SizedPage(700_000), 0
        for entry in entries:
            omitted += not (omitted == 0 and page.add(truncated_entry(entry)))
        session = {
            "status": row.status,
            "leaf": to_json(row.leaf),
            "turns": row.turns,
            "facts": row.facts,
            "totals": to_json(row.totals),
            "title": row.title,
        }
        view = {
            "number": fact.number,
            "kind": fact.kind,
            "at": fact.at,
            "data": data,
            "entries": page.items,
            "session": session,
        }
        view |= {"omitted_entries": omitted} if omitted else {}
        return sse_event(fact_event_type(fact, entries), view, fact.number)


def client_fact(fact: StoredFact, entries: list[Entry]) -> tuple[str, dict[str, Any]]:
    """Return the client's view of a fact, as the name and data of an event: the public entries, or only the
    number.
    """
    public = [entry for entry in entries if not entry.internal]
    if not public:
        return "session:hidden", {"number": fact.number, "kind": "hidden", "at": fact.at}
    views = [client_entry(entry) for entry in public]
    view = {"number": fact.number, "kind": kind_of(Appended), "at": fact.at, "entries": views}
    return fact_event_type(fact, public), view


HANDLERS = [events]
