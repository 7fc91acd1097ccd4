"""Live events over HTTP: every fact once and in order, whoever wrote it, and pieces of answers in flight.

Facts are read from the journal by their numbers, so a stream begun anew misses nothing and repeats nothing.
Pieces come from runs of this server; each is stamped with the latest fact before it, and one that comes late
makes the whole draft be told instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import Stream

from ...core.entries import Entry
from ...core.tree import Leaf
from ...errors import BoughError, InvalidArgument
from ...session import Session
from ...stores.base import Fact, SessionRow
from ..auth import Caller
from ..context import ApiRequest, ServerContext, context_and_caller
from ..json_views import to_json
from ..live import LiveEvent, LiveWatcher
from ..path_window import client_entry, truncated_entry
from ..problems import problem_of
from ..truncate import SizedPage, truncate_value

PAUSE = 0.1  # seconds between two looks at what other processes wrote: one indexed read each
HEARTBEAT = 10.0
MOST_MISSED = 1_000
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
    after: Annotated[int | None, QueryParameter(ge=0, le=2**31, description="Begin behind this fact")] = None,
    last_event_id: Annotated[str | None, HeaderParameter(name="Last-Event-ID")] = None,
) -> Stream:
    """Every fact of a session as it happens, and its answers as they are written."""
    context, caller = context_and_caller(request)
    session = await asyncio.to_thread(context.session, caller, session_id)
    row = await asyncio.to_thread(lambda: session.row)
    seen = _begin(after, last_event_id, row.facts)
    return Stream(
        EventStream(context, caller, session, seen).stream(),
        media_type="text/event-stream",
        headers=STREAM_HEADERS,
    )


def _begin(after: int | None, last: str | None, facts: int) -> int:
    if last is not None:
        if not (last.isdecimal() and len(last) < 12):
            raise InvalidArgument("Last-Event-ID", last, "the number of a fact")
        after = int(last)
    return facts if after is None else after


def sse_event(event: str, data: Any, n: int | None = None) -> bytes:
    """One server-sent event. JSON has no bare line breaks, so one data line holds it."""
    head = b"" if n is None else b"id: %d\n" % n
    return head + b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))


class EventStream:
    """One stream of one session."""

    def __init__(self, context: ServerContext, caller: Caller, session: Session, seen: int) -> None:
        self.context, self.caller, self.session, self.seen = context, caller, session, seen
        self._draft: str | None = None  # of a run elsewhere, as last told

    async def stream(self) -> AsyncIterator[bytes]:
        live, name = self.context.live, self.session.session_id
        watcher = live.watch(name)
        try:
            yield b"retry: 1000\n\n"
            async for told in self._caught_up():
                yield told
            if not self.caller.is_client and live.draft(name) is not None:
                async for told in self._whole_draft(watcher):
                    yield told
            async for told in self._on(watcher):
                yield told
        except BoughError as error:  # purged meanwhile, or the store is gone: say so and end
            yield sse_event("problem", msgspec.to_builtins(problem_of(error)))
        finally:
            live.unwatch(name, watcher)

    async def _on(self, watcher: LiveWatcher) -> AsyncIterator[bytes]:
        quiet = 0.0
        while not self.context.live.is_closing.is_set():
            piece, told = await watcher.next(PAUSE), False
            async for event in self._piece(watcher, piece) if piece else self._news():
                told = True
                yield event
            quiet = 0.0 if told else quiet + (0 if piece else PAUSE)
            if quiet >= HEARTBEAT:
                quiet = 0.0
                yield b": still here\n\n"

    async def _piece(self, watcher: LiveWatcher, piece: LiveEvent) -> AsyncIterator[bytes]:
        """First the facts it follows, then it; if something newer was told already, the draft as it is now."""
        if piece.n > self.seen:
            async for told in self._caught_up(piece.n):
                yield told
        if self.caller.is_client:
            return
        if piece.event == "delta" and (watcher.has_lost_events or piece.n < self.seen):
            async for told in self._whole_draft(watcher):
                yield told
            return
        yield sse_event(piece.event, piece.data)

    async def _whole_draft(self, watcher: LiveWatcher) -> AsyncIterator[bytes]:
        """The facts the draft follows, then the draft; between looking and telling nothing else can happen."""
        live, name = self.context.live, self.session.session_id
        while live.last_fact(name) > self.seen:
            async for told in self._caught_up():
                yield told
        watcher.skip_deltas()
        yield sse_event("draft", live.draft(name) or {"text": "", "reasoning": ""})

    async def _news(self) -> AsyncIterator[bytes]:
        """What others wrote, and what they are writing."""
        row = await asyncio.to_thread(lambda: self.session.row)
        if row.facts > self.seen:
            async for told in self._caught_up():
                yield told
        if self.caller.is_client or self.context.live.draft(row.session_id) is not None:
            return
        draft = await self._elsewhere(row)
        if draft != self._draft:
            self._draft = draft
            yield sse_event("draft", {"text": draft or "", "reasoning": ""})

    async def _elsewhere(self, row: SessionRow) -> str | None:
        if row.status != "running":
            return None
        return await asyncio.to_thread(self.session.log.store.draft, row.session_id)

    async def _caught_up(self, until: int | None = None) -> AsyncIterator[bytes]:
        """The facts behind the last one told, up to `until` or all there are."""
        row = await asyncio.to_thread(lambda: self.session.row)
        end = row.facts if until is None else min(until, row.facts)
        if end - self.seen > MOST_MISSED or self.seen > row.facts:
            self.seen = row.facts
            yield sse_event("resync", {"last_fact": row.facts}, row.facts)
            return
        while self.seen < end:
            for n, told in await asyncio.to_thread(self._facts, end):
                self.seen = n
                yield told

    def _facts(self, end: int) -> list[tuple[int, bytes]]:
        row = self.session.row
        facts = self.session.journal(self.seen, min(BATCH, end - self.seen))
        return [(fact.number, sse_event("fact", self._told(fact, row), fact.number)) for fact in facts]

    def _told(self, fact: Fact, row: SessionRow) -> dict[str, Any]:
        entries = appended_entries(self.session, fact)
        if self.caller.is_client:
            return client_fact(fact, entries)
        data, _ = truncate_value(to_json(fact.data), 8_000, 2_000)
        page, left = SizedPage(700_000), 0
        for entry in entries:
            left += not (left == 0 and page.add(truncated_entry(entry)))
        about = {
            "status": row.status,
            "leaf": to_json(row.leaf),
            "turns": row.turns,
            "facts": row.facts,
            "totals": to_json(row.totals),
            "title": row.title,
        }
        told = {
            "number": fact.number,
            "kind": fact.kind,
            "at": fact.at,
            "data": data,
            "entries": page.items,
            "session": about,
        }
        return {**told, "omitted_entries": left} if left else told


def client_fact(fact: Fact, entries: list[Entry]) -> dict[str, Any]:
    """What a client is told of a fact: what was said in public, or only that there was something."""
    public = [client_entry(entry) for entry in entries if not entry.internal]
    if not public:
        return {"number": fact.number, "kind": "hidden", "at": fact.at}
    return {"number": fact.number, "kind": "appended", "at": fact.at, "entries": public}


def appended_entries(session: Session, fact: Fact) -> list[Entry]:
    """The entries a fact appended: none for a title, a status, a move."""
    first, last, branch = (fact.data.get(name) for name in ("first", "last", "branch"))
    if first is None or last is None or branch is None:
        return []
    store = session.log.store
    return store.path(session.session_id, leaf=Leaf(branch, last), first=first, last=last).entries


HANDLERS = [events]
