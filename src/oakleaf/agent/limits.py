"""Limits of a run, checked before anything leaves the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, force_setattr, replace

from oakleaf.core.context import fold_settings
from oakleaf.core.entries import Settings
from oakleaf.core.facts import Refusal
from oakleaf.core.messages import Text, ToolCall, ToolResult
from oakleaf.core.usage import MAX_COUNT, Call, Usage, format_dollars, to_microcents
from oakleaf.errors import InvalidArgument, Refused, TurnLimit, plural
from oakleaf.install import install_line
from oakleaf.log import ledger
from oakleaf.log.log import Log
from oakleaf.models.base import Model, Request
from oakleaf.models.prices import price_of

if TYPE_CHECKING:
    from oakleaf.agent.writer import Writer

DEFAULT_LIMIT = 50
"""Turns of a session, and model calls of a turn, unless the limits say otherwise."""


class Limits(Struct, frozen=True, kw_only=True):
    """Maximum use of a session: turns, model calls, money, context. Checked before anything is sent."""

    turns: int = 0
    """Maximum number of turns of a session; 0: the session's own maximum, or else 50."""
    rounds: int = 0
    """Maximum number of model calls within one turn; 0: the session's own maximum, or else 50."""
    max_cost_microcents: int | None = None
    """Maximum cost of the session and its tasks; 100,000,000 microcents are a dollar. A call that would exceed it by its
    input alone is not made."""
    max_cost_dollars: float | None = None
    """The same in dollars: pass one of the two."""
    on_exceed: Literal["stop", "warn"] = "stop"
    """At the cost limit, or if a call has no price and so cannot be counted: refuse the next model call, or continue with
    a warning event."""
    context_tokens: int | None = None
    """Compact before a model call whose request would be longer, by estimate. By default what the window of the model
    leaves beside its answer, if the window is known."""
    context_window: int | None = None
    """The window of the models in tokens, for models absent from the table or served with a smaller window."""
    max_messages: int | None = None
    """Maximum number of messages in a request: whole older turns are left out, never the newest. It holds from here on,
    as options do; None: what the session's path says; 0: no maximum."""
    summariser: Model | None = None
    """The model for summaries in compaction; without it they are made without a model."""
    tries: int = 4
    """Calls of an overloaded model before the next in the chain is called."""
    pause: Callable[[int], float] = lambda failures: min(30.0, 0.5 * 2**failures)
    """Seconds to wait after that many failures, unless the provider says how long."""

    def __post_init__(self) -> None:
        if self.max_cost_dollars is not None:
            microcents = to_microcents(self.max_cost_dollars, self.max_cost_microcents)
            force_setattr(self, "max_cost_microcents", microcents)
        for name in _COUNTS:
            _check_count(name, getattr(self, name))


_CAPS = ("turns", "rounds", "max_cost_microcents", "context_tokens", "context_window")
_COUNTS = (*_CAPS, "max_messages")


