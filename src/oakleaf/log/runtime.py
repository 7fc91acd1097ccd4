"""The environment of a log: the clock, new ids, the name of this process, the redactor.

Tests pass their own.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from oakleaf.core.redact import Redactor
from oakleaf.log.original_calls import OriginalCalls
from oakleaf.log.process import Process, current_process
from oakleaf.stores.base import StoreBackend

if TYPE_CHECKING:
    from oakleaf.log.hooks import Hooks


class Runtime(Struct, frozen=True):
    """The clock, new ids, the name of this process, and the redactor."""

    now: Callable[[], int]
    new_id: Callable[[str], str]
    """Return a new id with the given prefix; without a prefix a short id, unique within a session."""
    holder: Callable[[], str]
    """Return the name of this process for the leases of runs."""
    is_gone: Callable[[str], bool | None]
    """Whether the process with the given name has ended; None if unknown here."""
    redactor: Redactor = Redactor()
    """Redacts every value before the value becomes durable."""
    original_calls: OriginalCalls = field(default_factory=OriginalCalls)
    """The redacted open tool calls, with the model's original arguments."""
    on_commit: Callable[[float], None] | None = None
    """Called after each commit with the duration in seconds."""
    hooks: tuple[Hooks, ...] = ()
    """The host's functions around turns, model calls and tool calls."""


_SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
MIN_SECRET_LENGTH = 16  # a shorter value may be an ordinary word


def environment_secrets() -> dict[str, str]:
    """Return the environment variables with names of secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value) >= MIN_SECRET_LENGTH
    }


def real_runtime(redactor: Redactor | None = None, store: StoreBackend | None = None) -> Runtime:
    """Return the system's clock, random ids and the name of this process.

    The lock of `store` identifies the process.
    """
    return Runtime(
        now=lambda: time.time_ns() // 1_000,
        new_id=lambda prefix: f"{prefix}_{os.urandom(10).hex()}" if prefix else _short_id(),
        holder=lambda: _holder(store),  # called each time: after os.fork() this is another process
        is_gone=lambda name: _is_gone(name, store),
        redactor=redactor or Redactor(),
    )


SHORT_ID = 12
_short_ids: deque[str] = deque()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_short_ids.clear)  # they are the parent's


def _short_id() -> str:
    """Return 48 random bits. They are drawn for many ids at once: drawing lets another thread have the interpreter."""
    while True:
        try:
            return _short_ids.popleft()
        except IndexError:
            digits = os.urandom(64 * SHORT_ID // 2).hex()
            _short_ids.extend(digits[n : n + SHORT_ID] for n in range(0, len(digits), SHORT_ID))


def _holder(store: StoreBackend | None) -> str:
    token = None if store is None else store.life_token()
    return str(replace(current_process(), life_token=token or ""))


def _is_gone(name: str, store: StoreBackend | None) -> bool | None:
    process = Process.parse(name)
    if process is None:
        return None
    return process.is_gone() if store is None else process.is_gone(store.has_ended)
