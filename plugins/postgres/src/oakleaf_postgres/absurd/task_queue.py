"""Tasks of a queue for work that is no turn of a session: spawn many at once, and see how far they are.

Does not know what the tasks do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absurd_sdk import Absurd

from oakleaf.stores.tasks import TaskState
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.queue import queue_tables
from oakleaf_postgres.store.connections import Connection, PostgresConnections

BATCH = 200
"""Tasks spawned in one transaction."""

# A run whose claim has expired belongs to a worker that died: nothing runs it until another one takes it.
SELECT_STATES = """
select task.idempotency_key, task.state,
       coalesce(task.state = 'running' and run.claim_expires_at > absurd.current_time(), false),
       (select failed.failure_reason ->> 'message'::text from absurd.{runs} as failed
        where failed.task_id = task.task_id and failed.state = 'failed' order by failed.attempt desc limit 1)
from absurd.{tasks} as task left join absurd.{runs} as run on run.run_id = task.last_attempt_run
where task.idempotency_key = any(%s)
"""


class AbsurdTaskQueue:
    """A `TaskQueue` in the tables of Absurd."""

    def __init__(self, connections: PostgresConnections, queue: str) -> None:
        """Raise EngineNotInstalled without the queue."""
        self.queue, self._connections = queue, connections
        where = self._connections.url
        self._connections.read_snapshot(
            lambda connection: absurd_schema.check_queue(connection, where, queue)
        )
        self._select_states = SELECT_STATES.format(**queue_tables(queue))

    def spawn(
        self, name: str, tasks: Mapping[str, Mapping[str, Any]], *, attempts: int, retry: Mapping[str, Any]
    ) -> None:
        """Spawn tasks from parameters by key. One whose key is known is not spawned again."""
        items = list(tasks.items())
        for first in range(0, len(items), BATCH):
            batch = items[first : first + BATCH]

            def write(connection: Connection, batch: Sequence[tuple[str, Mapping[str, Any]]] = batch) -> bool:
                client = Absurd(connection, self.queue)
                for key, params in batch:
                    client.spawn(
                        name,
                        dict(params),
                        max_attempts=attempts,
                        retry_strategy=dict(retry),  # type: ignore[arg-type]
                        queue=self.queue,
                        idempotency_key=key,
                    )
                return True

            self._connections.write(write)

    def states(self, keys: Iterable[str]) -> dict[str, TaskState]:
        """Return the progress of the tasks by key, without missing tasks."""
        rows = self._connections.query(self._select_states, (list(keys),))
        return {key: TaskState(state, is_claimed, failure) for key, state, is_claimed, failure in rows}
