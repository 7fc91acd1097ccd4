"""Limits of a run, checked before anything leaves the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ..core.usage import Totals, total
from ..errors import InvalidArgument
from ..log import ledger
from ..models.model import Model
from ..stores.base import SessionRow

if TYPE_CHECKING:
    from .writer import Writer

DEFAULT_LIMIT = 50
"""Turns of a session, and model calls of a turn, unless the limits say otherwise."""


class Limits(Struct, frozen=True, kw_only=True):
    """How much a session may use: turns, model calls, money, context. Checked before anything is sent."""

    turns: int = DEFAULT_LIMIT
    """Maximum number of turns of a session; 0 means the default."""
    rounds: int = DEFAULT_LIMIT
    """Maximum number of model calls within one turn; 0 means the default."""
    max_cost_microcents: int | None = None
    on_exceed: Literal["stop", "warn"] = "stop"
    """At the cost limit: refuse the next model call, or continue with a warning event."""
    context_tokens: int | None = None
    """Compact before a model call whose history would be longer, by estimate."""
    max_messages: int | None = None
    """Maximum number of messages a model is given: older turns are left out whole, the newest never."""
    summariser: Model | None = None
    """The model that writes summaries for compaction; without it they are made without a model."""
    tries: int = 4
    """Calls of an overloaded model before the next in the chain is called."""
    pause: Callable[[int], float] = lambda failures: min(30.0, 0.5 * 2**failures)
    """Seconds to wait after that many failures, unless the provider says how long."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_count(name, getattr(self, name))


_COUNTS = ("turns", "rounds", "max_cost_microcents", "context_tokens", "max_messages")


def _check_count(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidArgument(name, value, "an integer of at least 0")


def narrow(limits: Limits, session_limits: Mapping[str, Any] | None) -> Limits:
    """Return the smaller of each limit of the run and of the session's settings.

    Other names in the settings belong to the host and are ignored.
    """
    narrowed: dict[str, Any] = {}
    for name in _COUNTS:
        own, limit = (session_limits or {}).get(name), getattr(limits, name)
        if own is None:
            continue
        _check_count(f"the session's limit {name}", own)
        if name in ("turns", "rounds"):
            own, limit = own or DEFAULT_LIMIT, limit or DEFAULT_LIMIT
        narrowed[name] = own if limit is None else min(own, limit)
    if (session_limits or {}).get("on_exceed") == "stop":
        narrowed["on_exceed"] = "stop"
    return replace(limits, **narrowed)


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
    limits: Limits,
    session_id: str,
    *,
    turns: int | None = None,
    spent: Totals = Totals(),
    rounds: int = 0,
) -> LimitHit | None:
    """Return the limit that forbids the next model call, or warns about it.

    `turns` is how many turns the session has had, if a new one is to start; `spent` what it and its tasks cost.
    """
    max_turns = limits.turns or DEFAULT_LIMIT
    if turns is not None and turns >= max_turns:
        return LimitHit(
            "turn_limit",
            f"the session has had its {max_turns} turn{'' if max_turns == 1 else 's'}",
            "fork it or raise Limits(turns=)",
            f"raise it with --max-turns N, or continue in a fork: bough fork {session_id}",
        )
    if rounds >= (limits.rounds or DEFAULT_LIMIT):
        return LimitHit(
            "turn_limit",
            f"the turn has called the model {rounds} times",
            "raise Limits(rounds=)",
            f"continue with another turn: bough run --resume {session_id} TEXT",
        )
    max_cost = limits.max_cost_microcents
    if max_cost is not None and spent.cost_microcents >= max_cost:
        return LimitHit(
            "cost_limit",
            f"{spent.cost_microcents:,} of {max_cost:,} microcents are spent",
            "raise Limits(max_cost_microcents=)",
            f"raise it with --max-cost DOLLARS, or continue in a fork, which is charged separately: bough fork {session_id}",
            is_warning=limits.on_exceed == "warn",
        )
    unpriced = spent.unpriced_calls - spent.unknown_calls  # a call that has just been announced is unknown
    if max_cost is not None and unpriced:
        install = "pip install 'bough[prices]' for prices of the usual models"
        return LimitHit(
            "cost_unknown",
            f"{unpriced} call(s) so far have no price, and the limit of {max_cost:,} microcents does not count them",
            f"{install}, pass rates=Rates(…) for others",
            install,
            is_warning=True,
        )
    return None


class LimitChecker:
    """Checks the limits of one run, and of the run that started it as a task: a child's cost counts for its parent too."""

    def __init__(self, writer: Writer, limits: Limits, parent: LimitChecker | None = None) -> None:
        self.limits = limits
        self._writer, self._parent = writer, parent

    def narrow(self, session_limits: Mapping[str, Any] | None) -> None:
        self.limits = narrow(self.limits, session_limits)

    async def check_turn(self, row: SessionRow) -> LimitHit | None:
        """Return the limit that a new turn would exceed."""
        return await self._check(turns=row.turns)

    async def check_call(self, rounds: int = 0) -> LimitHit | None:
        """Return the limit that another model call would exceed, after `rounds` in its turn."""
        return await self._check(rounds=rounds)

    async def is_spent(self) -> bool:
        """Whether a limit is reached, so that no model may be called."""
        limit = await self._check()
        return limit is not None and not limit.is_warning

    async def _check(self, *, turns: int | None = None, rounds: int = 0) -> LimitHit | None:
        session_id, spent = self._writer.log.session_id, await self._spent()
        limit = check_limits(self.limits, session_id, turns=turns, spent=spent, rounds=rounds)
        if self._parent is None or (limit is not None and not limit.is_warning):
            return limit
        return await self._parent._check() or limit

    async def _spent(self) -> Totals:
        """Return the cost of the session and its tasks, read only if it is limited."""
        if self.limits.max_cost_microcents is None:
            return Totals()
        writer = self._writer
        return total(await writer.run_blocking(ledger.model_calls, writer.log, "tree", None))
