"""A worker: claims tasks and runs their sessions, several at once, until it is stopped.

Each slot has its own thread, connection handle and client, so a rollback affects one task only and a slow task delays
no other; the agent loops of all slots share one event loop. A slot that waits for a model has no connection, an idle
one waits for its turn to poll the queue: there may be hundreds. A thread with its own connection renews the leases. If
the worker is killed, the next run of a task continues from what is durable.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any

import psycopg
from absurd_sdk import CancelledTask, ClaimedTask, FailedTask, SuspendTask, TaskContext
from msgspec import Struct
from msgspec.structs import replace
from psycopg.rows import dict_row

from oakleaf import Hooks, Tool
from oakleaf.core.entries import check_effects
from oakleaf.core.redact import Redactor
from oakleaf.errors import (
    ClaimLost,
    InvalidArgument,
    OakleafError,
    SessionRunning,
    StoreReadOnly,
    TurnFailed,
)
from oakleaf.ext import Runtime, environment_secrets, error_text, real_runtime
from oakleaf.models.base import Model
from oakleaf.stores.tasks import DEFAULT_QUEUE, TASK_HOLDER
from oakleaf.wire.options import check_options
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.claim import (
    AbsurdClient,
    CancellableRun,
    Claim,
    ConnectionHandle,
    claim_next,
    is_claim_lost,
)
from oakleaf_postgres.absurd.client_inputs import spaces_with_client_input, take_client_inputs
from oakleaf_postgres.absurd.deaths import Deaths, TaskDeaths
from oakleaf_postgres.absurd.engine import TASK, Agent
from oakleaf_postgres.absurd.handlers import HandlerWorker, plugin_handlers
from oakleaf_postgres.absurd.own_process import BEGUN, ENDED, OwnProcess, ParentPipe
from oakleaf_postgres.absurd.queue import queue_tables
from oakleaf_postgres.absurd.registry import Registration
from oakleaf_postgres.absurd.turn_task import run_turn_task
from oakleaf_postgres.errors import TRIED_AGAIN, PoisonTask
from oakleaf_postgres.store.connections import Connection
from oakleaf_postgres.store.pool import Pool
from oakleaf_postgres.store.statement import fetch_row
from oakleaf_postgres.store.store import PostgresStore

POLL_SECONDS = 0.25
CANCEL_POLL_SECONDS = 1.0
"""How often a worker polls for requests to cancel."""
CLIENT_INPUT_POLL_SECONDS = 1.0
BUSY_SECONDS = 1.0
"""How long a task sleeps while another runner has its session."""
SHUTDOWN_SECONDS = 5.0
DEATH_PAUSE_SECONDS = 1.0
"""How long a task waits after its process died, times the number of deaths."""
MAX_OWN_PROCESSES = 8
"""How many processes for one task each a worker has at once; they cost memory and a second of starting each."""
# A standby, or a server or role whose transactions only read: a worker would fail to claim for ever.
IS_READ_ONLY = "select pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean"
EXTEND = "select absurd.extend_claim(%s, %s, %s)"
# All claims of a worker at once. A run that one of its own transactions has locked at this moment is left out. Not by
# `extend_claim`, which waits for a locked run, and raises for a lost one: then none would be extended.
EXTEND_ALL = """
update absurd.{runs} set claim_expires_at = absurd.current_time() + pg_catalog.make_interval(secs => %s::float8)
where run_id in (
    select run_id from absurd.{runs} where run_id = any(%s::uuid[]) and state = 'running' and claim_expires_at is not null
    for no key update skip locked)
