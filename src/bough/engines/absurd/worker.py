"""A worker: claims tasks and drives their sessions, several at once, until it is told to stop.

Each slot has a thread, a line and a client of its own, so that one task's rollback is no other's and a slow task
holds up nobody; the loops of all of them run on one event loop. A slot that waits for a model has no connection, one
that is idle waits for its turn to ask the queue: there may be hundreds. A heart on a connection of its own renews the
leases. Killed anywhere, the next run of a task goes on from what is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any

import msgspec
import psycopg
from absurd_sdk import CancelledTask, ClaimedTask, FailedTask, SuspendTask, TaskContext
from msgspec import Struct
from msgspec.structs import replace

from ...agent.call_status import read_call_status
from ...agent.loop import Loop, build_loop
from ...agent.tools.tool import Tool, error_text
from ...core.redact import Redactor
from ...errors import (
    BoughError,
    ClaimLost,
    InvalidArgument,
    NotFound,
    SessionRunning,
    SessionTrashed,
    TaskTrashed,
    TurnFailed,
    UnknownAgent,
)
from ...log.runtime import Runtime, environment_secrets, real_runtime
from ...models.model import Model
from ...stores.postgres.pool import Pool
from ...stores.postgres.store import PostgresStore
from ...stores.postgres.url import Address
from . import schema as absurd_schema
from .claim import CancellableRun, Claim, ClaimedConnections, Client, ConnectionHandle, is_claim_lost
from .engine import TASK, Agent, TaskParams
from .signals import CANCEL_REQUESTED, SIGNALS, is_cancel_requested, signal_event
from .step import ClaimedLog, ClaimedWriter
from .task_store import TaskStore

POLL_SECONDS = 0.25
CANCEL_POLL_SECONDS = 1.0
"""How often a worker looks whether what it runs is to be stopped."""
BUSY_SECONDS = 1.0
"""How long a task waits whose session somebody else drives."""
SHUTDOWN_SECONDS = 5.0
BLOCKING_TOOLS = 16
"""Threads a slot may have for tools that block; those of one task must not wait for those of another."""
EXTEND = "select absurd.extend_claim(%s, %s, %s)"


class LoadedAgent(Struct, frozen=True):
    """An agent, its models and tools found."""

    agent: Agent
    models: list[Model]
    tools: dict[str, Tool]


class Worker:
    def __init__(
        self,
        url: str,
        agents: Iterable[Agent],
        *,
        queue: str = "default",
        concurrency: int = 4,
        lease: int = 30,
        runtime: Runtime | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        if lease < 1 or concurrency < 1:
            raise InvalidArgument("lease or concurrency", min(lease, concurrency), "a number from 1")
        self.address, self.queue = Address.parse(url), queue
        self.concurrency, self.lease = concurrency, lease
        self.agents = {one.name: LoadedAgent(one, one.models(), one.tools_by_name()) for one in agents}
        self.runtime = runtime or real_runtime(Redactor(environment_secrets()))
        self.report = report
        self.name = f"{platform.node()}:{os.getpid()}"
        self.stopping, self.has_ended = Flag(), Flag()
        self.claims: set[Claim] = set()
        self.claim_lock = Lock()
        """To ask the queue: one of the idle slots asks for all of them."""
        self.pool = Pool(self.address)
        with contextlib.closing(self.address.connect()) as connection:
            absurd_schema.check_queue(connection, self.address.safe_url, queue)
        self._store = PostgresStore(url)

    def stop(self) -> None:
        """Claim nothing more; what runs ends its step and is given back. From any thread."""
        self.stopping.set()

    def run(self, grace: float = 60.0) -> int:
        """Work until stopped; returns how many tasks were still in a step when the grace was over.

        Those are left as if this process had been killed: nothing of theirs is written any more, and when their
        leases run out others take them.
        """
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._run(grace))
        finally:
            loop.close()  # and not asyncio.run, which would wait for tools that block, perhaps for hours

    async def _run(self, grace: float) -> int:
        self.loop = asyncio.get_running_loop()
        self.loop.set_default_executor(
            ThreadPoolExecutor(BLOCKING_TOOLS * self.concurrency, thread_name_prefix="bough-tool")
        )
        slots = [Thread(target=Slot(self, n).run, daemon=True) for n in range(self.concurrency)]
        tending = [Thread(target=one.run, daemon=True) for one in (LeaseRenewer(self), CancelWatcher(self))]
        for thread in (*tending, *slots):
            thread.start()
        while not self.stopping.is_set():
            await asyncio.sleep(POLL_SECONDS / 2)
            if not all(thread.is_alive() for thread in (*tending, *slots)) and not self.stopping.is_set():
                self.report("a thread of this worker broke; it stops")
                self.stop()
        await _ended(slots, grace)
        left = list(self.claims)
        for claim in left:
            claim.lose()
        await _ended(slots, SHUTDOWN_SECONDS)
        self.has_ended.set()
        await _ended(tending, SHUTDOWN_SECONDS)
        await asyncio.wait({asyncio.ensure_future(asyncio.sleep(0)), *_others()}, timeout=SHUTDOWN_SECONDS)
        self.pool.close()
        self._store.close()
        return len(left)

    def report_errors(self, work: Callable[..., None], *given: Any) -> None:
        """What fails is told, and is not the end of whoever does it."""
        try:
            work(*given)
        except (psycopg.Error, BoughError) as error:
            self.report(f"{error_text(error)}; it goes on")

    def store(self, space: str) -> PostgresStore:
        """The tenant's; all of them share one pool."""
        store = self._store.with_connections(lambda connections: connections.for_space(space))
        store.space = space
        return store


