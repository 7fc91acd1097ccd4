"""Hydrate a session: read everything needed to resume or show it, in one read."""

from __future__ import annotations

from msgspec import Struct

from ..core.codec import from_json
from ..core.entries import Entry
from ..core.state import State, fold_state
from ..core.usage import Totals
from ..stores.base import SessionRow
from .log import Log


class HydratedSession(Struct, frozen=True):
    """A session's row, seeds, messages, state and totals, from one read."""

    row: SessionRow
    seeds: list[Entry]
    messages: list[Entry]
    state: State
    totals: Totals


def hydrate(log: Log) -> HydratedSession:
    reading = log.store.path(log.session_id, detail=True)
    count = log.seed_count_on(reading.ranges)
    cached = reading.detail.state if reading.detail is not None else None
    state = fold_state(reading.entries) if cached is None else from_json(cached)
    return HydratedSession(
        reading.row, reading.entries[:count], reading.entries[count:], state, reading.row.totals
    )
