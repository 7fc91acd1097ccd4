"""The Absurd engine: runs are tasks on a PostgreSQL queue, executed by any number of workers.

Its libraries are imported when they are used: signals to a task and the health of a queue need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oakleaf_postgres.absurd.engine import Agent

__all__ = ["Agent"]


def __getattr__(name: str) -> Any:
    if name == "Agent":
        from oakleaf_postgres.absurd.engine import Agent

        return Agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
