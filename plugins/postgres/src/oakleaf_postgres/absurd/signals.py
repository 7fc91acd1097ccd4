"""Signals to a task: a decision on a call that waits for approval, or a request to cancel.

Each is a fact in the journal and an event that wakes the task. Needs no library of Absurd, since signals are sent from
processes that run no worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from oakleaf.agent.cancellation import CANCEL_REQUESTED
from oakleaf.core.turns import OpenCall
from oakleaf.log.log import Log
from oakleaf.stores.base import SessionRow
from oakleaf_postgres.absurd.shared_transaction import EngineConnections, fetch_row
from oakleaf_postgres.store.connections import Connection, PostgresConnections

if TYPE_CHECKING:
    from oakleaf_postgres.store.store import PostgresStore

SIGNALS = ("approved", "denied", "task_decided", CANCEL_REQUESTED)
# Under the session's lock: how many signals there are with the new one, and the queue of the latest task that waits.
SELECT_WAITING = """
select count(*) filter (where journal.kind in ('approved', 'denied', 'task_decided', 'cancel_requested')),
       (array_agg(journal.data order by journal.number desc) filter (where journal.kind = 'waiting' and journal.number > session.imported_facts))[1]::json ->> 'queue'
from oakleaf.journal join oakleaf.session on session.number = journal.session_number
where session.id = %s
"""
SELECT_EVENTS = "select to_regclass(format('absurd.%%I', 'e_' || %s)) is not null"
EMIT = "select absurd.emit_event(%s, %s, 'true')"


class WakingConnections(EngineConnections):
    """Wake the task that waits for a signal, in the transaction that records it.

    Events have names and happen once, so signals are numbered. A task that has read n of them waits for number n + 1
    and misses none. If no task waits, or its queue is on another server than this copy, no event is emitted.
    """

    def __init__(self, base: PostgresConnections, session_id: str) -> None:
        super().__init__(base)
        self._session_id = session_id

    def after_write(self, connection: Connection) -> None:
        count, queue = fetch_row(connection, SELECT_WAITING, [self._session_id])
        if queue is not None and fetch_row(connection, SELECT_EVENTS, [queue])[0]:
            connection.execute(EMIT, (queue, signal_event(self._session_id, int(count))))


def signal_event(session_id: str, n: int) -> str:
    """Return the name of the event of the session's n-th signal."""
    return f"oakleaf:{session_id}:signal:{n}"


def record_decision(log: Log, call: OpenCall, kind: str) -> None:
    """Record a user's decision on a call, and wake the task that waits for it in the same transaction."""
    # At the leaf where the call was read: StaleLeaf if the session has moved since.
    row = replace(log.store.session(log.session_id), leaf=log.leaf)
    _waking_log(log, row).record(kind, data={"seq": call.seq, "index": call.index}, only_at_leaf=True)


def record_task_decision(log: Log, data: dict[str, Any]) -> None:
    """Record in a session that a call of one of its tasks was decided, and wake the task that waits for it."""
    _waking_log(log, log.store.session(log.session_id)).record("task_decided", data=data)


def request_cancel(log: Log) -> bool:
    """Ask the worker that has the open turn's task, or will have it, to cancel the turn; return False without a task.

    The request is durable: a worker that runs the task polls for it every second, a sleeping task is woken by it, and
    a worker that takes the task later reads it. The turn gets a closing answer and the session accepts the next input.
    """
    row = log.refresh()
    if not log.cursor.turn or not _is_task(log, row):
        return False
    _waking_log(log, row).record(CANCEL_REQUESTED, data={"turn": log.cursor.turn})
    return True


def _is_task(log: Log, row: SessionRow) -> bool:
    """Whether a task runs the open turn, or will: it was enqueued since it started, or it waits as one. Tasks are not
    imported with their session."""
    if (row.holder or "").startswith("absurd:"):
        return True
    for fact in log.facts_backwards(row.imported_facts):
        if fact.kind == "enqueued" or (fact.kind == "waiting" and "queue" in fact.data):
            return True
        if fact.kind in ("turn_started", "turn_ended"):
            return False
    return False


def _waking_log(log: Log, row: SessionRow) -> Log:
    store = cast("PostgresStore", log.store)
    return Log(
        store.with_connections(lambda base: WakingConnections(base, log.session_id)),
        row,
        log.runtime,
        log.cursor,
    )
