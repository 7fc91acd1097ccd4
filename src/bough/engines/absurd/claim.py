"""A task's claim, and the transactions that hold it.

Knows that whatever is written for a task is written by whoever has its claim: each transaction first locks the
run and renews its lease, then writes, and the one that ends a step writes the checkpoint too. So a worker that
was paused past its lease, or cut off, finds its claim gone before it has written anything. Almost every
transaction is one statement that says all of it, and one round trip. Does not know what a step is, nor what is
written.
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
from psycopg import sql
from psycopg.errors import AdminShutdown, RaiseException, UniqueViolation

from ...errors import ClaimLost, UnknownCommit
from ...stores.postgres.connections import (
    SERVER_TIMEOUT_SECONDS,
    SET_LOCK_TIMEOUT,
    ConnectionLost,
    Connections,
    EngineSql,
    store_error,
)
from ...stores.postgres.pool import Pool
from ...stores.postgres.statement import Connection, Rows, Statement, run_statement
from ...stores.postgres.url import first_line
from .shared_transaction import EngineConnections

STEP = "agent-loop"
"""The name of a step: the n-th one is `agent-loop#n` among the task's checkpoints."""
CANCELLED, FAILED = "AB001", "AB002"
# What `extend_claim` locks and looks at, without its two statements that are planned anew each time and
# without a lease to renew: the heart does that. Whoever takes the claim away changes this row, so it is this task's
# until the commit. Where it is not, nothing is written, and `hold` says why.
HOLD = f"""
    {SET_LOCK_TIMEOUT} and (select 1 from absurd.{{runs}} where run_id = %(run_id)s::uuid and state = 'running' for no key update) is not null"""
END_STEP = """absurd.set_task_checkpoint_state(
    %(queue)s, %(task_id)s::uuid, %(step_name)s, %(checkpoint)s::jsonb, %(run_id)s::uuid, null)"""


class ConnectionHandle:
    """A task's way to the server: a connection while something is said, none while it waits for a model or a tool.

    So hundreds that wait need no more connections than the few that speak.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._here = local()

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Connection]:
        """The same connection to the end, broken or not: half a transaction must not go on in another."""
        with self._pool.connection(SERVER_TIMEOUT_SECONDS) as connection:
            try:
                self._here.connection = connection
                yield connection
            finally:
                self._here.connection = None

    def execute(self, query: Any, values: Sequence[Any] = (), **how: Any) -> list[Any]:
        """In the transaction that is open in this thread, or in one of its own."""
        connection: Connection | None = getattr(self._here, "connection", None)
        if connection is not None:
            return _rows(connection, query, values, how)
        with self.pinned() as connection:
            try:
                return _rows(connection, query, values, how)
            except psycopg.Error:
                if connection.closed:
                    self.drop_idle()
                raise

    def drop_idle(self) -> None:
        """One of the connections broke: the next one is a new one."""
        self._pool.drop_idle()

    def cursor(self, **how: Any) -> CursorHandle:
        """All that Absurd asks of a connection."""
        return CursorHandle(self, how)


def _rows(connection: Connection, query: Any, values: Sequence[Any], how: dict[str, Any]) -> list[Any]:
    cursor = connection.cursor(**how).execute(query, values)
    return cursor.fetchall() if cursor.description else []


class CursorHandle:
    """A cursor as Absurd uses one: it asks, then it takes what came; the connection is another's by then."""

    def __init__(self, line: ConnectionHandle, how: dict[str, Any]) -> None:
        self._line, self._how = line, how
        self._found: list[Any] = []

    def execute(self, query: Any, values: Sequence[Any] = ()) -> None:
        self._found = self._line.execute(query, values, **self._how)

    def fetchone(self) -> Any:
        return self._found.pop(0) if self._found else None

    def fetchall(self) -> list[Any]:
        found, self._found = self._found, []
        return found


class Client(Absurd):
    """An Absurd client with a line of its own, which remembers what it claimed."""

    def __init__(self, line: ConnectionHandle, queue: str) -> None:
        super().__init__(cast(Connection, line), queue)
        self.claimed: list[ClaimedTask] = []

    def claim_tasks(
        self, batch_size: int = 1, claim_timeout: int = 120, worker_id: str = "worker"
    ) -> list[ClaimedTask]:
        self.claimed = []
        self.claimed = super().claim_tasks(batch_size, claim_timeout, worker_id)
        return self.claimed


def is_claim_lost(error: psycopg.Error) -> bool:
    """Whether Absurd says that the claim is gone."""
    return error.sqlstate in (CANCELLED, FAILED) or isinstance(error, RaiseException)


class CancellableRun(Protocol):
    """A run that a person may want stopped."""

    space: str
    session_id: str
    facts_read: int
    """How many facts of its session were looked at."""

    def is_cancel_requested(self) -> bool:
        """Whether one of those behind them says so."""