returning run_id
"""


TaskHandler = Callable[["Worker", Claim, Any, Deaths], dict[str, Any]]
"""Runs one task, given its parameters and the deaths of processes that ran it, and returns its result. What it raises fails
the attempt; with hopeless deaths it is the last one."""


class LoadedAgent(Struct, frozen=True):
    """An agent with loaded models and tools."""

    agent: Agent
    models: list[Model]
    tools: dict[str, Tool]


class Worker:
    def __init__(
        self,
        url: str,
        agents: Iterable[Agent],
        *,
        queue: str = DEFAULT_QUEUE,
        concurrency: int = 4,
        lease: int = 30,
        runtime: Runtime | None = None,
        hooks: Sequence[Hooks] = (),
        report: Callable[[str], None] = lambda line: None,
        own_process: Sequence[str] = (),
        only_run: str | None = None,
    ) -> None:
        """Check the queue and load the agents.

        `own_process` is the command of a worker with the same agents, to which the id of a run is added: a task whose
        worker died runs in a process of its own. Without it such a task runs here. With `only_run` this is that process.
        Tasks that are no turn of a session are run by the plugins that the group `oakleaf.tasks` names.
        """
        for name, value in (("lease", lease), ("concurrency", concurrency)):
            if value < 1:
                raise InvalidArgument(name, value, "a number from 1")
        self.url, self.queue = url, queue
        self.concurrency, self.lease = concurrency, lease
        self.agents = {
            agent.name: LoadedAgent(agent, agent.models(), agent.tools_by_name()) for agent in agents
        }
        for loaded in self.agents.values():
            for model in loaded.models:
                check_options(model.provider, loaded.agent.options)
            check_effects(loaded.agent.effects)
        self.runtime = replace(runtime or real_runtime(Redactor(environment_secrets())), hooks=tuple(hooks))
        self.report = report
        self.own_process, self.only_run = tuple(own_process), only_run
        self.processes: set[OwnProcess] = set()
        self.handlers: dict[str, TaskHandler] = {**plugin_handlers(report), TASK: run_turn_task}
        self.name = f"{platform.node()}:{os.getpid()}"
        self.stopping, self.has_ended = Flag(), Flag()
        self.for_handlers = HandlerWorker(self)
        self.claims: set[Claim] = set()
        self.claim_lock = Lock()
        """Held while polling the queue: one idle slot polls for all of them."""
        self.registration = Registration(queue, self.name, lease, concurrency, list(self.agents))
        self._store = PostgresStore(url)
        self.address, self.pool = self._store.connections.address, self._store.connections.pool
        try:
            self._store.connections.read_snapshot(self._check)
        except BaseException:
            self._store.close()
            raise

    def _check(self, connection: Connection) -> None:
        if fetch_row(connection, IS_READ_ONLY)[0]:
            raise StoreReadOnly(self.address.safe_url)
        absurd_schema.check_queue(connection, self.address.safe_url, self.queue)

    def stop(self) -> None:
        """Claim no more tasks; running tasks end the step and are returned. Thread-safe."""
        self.stopping.set()

    def run(self, grace: float = 60.0) -> int:
        """Work until stopped; return how many tasks were still in a step when the grace period ended.

        Those are abandoned as if this process had been killed: nothing of theirs is written any more, and other
        workers take them when their leases expire.
        """
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._run(grace))
        finally:
            loop.close()  # asyncio.run would wait for tools that block, perhaps for hours

    async def _run(self, grace: float) -> int:
        self.loop = asyncio.get_running_loop()
        count = self.concurrency if self.only_run is None else 1
        slots = [Thread(target=Slot(self, n).run, daemon=True) for n in range(count)]
        maintenance = [Thread(target=job, daemon=True) for job in self._maintenance_jobs()]
        for thread in (*maintenance, *slots):
            thread.start()
        while not self.stopping.is_set():
            await asyncio.sleep(POLL_SECONDS / 2)
            if not all(thread.is_alive() for thread in (*maintenance, *slots)) and not self.stopping.is_set():
                self.report("a thread of this worker failed; the worker stops")
                self.stop()
        for process in list(self.processes):
            process.stop()
        await _join(slots, grace)
        abandoned, processes = list(self.claims), list(self.processes)
        for claim in abandoned:
            claim.lose()
        for process in processes:
            process.kill()
        await _join(slots, SHUTDOWN_SECONDS)
        self.has_ended.set()
        await _join(maintenance, SHUTDOWN_SECONDS)
        await asyncio.wait(
            {asyncio.ensure_future(asyncio.sleep(0)), *_other_tasks()}, timeout=SHUTDOWN_SECONDS
        )
        if not abandoned:
            await self.loop.shutdown_asyncgens()  # closes connections to vendors
        self._store.close()
        return len(abandoned) + len(processes)

    def _maintenance_jobs(self) -> list[Callable[[], None]]:
        jobs: list[Callable[[], None]] = [LeaseRenewer(self).run, partial(watch_cancel_requests, self)]
        return jobs if self.only_run is not None else [*jobs, partial(watch_client_inputs, self)]

    def report_errors(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call `work` and report the errors, so the calling thread survives."""
        try:
            work(*arguments)
        except (psycopg.Error, OakleafError) as error:
            self.report_error(error)

    def report_error(self, error: Exception) -> None:
        """Report a survived error in a line; PostgreSQL adds the statement and the place of the call."""
        self.report(f"{error_text(error).splitlines()[0]}; the worker continues")

    def store(self, space: str) -> PostgresStore:
        """Return the tenant's store; all stores share a pool."""
        return self._store.for_tenant(space)

    def claimed_store(self, space: str, claim: Claim) -> PostgresStore:
        """Return the tenant's store for a task: each write requires the claim."""
        return self.store(space).guarded(claim.guard())

    def claimed_runtime(self, claim: Claim) -> Runtime:
        """Return the runtime of a task. An earlier run of it must have lost its claim, so its hold on a
        session is void,
        whatever its machine."""
        holder, base = f"{TASK_HOLDER}{self.queue}:{claim.task_id}", self.runtime
        return replace(
            base, holder=lambda: holder, is_gone=lambda other: other == holder or base.is_gone(other)
        )