class LeaseRenewer:
    """Renews the leases of what runs, every third of their time.

    In a thread and on a connection of its own: it waits for nobody, however busy the others are.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pool = Pool(replace(worker.address, connections=1))
        self._line = ConnectionHandle(self._pool)

    def run(self) -> None:
        worker = self._worker
        while not worker.has_ended.wait(worker.lease / 3):
            for claim in list(worker.claims):
                worker.report_errors(self._beat, claim)
        self._pool.close()

    def _beat(self, claim: Claim) -> None:
        try:
            self._line.execute(EXTEND, (claim.queue, claim.run_id, claim.lease))
        except psycopg.Error as error:
            if not is_claim_lost(error):
                raise
            if claim in self._worker.claims:  # not if it ended in this moment
                claim.lose()


class CancelWatcher:
    """Looks, every second, whether somebody wants what runs stopped."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self) -> None:
        worker = self._worker
        while not worker.has_ended.wait(CANCEL_POLL_SECONDS):
            by_space: dict[str, list[tuple[Claim, CancellableRun]]] = {}
            for claim in list(worker.claims):
                if claim.run is not None and not claim.is_cancelled:
                    by_space.setdefault(claim.run.space, []).append((claim, claim.run))
            for space, watched in by_space.items():
                worker.report_errors(self._look, space, watched)

    def _look(self, space: str, watched: list[tuple[Claim, CancellableRun]]) -> None:
        """One question for all of a tenant's; only where something was said it is read what."""
        lengths = self._worker.store(space).lengths([one.session_id for _, one in watched])
        for claim, one in watched:
            is_more = lengths.get(one.session_id, 0) > one.facts_read
            if is_more and one.is_cancel_requested() and claim in self._worker.claims:
                claim.cancel()


class SlotClient(Client):
    """Takes its turn to ask for a task, and keeps it while there is none: the queue is asked a few times a second,
    however many slots are idle."""

    def __init__(self, worker: Worker, line: ConnectionHandle) -> None:
        super().__init__(line, worker.queue)
        self._worker = worker

    def claim_tasks(self, *given: Any, **how: Any) -> list[ClaimedTask]:
        self.claimed, worker = [], self._worker
        with worker.claim_lock:
            if not worker.stopping.is_set() and not super().claim_tasks(*given, **how):
                worker.stopping.wait(POLL_SECONDS)
        return self.claimed


class Slot:
    """One task at a time, claimed, driven and ended on a line of its own."""

    def __init__(self, worker: Worker, n: int) -> None:
        self._worker, self._name = worker, f"{worker.name}#{n}"

    def run(self) -> None:
        worker, line = self._worker, ConnectionHandle(self._worker.pool)
        client = SlotClient(worker, line)
        client.register_task(TASK)(partial(self._run_task, client, line))
        while not worker.stopping.is_set():
            try:
                client.work_batch(self._name, worker.lease, 1)
            except (psycopg.Error, BoughError) as error:
                worker.report(f"{error_text(error)}; it goes on")
                worker.stopping.wait(POLL_SECONDS)

    def _run_task(self, client: Client, line: ConnectionHandle, params: Any, context: TaskContext) -> Any:
        worker = self._worker
        claim = Claim(context, client.claimed[0], line, worker.queue, worker.lease)
        worker.claims.add(claim)
        try:
            return TaskRun(worker, claim, msgspec.convert(params, TaskParams)).run()
        except (SuspendTask, CancelledTask, FailedTask):
            raise
        except ClaimLost as lost:
            worker.report(str(lost))
            raise FailedTask from None  # Absurd's word for: say no more
        except SessionRunning:
            claim.reschedule(BUSY_SECONDS)
            raise SuspendTask from None
        except Exception as error:  # noqa: BLE001 - Absurd keeps it as the run's failure and tries again
            if claim.is_lost:  # whatever broke, it is not ours to tell
                raise FailedTask from None
            worker.report(f"task {claim.task_id}: {error_text(error)}")
            raise self._task_failure(params, error) from None
        finally:
            worker.claims.discard(claim)
            claim.end()

    def _task_failure(self, params: Any, error: Exception) -> TurnFailed:
        """In words that Absurd can keep: hidden what is secret, nothing that JSON refuses."""
        why = self._worker.runtime.redactor.redact_text(error_text(error))
        return TurnFailed(str(params["session"]), why.encode("utf-8", "replace").decode().replace("\0", ""))