class Claim:
    """The right of one run of a task to write, until it is lost."""

    def __init__(
        self, context: TaskContext, task: ClaimedTask, line: ConnectionHandle, queue: str, lease: int
    ) -> None:
        self.context, self.connections, self.queue, self.lease = context, line, queue, lease
        self.task_id, self.run_id = str(task["task_id"]), str(task["run_id"])
        self.lock = RLock()
        self.is_lost = self.is_cancelled = False
        self.run: CancellableRun | None = None
        """Whom to ask whether what runs is to be stopped."""
        self._stop: Callable[[], object] | None = None
        self._value: dict[str, Any] | None = None
        self._steps = 0
        self._held = HOLD.format(runs=sql.Identifier(f"r_{queue}").as_string(None))

    def lock_run(self) -> None:
        """Lock the run and renew its lease, in the transaction that is open; `ClaimLost` if it is another's."""
        if not self.is_lost:
            try:
                self.context.heartbeat()
                return
            except (CancelledTask, FailedTask, RaiseException):
                self.lose()
        raise ClaimLost(self.queue, self.task_id)

    def on_loss(self, stop: Callable[[], object]) -> None:
        """Also when it is cancelled; then what is stopped may still write."""
        self._stop = stop
        if self.is_lost:
            stop()

    def cancel(self) -> None:
        """A person wants it stopped: it is, and says so in the session."""
        self.is_cancelled = True
        if self._stop is not None:
            self._stop()

    def lose(self) -> None:
        """It is another's, or nobody's: what is in flight is stopped, and nothing is written any more."""
        was_lost, self.is_lost = self.is_lost, True
        if self._stop is not None and not was_lost:
            self._stop()

    def end(self) -> None:
        """The run is over: what a stopped tool or child still does is not written."""
        with self.lock:
            self.is_lost = True

    def completed_steps(self) -> Iterator[Any]:
        """The checkpoints of the steps that are done, in their order."""
        while (handle := self.context.begin_step(STEP)).done:
            self._steps += 1
            yield handle.state

    @contextlib.contextmanager
    def ending_step(self, value: dict[str, Any] | None) -> Iterator[None]:
        """What is written within ends a step: its checkpoint is part of the same transaction.

        Others who write for the task wait: the checkpoint must not ride with anything else. A transaction that is
        tried again ends the same step.
        """
        with self.lock:
            self._value = value
            try:
                yield
            finally:
                self._value = None
            self._steps += value is not None

    def write_checkpoint(self) -> None:
        if self._value is not None:
            self.context.complete_step(StepHandle(STEP, self._name(), done=False), self._value)

    def engine_sql(self) -> EngineSql:
        """Return `lock_run` and `write_checkpoint` as parts of the statement between them."""
        if self._value is None:
            return EngineSql(self._held, values={"run_id": self.run_id})
        values = {
            "run_id": self.run_id,
            "queue": self.queue,
            "task_id": self.task_id,
            "step_name": self._name(),
            "checkpoint": msgspec.json.encode(self._value).decode(),
        }
        return EngineSql(self._held, END_STEP, values)

    def _name(self) -> str:
        """Of the next step's checkpoint. Known: asking Absurd for its next handle would be one more round trip."""
        return STEP if self._steps == 0 else f"{STEP}#{self._steps + 1}"

    def reschedule(self, seconds: float) -> None:
        """Give the claim back: the task sleeps so long, then anyone may take it."""
        query = (
            "select absurd.schedule_run(%s, %s, absurd.current_time() + make_interval(secs => %s::float8))"
        )
        self.connections.execute(query, (self.queue, self.run_id, str(seconds)))


class ClaimedConnections(EngineConnections):
    """Every write goes down the task's line and holds its claim."""

    def __init__(self, base: Connections, claim: Claim) -> None:
        super().__init__(base)
        self._claim = claim
        # A worker that is paused within a transaction would keep its run locked, and nobody could take it over.
        self._identity = f"set local idle_in_transaction_session_timeout = '{claim.lease}s'; {base._identity}"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        claim = self._claim
        with claim.lock:
            if claim.is_lost:
                raise ClaimLost(claim.queue, claim.task_id)
            with claim.connections.pinned() as connection:
                try:
                    yield connection
                except psycopg.Error as error:
                    if connection.closed or isinstance(error, AdminShutdown):
                        raise ConnectionLost(first_line(error)) from error
                    raise

    def recover(self, lost: ConnectionLost, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise UnknownCommit(self.url, lost.reason) from None
        self.log_loss(lost)
        with self._claim.lock:
            if not self._claim.is_lost:
                self._claim.connections.drop_idle()

    def engine_sql(self) -> EngineSql:
        return self._claim.engine_sql()

    def run_with_engine_sql(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        try:
            with self._connection() as connection:
                return run_statement(connection, statement, values)
        except UniqueViolation:
            raise
        except psycopg.Error as error:
            if not is_claim_lost(error):
                raise store_error(self.url, error) from error
        self._claim.lose()
        raise ClaimLost(self._claim.queue, self._claim.task_id)

    def before_write(self, connection: Connection) -> None:
        self._claim.lock_run()

    def after_write(self, connection: Connection) -> None:
        self._claim.write_checkpoint()
