"""The budget of a lab run: no model call is made that could make the run cost more than its limit.

Before each call the most that it can cost is reserved, so that calls which run at the same time cannot pass the limit
together; what a call did not cost is given back. The most it can cost is its input, counted generously, and an output of
`max_tokens`; without that option, twice the longest recorded answer. Knows prices; does not know sessions.
"""

from __future__ import annotations

from threading import Lock

import msgspec

from oakleaf.core.messages import Media, ToolResult
from oakleaf.core.usage import Usage, format_dollars
from oakleaf.ext import Reservation, price_of
from oakleaf.install import install_line
from oakleaf.models.base import Model, Request
from oakleaf.wire.options import DEFAULT_MAX_TOKENS
from oakleaf_lab.errors import BudgetReached, InvalidLab

MEDIA_TOKENS = 4_000
OVERHEAD_TOKENS = 500
"""What a provider adds to a request of its own accord, mostly for tools."""
MIN_OUTPUT_TOKENS = 32


class CostBudget:
    """Counts a run's spending, and refuses calls beyond the limit. Safe to use from several threads."""

    def __init__(self, limit: int | None, spent: int = 0, longest_answer: int = 0) -> None:
        self.limit, self.spent, self.reserved = limit, spent, 0
        self._longest_answer = max(longest_answer, MIN_OUTPUT_TOKENS)
        self._lock = Lock()
        self.is_stopping = False
        """Whether the run was asked to stop: no further calls."""

    def expect_answers_of(self, tokens: int) -> None:
        """Expect answers of at least the given tokens, for calls without the option `max_tokens`."""
        self._longest_answer = max(self._longest_answer, tokens)

    def check_price(self, model: Model) -> None:
        """Raise for a model without a price, as the limit cannot be held."""
        if self.limit is not None and price_of(model, Usage(0, 0, 0, 0)) is None:
            raise InvalidLab(
                f"{model.model} has no price, so the limit of {format_dollars(self.limit)} cannot be held",
                f"{install_line('prices')} for prices of the usual models, pass rates=Rates(…) for others, or leave out max_cost_dollars=",
                f"{install_line('prices')} for prices of the usual models, or leave out --max-cost",
            )

    async def reserve(self, model: Model, request: Request) -> Reservation:
        """Reserve the highest possible cost of the call; raise BudgetReached if the call could pass the limit."""
        if self.is_stopping:
            raise RunStopping
        if self.limit is None:
            return Reservation()
        most = self.most(model, request)
        with self._lock:
            if self.spent + self.reserved + most > self.limit:
                raise budget_reached(self.spent, self.reserved, most, self.limit)
            self.reserved += most
        return Reservation(most)

    async def settle(self, reserved: Reservation, cost: int | None) -> None:
        """Replace a reservation by the call's cost; an unknown cost counts in full."""
        with self._lock:
            self.reserved -= reserved.microcents
            self.spent += reserved.microcents if cost is None else cost

    def most(self, model: Model, request: Request) -> int:
        """Return the highest possible cost of the call, in microcents."""
        self.check_price(model)
        options = request.context.settings.options or {}
        output = options.get("max_tokens")
        if type(output) is not int:
            output = DEFAULT_MAX_TOKENS if model.provider == "anthropic" else 2 * self._longest_answer
        price = price_of(model, Usage(_most_tokens(request), output, 0, 0))
        return 0 if price is None else price.microcents


def budget_reached(spent: int, reserved: int, most: int, limit: int) -> BudgetReached:
    """Return the error for a call that could pass the limit; amounts are in microcents."""
    waiting = format_dollars(reserved) if reserved else ""
    return BudgetReached(format_dollars(spent), waiting, format_dollars(most), format_dollars(limit))


class RunStopping(Exception):
    """The run was asked to end: no further call is made, and the turn stays open."""


def _most_tokens(request: Request) -> int:
    """Return the largest possible number of tokens of a request: one token for each byte."""
    size = sum(len(text.encode("utf-8", "replace")) for text in request.context.system)
    media = 0
    for item in request.context.items:
        for part in item.message.parts:
            contents = part.content if isinstance(part, ToolResult) else (part,)
            media += sum(isinstance(one, Media) for one in contents)
        size += len(msgspec.json.encode(item.message))
    tools = request.context.settings.tool_definitions
    size += 0 if tools is None else tools.size
    return size + media * MEDIA_TOKENS + OVERHEAD_TOKENS
