"""Divide a long history: each part is projected by itself, and the parts joined are the request of the whole.

A part begins where nothing after it depends on what is before: at an input, or at an answer after results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..core.context import Item
from ..core.messages import ProviderBlock
from .base import Provider


def starts_part(before: Item, item: Item) -> bool:
    """Whether a part may begin with an item that follows `before`."""
    message = item.message
    if message.role == "user":  # evidence may be the output of a call that is before it
        return not before.paused and item.evidence is None
    # A block of the provider's may be the result of a call that is before it.
    has_block = any(isinstance(part, ProviderBlock) for part in message.parts)
    return message.role == "assistant" and before.message.role == "tool" and not has_block


def part_starts(items: Sequence[Item]) -> list[int]:
    """Return the indexes of the items that parts may begin with, the first one's excepted."""
    return [n for n in range(1, len(items)) if starts_part(items[n - 1], items[n])]


def join_messages(provider: Provider, messages: list[dict[str, Any]], more: Iterable[dict[str, Any]]) -> None:
    """Append the messages of the next part to those of the parts before it."""
    key = provider.block_key
    for message in more:
        if key is not None and messages and messages[-1]["role"] == message["role"]:
            messages[-1] = {**messages[-1], key: [*messages[-1][key], *message[key]]}
        else:
            messages.append(message)
