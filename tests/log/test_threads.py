"""The threads on which coroutines call the log."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oakleaf.log import threads
from oakleaf.log.threads import MAX_THREADS, AsyncBridge, run_blocking, run_long, run_to_end, run_tool

UNFINISHED = """
import asyncio, time
from oakleaf.log.threads import run_blocking

def work():
    time.sleep(0.2)
    print("written", flush=True)

async def leave():
    task = asyncio.ensure_future(run_blocking(work))
    await asyncio.sleep(0)
    task.cancel()

asyncio.run(leave())
"""

DAEMONS = """
import itertools, sys, threading, time
import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant

kind, store = sys.argv[1], oakleaf.open("memory:")
rounds, is_under_way = itertools.count(), threading.Event()

def sleep() -> str:
    is_under_way.set()
    time.sleep(3600)
    return ""

def send():
    while True:
        answers = [assistant(ToolCall("c", "sleep")), "a"] if kind == "in a tool" else ["a"]
        store.start().send_sync("q", model=ScriptedModel(answers), tools=[sleep])
        if next(rounds) > 20:
            is_under_way.set()

for _ in range(4):
    threading.Thread(target=send, daemon=True).start()
is_under_way.wait()
print("ended", flush=True)
"""

GENERATIONS = """
import asyncio, gc
from oakleaf.log.threads import run_long

def make():
    return [[] for _ in range(5_000)]

made = asyncio.run(run_long(make))
young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation)}
assert not young.intersection(map(id, made))
gc.freeze()
frozen = gc.get_freeze_count()
asyncio.run(run_long(make))
assert frozen / 2 < gc.get_freeze_count() <= frozen  # some were deleted meanwhile
"""

NO_MORE_THREADS = """
import asyncio, resource, threading
from oakleaf.log.threads import run_long, run_tool

def limit_memory(more):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

async def run():
    threading.stack_size(16_000_000)
    limit_memory(8_000_000)
    for run in run_tool, run_long:
        try:
            await run(int)
        except RuntimeError as error:
            print(error)
    limit_memory(100_000_000)
    await asyncio.wait_for(run_long(int), 10)
    barrier = threading.Barrier(2)
    await asyncio.gather(*(run_tool(barrier.wait) for _ in range(40)))
    print(1 < sum(thread.name.startswith("oakleaf-tool") for thread in threading.enumerate()) < 10)

