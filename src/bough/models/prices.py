"""What a call costs: by the model's own rates, else from `genai-prices` (extra `prices`), loaded on the first call.

Knows nothing of sessions. No price is an answer too: the call is counted and marked unpriced.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any

from msgspec import Struct

from ..core.usage import Price, Usage
from .model import Model

MICROCENTS_PER_DOLLAR = 100_000_000


_FREE = ("scripted", "recorded")  # no table knows them, and loading one takes longer than their whole answer


@lru_cache(maxsize=1)
def _library() -> Any | None:
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices


def price(usage: Usage, provider: str | None, model: str | None) -> Price | None:
    """The price of one call, frozen with the version of the table that said so; None if it is not known."""
    if model is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    if provider in _FREE:
        return None
    library = _library()
    if library is None:
        return None
    told = library.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens or 0,
        cache_write_tokens=usage.cache_write_tokens or 0,
    )
    try:
        found = library.calc_price(told, model, provider_id=_vendor(provider))
    except (LookupError, ValueError):  # no such model or provider, or figures the table cannot make sense of
        return None
    cost = (Decimal(found.total_price) * MICROCENTS_PER_DOLLAR).to_integral_value()
    return Price(int(cost), f"genai-prices {library.__version__}")


class Rates(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens of a model no table knows: one of your own, or of a script."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def price(self, usage: Usage) -> Price | None:
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
        plain = usage.input_tokens - read - written
        dollars = [
            (plain, self.input),
            (usage.output_tokens, self.output),
            (read, self.input if self.cache_read is None else self.cache_read),
            (written, self.input if self.cache_write is None else self.cache_write),
        ]
        spent = sum((Decimal(count) * Decimal(str(rate)) for count, rate in dollars), Decimal(0))
        return Price(
            int((spent * MICROCENTS_PER_DOLLAR / 1_000_000).to_integral_value()), "rates of the model"
        )


def price_of(model: Model, usage: Usage) -> Price | None:
    """By the model's own `rates` if it has any, else by the table."""
    rates: Rates | None = getattr(model, "rates", None)
    return price(usage, model.provider, model.model) if rates is None else rates.price(usage)


_VENDORS = {"openai-chat": "openai", "gemini": "google"}


def _vendor(provider: str | None) -> str | None:
    return _VENDORS.get(provider, provider) if provider else None
