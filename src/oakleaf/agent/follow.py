"""Follow the events of a session as they happen, whichever process writes them. Knows the store, and no run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from oakleaf.agent.events import Event, fact_event
from oakleaf.errors import InvalidArgument, NotFound
from oakleaf.log.log import Log
from oakleaf.log.threads import run_to_end
from oakleaf.stores.base import SessionHead

PAUSE = 0.1
"""Seconds between two looks: one indexed read while nothing happens."""
BATCH = 100


async def follow(log: Log, after: int | None) -> AsyncGenerator[Event]:
    """Yield the events after a number, by default those to come, and the draft of an answer whenever it grows."""
    last, draft = await run_to_end(_begin, log, after), ""
    while True:
        events, text = await run_to_end(_read, log, last)
        for event in events:
            yield event
        last += len(events)  # numbers have no gap
        if text not in (None, draft):
            draft = text or ""
            yield Event("session:draft", {"text": draft, "reasoning": ""})
        if len(events) < BATCH:
            await asyncio.sleep(PAUSE)


def _begin(log: Log, after: int | None) -> int:
    facts = _head(log).facts
    if after is not None and not 0 <= after <= facts:
        raise InvalidArgument("after", after, f"the number of an event, 0 to {facts}")
    return facts if after is None else after


def _read(log: Log, last: int) -> tuple[list[Event], str | None]:
    """Return the next events and the draft behind them; None if others came meanwhile, to which a draft may belong."""
    head = _head(log)
    if head.facts == last and head.status != "running":
        return [], ""
    facts = log.store.journal(log.session_id, last, BATCH)
    events = [fact_event(fact, log.appended_entries(fact)) for fact in facts]
    draft = log.store.draft(log.session_id) or ""
    is_newest = _head(log).facts == last + len(facts)
    return events, draft if is_newest else None


def _head(log: Log) -> SessionHead:
    heads = log.store.heads([log.session_id])
    if not heads:
        raise NotFound(log.session_id)
    return heads[log.session_id]
