"""A task's claim, and the transactions that require it.

Only the worker that has a task's claim writes for it: each transaction first locks the run and renews its lease, then
writes, and the one that ends a step writes the checkpoint, too. So a worker that was paused past its lease, or cut
off, learns that its claim is lost before it has written anything. Almost every transaction is one statement and one
round trip. Does not know what a step is, nor what is written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock, local
from typing import Any, Protocol, cast

import msgspec
import psycopg
from absurd_sdk import Absurd, CancelledTask, ClaimedTask, FailedTask, StepHandle, TaskContext
from psycopg.errors import RaiseException
from psycopg.rows import dict_row

from oakleaf.errors import ClaimLost, UnknownCommit
from oakleaf_postgres.absurd.queue import queue_tables
from oakleaf_postgres.absurd.shared_transaction import EngineConnections
from oakleaf_postgres.absurd.task_log import TaskLog
from oakleaf_postgres.store.connections import (
    SERVER_TIMEOUT_SECONDS,
    SET_LOCK_TIMEOUT,
    ConnectionLost,
    EngineSql,
    PostgresConnections,
    noticing_loss,
)
from oakleaf_postgres.store.pool import Pool
from oakleaf_postgres.store.statement import Connection, Rows, Statement, run_statement

Values = Sequence[Any] | Mapping[str, Any]
STEP = "agent-loop"
"""The name of a step: the n-th one is `agent-loop#n` among the task's checkpoints."""
CANCELLED, FAILED = "AB001", "AB002"
# The lock and the check of `extend_claim`, without its two statements that are planned anew each time and without
# renewing the lease, which `LeaseRenewer` does. Taking the claim away changes this row, so the claim holds until the
# commit. If it is lost nothing is written, and `lock_run` raises why.
LOCK_RUN = f"""
    {SET_LOCK_TIMEOUT} and (select 1 from absurd.{{runs}} where run_id = %(run_id)s::uuid and state = 'running' for no key update) is not null"""
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
    %(queue)s, %(task_id)s::uuid, %(step_name)s, %(checkpoint)s::jsonb, %(run_id)s::uuid, null)"""


class ConnectionHandle:
    """A task's access to the server: it has a connection while it runs a query, and none while it waits for a model
    or a tool. So hundreds of waiting tasks need few connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._thread = local()

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Connection]:
        """Lend one connection for the block, even if it breaks: a transaction must not continue on another."""
        with self._pool.connection(SERVER_TIMEOUT_SECONDS) as connection:
            try:
                self._thread.connection = connection
                yield connection
            finally:
                self._thread.connection = None

    def execute(self, query: Any, values: Values = (), **options: Any) -> list[Any]:
        """Run it in the transaction that is open in this thread, or in one of its own."""
        connection: Connection | None = getattr(self._thread, "connection", None)
        if connection is not None:
            return _rows(connection, query, values, options)
        with self.pinned() as connection:
            try:
                return _rows(connection, query, values, options)
            except psycopg.Error:
                if connection.closed:
                    self.drain()
                raise

    def drain(self) -> None:
        """A connection broke: the next one lent is a new one."""
        self._pool.drain()

    def cursor(self, **options: Any) -> CursorHandle:
        """The only method of a connection that Absurd calls."""
        return CursorHandle(self, options)


def _rows(connection: Connection, query: Any, values: Values, options: dict[str, Any]) -> list[Any]:
    """Run a query. Its rows are binary: a time as text has the DateStyle of the role, and only one of them can be read."""
    cursor = connection.cursor(**options).execute(query, values, binary=True)
    return cursor.fetchall() if cursor.description else []


class CursorHandle:
    """A cursor as Absurd uses one: it executes and then fetches, when the connection has been returned already."""

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


class AbsurdClient(Absurd):
    """An Absurd client with its own connection handle; it remembers what it claimed."""

    def __init__(self, handle: ConnectionHandle, queue: str, worker: str = "") -> None:
        self._handle = handle
        self.claimed: list[ClaimedTask] = []
        task_log = TaskLog(worker, queue, lambda: self.claimed)
        super().__init__(cast(Connection, handle), queue, hooks=task_log.hooks)

    def claim_tasks(
        self, batch_size: int = 1, claim_timeout: int = 120, worker_id: str = "worker"
    ) -> list[ClaimedTask]:
        self.claimed = []
        values = (self._queue_name, worker_id, claim_timeout, batch_size)
        self.claimed = self._handle.execute(CLAIM, values, row_factory=dict_row)
        return self.claimed


def is_claim_lost(error: psycopg.Error) -> bool:
    """Return whether this is how Absurd reports that the claim is lost."""
    return error.sqlstate in (CANCELLED, FAILED) or isinstance(error, RaiseException)


class CancellableRun(Protocol):
    """A run that a user may cancel."""

    space: str
    session_id: str
    facts_read: int
    """How many facts of its session's journal were read."""

    def is_cancel_requested(self) -> bool:
        """Read the facts after those; return whether one of them cancels the turn."""


