"""The event loop of a program belongs to all its sessions: what one of them does there does not depend on its length.

Work is counted, not timed: the calls, of Python and of C, that the loop's own thread makes, and the calls of the store on it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import wraps
from types import FrameType
from typing import Any

import msgspec
import pytest

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, ToolCall, Usage, assistant, system, tool_result, user
from oakleaf.log import threads
from oakleaf.models.prices import Rates
from oakleaf.stores.base import StoreBackend
from support.fake_providers import FakeProviders

SHORT, LONG = 40, 2_000
LIMITS = Limits(turns=10**6)
Drive = Callable[[Session], Awaitable[object]]


@oakleaf.tool(effect="read")
async def track(order: int) -> str:
    """Say where a parcel is."""
    return f"{order} is in Zanzibar"


def session_of(entries: int, store: oakleaf.Store) -> Session:
    session = store.start(seeds=[system("You find parcels.")])
    for n in range(entries // 4):
        call = ToolCall(f"c{n}", "track", {"order": n})
        session.append(
            [
                user(f"Where is {n}?"),
                assistant(call),
                tool_result(call.id, "In Zanzibar."),
                assistant("There."),
            ]
        )
    return store.session(session.session_id)


class LoopMeter:
    """Counts the calls of the thread it is used on, and notes those that encode or decode."""

    def __init__(self) -> None:
        self.calls = 0
        self.own_calls = 0
        self.codings: list[str] = []

    def __enter__(self) -> LoopMeter:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, arg: Any) -> None:
        self.calls += event in ("call", "c_call")
        self.own_calls += event == "call" and frame.f_globals.get("__name__", "").startswith("oakleaf.")
        if event == "c_call":
            coder = getattr(arg, "__self__", None)
            if isinstance(coder, msgspec.json.Encoder | msgspec.json.Decoder):
                self.codings.append(f"{arg.__name__} in {_callers(frame)}")


def _callers(frame: FrameType | None) -> str:
    names = []
    while frame is not None and len(names) < 4:
        names.append(
            frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name
        )
        frame = frame.f_back
    return ", called by ".join(names)


def measure(store: oakleaf.Store, entries: int, drive: Drive) -> LoopMeter:
    meter = LoopMeter()
    other, session = session_of(SHORT, store), session_of(entries, store)

    async def run() -> None:
        await drive(other)  # imports, threads, caches
        with meter:
            await drive(session)

    asyncio.run(run())
    return meter


async def own_loop(session: Session) -> None:
    async with session.turn("Where?") as turn:
        await turn.request("anthropic")
        await turn.answer(assistant(ToolCall("c1", "track", {"order": 1})), usage=Usage(1, 1))
        for call in turn.open_tool_calls:
            await turn.run(call, track)
        await turn.answer(assistant("There."), usage=Usage(1, 1))


def sending(**arguments: Any) -> Drive:
    async def send(session: Session) -> None:
        calls = [ToolCall(f"c{n}", "track", {"order": n}) for n in range(3)]
        rates = Rates(input=1, output=1)
        model = ScriptedModel(
            lambda request: oakleaf.wire.Answer(script.pop(0), Usage(1, 1), None, "scripted", "m", "stop"),
            rates=rates,
        )
        script = [assistant(*calls), assistant("There.")]
        limits = Limits(turns=10**6, **arguments)
        result = await session.send("Where?", model=model, tools=[track], limits=limits)
        assert result.text == "There."

    return send


DRIVES: dict[str, Drive] = {
    "own loop": own_loop,
    "send": sending(),
    "send, cost limited": sending(max_cost_microcents=10**12),
    "send, window known": sending(context_window=10**6),
    "send, at most 20 messages": sending(max_messages=20),
}


class TestLength:
    @pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
    def test_a_turn_costs_the_event_loop_the_same_in_a_long_session(self, drive: Drive) -> None:
        with oakleaf.open("memory:") as store:
            short, long = (measure(store, entries, drive).calls for entries in (SHORT, LONG))
        assert long < 1.5 * short, (short, long)

    @pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-chat", "gemini"])
    @pytest.mark.extra
    def test_a_request_by_a_vendors_sdk(self, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The SDK looks at each message on the event loop; OpenAI's does not look into a tuple of Responses' items."""
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
            monkeypatch.setenv(name, "k" * 20)
        with FakeProviders() as server, oakleaf.open("memory:") as store:

            async def send(session: Session) -> None:
                model = f"{provider}:some-model@{server.url_for(provider)}"
                await session.send("Where?", model=model, limits=LIMITS)

            short, long = (measure(store, entries, send) for entries in (SHORT, LONG))
            assert [request.problems for request in server.requests] == [[]] * 4
        assert long.own_calls < 1.5 * short.own_calls, (short.own_calls, long.own_calls)
        if provider == "openai":
            assert long.calls < 1.5 * short.calls, (short.calls, long.calls)

    def test_so_does_a_compaction(self) -> None:
        with oakleaf.open("memory:") as store:
            drive = sending(context_tokens=600)
            short, long = (measure(store, entries, drive).calls for entries in (SHORT, LONG))
        assert long < 1.5 * short, (short, long)


