"""Divide a long history: each part is projected by itself, and the parts joined are the request of the whole.

A part begins where nothing after it depends on what is before: at an input, or at an answer after results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oakleaf.core.context import Item
from oakleaf.core.messages import ProviderBlock
from oakleaf.wire.base import Provider


def part_starts(items: Sequence[Item]) -> list[int]:
    """Return the indexes of items where parts may begin, the first item excepted."""
    starts, has_block = list[int](), False
    for n, item in enumerate(items):
        if item.message.role == "user":
            has_block = False
            # Its evidence may be the output of a call that is before it.
            is_start = n > 0 and not items[n - 1].paused and item.evidence is None
        else:
            # A block of the provider's may be the result of a call that is before it in the turn, or wait for one that is after.
            has_block = has_block or any(isinstance(part, ProviderBlock) for part in item.message.parts)
            is_after_results = n > 0 and items[n - 1].message.role == "tool"
            is_start = is_after_results and item.message.role == "assistant" and not has_block
        if is_start:
            starts.append(n)
    return starts


def join_messages(provider: Provider, messages: list[dict[str, Any]], more: Iterable[dict[str, Any]]) -> None:
    """Append the messages of the next part to the messages so far."""
    key = provider.block_key
    for message in more:
        if key is not None and messages and messages[-1]["role"] == message["role"]:
            messages[-1] = {**messages[-1], key: [*messages[-1][key], *message[key]]}
        else:
            messages.append(message)
