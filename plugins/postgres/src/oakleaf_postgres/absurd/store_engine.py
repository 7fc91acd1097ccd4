"""What a PostgreSQL store offers as its engine: workers that run turns and other tasks, by Absurd.

Loads the libraries of Absurd when a turn or a task is spawned: signals to a task and the health of queues need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oakleaf.core.messages import Message
from oakleaf.stores.tasks import EnqueuedTask, QueueStatus, TaskQueue
from oakleaf_postgres.absurd import health
from oakleaf_postgres.errors import needs_absurd

if TYPE_CHECKING:
    from oakleaf.log.log import Log
    from oakleaf_postgres.store.store import PostgresStore


class AbsurdEngine:
    """The `Engine` of one store."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def send(self, log: Log, content: str | Message | None, **options: Any) -> EnqueuedTask:
        with needs_absurd():
            from oakleaf_postgres.absurd.engine import send
        return send(log, content, **options)

    def enqueue(self, log: Log, message: Message, *, queue: str, agent: str | None) -> EnqueuedTask:
        with needs_absurd():
            from oakleaf_postgres.absurd.engine import enqueue
        return enqueue(log, message, queue=queue, agent=agent)

    def tasks(self, queue: str) -> TaskQueue:
        with needs_absurd():
            from oakleaf_postgres.absurd.task_queue import AbsurdTaskQueue
        return AbsurdTaskQueue(self._store.connections, queue)

    def queues(self) -> list[QueueStatus]:
        return [status.summary for status in health.queue_statuses(self._store)]