class TestStore:
    @pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
    @pytest.mark.extra
    def test_no_call_of_the_store_is_made_on_the_event_loop(self, drive: Drive) -> None:
        here: list[str] = []
        with oakleaf.open("memory:") as store:
            session = session_of(LONG, store)
            note_callers(store.backend, here)

            async def run() -> None:
                here.clear()
                await drive(session)

            asyncio.run(run())
            assert here == []


def note_callers(backend: StoreBackend, here: list[str]) -> None:
    """Note the name of each method of the store that this thread calls."""
    note_calls(backend, here, threading.get_ident())


def note_calls(backend: StoreBackend, names: list[str], thread: int | None = None) -> None:
    """Note the name of each method of the store that is called from outside, or that one thread calls."""
    inside = threading.local()  # a method that a store derives calls others of the store

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "name", None):
                return method(*args, **kwargs)
            if thread is None or threading.get_ident() == thread:
                names.append(name)
            inside.name = name
            try:
                return method(*args, **kwargs)
            finally:
                inside.name = None

        return call

    for name in dir(StoreBackend):
        method = getattr(backend, name)
        if (
            not name.startswith("_") and callable(method) and name != "life_token"
        ):  # asked once for each process
            setattr(backend, name, noting(name, method))


class TestLongHistories:
    """A thread that computes holds the interpreter, and the loop waits for it: long histories are read one at a time."""

    @pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
    def test_they_are_read_one_after_the_other_and_each_entry_once(self, drive: Drive) -> None:
        with oakleaf.open("memory:") as store:
            sessions = [session_of(LONG, store) for _ in range(3)]
            reading, most, reads = list[int](), list[int](), list[int]()
            path = store.backend.path

            def note(*args: Any, **kwargs: Any) -> Any:
                snapshot = path(*args, **kwargs)
                if len(snapshot.entries) > threads.MANY_ENTRIES:
                    reading.append(1)
                    most.append(len(reading))
                    time.sleep(0.01)
                    reading.pop()
                reads.append(len(snapshot.entries))
                return snapshot

            store.backend.path = note  # type: ignore[method-assign]

            async def run() -> None:
                await asyncio.gather(*(drive(session) for session in sessions))

            asyncio.run(run())
        assert most == [1] * len(sessions)
        assert sum(reads) < len(sessions) * (LONG + 100)

    def test_a_request_of_your_own_loop_reads_only_what_is_new(self) -> None:
        with oakleaf.open("memory:") as store:
            session = session_of(LONG, store)
            reads = list[int]()
            path = store.backend.path

            def note(*args: Any, **kwargs: Any) -> Any:
                snapshot = path(*args, **kwargs)
                reads.append(len(snapshot.entries))
                return snapshot

            async def run() -> None:
                async with session.turn("Where?") as turn:
                    assert await turn.request("anthropic") == session.request("anthropic")
                    store.backend.path = note  # type: ignore[method-assign]
                    await turn.answer(assistant(ToolCall("c1", "track", {"order": 1})))
                    await turn.result("c1", "There.")
                    request = await turn.request("anthropic")
                    assert reads == [2]
                    assert request == session.request("anthropic")
                    session.compact("They were found.", first_kept=LONG - 10)
                    assert await turn.request("anthropic") == session.request("anthropic")
                    await turn.answer(assistant("There."))

            asyncio.run(run())


