"""Simulate arrivals as they were recorded: three workers and a durable server, and how long tasks wait for a slot.

An hour of a service is compressed into a minute, at ten times the rate of the test that kills workers: that one gives three
workers 2 sessions a second, this one 20 on average and several hundred in a burst. Each is a session of its own with two model calls
of 100 ms behind a loopback server and a tool between them. Queue time is Absurd's own: from the commit that enqueued a task
to its first claim. `late` is how much later than recorded the driver sent: what the machine could not even enqueue in time.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from threading import Thread
from typing import Any

import oakleaf
from oakleaf import Message, ToolCall, assistant
from oakleaf.models.base import Request
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.worker import Worker
from tests.support.postgres import Database

from .arrivals import RECORDED, arrival_times
from .measure import Plan, percentile
from .postgres import DurableCluster
from .report import Figure
from .workers import RemoteModel, serve_model

WORKERS, SLOTS = 3, 8
RATE = 20.0
"""Sessions a second."""
SENDERS = 8
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["bench.simulation", "oakleaf_postgres.store.store", "oakleaf.models.prices"])

QUEUE_TIMES = "select extract(epoch from first_started_at - enqueue_at)::float8 from absurd.t_{queue}"
TURN_TIMES = """
select extract(epoch from completed_at - enqueue_at)::float8
from absurd.t_{queue} as task join absurd.r_{queue} as run on run_id = last_attempt_run
"""


@oakleaf.tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"saw {n}"


def answer(request: Request) -> Message | str:
    is_first = request.context.items[-1].message.role == "user"
    return assistant("Looking.", ToolCall("c", "look", {"n": 1})) if is_first else "Seen."


def work(url: str, queue: str, port: int, ready: Any) -> None:
    worker = Worker(url, [Agent("bench", RemoteModel(port, answer), [look])], queue=queue, concurrency=SLOTS)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    ready.release()
    worker.run()


def send(url: str, queue: str, times: Sequence[float], reports: Any) -> None:
    """Send a session at each of the times, from a few threads; report how late each was."""
    late: list[float] = []
    with oakleaf.open(url) as store:
        store.start("bench")  # connect before the clock runs
        began = time.monotonic()

        def send_each(own: Sequence[float]) -> None:
            for at in own:
                time.sleep(max(0.0, began + at - time.monotonic()))
                late.append(time.monotonic() - began - at)
                absurd.send(store.start("bench"), "look", queue=queue)

        threads = [Thread(target=send_each, args=(times[n::SENDERS],)) for n in range(SENDERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reports.put(late)


class Outcome:
    """What a simulation measured, in seconds."""

    def __init__(self, waits: list[float], turns: list[float], late: list[float]) -> None:
        self.waits, self.turns, self.late = waits, turns, late

    def figure(self, pattern: str, seconds: float) -> Figure:
        beside = {f"p{share} ms": 1000 * percentile(self.waits, share / 100) for share in (90, 99)}
        beside |= {"longest ms": 1000 * max(self.waits), "sessions": float(len(self.waits))}
        beside |= {"per second": len(self.waits) / seconds}
        beside |= {f"turn p{share} ms": 1000 * percentile(self.turns, share / 100) for share in (50, 99)}
        beside |= {"late p99 ms": 1000 * percentile(self.late, 0.99)}
        what = f"Queue time, 3 workers, arrivals of {pattern}: p50"
        return Figure(f"simulation_{pattern}", what, 1000 * percentile(self.waits, 0.5), "ms", None, beside)


def simulate(database: Database, queue: str, times: Sequence[float]) -> Outcome:
    """Drive three workers with sessions that arrive at these times, until all are done."""
    absurd_schema.install(database.owner_url, queue)
    ports, reports, ready = context.Queue(), context.Queue(), context.Semaphore(0)
    model = context.Process(target=serve_model, args=(ports,), daemon=True)
    model.start()
    port = ports.get()
    workers = [
        context.Process(target=work, args=(database.url, queue, port, ready), daemon=True)
        for _ in range(WORKERS)
    ]
    driver = context.Process(target=send, args=(database.url, queue, times, reports), daemon=True)
    try:
        for worker in workers:
            worker.start()
        for _ in workers:
            ready.acquire()
        driver.start()
        late = reports.get()
        is_busy = partial(database.run, f"select 1 from absurd.t_{queue} where state <> 'completed' limit 1")
        while is_busy():
            time.sleep(0.1)
        for worker in workers:
            worker.terminate()
            worker.join()
    finally:
        for process in (*workers, driver, model):
            process.kill()
    waits, turns = (
        [float(row[0]) for row in database.run(query.format(queue=queue))]
        for query in (QUEUE_TIMES, TURN_TIMES)
    )
    return Outcome(waits, turns, late)


def figures(plan: Plan) -> Iterator[Figure]:
    cluster, seconds = DurableCluster(), float(plan.pick(60, 10))
    try:
        database = Database(cluster, "simulation")
        for pattern in RECORDED:
            times = arrival_times(pattern, seconds, RATE)
            yield simulate(database, pattern, times).figure(pattern, seconds)
    finally:
        cluster.close()
