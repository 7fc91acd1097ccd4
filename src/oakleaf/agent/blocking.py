"""Call an async verb from a script."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def blocking(verb: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Return a function for scripts. The function runs the async `verb` to the end and returns the result."""

    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        import asyncio  # imported late: importing it takes longer than opening a store

        return asyncio.run(verb(*args, **kwargs))

    call.__name__, call.__qualname__ = f"{verb.__name__}_sync", f"{verb.__qualname__}_sync"
    call.__doc__ = f"`{verb.__name__}` for scripts."
    return call
