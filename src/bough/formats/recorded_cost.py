"""The cost of a model call as the tool that made it recorded it, in dollars."""

from __future__ import annotations

import math
from decimal import Decimal

from ..core.usage import MAX_COUNT, Price

MICROCENTS_PER_DOLLAR = 100_000_000


def recorded_price(dollars: object, tool: str) -> Price | None:
    """Return the price; None for 0, which tools write for a model they do not know or that a subscription covers."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | float):
        return None
    if not math.isfinite(dollars) or dollars <= 0:
        return None
    microcents = int((Decimal(str(dollars)) * MICROCENTS_PER_DOLLAR).to_integral_value())
    return Price(microcents, f"recorded by {tool}") if 0 < microcents <= MAX_COUNT else None
