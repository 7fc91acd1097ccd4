"""The Absurd engine: runs are tasks on a PostgreSQL queue, executed by any number of workers.

Its libraries are imported when they are used: signals to a task and the health of a queue need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oakleaf_postgres.absurd.engine import Agent as Agent
    from oakleaf_postgres.absurd.engine import enqueue as enqueue
    from oakleaf_postgres.absurd.engine import resume as resume
    from oakleaf_postgres.absurd.engine import send as send

__all__ = ["Agent", "enqueue", "resume", "send"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oakleaf_postgres.errors import needs_absurd

    with needs_absurd():
        from oakleaf_postgres.absurd import engine
    return getattr(engine, name)
