"""The context window of a model: from the table of `genai-prices` (extra `prices`), or as a server's error reports it.

Does not know sessions. An unknown window is None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from oakleaf.models.base import Model
from oakleaf.models.prices import UNPRICED_PROVIDERS, vendor_of

SMALL_REQUEST = 2_000
"""Tokens that fit the window of every model in the table, which takes long to load."""
MAX_MESSAGE_LENGTH = 4_000
_NUMBER = r"(\d[\d,]{0,14})"
_WINDOWS = [
    rf"exceed context limit: \d+ ?\+ ?\d+ ?> ?{_NUMBER}",
    rf"context (?:length|size|window|limit)(?: \(| is(?: only)? | of(?: only)? |: ){_NUMBER}",
    rf"{_NUMBER} maximum",  # Anthropic: 212345 tokens > 200000 maximum; Mistral: 32768 maximum context length
    rf"maximum number of tokens allowed \(?{_NUMBER}",
    rf"maximum (?:model|prompt|input) length(?: is| of)? {_NUMBER}",
    rf"must be <= ?{_NUMBER}",
    rf"must have less than {_NUMBER} tokens",
    rf"cannot exceed {_NUMBER}",
]
_LENGTHS = [
    rf"{_NUMBER} (?:in the messages|input tokens|`inputs` tokens)",
    rf"resulted in {_NUMBER} tokens",
    rf"{_NUMBER} tokens >",
    rf"exceed context limit: {_NUMBER} ?\+",
    rf"input token count \(?{_NUMBER}",
    rf"(?:request|input) \({_NUMBER} tokens\)",
    rf"(?:request|prompt) contains {_NUMBER} tokens",
    rf"prompt \(length {_NUMBER}\)",
    rf"(?:received|given:) {_NUMBER}",
    rf"requested (?:tokens \()?{_NUMBER}",
    rf"first {_NUMBER} tokens",
]
"""As servers word it, the most exact first."""


def read_overflow(message: str) -> tuple[int | None, int | None]:
    """Return the window and the length of the request, as far as a server's message tells them."""
    return _find_number(_WINDOWS, message), _find_number(_LENGTHS, message)


def _find_number(patterns: Sequence[str], message: str) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, message[:MAX_MESSAGE_LENGTH], re.IGNORECASE)
        if match is not None:
            return int(match[1].replace(",", "")) or None
    return None


def window_of(model: Model) -> int | None:
    """Return the window that the table gives for a model."""
    if model.provider in UNPRICED_PROVIDERS:
        return None
    return _table_window(vendor_of(model.provider), model.model)


def window_by_name(name: str) -> int | None:
    """Return the window that the table gives for a model by its name, `provider:model` or `provider:model@URL`."""
    provider, _, model = name.partition(":")
    if not model or provider in UNPRICED_PROVIDERS:
        return None
    return _table_window(vendor_of(provider), re.split(r"@(?=https?://)", model)[0])


@lru_cache(maxsize=200)
def _table_window(vendor: str | None, model: str) -> int | None:
    try:
        from genai_prices import data_snapshot

        _, info = data_snapshot.get_snapshot().find_provider_model(model, None, vendor, None)
    except (ImportError, LookupError, ValueError):  # not installed, or an unknown model or provider
        return None
    window = getattr(info, "context_window", None)
    return window if isinstance(window, int) and window > 0 else None
