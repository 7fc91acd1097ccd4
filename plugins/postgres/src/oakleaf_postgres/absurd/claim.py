"""A task's claim, and the guard that requires it.

Only the worker that has a task's claim writes for it: each transaction first extends the claim, which locks its run, and
then writes. So a worker that was paused past its lease, or cut off, learns that its claim is lost before it has written
anything. Almost every transaction is one statement and one round trip. Does not know what a step is, nor what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import psycopg
from absurd_sdk import Absurd, ClaimedTask, TaskContext
from psycopg.errors import RaiseException
from psycopg.rows import dict_row

from oakleaf.errors import ClaimLost, OakleafError
from oakleaf_postgres.absurd.task_log import TaskLog
from oakleaf_postgres.store.connections import IDLE_SECONDS, SERVER_TIMEOUT_SECONDS
from oakleaf_postgres.store.guard import SqlEffect, SqlGuard
from oakleaf_postgres.store.pool import Connection, Pool

Values = Sequence[Any] | Mapping[str, Any]
STEP = "agent-loop"
"""The name of a task's checkpoints, before the number of the last message of each."""
CANCELLED, FAILED = "AB001", "AB002"
# Taking the claim away changes the run that `extend_claim` locks, so the claim holds until the commit. A worker that was
# paused within a transaction would keep its run locked, and no other worker could take the task over. It costs 0.24 ms: a
# lock of our own on Absurd's table would cost nothing measurable, and would have to follow every change of that table.
HOLD_CLAIM = """(select pg_catalog.set_config('idle_in_transaction_session_timeout', %(claim_idle)s, true)) is not null
    and (select absurd.extend_claim(%(claim_queue)s, %(claim_run)s::uuid, %(claim_seconds)s::integer)) is not null"""
# With plans that follow the index on what waits, in the order of its time. By default PostgreSQL goes by statistics from when hardly
# any task waited, and reads and sorts them all: with 100,000 waiting tasks a claim took 600 ms. For this transaction only.
# Nor does it wait for the disk: whatever the task writes later is after it in the write-ahead log, so a claim that a crash
# of the server loses has written nothing, and its worker finds it lost.
CLAIM = """
select claimed.* from (
    select pg_catalog.set_config('enable_sort', 'off', true) || pg_catalog.set_config('enable_bitmapscan', 'off', true)
        || pg_catalog.set_config('enable_seqscan', 'off', true) || pg_catalog.set_config('enable_hashjoin', 'off', true)
        || pg_catalog.set_config('synchronous_commit', 'off', true) as options
) as planner cross join lateral absurd.claim_task(
    case when planner.options is not null then %s end, %s, %s, %s) as claimed
"""
WRITE_CHECKPOINT = """absurd.set_task_checkpoint_state(
    %(claim_queue)s, %(claim_task)s::uuid, %(claim_step)s, %(claim_checkpoint)s::jsonb, %(claim_run)s::uuid)"""
SELECT_CHECKPOINTS = """
select state from absurd.get_task_checkpoint_states(%s, %s, %s) where pg_catalog.starts_with(checkpoint_name, %s)
"""


class ConnectionHandle:
    """The server in the view of a task's Absurd client: a connection for each query, and none during waits
    for a model or a tool. So hundreds of waiting tasks need few connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def execute(self, query: Any, values: Values = (), **options: Any) -> list[Any]:
        """Run a query. Its rows are binary: a time as text has the DateStyle of the role, and only one can be read."""
        with self._pool.connection(SERVER_TIMEOUT_SECONDS) as connection:
            try:
                cursor = connection.cursor(**options).execute(query, values, binary=True)
                return cursor.fetchall() if cursor.description else []
            except psycopg.Error:
                if connection.closed:  # the others may have broken, too
                    self._pool.drain()
                raise

    def cursor(self, **options: Any) -> CursorHandle:
        """The only method of a connection called by Absurd."""
        return CursorHandle(self, options)


class CursorHandle:
    """A cursor for Absurd: executes, and then fetches after the connection's return."""

    def __init__(self, handle: ConnectionHandle, options: dict[str, Any]) -> None:
        self._handle, self._options = handle, options
        self._rows: list[Any] = []

    def execute(self, query: str, values: Values = ()) -> None:
        query = query.replace(
            " make_interval(", " pg_catalog.make_interval("
        )  # all that Absurd calls by its bare name
        self._rows = self._handle.execute(query, values, **self._options)

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows


def claim_next(
    handle: ConnectionHandle, queue: str, worker: str, lease: int, count: int
) -> list[ClaimedTask]:
    """Claim the tasks of a queue due first."""
    return handle.execute(CLAIM, (queue, worker, lease, count), row_factory=dict_row)


