"""The price of a call: by the model's own rates, else from `genai-prices` (extra `prices`), loaded at the first call.

Does not know sessions. A call without a known price is counted and marked unpriced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct

from oakleaf.core.usage import MAX_COUNT, MICROCENTS_PER_DOLLAR, STATED_COST, Price, Usage, is_count
from oakleaf.models.base import Model

PROBE = 1_000
"""Tokens of a question to the table."""
UNPRICED_PROVIDERS = ("scripted", "recorded")
"""Outside the table, and loading the table takes longer than the whole answer."""


PRICED_UNITS = (
    *("web_searches", "cache_write_1h_tokens"),
    *("input_audio_tokens", "output_audio_tokens", "cache_audio_read_tokens"),
    *("input_image_tokens", "output_image_tokens", "cache_image_read_tokens"),
)


@lru_cache(maxsize=1)
def _library() -> Any | None:
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices


def price(
    usage: Usage, provider: str | None, model: str | None, units: Mapping[str, int] | None = None
) -> Price | None:
    """Return a call's price, with the version of the price table; None if the price is unknown.

    `units` are what has a price of its own beside the tokens; those that the table does not know cost nothing.
    """
    if (units or {}).get(STATED_COST) is not None and provider not in UNPRICED_PROVIDERS:
        return Price((units or {})[STATED_COST], "stated by the server")
    if model is None or not _is_complete(usage) or provider in UNPRICED_PROVIDERS:
        return None
    library = _library()
    if library is None:
        return None
    priced_units, vendor = _known_units(usage, units or {}), vendor_of(provider, model)
    try:
        dollars = _price_by_rates(usage, vendor, model, priced_units)
        if dollars is None:
            dollars = _ask_table(vendor, model, usage, priced_units)
    except (LookupError, ValueError):  # an unknown model or provider, or token counts the table cannot use
        return None
    cost = (dollars * MICROCENTS_PER_DOLLAR).to_integral_value()
    return Price(int(cost), f"genai-prices {library.__version__}")


def _ask_table(vendor: str | None, model: str, usage: Usage, units: Mapping[str, int]) -> Decimal:
    library = _library()
    assert library is not None
    library_usage = library.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens or 0,
        cache_write_tokens=usage.cache_write_tokens or 0,
        **units,
    )
    return Decimal(library.calc_price(library_usage, model, provider_id=vendor).total_price)


class TokenRates(Struct, frozen=True):
    """Dollars for a token of each kind, for requests with an input between two sizes."""

    low: int
    high: int
    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal


def _price_by_rates(usage: Usage, vendor: str | None, model: str, units: Mapping[str, int]) -> Decimal | None:
    """Multiply by the rates of the table, instead of 0.3 ms per question; None: ask the table.

    Raises LookupError if the table does not know the model.
    """
    if units.keys() - {"cache_write_1h_tokens"}:
        return None
    total, written = usage.input_tokens or 0, usage.cache_write_tokens or 0
    known = _token_rates(vendor, model, int(time.time() // 60))  # some prices depend on the hour
    if known is None:
        raise LookupError(model)
    for rates in known:
        if rates.low < total < rates.high:
            read, hour = usage.cache_read_tokens or 0, units.get("cache_write_1h_tokens", 0)
            return (
                (total - read - written) * rates.input
                + (usage.output_tokens or 0) * rates.output
                + read * rates.cache_read
                + (written - hour) * rates.cache_write
                + hour * rates.cache_write_1h
            )
    return None


@lru_cache(maxsize=256)
def _token_rates(vendor: str | None, model: str, minute: int) -> tuple[TokenRates, ...] | None:
    """Ask the table for the rates of a model: between two sizes of the input the price of a call is linear.

    None, which is cached too, if the table does not know the model.
    """
    library = _library()
    assert library is not None
    try:
        answer = library.calc_price(library.Usage(input_tokens=1), model, provider_id=vendor)
        starts = {
            tier.start for price in vars(answer.model_price).values() for tier in getattr(price, "tiers", ())
        }
        bounds = [0, *sorted(starts), MAX_COUNT]
        return tuple(
            _probe(vendor, model, low, high) for low, high in pairwise(bounds) if high - low > 3 * PROBE
        )
    except (LookupError, ValueError):
        return None


def _probe(vendor: str | None, model: str, low: int, high: int) -> TokenRates:
    size = low + 2 * PROBE

    def ask(output: int = 0, read: int = 0, write: int = 0, hour: int = 0) -> Decimal:
        units = {"cache_write_1h_tokens": hour} if hour else {}
        return _ask_table(vendor, model, Usage(size, output, read, write), units)

    plain, written = ask(), ask(write=PROBE)
    fresh = plain / size
    write = fresh + (written - plain) / PROBE
    return TokenRates(
        low=low,
        high=high,
        input=fresh,
        output=(ask(output=PROBE) - plain) / PROBE,
        cache_read=fresh + (ask(read=PROBE) - plain) / PROBE,
        cache_write=write,
        cache_write_1h=write + (ask(write=PROBE, hour=PROBE) - written) / PROBE,
    )


def _known_units(usage: Usage, units: Mapping[str, int]) -> dict[str, int]:
    priced_units = {name: count for name, count in units.items() if name in PRICED_UNITS}
    if priced_units.get("cache_write_1h_tokens", 0) > (usage.cache_write_tokens or 0):
        del priced_units["cache_write_1h_tokens"]  # a part of the cache writes, so the report makes no sense
    return priced_units


def _is_complete(usage: Usage) -> bool:
    """Return whether a price can be computed: input and output are known, and the cached input is part of the input."""
    cached = (usage.cache_read_tokens or 0, usage.cache_write_tokens or 0)
    return all(map(is_count, (usage.input_tokens, usage.output_tokens, *cached))) and (
        sum(cached) <= (usage.input_tokens or 0)
    )


class Rates(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens, for a model outside the table: your own, or a scripted model."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def price(self, usage: Usage) -> Price | None:
        if not _is_complete(usage):
            return None
        cache_read, cache_write = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
        uncached = (usage.input_tokens or 0) - cache_read - cache_write
        rates = [
            (uncached, self.input),
            (usage.output_tokens or 0, self.output),
            (cache_read, self.input if self.cache_read is None else self.cache_read),
            (cache_write, self.input if self.cache_write is None else self.cache_write),
        ]
        dollars = sum((Decimal(count) * Decimal(str(rate)) for count, rate in rates), Decimal(0))
        return Price(
            int((dollars * MICROCENTS_PER_DOLLAR / 1_000_000).to_integral_value()), "rates of the model"
        )


def needs_table(model: Model) -> bool:
    """Whether the price table knows the model's costs."""
    return getattr(model, "rates", None) is None and model.provider not in UNPRICED_PROVIDERS


def price_of(model: Model, usage: Usage, units: Mapping[str, int] | None = None) -> Price | None:
    """Return the price by the model's own `rates` if present, else by the table."""
    rates: Rates | None = getattr(model, "rates", None)
    return price(usage, model.provider, model.model, units) if rates is None else rates.price(usage)


_VENDOR_BY_PROVIDER = {"openai-chat": "openai", "gemini": "google"}


def vendor_of(provider: str | None, model: str) -> str | None:
    """Return the vendor of the table that sells a model. Bedrock has names of its own, and prices."""
    if provider == "anthropic" and "anthropic." in model:
        return "aws"
    return _VENDOR_BY_PROVIDER.get(provider, provider) if provider else None
