"""Bough below other agent frameworks. Each package is imported by its own name and needs the extra of that name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..session import Session
from ..store import Store

V = TypeVar("V")
UNKNOWN_RESULT = (
    "[no result was recorded before the conversation continued: this call may or may not have run]"
)
MISSING_MEDIA = "[media whose bytes are not in this store]"


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Name the extra to install if a framework's package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "bough":
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed; pip install 'bough[{extra}]' installs it", name=error.name
        ) from error


def require_store(value: V, adapter: str, *, or_session: bool = False) -> V:
    """Return `value` if it is a store (or a session, where that is allowed); else raise TypeError."""
    if isinstance(value, Store) or (or_session and isinstance(value, Session)):
        return value
    hint = f"; pass bough.open({str(value)!r})" if isinstance(value, str | Path) else ""
    expected = "the Store that bough.open(path) returns" + (", or a Session" if or_session else "")
    raise TypeError(f"{adapter} expected {expected}, not {type(value).__name__}{hint}")
