"""Measure steps per second of 1, 2 and 4 workers, with a model that takes time and with one that answers at once.

**Model of 100 ms**: each step calls a loopback server that answers after 100 ms, faster than real models do. Almost all of a
slot's time is waiting, so 4 workers must do about 4 times what one does; less would show something that all workers share.
**Model that answers at once**: shows what a step costs in processor time. Server and workers are on the same machine, so on two
cores no number of workers can do three times what one does; `processors` says how many cores worked, other programs included.
Compared with Absurd with the messages in its checkpoints.

The percentages tell what the server's connections waited for while they ran a statement: the disk (the sync of a commit, alone
or behind another's), locks of rows, or nothing (`running`). Also measures one worker with 200 slots that wait most of the time.

Uses its own durable server. Both baselines are plain Absurd and call the same model with the full history. `fat` sets one
checkpoint per step with the answer and the tool results: one commit, and a step that dies between two tools repeats the
first one. `safe` does what Oakleaf must: a checkpoint with the answer, its usage and the calls about to start before any of
them runs, and another for each result. Neither has a tree, a ledger, totals, a journal that others can follow, redaction,
state, durable approvals or live streams, and neither checks its claim before a tool runs. Oakleaf has all of it and writes
the checkpoint in the same transaction. All have a thread, a connection and a client for each running task. Times are
Absurd's own: from the first claim to the last completion.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache, partial
from threading import Event, Thread
from typing import Any

import msgspec
import psycopg
from absurd_sdk import Absurd, TaskContext

import oakleaf
from oakleaf import Message, ScriptedModel, ToolCall, assistant, tool_result, user
from oakleaf.core.context import Context, Item
from oakleaf.models.base import Request
from oakleaf.wire import Answer
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.worker import Worker
from tests.support.postgres import APP, Database

from .measure import Plan
from .postgres import DurableCluster
from .report import Figure, at_least, at_most
from .workload import result_of, turns_of

SLOTS = 4
TURNS = 4
MANY, WAIT_SECONDS = 200, 5.0
MODEL_SECONDS = 0.1
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


@oakleaf.tool(effect="read")
def read_file(path: str, lines: list[int], query: str, ctx: oakleaf.ToolContext) -> str:
    """Read a file."""
    return script()[1][ctx.call.id]


def work_ours(url: str, queue: str, go: Any) -> None:
    worker = Worker(url, [Agent("bench", ScriptedModel(answer), [read_file])], queue=queue, concurrency=SLOTS)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    script()  # built before the measurement
    go.wait()
    worker.run()


class RemoteModel(ScriptedModel):
    """A model behind a server on the loopback that takes its time."""

    def __init__(self, port: int, script: Callable[[Request], Message | str] = answer) -> None:
        super().__init__(script)
        self._port = port

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request.context.items[-1].message.text.encode() + b"\0")
        await reader.readexactly(2)
        writer.close()
        async for piece in super().stream(request):
            yield piece


def serve_model(ports: Any) -> None:
    """Answer every request after the time of a model."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            await reader.readuntil(b"\0")
            await asyncio.sleep(MODEL_SECONDS)
            writer.write(b"ok")
            await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def work_remote(url: str, queue: str, go: Any, *, port: int) -> None:
    worker = Worker(url, [Agent("bench", RemoteModel(port), [read_file])], queue=queue, concurrency=SLOTS)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    script()
    go.wait()
    worker.run()


class Pondering(ScriptedModel):
    async def stream(self, request: Request) -> AsyncIterator[Any]:
        await asyncio.sleep(WAIT_SECONDS)
        async for piece in super().stream(request):
            yield piece


@oakleaf.tool(effect="unsafe")
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
    with oakleaf.open(database.url) as store:
        for _ in range(many):
            absurd.send(store.start("bench"), "go through it", queue=queue)


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


class WaitSampler:
    """Samples what the server's busy connections wait for, a hundred times a second."""

    QUERY = """select case when wait_event_type is null then 'running' when wait_event_type = 'Lock' then 'locks'
        when wait_event ilike 'wal%%' then 'disk' else 'else' end
        from pg_stat_activity where state = 'active' and usename = %s"""

    def __init__(self, database: Database) -> None:
        self._database, self._counts, self._over = database, Counter[str](), Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> WaitSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._database.owner_url, autocommit=True) as connection:
            while not self._over.wait(0.01):
                self._counts.update(name for (name,) in connection.execute(self.QUERY, (APP,)))

    def shares(self) -> dict[str, float]:
        """Return the percentages of the samples."""
        total = max(1, self._counts.total())
        return {f"{name} %": 100 * self._counts[name] / total for name in ("disk", "locks", "running")}


def processor_seconds() -> float:
    """Return the processor time that all programs of this machine have used."""
    with open("/proc/stat") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def scaling(database: Database, rounds: int) -> Iterator[Figure]:
    """Measure steps a second of 1, 2 and 4 workers whose model takes time, each with the same number of tasks a slot."""
    ports = context.Queue()
    model = context.Process(target=serve_model, args=(ports,), daemon=True)
    model.start()
    work, alone = partial(work_remote, port=ports.get()), 0.0
    try:
        for workers in (1, 2, 4):
            with WaitSampler(database) as sampler:
                many = rounds * SLOTS * workers
                rate = timed(database, f"remote{workers}", many, workers, send_ours, work)
            alone = alone or rate
            what = f"Absurd: {workers} workers, model of {1000 * MODEL_SECONDS:.0f} ms"
            goal = at_least(3) if workers == 4 else None
            beside = {"steps/s": rate, **sampler.shares()}
            yield Figure(f"workers_remote_{workers}", what, rate / alone, "× one", goal, beside)
    finally:
        model.kill()
        model.join()


def waiting(database: Database) -> Figure:
    """Measure tasks of one worker that wait for a model, for a blocking tool, and for the model again."""
    most = 0

    def look() -> None:
        nonlocal most
        rows = database.run(f"select count(*) from pg_stat_activity where usename = '{APP}'")
        most = max(most, int(rows[0][0]))

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
        yield from scaling(database, plan.pick(4, 2))
        for workers in (1, 2, 4):
            used, began = processor_seconds(), time.monotonic()
            with WaitSampler(database) as sampler:
                ours = timed(database, f"ours{workers}", many, workers, send_ours, work_ours)
            processors = (processor_seconds() - used) / (time.monotonic() - began)
            fat = timed(database, f"fat{workers}", many, workers, send_fat, work_fat)
            safe = timed(database, f"safe{workers}", many, workers, send_fat, partial(work_fat, is_safe=True))
            what = f"Absurd: steps/s of {workers} workers, instant model"
            beside = {"fat": fat, "safe": safe, "× fat": ours / fat, "processors": processors}
            beside |= sampler.shares()
            yield Figure(f"workers_{workers}", what, ours, "/s", None, beside)
        yield waiting(database)
        slim, fat = bytes_in_engine(database, "ours1", many), bytes_in_engine(database, "fat1", many)
        steps = len(script()[0])
        beside = {"fat": fat, "per step": slim / steps, "fat per step": fat / steps}
        what = f"Absurd: bytes of a session of {steps} steps"
        yield Figure("workers_bytes", what, slim, "B", at_most(steps * 1_000), beside)
    finally:
        cluster.close()
