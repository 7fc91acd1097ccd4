"""The sessions above a task, from the parent up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from oakleaf.log.log import Log
from oakleaf.stores.base import SessionRow, StoreBackend

MAX_TASK_DEPTH = 4


def ancestors(log: Log) -> list[Log]:
    """Return the sessions above a task: the parent first, the session above all tasks last."""
    row = log.store.session(log.session_id)
    return [Log(log.store, parent, log.runtime) for parent in parent_rows(log.store, row)]


def topmost_trashed(log: Log, task: SessionRow) -> str | None:
    """Return the topmost session in the trash between a task and `log`. Restoring it restores those below it."""
    line = [task, *parent_rows(log.store, task)]
    between = takewhile(lambda row: row.session_id != log.session_id, line)
    trashed = [row.session_id for row in between if row.trashed_at is not None]
    return trashed[-1] if trashed else None


def is_task_of(row: SessionRow, parent: str) -> bool:
    """Whether the session is a task of `parent`. A journal from elsewhere may name any session as a task."""
    return row.relation == "task" and row.parent_session == parent


def parent_rows(store: StoreBackend, row: SessionRow) -> Iterator[SessionRow]:
    """Yield the rows of the sessions above a task, the parent first."""
    for _ in range(MAX_TASK_DEPTH + 1):  # bounded: a forged ring of parents must end too
        if row.relation != "task" or row.parent_session is None:
            return
        if (parent := store.find_session(row.parent_session)) is None:
            return
        row = parent
        yield row
