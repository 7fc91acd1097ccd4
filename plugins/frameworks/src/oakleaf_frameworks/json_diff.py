"""Differences between two JSON values, and applying them.

An adapter renders a message as its framework would write it and stores only the difference from the original, so an
ordinary message is not stored twice and an unusual one is returned unchanged. Does not know any framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

Edit = list[Any]
"""`[path, value]` sets and `[path]` removes. A path is a list of keys and indexes; the empty path is the whole value."""


def diff(before: object, after: object) -> list[Edit]:
    """Return the edits from `before` to `after`; none for equal values, types included."""
    return list(_diff(before, after, []))


def _diff(before: object, after: object, path: list[str | int]) -> Iterator[Edit]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from ([[*path, key]] for key in before if key not in after)
        for key, value in after.items():
            if key in before:
                yield from _diff(before[key], value, [*path, key])
            else:
                yield [[*path, key], value]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _diff(old, new, [*path, index])
    elif type(before) is not type(after) or before != after:  # True == 1 in Python, but not in JSON
        yield [path, after]


def apply_edits(value: Any, edits: list[Edit]) -> Any:
    """Return a copy of `value` with the edits applied; values from the edits are not copied."""
    # Most edits set a field of the value itself: a shallow copy is enough for those.
    result = deepcopy(value) if any(len(path) > 1 for path, *_ in edits) else copy(value)
    for path, *new in edits:
        if not path:
            result = new[0]
            continue
        *steps, last = path
        target = result
        for step in steps:
            target = target[step]
        if new:
            target[last] = new[0]
        else:
            del target[last]
    return result
