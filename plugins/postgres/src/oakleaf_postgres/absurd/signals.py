"""Signals to a task: a decision on a call that waits for approval, or a request to cancel.

Each is a fact in the journal and an event that wakes the task, written in one transaction. Needs no library of Absurd:
a process that runs no worker sends signals, too.
"""

from __future__ import annotations

from typing import get_args

from oakleaf.core.facts import Signal, TurnLeft, kind_of
from oakleaf_postgres.store.statement import Connection, fetch_row

SIGNALS = tuple(map(kind_of, get_args(Signal)))
# Under the session's lock: how many signals there are with the new one, and the queue of the latest task that waits.
SELECT_WAITING = f"""
select count(*) filter (where journal.kind in ({", ".join(f"'{kind}'" for kind in SIGNALS)})),
       (array_agg(journal.data order by journal.number desc) filter (where journal.kind = '{kind_of(TurnLeft)}'
           and journal.data::json ->> 'status' = 'waiting' and journal.number > session.imported_facts))[1]::json ->> 'queue'
from oakleaf.journal join oakleaf.session on session.number = journal.session_number
where session.id = %s
"""
SELECT_EVENTS = "select to_regclass(format('absurd.%%I', 'e_' || %s)) is not null"
EMIT = "select absurd.emit_event(%s, %s, 'true')"


def signal_event(session_id: str, n: int) -> str:
    """Return the name of the event of the session's n-th signal."""
    return f"oakleaf:{session_id}:signal:{n}"


def wake_task(connection: Connection, session_id: str) -> None:
    """Wake the task waiting for a signal, in the recording transaction.

    An event has a name and happens once, so signals are numbered. A task that has read n of them waits for number n + 1
    and misses none. If no task waits, or its queue is on another server than this copy, no event is emitted.
    """
    count, queue = fetch_row(connection, SELECT_WAITING, [session_id])
    if queue is not None and fetch_row(connection, SELECT_EVENTS, [queue])[0]:
        connection.execute(EMIT, (queue, signal_event(session_id, int(count))))
