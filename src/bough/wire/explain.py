"""Find where a request first differs from the previous one, which is where the provider's cache stops helping.

Knows JSON values only.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .base import HISTORY_KEYS, Request

MAX_REPR_LENGTH = 60
PROMPT_KEYS = ("system", "instructions", "systemInstruction")


class Missing(Struct, frozen=True):
    """Placeholder where one of two requests has no value."""

    def __repr__(self) -> str:
        return "nothing"


class Difference(Struct, frozen=True):
    """Where two requests first differ, and what each has there."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path} was {_short(self.before)}, now it is {_short(self.after)}"


def first_difference(before: Request, after: Request) -> Difference | None:
    """Return the first difference in prompt, tools, options and messages; None if `after` only adds to the history of `before`.

    The last message of `before` may have additional blocks: providers cache blocks, not messages, and on Anthropic
    and Gemini a turn that a tool ended and the next input are one user message.
    """
    history = next((key for key in HISTORY_KEYS if key in before and key in after), None)
    old, new = (before[history], after[history]) if history is not None else ([], [])
    prompt = max(_prompt_length(old), _prompt_length(new))
    for index, message in enumerate(old[:prompt]):
        difference = _compare(f"{history}[{index}]", message, new[index] if index < len(new) else Missing())
        if difference is not None:
            return difference
    for key in sorted({**before, **after}, key=_rank):
        if key != history:
            difference = _compare(key, before.get(key, Missing()), after.get(key, Missing()))
            if difference is not None:
                return difference
    for index, message in enumerate(old):
        present = new[index] if index < len(new) else Missing()
        if index == len(old) - 1:
            present = _drop_added_blocks(message, present)
        difference = _compare(f"{history}[{index}]", message, present)
        if difference is not None:
            return difference
    return None


def _rank(key: str) -> int:
    """The prompt comes first, then the tools, then the options."""
    return 0 if key in PROMPT_KEYS else 1 if key == "tools" else 2


def _prompt_length(messages: list[Any]) -> int:
    """Return how many system messages a history begins with, where the prompt is part of it."""
    is_prompt = (isinstance(message, dict) and message.get("role") == "system" for message in messages)
    return next((index for index, is_one in enumerate(is_prompt) if not is_one), len(messages))


def _drop_added_blocks(message: Any, present: Any) -> Any:
    """Return `present` without its blocks beyond those of `message`."""
    if not isinstance(message, dict) or not isinstance(present, dict):
        return present
    for key in ("content", "parts"):
        blocks, longer = message.get(key), present.get(key)
        if isinstance(blocks, list) and isinstance(longer, list):
            return {**present, key: longer[: len(blocks)]}
    return present


def _compare(path: str, before: Any, after: Any) -> Difference | None:
    if type(before) is not type(after):
        return Difference(path, before, after)
    if isinstance(before, dict):
        return _compare_dicts(path, before, after)
    if isinstance(before, list):
        for index in range(max(len(before), len(after))):
            sides = [side[index] if index < len(side) else Missing() for side in (before, after)]
            difference = _compare(f"{path}[{index}]", *sides)
            if difference is not None:
                return difference
        return None
    return None if before == after else Difference(path, before, after)


def _compare_dicts(path: str, before: dict[str, Any], after: dict[str, Any]) -> Difference | None:
    for key in dict.fromkeys([*before, *after]):
        difference = _compare(f"{path}.{key}", before.get(key, Missing()), after.get(key, Missing()))
        if difference is not None:
            return difference
    # Equal values in another order are different bytes, and a cache compares bytes.
    return (
        None
        if list(before) == list(after)
        else Difference(f"{path} (order of keys)", list(before), list(after))
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_REPR_LENGTH else text[: MAX_REPR_LENGTH - 1] + "…"
