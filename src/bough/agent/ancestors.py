"""What a task stands under: the sessions that had it started, up to the one that is no task.

Knows rows and who is whose parent. Does not know what a task waits for, nor how one is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from ..errors import NotFound
from ..log.log import Log
from ..stores.base import SessionRow, StoreBackend

MAX_TASK_DEPTH = 4


def ancestors(log: Log) -> list[Log]:
    """The sessions it is a task of: its parent first, the one that is no task last."""
    row = log.store.session(log.session_id)
    return [Log(log.store, parent, log.runtime) for parent in _rows_above(log.store, row)]


def topmost_trashed(log: Log, task: SessionRow) -> str | None:
    """The topmost session in the trash between a task and `log`: to restore it brings back those below it."""
    line = [task, *_rows_above(log.store, task)]
    between = takewhile(lambda row: row.session_id != log.session_id, line)
    trashed = [row.session_id for row in between if row.trashed_at is not None]
    return trashed[-1] if trashed else None


def _rows_above(store: StoreBackend, row: SessionRow) -> Iterator[SessionRow]:
    for _ in range(MAX_TASK_DEPTH + 1):  # a ring that somebody forged has an end too
        if row.relation != "task" or row.parent_session is None:
            return
        try:
            row = store.session(row.parent_session)
        except NotFound:
            return
        yield row
