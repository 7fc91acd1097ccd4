"""Limits: checked before anything leaves the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ..core.usage import Totals
from ..errors import BadQuery
from ..models.model import Model
from ..stores.store import SessionRow

MOST = 50
"""Turns of a session, and model calls of a turn, where nobody says how many."""


class Limits(Struct, frozen=True, kw_only=True):
    turns: int = MOST
    """Hard cap on the turns of a session; 0 means the default."""
    rounds: int = MOST
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


def narrowed(limits: Limits, settings: Mapping[str, Any] | None) -> Limits:
    """What holds in a session whose settings set limits too: of each the smaller one, never more than was given.

    Names that are none of ours are the host's own.
    """
    found: dict[str, Any] = {}
    for name in ("turns", "rounds", "max_cost_microcents", "context_tokens"):
        asked, given = (settings or {}).get(name), getattr(limits, name)
        if asked is None:
            continue
        if type(asked) is not int or asked < 0:
            raise BadQuery(f"the session's limit {name}", asked, "a whole number from 0 on")
        if name in ("turns", "rounds"):
            asked, given = asked or MOST, given or MOST
        found[name] = asked if given is None else min(asked, given)
    if (settings or {}).get("on_exceed") == "stop":
        found["on_exceed"] = "stop"
    return replace(limits, **found)


class Reached(Struct, frozen=True):
    code: str
    what: str
    is_warning: bool = False


def reached(
    limits: Limits, row: SessionRow, *, is_new_turn: bool, spent: Totals = Totals(), rounds: int = 0
) -> Reached | None:
    """Which limit stands in the way of the next model call, if any. `spent` is what it and its tasks have cost."""
    cap = limits.turns or MOST
    if is_new_turn and row.turns >= cap:
        return Reached("turn_limit", f"the session has had its {cap} turns; fork it or raise Limits(turns=)")
    if rounds >= (limits.rounds or MOST):
        return Reached("turn_limit", f"the turn has called the model {rounds} times; raise Limits(rounds=)")
    cost = limits.max_cost_microcents
    if cost is not None and spent.cost_microcents >= cost:
        what = (
            f"{spent.cost_microcents:,} of {cost:,} microcents are spent; raise Limits(max_cost_microcents=)"
        )
        return Reached("cost_limit", what, limits.on_exceed == "warn")
    unpriced = spent.unpriced_calls - spent.unknown_calls  # a call that has just been announced is unknown
    if cost is not None and unpriced:
        what = (
            f"calls without a price so far: {unpriced}; the cap of {cost:,} microcents does not count them. "
            "Give the model its Rates"
        )
        return Reached("cost_unknown", what, is_warning=True)
    return None