class Claim:
    """The right of one run of a task to write, until it is lost."""

    def __init__(
        self, context: TaskContext, task: ClaimedTask, handle: ConnectionHandle, queue: str, lease: int
    ) -> None:
        self.context, self.connections, self.queue, self.lease = context, handle, queue, lease
        self.task_id, self.run_id = str(task["task_id"]), str(task["run_id"])
        self.attempt = int(task["attempt"])
        self.lock = RLock()
        self.is_lost = self.is_cancelled = False
        self.run: CancellableRun | None = None
        """What runs under this claim, once it can be cancelled."""
        self._stop: Callable[[], object] | None = None
        self._checkpoint: dict[str, Any] | None = None
        self._steps = 0
        self._lock_run_sql = LOCK_RUN.format(**queue_tables(queue))

    def lock_run(self) -> None:
        """Lock the run and renew its lease in the open transaction; raises ClaimLost if another worker has it."""
        if not self.is_lost:
            try:
                self.context.heartbeat()
                return
            except (CancelledTask, FailedTask, RaiseException):
                self.lose()
        raise ClaimLost(self.queue, self.task_id)

    def on_loss(self, stop: Callable[[], object]) -> None:
        """Call `stop` when the claim is lost, or when the run is cancelled, which may still write."""
        self._stop = stop
        if self.is_lost:
            stop()

    def cancel(self) -> None:
        """Stop the run at a user's request; it records that in the session."""
        self.is_cancelled = True
        if self._stop is not None:
            self._stop()

    def lose(self) -> None:
        """Another worker has it, or none: stop what is in flight and refuse every further write."""
        was_lost, self.is_lost = self.is_lost, True
        if self._stop is not None and not was_lost:
            self._stop()

    def end(self) -> None:
        """The run is over: refuse what a stopped tool or child would still write."""
        with self.lock:
            self.is_lost = True

    def completed_steps(self) -> Iterator[Any]:
        """Yield the checkpoints of the completed steps, in order."""
        while (handle := self.context.begin_step(STEP)).done:
            self._steps += 1
            yield handle.state

    @contextlib.contextmanager
    def ending_step(self, checkpoint: dict[str, Any] | None) -> Iterator[None]:
        """Write the checkpoint in the transaction that the block commits.

        Other writers of the task wait: the checkpoint must not commit with anything else. A transaction that is tried
        again ends the same step.
        """
        with self.lock:
            self._checkpoint = checkpoint
            try:
                yield
            finally:
                self._checkpoint = None
            self._steps += checkpoint is not None

    def write_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self.context.complete_step(StepHandle(STEP, self._step_name(), done=False), self._checkpoint)

    def engine_sql(self) -> EngineSql:
        """Return `lock_run` and `write_checkpoint` as parts of the statement between them."""
        if self._checkpoint is None:
            return EngineSql(self._lock_run_sql, values={"run_id": self.run_id})
        values = {
            "run_id": self.run_id,
            "queue": self.queue,
            "task_id": self.task_id,
            "step_name": self._step_name(),
            "checkpoint": msgspec.json.encode(self._checkpoint).decode(),
        }
        return EngineSql(self._lock_run_sql, WRITE_CHECKPOINT, values)

    def _step_name(self) -> str:
        """Return the name of the next checkpoint. Asking Absurd for it would be one more round trip."""
        return STEP if self._steps == 0 else f"{STEP}#{self._steps + 1}"

    def reschedule(self, seconds: float) -> None:
        """Return the claim: after so many seconds any worker may take the task."""
        query = "select absurd.schedule_run(%s, %s, absurd.current_time() + pg_catalog.make_interval(secs => %s::float8))"
        self.connections.execute(query, (self.queue, self.run_id, str(seconds)))


class ClaimedConnections(EngineConnections):
    """Connections of a task: every write uses its connection handle and requires its claim."""

    def __init__(self, base: PostgresConnections, claim: Claim) -> None:
        super().__init__(base)
        self._claim = claim
        # A worker paused within a transaction would keep its run locked, and no other worker could take it over.
        self._identity = f"set local idle_in_transaction_session_timeout = '{claim.lease}s'; {base._identity}"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        claim = self._claim
        with claim.lock:
            if claim.is_lost:
                raise ClaimLost(claim.queue, claim.task_id)
            with claim.connections.pinned() as connection, noticing_loss(connection):
                yield connection

    def recover(self, error: ConnectionLost, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise UnknownCommit(self.url, error.reason) from None
        self.log_loss(error)
        with self._claim.lock:
            if not self._claim.is_lost:
                self._claim.connections.drain()

    def engine_sql(self) -> EngineSql:
        return self._claim.engine_sql()

    def run_with_engine_sql(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        def run(connection: Connection) -> Rows:
            try:
                return run_statement(connection, statement, values)
            except psycopg.Error as error:
                if not is_claim_lost(error):
                    raise
            self._claim.lose()
            raise ClaimLost(self._claim.queue, self._claim.task_id)

        return self._run(run)

    def before_write(self, connection: Connection) -> None:
        self._claim.lock_run()

    def after_write(self, connection: Connection) -> None:
        self._claim.write_checkpoint()
