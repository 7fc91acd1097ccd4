"""Find where a request first differs from the previous one, which is where the provider's cache stops helping.

Knows JSON values only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from oakleaf.errors import shorten
from oakleaf.wire.base import HISTORY_KEYS, Request

MAX_REPR_LENGTH = 60
PROMPT_KEYS = ("system", "instructions", "systemInstruction")


class Missing(Struct, frozen=True):
    """Placeholder for a value that only the other request has."""

    def __repr__(self) -> str:
        return "nothing"


class Difference(Struct, frozen=True):
    """The first difference of two requests, with both values."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        before, after = (shorten(repr(value), MAX_REPR_LENGTH) for value in (self.before, self.after))
        return f"{self.path} was {before}, now it is {after}"


def first_difference(before: Request, after: Request) -> Difference | None:
    """Return the first difference in prompt, tools, options and messages; None if `after` only adds to the history of `before`.

    The last message of `before` may have additional blocks: providers cache blocks, not messages, and on Anthropic
    and Gemini a turn that a tool ended and the next input are one user message.
    """
    return next(_differences(before, after), None)


def _differences(before: Request, after: Request) -> Iterator[Difference]:
    history = next((key for key in HISTORY_KEYS if key in before and key in after), None)
    old, new = (before[history], after[history]) if history is not None else ([], [])
    messages = [
        (f"{history}[{index}]", message, new[index] if index < len(new) else Missing())
        for index, message in enumerate(old)
    ]
    for compared in messages[: max(_prompt_length(old), _prompt_length(new))]:
        yield from _compare(*compared)
    for key in sorted({**before, **after}, key=_rank):
        if key != history:
            yield from _compare(key, before.get(key, Missing()), after.get(key, Missing()))
    for path, message, present in messages:
        is_last = path == messages[-1][0]
        yield from _compare(path, message, _drop_added_blocks(message, present) if is_last else present)


def _rank(key: str) -> int:
    """The prompt comes first, then the tools, then the options."""
    return 0 if key in PROMPT_KEYS else 1 if key == "tools" else 2


def _prompt_length(messages: list[Any]) -> int:
    """Return the number of system messages at the head of a history, where the prompt is part of the history."""
    is_prompt = (isinstance(message, dict) and message.get("role") == "system" for message in messages)
    return next((index for index, is_one in enumerate(is_prompt) if not is_one), len(messages))


def _drop_added_blocks(message: Any, present: Any) -> Any:
    """Return `present` with as many blocks as `message` has."""
    if not isinstance(message, dict) or not isinstance(present, dict):
        return present
    for key in ("content", "parts"):
        blocks, longer = message.get(key), present.get(key)
        if isinstance(blocks, list) and isinstance(longer, list):
            return {**present, key: longer[: len(blocks)]}
    return present


def _compare(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _compare(f"{path}.{key}", before.get(key, Missing()), after.get(key, Missing()))
        # Equal values in another order are different bytes, and a cache compares bytes.
        if list(before) != list(after):
            yield Difference(f"{path} (order of keys)", list(before), list(after))
    elif isinstance(before, list) and isinstance(after, list):
        for index, sides in enumerate(zip_longest(before, after, fillvalue=Missing())):
            yield from _compare(f"{path}[{index}]", *sides)
    elif type(before) is not type(after) or before != after:
        yield Difference(path, before, after)
