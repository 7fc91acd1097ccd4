"""Shapes: what a provider's JSON has and Oakleaf has no field for, kept beside the part it belongs to.

A shape is the original object with None in place of each value that Oakleaf writes itself. Filled with those values it is
the original again, so nothing is stored twice, and a value that changed since, such as a shortened text, stays changed.
Knows JSON values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shape = dict[str, Any]


def shape_of(original: Mapping[str, Any], written: Mapping[str, Any]) -> Shape | None:
    """Return the shape of an object as far as it differs from what is `written` without one; None for no difference."""
    shape = _shape(original, written)
    return None if original.keys() == written.keys() and _is_hollow(shape) else shape


def shape_around(original: Mapping[str, Any], *held: str) -> Shape | None:
    """Return the shape of an object whose `held` values Oakleaf holds; None if there is nothing beside them and a type."""
    if original.keys() <= {"type", *held}:
        return None
    return {key: None if key in held else value for key, value in original.items()}


def _shape(original: Mapping[str, Any], written: Mapping[str, Any]) -> Shape:
    shape: Shape = {}
    for key, value in original.items():
        ours = written.get(key)
        if type(value) is type(ours) and value == ours:
            shape[key] = None
        elif isinstance(value, Mapping) and isinstance(ours, Mapping):
            shape[key] = _shape(value, ours)
        else:
            shape[key] = value
    return shape


def _is_hollow(shape: Shape) -> bool:
    return all(value is None for value in shape.values())


def fill(shape: Shape | None, written: dict[str, Any]) -> dict[str, Any]:
    """Return what is written in the original's shape."""
    if not isinstance(shape, dict):
        return written
    filled: dict[str, Any] = {}
    for key, value in shape.items():
        ours = written.get(key)
        if value is None:
            filled[key] = ours
        else:
            filled[key] = fill(value, ours) if isinstance(value, dict) and isinstance(ours, dict) else value
    return filled
