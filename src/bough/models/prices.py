"""What a call costs, from `genai-prices` (extra `prices`), which is imported on the first call priced.

Knows nothing of sessions. No price is an answer too: the call is counted and marked unpriced.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any

from ..core.usage import Price, Usage

MICROCENTS_PER_DOLLAR = 100_000_000


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


_VENDORS = {"openai-chat": "openai", "gemini": "google"}


def _vendor(provider: str | None) -> str | None:
    return _VENDORS.get(provider, provider) if provider else None