class TaskRun:
    """One run of a task: from where its session stands to the end of its turn, or to where it must wait."""

    def __init__(self, worker: Worker, claim: Claim, params: TaskParams) -> None:
        self._worker, self._claim, self._params = worker, claim, params
        self.space, self.session_id, self.facts_read = params.space, params.session, 0
        self._tenant = worker.store(params.space)
        self._store = TaskStore(self._tenant, lambda connections: ClaimedConnections(connections, claim))
        mine, known = f"absurd:{worker.queue}:{claim.task_id}", worker.runtime
        # An earlier run of this task has lost its claim, or this one would not be: it is gone, wherever it was.
        self._runtime = replace(
            known, holder=lambda: mine, is_gone=lambda holder: holder == mine or known.is_gone(holder)
        )

    def run(self) -> dict[str, Any]:
        try:
            row = self._store.session(self._params.session)
            log = ClaimedLog(self._store, row, self._runtime, self._claim)
            log.replay()
            ready = self._load_agent(log)
            self._log, self.facts_read = log, row.facts
            self._claim.run = self
            while True:
                writer = self._drive(log, ready)
                if self._claim.is_cancelled and log.cursor.turn:
                    self._claim.is_cancelled = False
                    continue  # it was stopped before it had a turn to close; now it looks first
                if writer.has_stopped and self._has_work(log):
                    self._claim.reschedule(0)
                    raise SuspendTask
                if not self._is_waiting(log, ready.tools):
                    return self._result(log)
        except (NotFound, SessionTrashed) as gone:
            return {"stop_reason": "gone", "why": str(gone)}

    def _load_agent(self, log: ClaimedLog) -> LoadedAgent:
        ready = self._worker.agents.get(self._params.agent or "")
        if ready is None:
            unknown = UnknownAgent(self._params.agent, list(self._worker.agents))
            told = {"status": "failed", "error": str(unknown)}
            log.record("turn_ended", data=told, row=told)
            raise unknown
        return replace(ready, tools=ready.agent.tools_for(log))

    def is_cancel_requested(self) -> bool:
        """Whether somebody has said since the last look that he wants the present turn stopped.

        Asked by the heart, of the store itself, and not of the log, which may be waiting for the server.
        """
        facts = self._tenant.journal(self.session_id, self.facts_read)
        self.facts_read += len(facts)
        return any(fact.kind == CANCEL_REQUESTED for fact in facts) and is_cancel_requested(
            facts, self._log.cursor.turn
        )

    def _drive(self, log: ClaimedLog, ready: LoadedAgent) -> ClaimedWriter:
        writer = ClaimedWriter(log, ready.models[0], self._worker.stopping.is_set)
        loop = build_loop(writer, ready.models, ready.tools, ready.agent.limits)
        asyncio.run_coroutine_threadsafe(self._watched(loop, writer), self._worker.loop).result()
        return writer

    async def _watched(self, loop: Loop, writer: ClaimedWriter) -> None:
        """Cancelled when the claim is lost or a person says so, and waited for: then the slot takes the next task."""
        events = asyncio.get_running_loop()
        task = asyncio.ensure_future(_run_until_stopped(loop, writer))
        self._claim.on_loss(lambda: events.call_soon_threadsafe(task.cancel))
        await asyncio.wait([task])
        if self._claim.is_lost:
            task.cancelled() or task.exception()  # looked at, so that nobody complains of it
            raise ClaimLost(self._claim.queue, self._claim.task_id)
        if not (task.cancelled() and self._claim.is_cancelled):
            task.result()

    def _is_waiting(self, log: ClaimedLog, tools: dict[str, Tool]) -> bool:
        """Whether the turn waits for a person; then the task sleeps until there is a word, if there is none yet.

        The words are counted before it is asked who waits: one that comes in between is the one waited for.
        """
        facts = self._store.journal(log.session_id)
        said = sum(fact.kind in SIGNALS for fact in facts)
        if is_cancel_requested(facts, log.cursor.turn):
            return True
        calls = read_call_status(log)
        if not any(calls.is_waiting(call, tools) for call in log.cursor.open_calls):
            return False
        self._claim.context.await_event(signal_event(log.session_id, said + 1))
        return True

    def _has_work(self, log: ClaimedLog) -> bool:
        return bool(log.cursor.turn or self._store.inbox(log.session_id))

    def _result(self, log: ClaimedLog) -> dict[str, Any]:
        row = log.refresh()
        if log.cursor.turn:
            raise TurnFailed(row.session_id, row.error or "the loop ended before its turn did")
        return {"stop_reason": row.status, "to_message_number": log.leaf.seq}


def _others() -> set[asyncio.Task[Any]]:
    """What a task that was stopped had begun, and that is on its way out."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def _ended(threads: Iterable[Thread], seconds: float) -> None:
    """Wait for them, so long at the most, while the loops of what runs go on."""
    deadline = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS / 10)


async def _run_until_stopped(loop: Loop, writer: ClaimedWriter) -> None:
    async with contextlib.aclosing(loop.run(None)) as events:  # type: ignore[type-var]
        with contextlib.suppress(TaskTrashed):  # it sleeps on: once that is restored, a word finds it
            async for _ in events:
                if writer.has_stopped:
                    return
