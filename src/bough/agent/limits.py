"""Limits: checked before anything leaves the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from ..models.model import Model
from ..stores.store import SessionRow


class Limits(Struct, frozen=True, kw_only=True):
    turns: int = 50
    """Hard cap on the turns of a session; 0 means the default."""
    rounds: int = 50
    """Model calls within one turn."""
    max_cost_microcents: int | None = None
    on_exceed: Literal["stop", "warn"] = "stop"
    """When the money is spent: refuse the next model call, or say so in an event and go on."""
    context_tokens: int | None = None
    """Compact before a model call whose history would be longer, by estimate."""
    summariser: Model | None = None
    """Who writes summaries when a history is compacted; without one they are made without a model."""
    tries: int = 4
    """Calls of one model that is overloaded, before the next in the chain is asked."""
    pause: Callable[[int], float] = lambda failures: min(30.0, 0.5 * 2**failures)
    """Seconds to wait after the n-th failure, unless the provider says how long."""


class Reached(Struct, frozen=True):
    code: str
    what: str
    is_warning: bool = False


def reached(
    limits: Limits, row: SessionRow, *, is_new_turn: bool, spent: int = 0, rounds: int = 0
) -> Reached | None:
    """Which limit stands in the way of the next model call, if any. `spent` is what the whole tree has cost."""
    cap = limits.turns or 50
    if is_new_turn and row.turns >= cap:
        return Reached("turn_limit", f"the session has had its {cap} turns; fork it or raise Limits(turns=)")
    if rounds >= (limits.rounds or 50):
        return Reached("turn_limit", f"the turn has called the model {rounds} times; raise Limits(rounds=)")
    cost = limits.max_cost_microcents
    if cost is not None and spent >= cost:
        what = f"{spent:,} of {cost:,} microcents are spent; raise Limits(max_cost_microcents=)"
        return Reached("cost_limit", what, limits.on_exceed == "warn")
    return None