class TestCrossings:
    """Each crossing to a thread of the log and back costs the loop as much as the rest of a step: a step has one."""

    @pytest.mark.parametrize("rounds", [1, 5])
    def test_a_step_of_our_loop_crosses_once_to_write(
        self, rounds: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crossings = count_crossings(monkeypatch)
        with oakleaf.open("memory:") as store:
            session = store.start()
            asyncio.run(send_rounds(session, 1))  # reads once what later turns know
            crossings.clear()
            asyncio.run(send_rounds(session, rounds))
        # The input, an answer and a result a round, the last answer; load, lease, and the end with the inbox and the lease.
        assert len(crossings) == (1 + 2 * rounds + 1) + 3

    def test_a_step_of_your_own_loop_does_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        crossings = count_crossings(monkeypatch)
        with oakleaf.open("memory:") as store:
            session = store.start()

            async def run() -> None:
                async with session.turn("Where?") as turn:
                    await turn.answer(assistant(ToolCall("c1", "track", {"order": 1})))
                    await turn.result("c1", "There.")
                    await turn.answer(assistant("There."))

            asyncio.run(run())
        assert len(crossings) == 4 + 1  # and leaving the turn

    @pytest.mark.extra
    def test_nothing_of_a_step_is_read_again(self) -> None:
        """The status of its calls, their state and the facts that its events tell are known to the run that wrote them."""
        with oakleaf.open("memory:") as store:
            session, calls = store.start(), list[str]()
            asyncio.run(send_rounds(session, 1))
            note_calls(store.backend, calls)
            asyncio.run(send_rounds(session, 3))
            reads = [name for name in calls if name not in ("commit", "life_token")]
        assert reads == ["path", "inbox"]


def count_crossings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    crossings: list[object] = []
    submit = threads._short.submit

    def count(call: Callable[[], Any]) -> Future[Any]:
        crossings.append(call)
        return submit(call)

    monkeypatch.setattr(threads._short, "submit", count)
    return crossings


async def send_rounds(session: Session, rounds: int) -> None:
    calls = [assistant(ToolCall(f"c{n}", "track", {"order": n})) for n in range(rounds)]
    await session.send("Where?", model=ScriptedModel([*calls, "There."]), tools=[track], limits=LIMITS)


class TestTools:
    """Tools that are not async run on threads of their own, which nothing else of the program waits for."""

    def test_as_many_block_side_by_side_as_sessions_call_and_none_on_a_thread_of_the_loop(self) -> None:
        """The loop resolves the names of servers on its threads: a model call must not wait for other sessions' tools."""
        count, may_end, blocked = 40, threading.Event(), list[threading.Thread]()

        @oakleaf.tool(effect="read")
        def block() -> None:
            """Wait."""
            blocked.append(threading.current_thread())
            may_end.wait(30)

        async def send(session: Session) -> None:
            model = ScriptedModel([assistant(ToolCall("c1", "block", {})), "Done."])
            await session.send("Go.", model=model, tools=[block])

        async def all_block() -> None:
            while len(blocked) < count:
                await asyncio.sleep(0.001)

        async def run() -> None:
            sending = [asyncio.ensure_future(send(store.start())) for _ in range(count)]
            try:
                await asyncio.wait_for(all_block(), 20)
                await asyncio.wait_for(asyncio.to_thread(time.time), 20)
            finally:
                may_end.set()
                await asyncio.gather(*sending)

        with oakleaf.open("memory:") as store:
            asyncio.run(run())
        assert len(set(blocked)) == count

    def test_send_sync_does_not_wait_for_one_that_timed_out(self) -> None:
        may_end, has_ended = threading.Event(), threading.Event()

        @oakleaf.tool(effect="read", timeout=0.05)
        def hang() -> None:
            """Wait."""
            may_end.wait(30)
            has_ended.set()

        with oakleaf.open("memory:") as store:
            model = ScriptedModel([assistant(ToolCall("c1", "hang", {})), "Gave up."])
            assert store.start().send_sync("Go.", model=model, tools=[hang]).text == "Gave up."
            assert not has_ended.is_set()
        may_end.set()


class TestLargeMessages:
    @pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
    def test_no_message_is_encoded_or_decoded_on_the_event_loop(self, drive: Drive) -> None:
        with oakleaf.open("memory:") as store:
            meter = measure(store, SHORT, drive)
        assert [coding for coding in meter.codings if "define_tools" not in coding] == []


class TestGarbage:
    @pytest.mark.parametrize("drive", [own_loop, sending(), sending(max_messages=20)])
    def test_a_long_history_is_freed_in_pieces_on_a_thread(
        self, drive: Drive, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No thread runs while values are freed, which takes 15 ms for 10,000 entries."""
        emptied = list[list[object]]()
        monkeypatch.setattr(threads, "_empty", emptied.append)
        with oakleaf.open("memory:") as store:
            session = session_of(LONG, store)

            async def run() -> None:
                await drive(session)
                await threads.run_long(lambda: None)  # after what was to be freed

            asyncio.run(run())
        (values,) = emptied
        assert len(values) > LONG
        # The list alone refers to each of them, or to the message in it.
        held = [value for value in values if sys.getrefcount(value) > 3]  # and `value`, and the argument
        assert len(held) < 40

    @pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
    def test_what_a_turn_used_is_free_when_it_ends(self, drive: Drive) -> None:
        """Not when garbage is collected, which stops the program for as long as it takes to look at all its objects."""
        with oakleaf.open("memory:") as store:
            session = session_of(SHORT, store)

            async def run() -> list[object]:
                await drive(session)
                gc.collect()
                gc.disable()
                gc.set_debug(gc.DEBUG_SAVEALL)
                await drive(session)
                gc.collect()
                return [each for each in gc.garbage if type(each).__module__.startswith("oakleaf")]

            try:
                left = asyncio.run(run())
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
        assert left == []
