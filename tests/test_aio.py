"""`store.aio` and `session.aio`: the same verbs, awaited, and nothing of the store on the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, Session, Store, system, user
from oakleaf.errors import AgentBound, NotFound, StaleLeaf
from oakleaf.session import AsyncSession
from oakleaf.store import AsyncStore
from test_event_loop import LONG, SHORT, note_callers, session_of

WITHOUT = {
    Session: {"session_id", "leaf", "aio", "events", "send_sync", "resume_sync", "replay", "replay_sync"},
    Store: {"aio", "in_space", "raise_if_running"},
}
"""The names that read no store, that scripts use, or that are asynchronous already."""


def public(face: type) -> set[str]:
    return {name for name in vars(face) if not name.startswith("_")}


class TestVerbs:
    @pytest.mark.parametrize(("face", "aio"), [(Session, AsyncSession), (Store, AsyncStore)])
    def test_every_verb_has_an_asynchronous_form(self, face: type, aio: type) -> None:
        assert public(aio) == public(face) - WITHOUT[face]
        for name in public(aio):
            verb = vars(aio)[name]
            assert inspect.iscoroutinefunction(verb) or inspect.isasyncgenfunction(verb), name

    def test_results_are_those_of_the_blocking_verbs(self, any_store: Store) -> None:
        store = any_store

        async def run() -> None:
            session = await store.aio.latest_or_start("41", "support", [system("You help.")])
            done = await session.aio.append([user("Where?")], key="mail-1")
            assert (await session.aio.append([user("Where?")], key="mail-1")).leaf == done.leaf
            result = await (
                await session.aio.send("And now?", model=ScriptedModel(["Lost."]), agent="support")
            )
            assert result.text == "Lost."
            fork = await session.aio.fork(at=1, title="Again")
            assert (await fork.aio.row()).title == "Again"
            assert [row.session_id async for row in store.aio.all_sessions()] == [
                row.session_id for row in store.all_sessions()
            ]
            assert [problem async for problem in store.aio.verify()] == []
            same = await store.aio.session(session.session_id)
            assert await same.aio.path() == same.path()
            assert await same.aio.request("anthropic") == same.request("anthropic")
            assert await same.aio.usage(by="turn") == same.usage(by="turn")
            assert await same.aio.state() == same.state
            async with await same.aio.turn("Thanks") as turn:
                await turn.answer(oakleaf.assistant("Welcome."))
            assert same.transcript()[-1].text == "Welcome."

        asyncio.run(run())

    def test_errors_are_those_of_the_blocking_verbs(self, any_store: Store) -> None:
        async def run() -> None:
            with pytest.raises(NotFound):
                await any_store.aio.session("ses_none")
            session = await any_store.aio.start("support")
            with pytest.raises(AgentBound):
                await session.aio.send("Hi", model=ScriptedModel(["Hi."]), agent="sales")
            other = await any_store.aio.session(session.session_id)
            await other.aio.append([user("first")])
            with pytest.raises(StaleLeaf):
                await session.aio.append([user("second")])
            with pytest.raises(NotFound):
                async for _ in any_store.aio.verify(["ses_none"]):
                    pass

        asyncio.run(run())


class TestEventLoop:
    def test_no_call_of_the_store_is_made_on_it(self, tmp_path: Path) -> None:
        here: list[str] = []
        with oakleaf.open(tmp_path / "agent.db") as store:
            note_callers(store.backend, here)

            async def run() -> None:
                session = await store.aio.start("support", [system("You help.")])
                model = ScriptedModel(["Yes.", "No."])
                here.clear()  # the first look at this process
                await (await session.aio.send("Hi", model=model, agent="support"))
                await (await session.aio.resume(model=model, take_over=True, rollback=True))
                async with await session.aio.turn("And?", take_over=True) as turn:
                    await turn.answer(oakleaf.assistant("No."))
                await session.aio.undo()
                for verb in ("row", "state", "open_tool_calls", "refresh", "path", "hydrate", "verify"):
                    await getattr(session.aio, verb)()
                async for _ in store.aio.findings():
                    pass
                await store.aio.delete(session.session_id)
                await store.aio.purge(session.session_id)

            asyncio.run(run())
            assert here == []

    @pytest.mark.parametrize("verb", ["path", "hydrate", "verify", "request"])
    def test_it_goes_on_while_long_sessions_are_read(self, verb: str, tmp_path: Path) -> None:
        """The time between two beats is the process's own, so that a busy machine changes nothing."""
        arguments = ["anthropic"] if verb == "request" else []

        async def run(store: Store, session_id: str) -> tuple[float, float]:
            begin = last = time.process_time()
            longest = 0.0

            async def beat() -> None:
                nonlocal last, longest
                while True:
                    await asyncio.sleep(0)
                    longest, last = max(longest, time.process_time() - last), time.process_time()

            heart = asyncio.create_task(beat())
            handles = [await store.aio.session(session_id) for _ in range(4)]
            await asyncio.gather(*(getattr(handle.aio, verb)(*arguments) for handle in handles))
            heart.cancel()
            return longest, time.process_time() - begin

        with oakleaf.open(tmp_path / "agent.db", synchronous="normal") as store:
            session_id = session_of(10_000, store).session_id
            longest, all_of_it = asyncio.run(run(store, session_id))
        assert longest < all_of_it / 4

    def test_long_sessions_are_read_one_at_a_time(self) -> None:
        with oakleaf.open("memory:") as store:
            reading, most = set[int](), list[int]()
            names = [session_of(entries, store).session_id for entries in (LONG, LONG, LONG, SHORT)]
            path = store.backend.path

            def note(*args: Any, **kwargs: Any) -> Any:
                reading.add(threading.get_ident())
                most.append(len(reading))
                time.sleep(0.01)
                snapshot = path(*args, **kwargs)
                reading.discard(threading.get_ident())
                return snapshot

            async def run(names: list[str]) -> list[Any]:
                store.backend.path = note  # type: ignore[method-assign]
                sessions = [await store.aio.session(name) for name in names]
                return await asyncio.gather(*(session.aio.path() for session in sessions))

            assert {len(entries) for entries in asyncio.run(run(names[:3]))} == {LONG + 1}
            assert set(most) == {1}


class TestCancellation:
    def test_it_is_raised_when_the_verb_has_ended(self, tmp_path: Path) -> None:
        """The handle is free then, and nothing of the cancelled verb comes later."""
        has_begun, may_end = threading.Event(), threading.Event()
        with oakleaf.open(tmp_path / "agent.db") as store:
            session = store.start()
            commit = store.backend.commit

            def wait(*args: Any, **kwargs: Any) -> Any:
                has_begun.set()
                assert may_end.wait(30)
                return commit(*args, **kwargs)

            store.backend.commit = wait  # type: ignore[method-assign]

            async def run() -> None:
                task = asyncio.create_task(session.aio.append([user("first")]))
                while not has_begun.is_set():
                    await asyncio.sleep(0.001)
                task.cancel()
                for _ in range(3):
                    await asyncio.sleep(0.001)
                assert not task.done()
                may_end.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert [entry.text for entry in await session.aio.path()] == ["first"]
                await session.aio.append([user("second")])

            asyncio.run(run())
            assert [entry.text for entry in store.session(session.session_id).path()] == ["first", "second"]

    def test_iteration_may_end_early(self, any_store: Store) -> None:
        names = [any_store.start().session_id for _ in range(120)]

        async def run() -> str:
            async for row in any_store.aio.all_sessions(limit=50):
                return row.session_id
            return ""

        assert asyncio.run(run()) in names
        assert list(any_store.verify()) == []
