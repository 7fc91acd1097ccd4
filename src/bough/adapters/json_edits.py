"""Edits: what turns one JSON value into another, for what a framework's value holds beside its message.

An adapter renders a message as its framework would write it and keeps only the difference to what it was handed, so
that an ordinary message is not stored twice and an odd one comes back as it came. Knows JSON; knows no framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

Edit = list[Any]
"""`[path, value]` sets, `[path]` removes; a path is a list of keys and indexes, the empty one is the whole."""


def edits(was: object, now: object) -> list[Edit]:
    """What has to be done to `was` to get `now`; nothing if they are equal, types included."""
    return list(_edits(was, now, []))


def _edits(was: object, now: object, path: list[str | int]) -> Iterator[Edit]:
    if isinstance(was, dict) and isinstance(now, dict):
        yield from ([[*path, key]] for key in was if key not in now)
        for key, value in now.items():
            if key in was:
                yield from _edits(was[key], value, [*path, key])
            else:
                yield [[*path, key], value]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (before, after) in enumerate(zip(was, now, strict=True)):
            yield from _edits(before, after, [*path, index])
    elif type(was) is not type(now) or was != now:  # True is 1 in Python, and not in JSON
        yield [path, now]


def edited(was: Any, made: list[Edit]) -> Any:
    """A value with edits made to it; `was` is not touched, what the edits set goes in as it is."""
    # Most edits set a field of the value itself: then a copy of its surface is enough.
    value = deepcopy(was) if any(len(path) > 1 for path, *_ in made) else copy(was)
    for path, *new in made:
        if not path:
            value = new[0]
            continue
        *steps, last = path
        at = value
        for step in steps:
            at = at[step]
        if new:
            at[last] = new[0]
        else:
            del at[last]
    return value