class AbsurdClient(Absurd):
    """An Absurd client with an own connection handle and a memory of claims."""

    def __init__(
        self,
        handle: ConnectionHandle,
        queue: str,
        worker: str = "",
        claim: Callable[[ConnectionHandle, str, str, int, int], list[ClaimedTask]] = claim_next,
    ) -> None:
        """`claim` claims tasks, given the handle, the queue, the worker, the seconds of a lease and the most tasks."""
        self._handle, self._claim = handle, claim
        self.claimed: list[ClaimedTask] = []
        task_log = TaskLog(worker, queue, lambda: self.claimed)
        super().__init__(cast(Connection, handle), queue, hooks=task_log.hooks)

    def claim_tasks(
        self, batch_size: int = 1, claim_timeout: int = 120, worker_id: str = "worker"
    ) -> list[ClaimedTask]:
        self.claimed = []
        self.claimed = self._claim(self._handle, self._queue_name, worker_id, claim_timeout, batch_size)
        return self.claimed


def is_claim_lost(error: psycopg.Error) -> bool:
    """Return whether the error is Absurd's report of a lost claim."""
    return error.sqlstate in (CANCELLED, FAILED) or isinstance(error, RaiseException)


class CancellableRun(Protocol):
    """A run with a user's right to cancel."""

    space: str
    session_id: str

    @property
    def facts_read(self) -> int:
        """The number of facts read from the session's journal."""
        ...

    def is_cancel_requested(self) -> bool:
        """Read the later facts; return whether a fact cancels the turn."""


class Claim:
    """The right of a task's run to write, until lost."""

    def __init__(
        self, context: TaskContext, task: ClaimedTask, connections: ConnectionHandle, queue: str, lease: int
    ) -> None:
        self.context, self.queue, self.lease = context, queue, lease
        self.task_id, self.run_id = str(task["task_id"]), str(task["run_id"])
        self.attempt = int(task["attempt"])
        self.is_lost = self.is_cancelled = False
        self.run: CancellableRun | None = None
        """What runs under this claim, once it can be cancelled."""
        self._connections = connections
        self._stop: Callable[[], object] | None = None

    def guard(self) -> SqlGuard:
        """Return the condition of writing for the holder of the claim alone."""
        values = {
            "claim_queue": self.queue,
            "claim_run": self.run_id,
            "claim_seconds": str(self.lease),
            "claim_idle": f"{min(self.lease, IDLE_SECONDS)}s",
        }
        return SqlGuard(HOLD_CLAIM, values, self.check, self._refusal)

    def check(self) -> None:
        """Raise ClaimLost if the claim is known to be lost."""
        if self.is_lost:
            raise ClaimLost(self.queue, self.task_id)

    def _refusal(self, error: psycopg.Error) -> OakleafError | None:
        if not is_claim_lost(error):
            return None
        self.lose()
        return ClaimLost(self.queue, self.task_id)

    def on_loss(self, stop: Callable[[], object]) -> None:
        """Call `stop` after the loss of the claim, or after the cancellation of the run, which may still write."""
        self._stop = stop
        if self.is_lost:
            stop()

    def cancel(self) -> None:
        """Stop the run at a user's request; the run records the cancellation in the session."""
        self.is_cancelled = True
        if self._stop is not None:
            self._stop()

    def lose(self) -> None:
        """Lose the claim: stop the work in flight and refuse every further write."""
        was_lost, self.is_lost = self.is_lost, True
        if self._stop is not None and not was_lost:
            self._stop()

    def end(self) -> None:
        """End the run: refuse later writes of a stopped tool or child."""
        self.is_lost = True

    def completed_steps(self) -> list[Any]:
        """Return the checkpoints of the completed steps."""
        values = (self.queue, self.task_id, self.run_id, STEP)
        return [state for (state,) in self._connections.execute(SELECT_CHECKPOINTS, values)]

    def step_end(self, last_number: int, state: str) -> SqlEffect:
        """Return the effect of a commit at the end of a step: the checkpoint, as JSON, under the number of
        the last message.
        """
        values = {
            "claim_queue": self.queue,
            "claim_run": self.run_id,
            "claim_task": self.task_id,
            "claim_step": f"{STEP}/{last_number}",
            "claim_checkpoint": state,
        }
        return SqlEffect(WRITE_CHECKPOINT, values)

    def reschedule(self, seconds: float) -> None:
        """Return the claim: after so many seconds any worker may take the task."""
        query = "select absurd.schedule_run(%s, %s, absurd.current_time() + pg_catalog.make_interval(secs => %s::float8))"
        self._connections.execute(query, (self.queue, self.run_id, str(seconds)))
