"""Runs that a limit stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oakleaf import RunResult
from oakleaf.errors import TurnLimit


def stopped(send: Callable[..., RunResult], *args: Any, **options: Any) -> RunResult:
    """Send, expect `TurnLimit`, and return the result that it carries."""
    with pytest.raises(TurnLimit) as caught:
        send(*args, **options)
    assert caught.value.result is not None
    return caught.value.result