asyncio.run(run())
"""


def count_threads() -> int:
    return sum(thread.name.startswith("oakleaf-log") for thread in threading.enumerate())


class TestAsyncBridge:
    def test_many_live_bridges_share_a_few_threads(self) -> None:
        bridges = [AsyncBridge(in_order=True) for _ in range(4 * MAX_THREADS)]

        async def use_all() -> list[int]:
            return await asyncio.gather(
                *(bridge.run(lambda n=n: n) for n, bridge in enumerate(bridges))  # type: ignore[misc]
            )

        assert asyncio.run(use_all()) == list(range(len(bridges)))
        assert 0 < count_threads() <= MAX_THREADS

    def test_the_event_loop_starts_no_thread_but_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who starts a thread waits until it runs: 64 sessions that began at once stalled the loop for half a second."""
        starters, start = list[bool](), threading.Thread.start
        main = threading.get_ident()

        def note(thread: threading.Thread) -> None:
            starters.append(threading.get_ident() == main)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", note)
        monkeypatch.setattr(threads, "_threads", threads._Threads("oakleaf-log", MAX_THREADS))
        may_end = threading.Event()

        async def run() -> None:
            waiting = [asyncio.ensure_future(run_blocking(may_end.wait)) for _ in range(MAX_THREADS - 1)]
            await asyncio.sleep(0)
            assert await run_blocking(int, "7") == 7  # each call has a thread, though all before it wait
            may_end.set()
            await asyncio.gather(*waiting)

        asyncio.run(run())
        assert starters == [True] + [False] * (MAX_THREADS - 1)
        threads._threads.finish()

    def test_calls_in_order_run_one_after_the_other_whatever_they_take(self) -> None:
        bridge, calls, running = AsyncBridge(in_order=True), [], []

        def call(number: int) -> None:
            running.append(number)
            assert len(running) == 1
            time.sleep(0.001 * (number % 3))
            calls.append(number)
            running.remove(number)

        async def call_all() -> None:
            await asyncio.gather(*(bridge.run(call, number) for number in range(40)))

        asyncio.run(call_all())
        assert calls == list(range(40))

    def test_an_error_is_raised_where_its_call_was_made_and_the_next_call_runs(self) -> None:
        bridge = AsyncBridge(in_order=True)

        async def call_both() -> tuple[object, object]:
            failed = bridge.run(int, "no number")
            return tuple(await asyncio.gather(failed, bridge.run(int, "7"), return_exceptions=True))  # type: ignore[return-value]

        error, number = asyncio.run(call_both())
        assert isinstance(error, ValueError)
        assert number == 7

    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        bridge = AsyncBridge(in_order=True)
        asyncio.run(bridge.run(int, "1"))
        child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(bridge.run(int, "2")))
        child.start()
        child.join(30)
        assert child.exitcode == 0

    @pytest.mark.skipif(sys.platform != "linux", reason="limits its memory by what /proc tells")
    def test_where_the_system_allows_no_more_threads_calls_wait_for_those_there_are(self) -> None:
        """A call was lost with the thread that took it and could not start another: its session never ended."""
        ended = subprocess.run(
            [sys.executable, "-c", NO_MORE_THREADS], capture_output=True, text=True, timeout=60
        )
        assert (ended.stdout, ended.stderr) == ("can't start new thread\n" * 2 + "True\n", "")


def stop() -> None:
    raise StopIteration(7)


