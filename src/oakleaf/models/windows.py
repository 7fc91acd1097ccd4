"""The context window of a model: from the table of `genai-prices` (extra `prices`).

Does not know sessions. An unknown window is None.
"""

from __future__ import annotations

import re
from functools import lru_cache

from oakleaf.models.base import Model
from oakleaf.models.prices import UNPRICED_PROVIDERS, vendor_of
from oakleaf.wire import provider_of

SMALL_REQUEST = 2_000
"""Tokens within the window of every model in the table; the table takes long to load."""


def window_of(model: Model) -> int | None:
    """Return a model's window from the table."""
    if model.provider in UNPRICED_PROVIDERS:
        return None
    return _table_window(vendor_of(model.provider, model.model), model.model)


def window_by_name(name: str) -> int | None:
    """Return the window from the table by a model's name, `provider:model`, with or without an address after it."""
    provider, model = provider_of(name), name.partition(":")[2]
    if not model or provider in UNPRICED_PROVIDERS:
        return None
    model = re.split(r"@(?=https?://|client:)", model)[0]
    return _table_window(vendor_of(provider, model), model)


@lru_cache(maxsize=200)
def _table_window(vendor: str | None, model: str) -> int | None:
    try:
        from genai_prices import data_snapshot

        _, info = data_snapshot.get_snapshot().find_provider_model(model, None, vendor, None)
    except (ImportError, LookupError, ValueError):  # not installed, or an unknown model or provider
        return None
    window = getattr(info, "context_window", None)
    return window if isinstance(window, int) and window > 0 else None