class LeaseRenewer:
    """Renews the leases of the running tasks, three times per lease.

    It has its own thread and connection, so it waits for nothing, however busy the slots are.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pool = Pool(replace(worker.address, connections=1))
        self._handle = ConnectionHandle(self._pool)
        self._extend_all = EXTEND_ALL.format(**queue_tables(worker.queue))

    def run(self) -> None:
        worker = self._worker
        if worker.only_run is None:
            worker.report_errors(worker.registration.begin, self._handle)
        while not worker.has_ended.wait(worker.lease / 3):
            if worker.claims:
                worker.report_errors(self._renew_all, list(worker.claims))
            if worker.only_run is None:
                worker.report_errors(worker.registration.renew, self._handle)
        if worker.only_run is None:
            worker.report_errors(worker.registration.end, self._handle)
        self._pool.close()

    def _renew_all(self, claims: list[Claim]) -> None:
        """Renew all leases in one statement; retry locked or lost rows one by one."""
        rows = self._handle.execute(
            self._extend_all, (self._worker.lease, [claim.run_id for claim in claims])
        )
        renewed = {str(run_id) for (run_id,) in rows}
        for claim in claims:
            if claim.run_id not in renewed:
                self._worker.report_errors(self._renew, claim)

    def _renew(self, claim: Claim) -> None:
        try:
            self._handle.execute(EXTEND, (claim.queue, claim.run_id, claim.lease))
        except psycopg.Error as error:
            if not is_claim_lost(error):
                raise
            if claim in self._worker.claims:  # unless it has just ended
                claim.lose()


def watch_cancel_requests(worker: Worker) -> None:
    """Poll, every second, for requests to cancel a running task."""
    while not worker.has_ended.wait(CANCEL_POLL_SECONDS):
        by_space: dict[str, list[tuple[Claim, CancellableRun]]] = {}
        for claim in list(worker.claims):
            if claim.run is not None and not claim.is_cancelled:
                by_space.setdefault(claim.run.space, []).append((claim, claim.run))
        for space, runs in by_space.items():
            worker.report_errors(_cancel_runs, worker, space, runs)


def _cancel_runs(worker: Worker, space: str, runs: list[tuple[Claim, CancellableRun]]) -> None:
    """Cancel the runs as asked by users: one query finds grown journals, and only grown journals are read."""
    heads = worker.store(space).heads([run.session_id for _, run in runs])
    for claim, run in runs:
        head = heads.get(run.session_id)
        has_grown = head is not None and head.facts > run.facts_read
        if has_grown and run.is_cancel_requested() and claim in worker.claims:
            claim.cancel()


def watch_client_inputs(worker: Worker) -> None:
    """Poll, every second, for clients' inputs in the database, and make the inputs tasks of the queue."""
    while not worker.stopping.wait(CLIENT_INPUT_POLL_SECONDS):
        worker.report_errors(_take_client_inputs, worker)


def _take_client_inputs(worker: Worker) -> None:
    for space in spaces_with_client_input(worker.store("default")):
        take_client_inputs(worker.store(space), worker.queue, worker.agents, worker.runtime.redactor)


# What another process has claimed for this one.
SELECT_ONLY_RUN = """
select run_id, task_id, run.attempt, task_name, params, retry_strategy, max_attempts, headers, wake_event,
       event_payload
from absurd.{runs} as run join absurd.{tasks} as task using (task_id)
where run_id = %s and run.state = 'running'
"""


