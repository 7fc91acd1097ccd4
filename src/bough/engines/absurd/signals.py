"""The word of a person to a task: on a call that waits for one, or to stop; and the event that wakes the task.

Knows journal and event; does not need Absurd's own libraries, for a word may be given where no worker runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from ...core.turns import OpenCall
from ...log.log import Log
from ...stores.base import Fact, SessionRow
from ...stores.postgres.connections import Connection, Connections
from ...stores.postgres.store import PostgresStore
from .shared_transaction import EngineConnections

CANCEL_REQUESTED = "cancel_requested"
SIGNALS = ("approved", "denied", "task_decided", CANCEL_REQUESTED)
# Under the lock that the word holds: how many there are with it, and where the latest task said that it waits.
SELECT_WAITING = """
select count(*) filter (where journal.kind in ('approved', 'denied', 'task_decided', 'cancel_requested')),
       (array_agg(journal.data order by journal.n desc) filter (where journal.kind = 'waiting'))[1]::json ->> 'queue'
from bough.journal join bough.session on session.no = journal.session_no
where session.id = %s
"""
SELECT_EVENTS = "select to_regclass(format('absurd.%%I', 'e_' || %s)) is not null"
EMIT = "select absurd.emit_event(%s, %s, 'true')"


class WakingConnections(EngineConnections):
    """A word wakes the task that waits for it, in its own transaction.

    Events have names and happen once, so each word has a number. A task that has seen n of them waits for number
    n + 1 and misses none. Where no task waits, or its queue is on another server than this copy, nothing is told.
    """

    def __init__(self, base: Connections, session_id: str) -> None:
        super().__init__(base)
        self._session_id = session_id

    def after_write(self, connection: Connection) -> None:
        words, queue = _one(connection, SELECT_WAITING, self._session_id)
        if queue is not None and _one(connection, SELECT_EVENTS, queue)[0]:
            connection.execute(EMIT, (queue, signal_event(self._session_id, int(words))))


def _one(connection: Connection, query: str, name: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = connection.execute(query, (name,)).fetchone()
    assert found is not None
    return found


def signal_event(session_id: str, n: int) -> str:
    """The n-th word of a person in this session."""
    return f"bough:{session_id}:word:{n}"


def record_decision(log: Log, call: OpenCall, kind: str) -> None:
    """Record a person's word on a call; a task that waits for it is woken by the same transaction."""
    row = replace(
        log.store.session(log.session_id), leaf=log.leaf
    )  # bound to the place where the call was seen
    _waking_log(log, row).record(kind, data={"seq": call.seq, "index": call.index}, only_at_leaf=True)


def record_task_decision(log: Log, data: dict[str, Any]) -> None:
    """Tell a session that one of its tasks was given a word; a task of ours that waits for it is woken."""
    _waking_log(log, log.store.session(log.session_id)).record("task_decided", data=data)


def request_cancel(log: Log) -> None:
    """Have the turn that is open stopped by whichever worker has its task or will have it; nothing if it is no task's.

    The word is durable: a worker that runs the task looks for it every second, one that sleeps is woken by it, and
    one that takes the task later finds it. The turn is closed with words and the session takes the next input.
    """
    row = log.refresh()
    if log.cursor.turn and _is_task(log, row):
        _waking_log(log, row).record(CANCEL_REQUESTED, data={"turn": log.cursor.turn})


def _is_task(log: Log, row: SessionRow) -> bool:
    facts = log.store.journal(log.session_id)
    return (row.holder or "").startswith("absurd:") or any(fact.kind == "enqueued" for fact in facts)


def is_cancel_requested(facts: Iterable[Fact], turn: int) -> bool:
    """Whether the turn is to be stopped: it was asked for, and nobody has sent it on since."""
    asked = False
    for fact in facts:
        if fact.kind == CANCEL_REQUESTED and fact.data.get("turn") == turn:
            asked = True
        elif fact.kind == "enqueued":
            asked = False
    return asked


def _waking_log(log: Log, row: SessionRow) -> Log:
    assert isinstance(log.store, PostgresStore)
    return Log(
        log.store.with_connections(lambda base: WakingConnections(base, log.session_id)),
        row,
        log.runtime,
        log.cursor,
    )
