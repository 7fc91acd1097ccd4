"""Measure steps per second of 1, 2 and 4 workers, against Absurd with the messages in its checkpoints.

Also measures one worker with 200 slots that wait most of the time.

Uses its own durable server. Both baselines are plain Absurd and call the same model with the full history. `fat` sets one
checkpoint per step with the answer and the tool results: one commit, and a step that dies between two tools repeats the
first one. `safe` does what Bough must: a checkpoint with the answer, its usage and the calls about to start before any of
them runs, and another for each result. Neither has a tree, a ledger, totals, a journal that others can follow, redaction,
state, durable approvals or live streams, and neither checks its claim before a tool runs. Bough has all of it and writes
the checkpoint in the same transaction. All have a thread, a connection and a client for each running task. Times are
Absurd's own: from the first claim to the last completion.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache, partial
from threading import Thread
from typing import Any

import msgspec
import psycopg
from absurd_sdk import Absurd, TaskContext

import bough
from bough import Message, ScriptedModel, ToolCall, assistant, tool_result, user
from bough.core.context import Context, Item
from bough.engines.absurd import schema as absurd_schema
from bough.engines.absurd.engine import Agent
from bough.engines.absurd.worker import Worker
from bough.models.model import Request
from bough.wire import Answer
from tests.support.postgres import APP, Database

from .measure import Plan
from .postgres import DurableCluster
from .report import Figure, at_most
from .workload import result_of, turns_of

SLOTS = 4
TURNS = 4
MANY, WAIT_SECONDS = 200, 5.0
context = multiprocessing.get_context("spawn")


@cache
def script() -> tuple[list[Message], dict[str, str]]:
    """Return the answers of one long turn in order, and the result of each tool call."""
    steps = [step for turn in turns_of(8 * TURNS) for step in turn]
    answers = [message for step in steps for message in step.messages if message.role == "assistant"]
    calling = [answer for answer in answers if answer.calls]
    results = dict(result_of(message) for step in steps for message in step.messages if message.results)
    return [*calling, next(answer for answer in answers if not answer.calls)], results


def answer(request: Request) -> Message:
    answers = sum(item.message.role == "assistant" for item in request.context.items)
    return script()[0][answers]


@bough.tool(effect="read")
def read_file(path: str, lines: list[int], query: str, ctx: bough.ToolContext) -> str:
    """Read a file."""
    return script()[1][ctx.call.id]


def work_ours(url: str, queue: str, go: Any) -> None:
    worker = Worker(url, [Agent("bench", ScriptedModel(answer), [read_file])], queue=queue, concurrency=SLOTS)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    script()  # built before the measurement
    go.wait()
    worker.run()


class Pondering(ScriptedModel):
    async def stream(self, request: Request) -> AsyncIterator[Any]:
        await asyncio.sleep(WAIT_SECONDS)
        async for piece in super().stream(request):
            yield piece


@bough.tool(effect="unsafe")
def wait() -> str:
    """Block."""
    time.sleep(WAIT_SECONDS)
    return "waited"


def ponder(request: Request) -> Message | str:
    is_first = request.context.items[-1].message.role == "user"
    return assistant(ToolCall("w", "wait", {})) if is_first else "done"


def work_waiting(url: str, queue: str, go: Any) -> None:
    agent = Agent("bench", Pondering(ponder), [wait])
    worker = Worker(url, [agent], queue=queue, concurrency=MANY, lease=9)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    go.wait()
    worker.run()


class Fat:
    """A loop without a log: its messages are in its checkpoints."""

    def __init__(self, *, is_safe: bool) -> None:
        self._is_safe = is_safe
        self._model = ScriptedModel(answer)
        self._runner = asyncio.Runner()

    def carry_out(self, params: dict[str, Any], task: TaskContext) -> None:
        messages: list[Any] = [msgspec.to_builtins(user(params["text"]))]
        while True:
            done = task.step("agent-loop", partial(self._step, messages))
            messages += done["appended_messages"]
            message = msgspec.convert(done["appended_messages"][0], Message)
            if self._is_safe:
                for call in message.calls:
                    messages.append(task.step("tool", partial(self._tool, call)))
            if not message.calls:
                return

    def _step(self, messages: list[Any]) -> dict[str, Any]:
        items = [Item(msgspec.convert(message, Message), seq, 1) for seq, message in enumerate(messages, 1)]
        answer = self._runner.run(self._ask(Request(Context((), tuple(items)), lambda digest: None)))
        started = [call.id for call in answer.message.calls]
        ran = [] if self._is_safe else [self._tool(call) for call in answer.message.calls]
        return {
            "appended_messages": [msgspec.to_builtins(answer.message), *ran],
            "finish_reason": answer.finish,
            "usage": msgspec.to_builtins(answer.usage),
            **({"calls_started": started} if self._is_safe else {}),
        }

    async def _ask(self, request: Request) -> Answer:
        pieces = [piece async for piece in self._model.stream(request)]
        assert isinstance(pieces[-1], Answer)
        return pieces[-1]

    def _tool(self, call: ToolCall) -> Any:
        return msgspec.to_builtins(tool_result(call.id, script()[1][call.id]))


def work_fat(url: str, queue: str, go: Any, *, is_safe: bool = False) -> None:
    def slot() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            client = Absurd(connection, queue)
            client.register_task("fat")(Fat(is_safe=is_safe).carry_out)
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
    look: Callable[[], None] = lambda: None,
) -> float:
    """Return the steps per second of this many workers."""
    absurd_schema.install(database.owner_url, queue)
    send(database, queue, many)
    go = context.Barrier(workers + 1)
    processes = [context.Process(target=work, args=(database.url, queue, go)) for _ in range(workers)]
    for process in processes:
        process.start()
    go.wait()
    while database.run(f"select 1 from absurd.t_{queue} where state <> 'completed' limit 1"):
        look()
        time.sleep(0.05)
    for process in processes:
        process.terminate()
        process.join()
    query = f"select extract(epoch from max(completed_at) - min(started_at)) from absurd.r_{queue}"
    return many * len(script()[0]) / float(database.run(query)[0][0])


def waiting(database: Database) -> Figure:
    """Measure tasks of one worker that wait for a model, for a blocking tool, and for the model again."""
    most = 0

    def look() -> None:
        nonlocal most
        found = database.run(f"select count(*) from pg_stat_activity where usename = '{APP}'")
        most = max(most, int(found[0][0]))

    took = MANY * len(script()[0]) / timed(database, "many", MANY, 1, send_ours, work_waiting, look)
    claimed = int(database.run("select sum(attempts) from absurd.t_many")[0][0])
    beside = {"seconds": took, "connections": float(most), "claims": float(claimed)}
    what = f"Absurd: {MANY} waiting slots"
    return Figure("workers_waiting", what, took / (3 * WAIT_SECONDS), "× the wait", None, beside)


def bytes_in_engine(database: Database, queue: str, many: int) -> float:
    """Return the bytes of a session in Absurd's tables."""
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
            safe = timed(database, f"safe{workers}", many, workers, send_fat, partial(work_fat, is_safe=True))
            what = f"Absurd: steps/s of {workers} workers"
            beside = {"fat": fat, "safe": safe, "× fat": ours / fat, "× safe": ours / safe}
            yield Figure(f"workers_{workers}", what, ours, "/s", None, beside)
        yield waiting(database)
        slim, fat = bytes_in_engine(database, "ours1", many), bytes_in_engine(database, "fat1", many)
        steps = len(script()[0])
        beside = {"fat": fat, "per step": slim / steps, "fat per step": fat / steps}
        what = f"Absurd: bytes of a session of {steps} steps"
        yield Figure("workers_bytes", what, slim, "B", at_most(steps * 1_000), beside)
    finally:
        cluster.close()