def _check_count(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidArgument(name, value, "an integer of at least 0")


_DEFAULTS = Limits()


def check_limits(limits: object) -> Limits:
    """Return the limits of a run, by default those without a maximum. A dict is refused with the right form."""
    if limits is None or isinstance(limits, Limits):
        return limits or _DEFAULTS
    values = (
        ", ".join(f"{name}={value!r}" for name, value in limits.items()) if isinstance(limits, dict) else "…"
    )
    raise InvalidArgument("limits", limits, f"oakleaf.Limits({values})")


def limit_data(limits: Limits) -> dict[str, Any]:
    """Return the narrowing limits of a run for a journal fact."""
    names = _CAPS if limits.max_cost_microcents is None else (*_CAPS, "on_exceed")
    values = {name: getattr(limits, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def session_limits(limits: Limits) -> dict[str, Any]:
    """Return the given limits as the settings of a session. Limits of a run only are refused."""
    if not isinstance(limits, Limits):
        raise InvalidArgument("limits", limits, "oakleaf.Limits(…) or a dict")
    for name in ("summariser", "tries", "pause"):
        if getattr(limits, name) != getattr(_DEFAULTS, name):
            raise InvalidArgument(
                f"limits.{name}", getattr(limits, name), "left out: it is one of a run; pass it to send"
            )
    names = (*_COUNTS, "on_exceed")
    return {name: value for name in names if (value := getattr(limits, name)) != getattr(_DEFAULTS, name)}


def with_defaults(limits: Limits, defaults: Mapping[str, Any], settings: Settings) -> Limits:
    """Return the limits with the defaults of a surface, where the session's settings have none."""
    own = {**(settings.limits or {}), "max_messages": settings.max_messages}
    used = {name: value for name, value in defaults.items() if own.get(name) is None}
    if own.get("max_cost_microcents") is not None:
        used.pop("on_exceed", None)  # it is that of the default cost
    return replace(limits, **used) if used else limits


def narrow(limits: Limits, session_limits: Mapping[str, Any] | None) -> Limits:
    """Return the smaller of each limit of the run and of the session's settings.

    Other names in the settings belong to the host and are ignored.
    """
    narrowed: dict[str, Any] = {}
    for name in _CAPS:
        own, limit = (session_limits or {}).get(name), getattr(limits, name)
        if own is None:
            continue
        _check_count(f"the session's limit {name}", own)
        if name in ("turns", "rounds"):
            own, limit = own or limit or DEFAULT_LIMIT, limit or None
        narrowed[name] = own if limit is None else min(own, limit)
    if "max_cost_microcents" in narrowed:
        narrowed["max_cost_dollars"] = None
    on_exceed = (session_limits or {}).get("on_exceed")
    if on_exceed == "stop" or (on_exceed != "warn" and "max_cost_microcents" in narrowed):
        narrowed["on_exceed"] = "stop"  # the session's own limit is not for a run to pass
    return replace(limits, **narrowed)


class LimitHit(Struct, frozen=True):
    """A limit against the next model call, or only a warning, and the way to raise the limit."""

    limit: Literal["turns", "rounds", "cost", "hook"]
    problem: str
    hint: str
    """The next step in Python."""
    command_hint: str
    """The next step at the command line or in the viewer."""
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}"

    @property
    def command_text(self) -> str:
        return f"{self.problem}; {self.command_hint}"

    def to_error(self, session_id: str) -> TurnLimit:
        return TurnLimit(session_id, self.problem, self.hint, self.command_hint, self.limit)

    @property
    def refusal(self) -> Refusal:
        """The error as a fact. One code for every limit, so that a client needs to know only one."""
        return Refusal(LIMIT_CODE, self.limit, str(self), self.command_text)

    @property
    def data(self) -> dict[str, str]:
        """The error as event data."""
        return asdict(self.refusal)


LIMIT_CODE = "turn_limit"


def hook_limit(refused: Refused) -> LimitHit:
    """Return a hook's refusal of a turn or a model call."""
    hint = "the hooks of the host decide"
    return LimitHit("hook", str(refused), hint, hint)


class NextCall(Struct, frozen=True):
    """The model call about to be made."""

    model: Model
    request: Callable[[], Request]
    """Called only if the cost is limited."""


def check_turns(limits: Limits, session_id: str, turns: int) -> LimitHit | None:
    """Return the limit against another turn, or a warning about the last turns, after `turns` turns."""
    max_turns = limits.turns or DEFAULT_LIMIT
    if turns + 1 < max_turns - max_turns // 10 or turns < max_turns < 10:
        return None
    problem = f"the session has had its {plural(max_turns, 'turn')}"
    if turns < max_turns:
        problem = f"this is turn {turns + 1} of at most {max_turns}"
    return LimitHit(
        "turns",
        problem,
        "fork it or raise Limits(turns=)",
        "raise it with --set limits.turns=N, for good with oakleaf config chat.max_turns N, or continue in a fork: "
        f"oakleaf fork {session_id}",
        is_warning=turns < max_turns,
    )


def check_rounds(limits: Limits, session_id: str, rounds: int) -> LimitHit | None:
    """Return the limit against another model call, after `rounds` calls in a turn."""
    if rounds < (limits.rounds or DEFAULT_LIMIT):
        return None
    return LimitHit(
        "rounds",
        f"the turn has called the model {rounds} times",
        "raise Limits(rounds=)",
        f"continue with another turn: oakleaf run --resume {session_id} TEXT",
    )


def session_caps(log: Log) -> Limits | None:
    """Return the limits set on a session, for a caller's own loop. None: no limits were set."""
    own = fold_settings(log.store.control_entries(log.session_id, leaf=log.leaf)).limits
    if not own or not (own.get("turns") or own.get("rounds") or own.get("max_cost_microcents") is not None):
        return None
    return narrow(Limits(turns=MAX_COUNT, rounds=MAX_COUNT), own)


def check_own_caps(
    log: Log, caps: Limits, *, turns: int | None = None, rounds: int | None = None
) -> LimitHit | None:
    """Return the session's limit against another turn or model call of a caller's own loop."""
    hit = None if turns is None else check_turns(caps, log.session_id, turns)
    hit = hit if rounds is None else check_rounds(caps, log.session_id, rounds)
    if hit is not None and not hit.is_warning:
        return hit
    if caps.max_cost_microcents is None or caps.on_exceed == "warn":
        return None
    spent = ledger.totals(log, "tree", None).cost_microcents
    return None if spent < caps.max_cost_microcents else _spent_hit(caps, log.session_id, spent)


class Spending:
    """The cost so far of a session and all tasks. Their calls are read only where the sums do not tell
    enough."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.totals = ledger.totals(log, "tree", None)

    @cached_property
    def _calls(self) -> list[Call]:
        return ledger.model_calls(self._log, "tree", None)

    @property
    def unpriced_calls(self) -> int:
        """The number of calls without a price. A call without a count of tokens, such as a call that a crash
        cut off, is left out: it would stop the session for good."""
        if self.totals.unpriced_calls <= self.totals.unknown_calls:
            return 0  # what has no count of tokens has no price
        return sum(
            call.price is None and bool(call.usage.input_tokens or call.usage.output_tokens)
            for call in self._calls
        )

    def has_called(self, model: str) -> bool:
        latest = ledger.latest_answer_call(self._log, self._log.leaf.seq)
        if latest is not None and latest.model == model:
            return True
        return bool(self.totals.calls) and any(call.model == model for call in self._calls)


def check_cost(limits: Limits, session_id: str, spending: Spending, next_call: NextCall) -> LimitHit | None:
    """Return the limit on the cost against the next model call, or a warning.

    The next call is counted with the least it can cost: its input.
    """
    if limits.max_cost_microcents is None:
        return None
    max_cost, spent = limits.max_cost_microcents, spending.totals.cost_microcents
    problem = _uncountable(spending, next_call.model)
    hint = f"{install_line('prices')} for prices of the usual models, pass rates=Rates(…) for others"
    if problem is not None:
        return LimitHit(
            "cost",
            f"{problem}, so the limit of {format_dollars(max_cost)} cannot be checked",
            f'{hint}, or continue unchecked with Limits(on_exceed="warn")',
            f"{hint}, or continue unchecked with --set limits.on_exceed=warn",
            is_warning=limits.on_exceed == "warn",
        )
    minimum = _minimum_cost(spending, next_call)
    if spent + minimum <= max_cost and spent < max_cost:
        return None
    more = "" if spent >= max_cost else f", and the next call costs at least {format_dollars(minimum)}"
    return _spent_hit(limits, session_id, spent, more)


def _spent_hit(limits: Limits, session_id: str, spent: int, more: str = "") -> LimitHit:
    max_cost = limits.max_cost_microcents or 0
    return LimitHit(
        "cost",
        f"{format_dollars(spent)} of {format_dollars(max_cost)} is spent{more}",
        "raise Limits(max_cost_dollars=)",
        f"raise it with --set limits.cost=DOLLARS, or continue in a fork, which is charged separately: oakleaf fork {session_id}",
        is_warning=limits.on_exceed == "warn",
    )


def _uncountable(spending: Spending, model: Model) -> str | None:
    """Name the unknown cost."""
    if price_of(model, Usage(0, 0, 0, 0)) is None:
        return f"{model.model} has no price"
    unpriced = spending.unpriced_calls
    return f"{plural(unpriced, 'call')} so far had no price" if unpriced else None


BYTES_PER_TOKEN = 8
"""Twice the usual estimate: the estimate must not exceed the provider's count."""


def _minimum_cost(spending: Spending, next_call: NextCall) -> int:
    """Return the minimum cost of the call in microcents: the input, from the cache if there may be one."""
    tokens = _minimum_tokens(next_call.request())
    is_cached = spending.has_called(next_call.model.model)
    price = price_of(next_call.model, Usage(tokens, 0, tokens if is_cached else 0, 0))
    return 0 if price is None else price.microcents


def _minimum_tokens(request: Request) -> int:
    """Return the minimum number of tokens of a request's texts; media are not counted."""
    texts = [*request.context.system]
    for item in request.context.items:
        for part in item.message.parts:
            texts += _texts(part)
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return (size + len(msgspec.json.encode(request.tools)) if request.tools else size) // BYTES_PER_TOKEN


def _texts(part: object) -> list[str]:
    match part:
        case Text(text=text):
            return [text]
        case ToolCall(arguments=arguments):
            return [msgspec.json.encode(arguments).decode()]
        case ToolResult(content=content):
            return [text for item in content for text in _texts(item)]
    return []


class LimitChecker:
    """Checks the limits of one run and of the parent run. A child's cost counts for its parent too."""

    def __init__(self, writer: Writer, limits: Limits, parent: LimitChecker | None = None) -> None:
        self.limits = limits
        self._writer, self._parent = writer, parent

    def narrow(self, session_limits: Mapping[str, Any] | None) -> None:
        self.limits = narrow(self.limits, session_limits)

    async def check_turn(self, turns: int, next_call: NextCall) -> LimitHit | None:
        """Return the limit exceeded by the first model call of another turn, after `turns` turns."""
        hit = check_turns(self.limits, self._writer.log.session_id, turns)
        if hit is not None and not hit.is_warning:
            return hit
        return await self.check_cost(next_call) or hit

    async def check_call(self, rounds: int, next_call: NextCall) -> LimitHit | None:
        """Return the limit exceeded by another model call, after `rounds` calls in the turn."""
        hit = check_rounds(self.limits, self._writer.log.session_id, rounds)
        return hit or await self.check_cost(next_call)

    async def check_cost(self, next_call: NextCall) -> LimitHit | None:
        """Return the limit on the cost exceeded by another model call, of this run or of a parent."""
        limit = None
        if self.limits.max_cost_microcents is not None:
            limit = await self._writer.run_blocking(self._check_own_cost, next_call)
        if self._parent is None or (limit is not None and not limit.is_warning):
            return limit
        return await self._parent.check_cost(next_call) or limit

    def _check_own_cost(self, next_call: NextCall) -> LimitHit | None:
        log = self._writer.log
        return check_cost(self.limits, log.session_id, Spending(log), next_call)
