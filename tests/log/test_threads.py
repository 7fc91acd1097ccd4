"""The threads on which coroutines call the log."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oakleaf.log.threads import MAX_THREADS, run_blocking, run_long, run_to_end, run_tool

UNFINISHED = """
import asyncio, threading, time
from oakleaf.log.threads import run_blocking

has_begun = threading.Event()

def work():
    has_begun.set()
    time.sleep(0.2)
    print("written", flush=True)

async def leave():
    task = asyncio.ensure_future(run_blocking(work))
    await asyncio.sleep(0)
    has_begun.wait()
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

NO_MORE_THREADS = """
import asyncio, resource, threading
from oakleaf.log.threads import run_long, run_to_end, run_tool

calls = []

def limit_memory(more):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

async def run():
    threading.stack_size(16_000_000)
    limit_memory(8_000_000)
    for run in run_tool, run_long, run_to_end:
        try:
            await run(calls.append, 1)
        except RuntimeError as error:
            print(error)
    limit_memory(200_000_000)
    await asyncio.wait_for(run_long(int), 10)
    await asyncio.wait_for(run_to_end(int), 10)
    barrier = threading.Barrier(2)
    await asyncio.gather(*(run_to_end(barrier.wait) for _ in range(24)))
    print(calls, 1 < sum(thread.name.startswith("oakleaf-log_") for thread in threading.enumerate()) < 24)

asyncio.run(run())
"""


def count_threads() -> int:
    return sum(thread.name.startswith("oakleaf-log") for thread in threading.enumerate())


def double_in_child(number: int) -> int | None:
    """Return the exit code of a process that is forked here and uses the threads."""
    child = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(asyncio.run(run_to_end(int.__mul__, number, 2)))
    )
    child.start()
    child.join(30)
    return child.exitcode


class TestThreads:
    def test_many_calls_share_a_few_threads(self) -> None:
        async def use_all() -> list[int]:
            return await asyncio.gather(*(run_to_end(lambda n=n: n) for n in range(2_000)))  # type: ignore[misc]

        assert asyncio.run(use_all()) == list(range(2_000))
        assert 0 < count_threads() <= MAX_THREADS + 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        asyncio.run(run_to_end(int, "1"))
        assert double_in_child(4) == 8

    def test_the_event_loop_starts_no_thread_of_a_tool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A starter waits until the thread runs, and the tools of 64 sessions often start at once."""
        starters, start = list[int](), threading.Thread.start

        def note(thread: threading.Thread) -> None:
            if thread.name == "oakleaf-tool":
                starters.append(threading.get_ident())
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", note)
        assert asyncio.run(run_tool(int, "7")) == 7
        assert len(starters) == 1
        assert threading.get_ident() not in starters

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
    def test_a_tool_may_fork(self) -> None:
        """On a thread of a pool the forked process ended with an error: Python 3.11 waited there for that very thread."""
        assert asyncio.run(run_tool(double_in_child, 4)) == 8

    @pytest.mark.skipif(sys.platform != "linux", reason="limits its memory by what /proc tells")
    def test_where_the_system_allows_no_more_threads_calls_wait_for_those_there_are(self) -> None:
        """A call was lost with the thread that took it and could not start another: its session never ended."""
        ended = subprocess.run(
            [sys.executable, "-c", NO_MORE_THREADS], capture_output=True, text=True, timeout=60
        )
        assert (ended.stdout, ended.stderr) == ("can't start new thread\n" * 3 + "[] True\n", "")


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
        has_begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            has_begun.set()
            may_end.wait()
            ended.set()

        async def run() -> None:
            task = asyncio.ensure_future(run_blocking(work))
            await asyncio.sleep(0)
            has_begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not ended.is_set()
            may_end.set()

        asyncio.run(run())
        assert ended.wait(10)

    def test_a_call_that_waits_for_a_thread_never_runs(self) -> None:
        may_end, calls = threading.Event(), list[str]()

        async def run() -> None:
            first = [asyncio.ensure_future(run_blocking(may_end.wait)) for _ in range(MAX_THREADS)]
            later = asyncio.ensure_future(run_blocking(calls.append, "cancelled"))
            await asyncio.sleep(0)
            later.cancel()
            await asyncio.wait([later])
            may_end.set()
            await asyncio.gather(*first)
            await run_blocking(calls.append, "later")

        asyncio.run(run())
        assert calls == ["later"]


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


class TestOutcome:
    @pytest.mark.parametrize("run", [run_blocking, run_to_end, run_long, run_tool])
    def test_no_error_is_lost(self, run: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        """A future refuses a StopIteration: its awaiter would never have continued."""
        with pytest.raises(RuntimeError, match="StopIteration"):
            asyncio.run(run(stop))
        with pytest.raises(ZeroDivisionError):
            asyncio.run(run(divmod, 1, 0))

    def test_one_for_an_event_loop_that_has_ended_disturbs_no_other(self) -> None:
        has_begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            has_begun.set()
            may_end.wait()
            ended.set()

        async def leave() -> None:
            task = asyncio.ensure_future(run_blocking(work))
            await asyncio.sleep(0)
            has_begun.wait()
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
