"""What a log takes from outside: the clock, new ids, and who drives. Tests hand in their own."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable

from msgspec import Struct

from ..core.redact import Redactor


class Runtime(Struct, frozen=True):
    """What a log takes from outside: the clock, new ids and the name of this process."""

    now: Callable[[], int]
    new_id: Callable[[str], str]
    """A new id with that prefix; with none a short one, unique within a session."""
    holder: Callable[[], str]
    is_gone: Callable[[str], bool]
    """Whether a holder is known to have died."""
    redactor: Redactor = Redactor()
    """What is hidden before anything becomes durable."""


_SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
MIN_SECRET_LENGTH = 16  # a shorter value of the environment may be an ordinary word


def environment_secrets() -> dict[str, str]:
    """Values of the environment that are secrets by their names."""
    found = os.environ.items()
    return {
        name: value for name, value in found if _SECRET_NAME.search(name) and len(value) >= MIN_SECRET_LENGTH
    }


def real_runtime(redactor: Redactor | None = None) -> Runtime:
    host = platform.node()  # msgspec has loaded it; socket would be one more thing to load at every start

    def is_gone(holder: str) -> bool:
        where, _, pid = holder.rpartition(":")
        if where != host or not pid.isdigit():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    return Runtime(
        now=lambda: time.time_ns() // 1_000,
        new_id=lambda prefix: f"{prefix}_{os.urandom(10).hex()}" if prefix else os.urandom(6).hex(),
        holder=lambda: f"{host}:{os.getpid()}",  # asked each time: a fork is another process
        is_gone=is_gone,
        redactor=redactor or Redactor(),
    )