class Slot:
    """Claims and runs a task at a time, with an own connection handle."""

    def __init__(self, worker: Worker, n: int) -> None:
        self._worker, self._name = worker, f"{worker.name}#{n}"

    def run(self) -> None:
        worker, handle = self._worker, ConnectionHandle(self._worker.pool)
        claim = self._claim_in_turn if worker.only_run is None else self._claim_only_run
        client = AbsurdClient(handle, worker.queue, worker.name, claim)
        pipe = None if worker.only_run is None else ParentPipe(worker.stop)
        for name, handler in worker.handlers.items():
            client.register_task(name)(partial(self._run_task, client, handle, handler))
        while not worker.stopping.is_set():
            try:
                if pipe is not None:
                    pipe.report(BEGUN)
                client.work_batch(self._name, worker.lease, 1)
                if pipe is not None:
                    pipe.report(ENDED)
                    worker.stop()
            except (psycopg.Error, OakleafError) as error:
                worker.report_error(error)
                worker.stopping.wait(POLL_SECONDS)

    def _claim_in_turn(
        self, handle: ConnectionHandle, queue: str, slot: str, lease: int, count: int
    ) -> list[ClaimedTask]:
        """Poll for a task in turn with the other slots, and keep the turn while there is none or the claim fails: the queue is
        polled a few times a second, however many slots are idle."""
        worker, claimed = self._worker, list[ClaimedTask]()
        with worker.claim_lock:
            try:
                if not worker.stopping.is_set():
                    claimed = claim_next(handle, queue, slot, lease, count)
            finally:
                if not claimed:
                    worker.stopping.wait(POLL_SECONDS)
        return claimed

    def _claim_only_run(
        self, handle: ConnectionHandle, queue: str, slot: str, lease: int, count: int
    ) -> list[ClaimedTask]:
        """Claim the only run, claimed by another process for the own process."""
        query = SELECT_ONLY_RUN.format(**queue_tables(queue))
        return handle.execute(query, (self._worker.only_run,), row_factory=dict_row)

    def _run_task(
        self,
        client: AbsurdClient,
        handle: ConnectionHandle,
        handler: TaskHandler,
        params: Any,
        context: TaskContext,
    ) -> Any:
        worker, task = self._worker, client.claimed[0]
        claim = Claim(context, task, handle, worker.queue, worker.lease)
        task_deaths = TaskDeaths(handle, worker.queue, task)
        deaths = task_deaths.count() if worker.only_run is None else Deaths()
        if self._needs_own_process(deaths):
            return self._run_in_own_process(claim, task_deaths, deaths, params)
        worker.claims.add(claim)
        try:
            if deaths.is_hopeless:
                task_deaths.use_up_attempts()
            return handler(worker, claim, params, deaths)
        except (SuspendTask, CancelledTask, FailedTask):
            raise
        except ClaimLost as claim_error:
            worker.report(str(claim_error))
            raise FailedTask from None  # tells Absurd to record nothing
        except SessionRunning:
            claim.reschedule(BUSY_SECONDS)
            raise SuspendTask from None
        except PoisonTask as poison:
            worker.report(str(poison))
            raise
        except Exception as error:  # noqa: BLE001 - Absurd stores it as the run's failure and tries again
            if claim.is_lost:  # whatever failed, another worker has the task
                raise FailedTask from None
            worker.report(f"task {claim.task_id}: {error_text(error)}")
            raise self._task_failure(params, error) from None
        finally:
            worker.claims.discard(claim)
            claim.end()

    def _needs_own_process(self, deaths: Deaths) -> bool:
        """Return whether the task may have ended a process.

        After the first death it runs here if there are processes enough: a large worker that an operator killed leaves hundreds
        of suspects, which must not wait for each other.
        """
        worker = self._worker
        if not deaths.total or deaths.is_hopeless or not worker.own_process:
            return False
        return deaths.total > 1 or len(worker.processes) < MAX_OWN_PROCESSES

    def _run_in_own_process(self, claim: Claim, task_deaths: TaskDeaths, deaths: Deaths, params: Any) -> None:
        """Let another process run the task, and renew and end the claim; record the process's death."""
        worker = self._worker
        if len(worker.processes) >= MAX_OWN_PROCESSES:
            claim.reschedule(BUSY_SECONDS)
            raise SuspendTask
        about = f"task {claim.task_id}" + (f" of session {params['session']}" if "session" in params else "")
        worker.report(
            f"{about} runs in a process of its own: a process that ran its step died ({deaths.last})"
        )
        worker.claims.add(claim)  # renewed here until the process does it
        process = OwnProcess(
            [*worker.own_process, claim.run_id],
            {"OAKLEAF_STORE": worker.url},
            lambda: worker.claims.discard(claim),
        )
        claim.on_loss(process.kill)
        worker.processes.add(process)
        try:
            if worker.stopping.is_set():
                process.stop()
            process.wait()
        finally:
            worker.processes.discard(process)
            worker.claims.discard(claim)
        if process.has_begun and not process.has_ended and not worker.stopping.is_set():
            worker.report(f"{about}: its process died ({process.outcome})")
            task_deaths.fail_run(process.outcome, DEATH_PAUSE_SECONDS * (deaths.alone + 1))
        elif not process.has_begun and not claim.is_lost:
            worker.report(f"{about}: its process did not start ({process.outcome})")
            claim.reschedule(BUSY_SECONDS)
        raise SuspendTask  # whatever there was to record is recorded

    def _task_failure(self, params: Any, error: Exception) -> TurnFailed:
        """Return a text fit for Absurd: without secrets, and without characters refused in JSON."""
        why = self._worker.runtime.redactor.redact_text(error_text(error))
        return TurnFailed(
            str(params.get("session")), why.encode("utf-8", "replace").decode().replace("\0", ""), TRIED_AGAIN
        )


def _other_tasks() -> set[asyncio.Task[Any]]:
    """Return the started and still ending work of a stopped task."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def _join(threads: Iterable[Thread], seconds: float) -> None:
    """Wait for the threads for at most so long, while the event loop keeps running."""
    deadline = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS / 10)
