"""Explain: where a request first differs from the one sent before it, and so where the cache grows cold.

Knows JSON values only.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .base import HISTORY_KEYS, Request

SHOWN = 60


class Missing(Struct, frozen=True):
    """Stands where one of two requests has no value."""

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
    """None if `now` only adds to the history of `was`: then a provider reads on where it stopped.

    The last message of `was` may have grown by blocks: providers cache blocks, not messages, and on
    Anthropic and Gemini a turn that a tool ended and the next input are one user message.
    """
    history = next((key for key in HISTORY_KEYS if key in before and key in after), None)
    for key in dict.fromkeys([*before, *after]):
        if key != history:
            found = _differ(key, before.get(key, Missing()), after.get(key, Missing()))
            if found is not None:
                return found
    old, new = (before[history], after[history]) if history is not None else ([], [])
    for index, message in enumerate(old):
        present = new[index] if index < len(new) else Missing()
        if index == len(old) - 1:
            present = _cut(message, present)
        found = _differ(f"{history}[{index}]", message, present)
        if found is not None:
            return found
    return None


def _cut(message: Any, present: Any) -> Any:
    """`present` without the blocks it has beyond those of `message`."""
    if not isinstance(message, dict) or not isinstance(present, dict):
        return present
    for key in ("content", "parts"):
        blocks, longer = message.get(key), present.get(key)
        if isinstance(blocks, list) and isinstance(longer, list):
            return {**present, key: longer[: len(blocks)]}
    return present


def _differ(where: str, was: Any, now: Any) -> Difference | None:
    if type(was) is not type(now):
        return Difference(where, was, now)
    if isinstance(was, dict):
        return _differ_dict(where, was, now)
    if isinstance(was, list):
        for index in range(max(len(was), len(now))):
            sides = [side[index] if index < len(side) else Missing() for side in (was, now)]
            found = _differ(f"{where}[{index}]", *sides)
            if found is not None:
                return found
        return None
    return None if was == now else Difference(where, was, now)


def _differ_dict(where: str, was: dict[str, Any], now: dict[str, Any]) -> Difference | None:
    for key in dict.fromkeys([*was, *now]):
        found = _differ(f"{where}.{key}", was.get(key, Missing()), now.get(key, Missing()))
        if found is not None:
            return found
    # Equal values in another order are other bytes, which is all a cache goes by.
    return None if list(was) == list(now) else Difference(f"{where} (order of keys)", list(was), list(now))


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
