"""Many agents in one process: 1, 2, 8 and 64 sessions driven by one event loop, and how long that loop stalls.

`own` are turns of one's own loop (`async with session.turn(…)`), one commit per message, `send` those of ours. Rounds
alternate between the counts. Among the 64 of the last figures there are four sessions of 10,000 entries, whose whole history
is made into a request before each answer.

Beside each ratio is its bound: the time of a message of one session over the CPU time of one among many, which is what they
would reach if the interpreter, which one thread has at a time, never waited. Only a disk that is slow compared with that CPU
leaves room for more. A stall is printed with the CPU time of the whole process during it: the rest waited for other programs.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import perf_counter, process_time, thread_time

from msgspec import Struct

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, Usage
from oakleaf.models.base import Request
from oakleaf.wire import Answer

from .long_sessions import long_session
from .measure import Plan, middle, percentile
from .report import Figure, at_least, at_most
from .runner import answer, look
from .workload import MESSAGES_PER_TURN, Step, result_of, turns_of

COUNTS = (1, 2, 8, 64)
GOALS = {64: 1.5}
LONG, LONG_ENTRIES = 4, 10_000
TICK = 0.001
Turns = Sequence[Sequence[Step]]
Drive = Callable[[Session, Turns, bool], Awaitable[int]]


async def own(session: Session, turns: Turns, is_long: bool) -> int:
    """Write the turns as a loop of one's own does; return the number of messages."""
    for turn in turns:
        async with session.turn(turn[0].messages[0]) as open_turn:
            for step in turn[1:]:
                if is_long:
                    await open_turn.request("anthropic")
                await open_turn.answer(step.messages[0], usage=step.usage)
                for message in step.messages[1:]:
                    await open_turn.result(*result_of(message))
    return len(turns) * MESSAGES_PER_TURN


async def send(session: Session, turns: Turns, is_long: bool) -> int:
    """Let our loop run as many turns of as many messages."""
    before = session.leaf.seq
    for turn in turns:
        text = turn[0].messages[0].text
        model = ScriptedModel(_answer)
        await session.send(text, model=model, tools=[look], limits=Limits(turns=10**6))
    return session.leaf.seq - before


def _answer(request: Request) -> Answer:
    """Answer as `runner.answer`, of the newest turn alone: it looks at all items of the history. The usage is given, because
    a scripted model measures the whole history for it, as no model of a vendor does."""
    items = request.context.items[-2 * MESSAGES_PER_TURN :]
    message = answer(oakleaf.models.base.Request(oakleaf.core.context.Context((), items), request.blobs))
    finish = "tool_use" if message.calls else "stop"
    return Answer(message, Usage(1_000, 100), None, "scripted", "scripted", finish)


class Stall(Struct, frozen=True):
    """How much later than asked the event loop continued, in milliseconds."""

    whole: float
    computed: float
    """For how long the loop's thread computed meanwhile."""
    process: float
    """For how long all threads of the process did: on an idle machine no stall is longer."""


class Run(Struct, frozen=True):
    """Sessions driven to their end; times in microseconds a message."""

    rate: float
    """Messages a second."""
    cpu: float
    loop_cpu: float
    """Of the event loop's thread."""
    stalls: list[Stall]


async def _watch(stalls: list[Stall]) -> None:
    while True:
        began, computed, process = perf_counter(), thread_time(), process_time()
        await asyncio.sleep(TICK)
        late = perf_counter() - began - TICK
        stalls.append(Stall(late * 1e3, (thread_time() - computed) * 1e3, (process_time() - process) * 1e3))


async def _drive_all(sessions: Sequence[Session], loads: Sequence[Turns], long: int, drive: Drive) -> Run:
    stalls: list[Stall] = []
    watching = asyncio.create_task(_watch(stalls))
    began, cpu, loop_cpu = perf_counter(), process_time(), thread_time()
    counts = await asyncio.gather(
        *(drive(each, loads[n % len(loads)], n < long) for n, each in enumerate(sessions))
    )
    messages, lasted = sum(counts), perf_counter() - began
    watching.cancel()
    cpu, loop_cpu = process_time() - cpu, thread_time() - loop_cpu
    return Run(messages / lasted, cpu / messages * 1e6, loop_cpu / messages * 1e6, stalls)


def figures(plan: Plan) -> Iterator[Figure]:
    turns, entries = plan.pick(12, 3), plan.pick(LONG_ENTRIES, 1_000)
    loads = [turns_of(MESSAGES_PER_TURN * turns, seed=number) for number in range(8)]
    for name, drive in (("own", own), ("send", send)):
        runs: dict[int, list[Run]] = {count: [] for count in COUNTS}
        with oakleaf.open(plan.path(f"agents-{name}")) as store:
            for number in range(plan.pick(6, 2)):
                for count in COUNTS:
                    sessions = [store.start(agent="bench") for _ in range(count)]
                    each = loads if count < COUNTS[-1] else [load[: max(2, turns // 4)] for load in loads]
                    run = asyncio.run(_drive_all(sessions, each, 0, drive))
                    if number:  # the first round is for imports, threads and statements
                        runs[count].append(run)
        for count in COUNTS:
            yield _ratio(name, count, runs)
        with oakleaf.open(plan.path(f"stalls-{name}")) as store:
            long = [store.session(long_session(store, entries).session_id) for _ in range(LONG)]
            sessions = long + [store.start(agent="bench") for _ in range(COUNTS[-1] - LONG)]
            each = loads
            gc.collect()  # what the rounds before left
            stalls = asyncio.run(_drive_all(sessions, each, LONG, drive)).stalls
        whole, process = [stall.whole for stall in stalls], [stall.process for stall in stalls]
        what = f"{name}: longest stall, {LONG} of {COUNTS[-1]} with {entries:,} entries"
        yield Figure(f"agents {name} stall", what, max(whole), "ms", at_most(80))
        beside = {"p50 ms": percentile(whole, 0.5)}
        p99 = percentile(whole, 0.99)
        yield Figure(f"agents {name} stall p99", f"{name}: p99 of the stalls", p99, "ms", at_most(25), beside)
        what = f"{name}: longest computing of the process in a stall"
        beside = {"p99 ms": percentile(process, 0.99)}
        yield Figure(f"agents {name} stall CPU", what, max(process), "ms", None, beside)
        what = f"{name}: longest computing of the loop between two ticks"
        computed = max(stall.computed for stall in stalls)
        yield Figure(f"agents {name} computing", what, computed, "ms", None)


def _ratio(name: str, count: int, runs: dict[int, list[Run]]) -> Figure:
    rate, one = (middle([run.rate for run in runs[number]]) for number in (count, 1))
    cpu, goal = middle([run.cpu for run in runs[count]]), GOALS.get(count)
    beside = {
        "bound": 1e6 / one / cpu,
        "messages/s": rate,
        "CPU µs": cpu,
        "loop µs": middle([run.loop_cpu for run in runs[count]]),
    }
    what = f"{name}: {count} session{'s' * (count > 1)} of one event loop"
    target = None if goal is None else at_least(goal)
    return Figure(f"agents {name} {count}", what, rate / one, "× one", target, beside)
