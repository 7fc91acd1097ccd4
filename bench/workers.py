"""Steps per second of 1, 2 and 4 workers, beside Absurd with fat checkpoints: the same loop, whole messages in them.

A server of its own, durable. Fat is Absurd alone, as one would first write it: a step's checkpoint holds the messages
it appended, nothing else is kept, one commit per step. Ours commits the answer before its tool runs and the result as
it lands, keeps usage, journal and state, and writes the checkpoint in the same transaction. Both have a thread, a
connection and a client for each task that runs. Time is Absurd's own: from the first claim to the last completion.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from threading import Thread
from typing import Any

import msgspec
import psycopg
from absurd_sdk import Absurd, TaskContext

import bough
from bough import Message, ScriptedModel
from bough.engines import absurd_schema
from bough.engines.absurd import Agent
from bough.engines.absurd_worker import Worker
from bough.models.model import Request
from tests.postgres import Database

from .measure import Plan
from .postgres import DurableCluster
from .report import Figure, at_most
from .workload import result_of, turns_of

SLOTS = 4
TURNS = 4
context = multiprocessing.get_context("spawn")


@cache
def script() -> tuple[list[Message], dict[str, str]]:
    """The answers of one long turn, in order, and what each tool call returns."""
    steps = [step for turn in turns_of(8 * TURNS) for step in turn]
    answers = [message for step in steps for message in step.messages if message.role == "assistant"]
    calling = [answer for answer in answers if answer.calls]
    results = dict(result_of(message) for step in steps for message in step.messages if message.results)
    return [*calling, next(answer for answer in answers if not answer.calls)], results


def answer(request: Request) -> Message:
    said = sum(item.message.role == "assistant" for item in request.context.items)
    return script()[0][said]


@bough.tool(effect="read")
def read_file(path: str, lines: list[int], query: str, ctx: bough.ToolContext) -> str:
    """Reads a file."""
    return script()[1][ctx.call.id]


def work_ours(url: str, queue: str, go: Any) -> None:
    worker = Worker(url, [Agent("bench", ScriptedModel(answer), [read_file])], queue=queue, concurrency=SLOTS)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    script()  # made before the clock runs
    go.wait()
    worker.run()


def carry_out_fat(params: dict[str, Any], task: TaskContext) -> None:
    """The loop before its messages had a place of their own: what a step appended is its checkpoint."""
    messages: list[Any] = [{"role": "user", "content": params["text"]}]
    for said in script()[0]:
        messages += task.step("agent-loop", partial(fat_step, said))["appended_messages"]


def fat_step(said: Message) -> dict[str, Any]:
    results = script()[1]
    told = [{"role": "tool", "call_id": call.id, "content": results[call.id]} for call in said.calls]
    usage = {"input_tokens": 1_000, "output_tokens": 100, "cached_input_tokens": 0, "cost_cents": 0}
    return {
        "appended_messages": [msgspec.to_builtins(said), *told],
        "finish_reason": "tool_use" if said.calls else "stop",
        "usage": usage,
    }


def work_fat(url: str, queue: str, go: Any) -> None:
    def slot() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            client = Absurd(connection, queue)
            client.register_task("fat")(carry_out_fat)
            client.start_worker(claim_timeout=30, concurrency=1)

    threads = [Thread(target=slot, daemon=True) for _ in range(SLOTS)]
    script()
    go.wait()
    for thread in threads:
        thread.start()
    signal.pause()


def send_ours(database: Database, queue: str, many: int) -> None:
    with bough.open(database.url) as store:
        for _ in range(many):
            store.start("bench").send("go through it", engine="absurd", queue=queue)


def send_fat(database: Database, queue: str, many: int) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        client = Absurd(connection, queue)
        for _ in range(many):
            client.spawn("fat", {"text": "go through it"}, queue=queue)


def timed(
    database: Database,
    queue: str,
    many: int,
    workers: int,
    send: Callable[[Database, str, int], None],
    work: Callable[[str, str, Any], None],
) -> float:
    """Steps per second of so many workers."""
    absurd_schema.install(database.owner_url, queue)
    send(database, queue, many)
    go = context.Barrier(workers + 1)
    processes = [context.Process(target=work, args=(database.url, queue, go)) for _ in range(workers)]
    for process in processes:
        process.start()
    go.wait()
    while database.run(f"select 1 from absurd.t_{queue} where state <> 'completed' limit 1"):
        time.sleep(0.05)
    for process in processes:
        process.terminate()
        process.join()
    query = f"select extract(epoch from max(completed_at) - min(started_at)) from absurd.r_{queue}"
    return many * len(script()[0]) / float(database.run(query)[0][0])


def held(database: Database, queue: str, many: int) -> float:
    """Bytes a session has in Absurd's tables."""
    sums = [
        f"(select coalesce(sum(pg_column_size(x.*)), 0) from absurd.{kind}_{queue} as x)" for kind in "trcew"
    ]
    return float(database.run(f"select {' + '.join(sums)}")[0][0]) / many


def figures(plan: Plan) -> Iterator[Figure]:
    cluster, many = DurableCluster(), plan.pick(48, 12)
    try:
        database = Database(cluster, "workers")
        for workers in (1, 2, 4):
            ours = timed(database, f"ours{workers}", many, workers, send_ours, work_ours)
            fat = timed(database, f"fat{workers}", many, workers, send_fat, work_fat)
            what = f"Absurd: steps/s of {workers} workers"
            yield Figure(f"workers_{workers}", what, ours, "/s", None, {"fat": fat, "× fat": ours / fat})
        slim, fat = held(database, "ours1", many), held(database, "fat1", many)
        steps = len(script()[0])
        beside = {"fat": fat, "per step": slim / steps, "fat per step": fat / steps}
        what = f"Absurd: bytes of a session of {steps} steps"
        yield Figure("workers_bytes", what, slim, "B", at_most(steps * 1_000), beside)
    finally:
        cluster.close()