class TestCancellation:
    def test_a_call_that_is_run_to_its_end_is_cancelled_after_it(self) -> None:
        """However often: a second cancel must not find the first one's write half done."""
        may_end, ended = threading.Event(), []

        def work() -> None:
            may_end.wait()
            ended.append(True)

        async def run() -> None:
            task = asyncio.ensure_future(run_to_end(work))
            for _ in range(3):
                await asyncio.sleep(0)
                task.cancel()
            assert not task.done()
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == [True]

        asyncio.run(run())

    def test_what_it_raised_is_the_cause_of_the_cancellation(self) -> None:
        may_end = threading.Event()

        def work() -> None:
            may_end.wait()
            raise ValueError("lost")

        async def run() -> None:
            task = asyncio.ensure_future(run_to_end(work))
            await asyncio.sleep(0)
            task.cancel()
            may_end.set()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            assert isinstance(cancelled.value.__cause__, ValueError)

        asyncio.run(run())

    def test_another_call_is_left_at_once_and_ends_by_itself(self) -> None:
        may_end, ended = threading.Event(), threading.Event()

        def work() -> None:
            may_end.wait()
            ended.set()

        async def run() -> None:
            task = asyncio.ensure_future(run_blocking(work))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not ended.is_set()
            may_end.set()

        asyncio.run(run())
        assert ended.wait(10)

    def test_a_tool_that_waits_for_a_thread_never_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The turn was cancelled, or the tool timed out, and its effect took place later."""
        monkeypatch.setattr(threads, "_tool_threads", threads._Threads("oakleaf-tool", 1))
        may_end, calls = threading.Event(), list[str]()

        async def run() -> None:
            first = asyncio.ensure_future(run_tool(may_end.wait))
            second = asyncio.ensure_future(run_tool(calls.append, "cancelled"))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
            may_end.set()
            await first
            await run_tool(calls.append, "later")

        asyncio.run(run())
        assert calls == ["later"]
        threads._tool_threads.finish()


class TestLongCalls:
    def test_one_runs_at_a_time_and_short_calls_pass(self) -> None:
        """An event loop waits for each thread that computes; four long histories stalled it for 105 ms."""
        may_end, running, most = threading.Event(), [], []

        def work(number: int) -> None:
            running.append(number)
            most.append(len(running))
            may_end.wait()
            running.remove(number)

        async def run() -> None:
            long = [asyncio.ensure_future(run_long(work, number)) for number in range(MAX_THREADS + 8)]
            assert await asyncio.gather(*(run_to_end(int, "7") for _ in range(20))) == [7] * 20
            may_end.set()
            await asyncio.gather(*long)

        asyncio.run(run())
        assert most == [1] * (MAX_THREADS + 8)

    def test_the_garbage_collector_pauses_and_continues_as_it_was(self) -> None:
        try:
            for is_enabled in (True, False):
                (gc.enable if is_enabled else gc.disable)()
                assert not asyncio.run(run_long(gc.isenabled))
                with pytest.raises(ZeroDivisionError):
                    asyncio.run(run_long(divmod, 1, 0))
                assert gc.isenabled() is is_enabled
        finally:
            gc.enable()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
    def test_a_process_that_is_forked_meanwhile_has_its_garbage_collector(self) -> None:
        def fork() -> int | None:
            check = multiprocessing.get_context("fork").Process(
                target=lambda: sys.exit((gc.isenabled(), sys.getswitchinterval()) != usual)
            )
            check.start()
            check.join(30)
            return check.exitcode

        usual = True, sys.getswitchinterval()
        assert asyncio.run(run_long(fork)) == 0
        assert (gc.isenabled(), sys.getswitchinterval()) == usual

    def test_no_collection_of_young_objects_looks_at_what_they_made(self) -> None:
        """Unless the program has frozen objects of its own, which stay frozen."""
        subprocess.run([sys.executable, "-c", GENERATIONS], check=True)


class TestOutcome:
    @pytest.mark.parametrize("run", [run_blocking, run_to_end, run_long, AsyncBridge(in_order=True).run])
    def test_no_error_is_lost(self, run: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        """A future refuses a StopIteration: its awaiter would never have continued."""
        with pytest.raises(RuntimeError, match="StopIteration"):
            asyncio.run(run(stop))
        with pytest.raises(ZeroDivisionError):
            asyncio.run(run(divmod, 1, 0))

    def test_the_outcomes_of_a_crowd_reach_their_own_awaiters(self) -> None:
        async def use_all() -> list[int]:
            return await asyncio.gather(*(run_to_end(lambda n=n: n) for n in range(2_000)))  # type: ignore[misc]

        assert asyncio.run(use_all()) == list(range(2_000))

    def test_one_for_an_event_loop_that_has_ended_disturbs_no_other(self) -> None:
        may_end, ended = threading.Event(), threading.Event()

        def work() -> None:
            may_end.wait()
            ended.set()

        async def leave() -> None:
            task = asyncio.ensure_future(run_blocking(work))
            await asyncio.sleep(0)
            task.cancel()

        asyncio.run(leave())
        may_end.set()
        assert ended.wait(10)
        assert asyncio.run(run_blocking(int, "7")) == 7

    @pytest.mark.parametrize("kind", ["in a tool", "sending again and again"])
    def test_a_process_that_ends_does_not_wait_for_runs_on_daemon_threads(self, kind: str) -> None:
        ended = subprocess.run(
            [sys.executable, "-c", DAEMONS, kind], stdout=subprocess.PIPE, text=True, timeout=20
        )
        assert (ended.returncode, ended.stdout) == (0, "ended\n")

    def test_a_process_that_ends_waits_for_what_was_submitted(self) -> None:
        ended = subprocess.run([sys.executable, "-c", UNFINISHED], capture_output=True, text=True, timeout=60)
        assert (ended.stdout, ended.stderr) == ("written\n", "")
