"""How vendors and servers say that a history is too long for a model, and how long it may be."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_MESSAGE_LENGTH = 4_000
OVERFLOW = re.compile(
    "|".join(
        (
            r"prompt (is )?too long|input is too long|prompt exceeds max length|prompt token count.{0,60}?exceeds",
            r"max(imum)? context length|maximum prompt length|maximum model length|maximum number of tokens",
            r"context[_ ]length[_ ]exceeded|context window|exceeds? (the )?context|exceed_context_size",
            r"exceeds the available context|context size has been exceeded|context length of only|context length is only",
            r"(greater|longer) than the (model'?s )?context length|exceeded model token limit|token limit exceeded",
            r"input token count.{0,200}?exceeds|too many tokens|reduce the length of (the|your) (messages|prompt|input)",
            r"`inputs` (must have less than|tokens \+ `max_new_tokens` must be)|range of input length should be",
        )
    ),
    re.IGNORECASE | re.DOTALL,
)
"""The tests name who says what."""
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
    """Return the window and the length of the request, as far as told in a server's message."""
    return _find_number(_WINDOWS, message), _find_number(_LENGTHS, message)


def _find_number(patterns: Sequence[str], message: str) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, message[:MAX_MESSAGE_LENGTH], re.IGNORECASE)
        if match is not None:
            return int(match[1].replace(",", "")) or None
    return None
