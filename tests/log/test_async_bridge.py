"""The threads on which adapters call the log."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time

from bough.log.async_bridge import MAX_THREADS, AsyncBridge


def count_threads() -> int:
    return sum(thread.name.startswith("bough-adapter") for thread in threading.enumerate())


class TestAsyncBridge:
    def test_many_live_bridges_share_a_few_threads(self) -> None:
        bridges = [AsyncBridge(in_order=True) for _ in range(4 * MAX_THREADS)]

        async def use_all() -> list[int]:
            return await asyncio.gather(
                *(bridge.run(lambda n=n: n) for n, bridge in enumerate(bridges))  # type: ignore[misc]
            )

        assert asyncio.run(use_all()) == list(range(len(bridges)))
        assert count_threads() <= MAX_THREADS

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
