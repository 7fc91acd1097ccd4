"""Limits: checked before anything leaves the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ..core.context import Context
from ..core.fit import Budget, fit
from ..core.turns import group_by_turn
from ..core.usage import Totals
from ..errors import InvalidArgument
from ..models.model import Model
from ..stores.base import SessionRow

DEFAULT_LIMIT = 50
"""Turns of a session, and model calls of a turn, where nobody says how many."""


class Limits(Struct, frozen=True, kw_only=True):
    """How much a session may take: turns, model calls, money, context. Looked at before anything is sent."""

    turns: int = DEFAULT_LIMIT
    """Hard cap on the turns of a session; 0 means the default."""
    rounds: int = DEFAULT_LIMIT
    """Model calls within one turn."""
    max_cost_microcents: int | None = None
    on_exceed: Literal["stop", "warn"] = "stop"
    """When the money is spent: refuse the next model call, or say so in an event and go on."""
    context_tokens: int | None = None
    """Compact before a model call whose history would be longer, by estimate."""
    max_messages: int | None = None
    """Give a model so many messages at the most: older turns are left out whole, silently, the newest never."""
    summariser: Model | None = None
    """Who writes summaries when a history is compacted; without one they are made without a model."""
    tries: int = 4
    """Calls of one model that is overloaded, before the next in the chain is asked."""
    pause: Callable[[int], float] = lambda failures: min(30.0, 0.5 * 2**failures)
    """Seconds to wait after the n-th failure, unless the provider says how long."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_count(name, getattr(self, name))


_COUNTS = ("turns", "rounds", "max_cost_microcents", "context_tokens", "max_messages")


def _check_count(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidArgument(name, value, "a whole number from 0 on")


def narrow(limits: Limits, settings: Mapping[str, Any] | None) -> Limits:
    """What holds in a session whose settings set limits too: of each the smaller one, never more than was given.

    Names that are none of ours are the host's own.
    """
    found: dict[str, Any] = {}
    for name in _COUNTS:
        asked, given = (settings or {}).get(name), getattr(limits, name)
        if asked is None:
            continue
        _check_count(f"the session's limit {name}", asked)
        if name in ("turns", "rounds"):
            asked, given = asked or DEFAULT_LIMIT, given or DEFAULT_LIMIT
        found[name] = asked if given is None else min(asked, given)
    if (settings or {}).get("on_exceed") == "stop":
        found["on_exceed"] = "stop"
    return replace(limits, **found)


def trim(context: Context, most: int | None) -> Context:
    """The newest whole turns of a context, so many messages at the most. A turn that is longer is given whole."""
    if most is None:
        return context
    turns = group_by_turn(item for item in context.items if not item.pinned)
    least = sum(item.pinned for item in context.items) + (len(turns[-1]) if turns else 0)
    return fit(context, Budget(messages=max(most, least))).context


class LimitHit(Struct, frozen=True):
    """The limit that stops the next model call, or only warns about it, and how to raise it."""

    code: str
    problem: str
    hint: str
    """What to do next in Python."""
    command_hint: str
    """What to do next at the command line or in the viewer."""
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}"

    @property
    def command_text(self) -> str:
        return f"{self.problem}; {self.command_hint}"


def check_limits(
    limits: Limits, row: SessionRow, *, is_new_turn: bool, spent: Totals = Totals(), rounds: int = 0
) -> LimitHit | None:
    """Which limit stands in the way of the next model call, if any. `spent` is what it and its tasks have cost."""
    cap = limits.turns or DEFAULT_LIMIT
    if is_new_turn and row.turns >= cap:
        return LimitHit(
            "turn_limit",
            f"the session has had its {cap} turn{'' if cap == 1 else 's'}",
            "fork it or raise Limits(turns=)",
            f"raise it with --max-turns N, or continue in a fork: bough fork {row.session_id}",
        )
    if rounds >= (limits.rounds or DEFAULT_LIMIT):
        return LimitHit(
            "turn_limit",
            f"the turn has called the model {rounds} times",
            "raise Limits(rounds=)",
            f"continue with another turn: bough run --resume {row.session_id} TEXT",
        )
    cost = limits.max_cost_microcents
    if cost is not None and spent.cost_microcents >= cost:
        return LimitHit(
            "cost_limit",
            f"{spent.cost_microcents:,} of {cost:,} microcents are spent",
            "raise Limits(max_cost_microcents=)",
            f"raise it with --max-cost DOLLARS, or start a new account with bough fork {row.session_id}",
            is_warning=limits.on_exceed == "warn",
        )
    unpriced = spent.unpriced_calls - spent.unknown_calls  # a call that has just been announced is unknown
    if cost is not None and unpriced:
        install = "pip install 'bough[prices]' for prices of the usual models"
        return LimitHit(
            "cost_unknown",
            f"{unpriced} call(s) so far have no price, and the limit of {cost:,} microcents does not count them",
            f"{install}, pass rates=Rates(…) for others",
            install,
            is_warning=True,
        )
    return None
