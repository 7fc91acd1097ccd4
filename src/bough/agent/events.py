"""Events: what a run tells whoever watches it.

Durable facts carry the number of the journal's latest fact; deltas are live and carry none. A watcher that
missed some reads the journal from its last number.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

EventType = Literal[
    "session:started",
    "session:turn_started",
    "session:delta",
    "session:answer",
    "session:tool_result",
    "session:approval_requested",
    "session:retry",
    "session:compacted",
    "session:limit_passed",
    "session:warning",
    "session:turn_completed",
]


class Event(Struct, frozen=True, omit_defaults=True):
    """What a run tells while it goes on: `session:…` for what is durable, deltas for what is only live."""

    type: EventType
    data: dict[str, Any] = {}
    journal_number: int | None = None
    """The journal number behind which it is durable; None: live only."""
