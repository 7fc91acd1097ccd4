"""Identify a function by its code and the plain values it uses, the same in every process."""

from __future__ import annotations

import functools
from types import CodeType
from typing import Any

from oakleaf_lab.experiment import digest


def function_identity(function: Any) -> str:
    """Return eight characters that differ for functions with possibly different answers.

    Code, defaults, closed-over and bound values count. Of an object that is no plain value only the type counts:
    nothing else of it is sure to be the same in another process.
    """
    if not hasattr(function, "__code__") and not isinstance(function, functools.partial):
        function = (type(function).__call__, vars(function))  # an object that is called
    return digest(_describe(function, ()))[:8]


def _describe(value: Any, outer: tuple[int, ...]) -> Any:
    """Return a value's identity as JSON. `outer` holds what contains it: a function may refer to itself."""
    if id(value) in outer:
        return "again"
    describe = functools.partial(_describe, outer=(*outer, id(value)))
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(describe, value)]
    if isinstance(value, dict):
        return ["dict", *[[describe(key), describe(item)] for key, item in value.items()]]
    if isinstance(value, CodeType):
        return ["code", value.co_code.hex(), *value.co_names, describe(value.co_consts)]
    if isinstance(value, functools.partial):
        return ["partial", describe(value.func), describe(value.args), describe(value.keywords)]
    if hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        bound = getattr(getattr(value, "__self__", None), "__dict__", None)
        parts = value.__code__, value.__defaults__, value.__kwdefaults__, cells, bound
        return ["function", *map(describe, parts)]
    is_plain = isinstance(value, str | bytes | int | float | frozenset | type(None))
    return [f"{type(value).__module__}.{type(value).__qualname__}", repr(value) if is_plain else None]
