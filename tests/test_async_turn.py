"""`async with session.turn(…)`: the same turn as `with`, and nothing of the store on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import oakleaf
from oakleaf import AsyncTurn, Event, Session, ToolCall, Turn, Usage, assistant, system
from oakleaf.errors import InvalidOperation, SessionRunning
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS

CALLS = assistant(*(ToolCall(f"c{n}", "look", {"order": n}) for n in range(5)))


async def look(order: int) -> str:
    await asyncio.sleep(0)
    return f"{order} is lost"


def look_here(order: int) -> str:
    return f"{order} is lost"


def payloads(session: Session) -> list[Any]:
    return [(entry.kind, entry.role, entry.turn, entry.step, entry.payload) for entry in session.path()]


def kinds(turn: type[Turn] | type[AsyncTurn]) -> dict[str, bool]:
    """Whether each public name is a property."""
    return {
        name: isinstance(member, property) for name, member in vars(turn).items() if not name.startswith("_")
    }


class TestTheSameTurn:
    def test_has_each_name_with_the_same_kind(self) -> None:
        blocking, awaited = kinds(Turn), kinds(AsyncTurn)
        of_asyncio = {"enter", "exit", "request", "messages"}  # a session's own block the event loop
        assert {name: blocking.get(name) for name in awaited.keys() - of_asyncio} == {
            name: awaited[name] for name in awaited.keys() - of_asyncio
        }

    def test_leaves_the_same_entries_calls_and_facts(self, store: Store) -> None:
        first, second = store.start("a", [system("You help.")]), store.start("a", [system("You help.")])

        async def run() -> None:
            async with first.turn("Where?", model="anthropic:m") as turn:
                await turn.answer(CALLS, usage=Usage(10, 2))
                for call in turn.open_tool_calls:
                    await turn.run(call, look_here)
                await turn.failed("overloaded")
                await turn.answer(assistant("Lost."), usage=Usage(20, 3))
                assert turn.done

        asyncio.run(run())
        with second.turn("Where?", model="anthropic:m") as turn:
            turn.answer(CALLS, usage=Usage(10, 2))
            for call in turn.open_tool_calls:
                turn.run(call, look_here)
            turn.failed("overloaded")
            turn.answer(assistant("Lost."), usage=Usage(20, 3))
        assert payloads(first) == payloads(second)
        assert first.usage() == second.usage()
        assert [fact.kind for fact in first.journal()] == [fact.kind for fact in second.journal()]
        assert first.row.status == "idle"

    def test_tells_the_same_events(self, store: Store) -> None:
        first, second = store.start("a", [system("x")]), store.start("a", [system("x")])

        async def run() -> list[Event]:
            async with first.turn("Where?") as turn:
                await turn.answer(CALLS)
                for call in turn.open_tool_calls:
                    await turn.run(call, look_here)
                events = await turn.events()
                await turn.answer(assistant("Lost."))
            return events + await turn.events()

        with second.turn("Where?") as turn:
            turn.answer(CALLS)
            for call in turn.open_tool_calls:
                turn.run(call, look_here)
            turn.answer(assistant("Lost."))
        here, there = asyncio.run(run())[1:], turn.events()[1:]  # the first names the session
        assert here == there
        assert here[-1].type == "session:turn_completed"

    def test_has_the_request_of_the_session(self, session: Session) -> None:
        async def run() -> None:
            async with session.turn("Where?") as turn:
                for provider in PROVIDERS:
                    assert await turn.request(provider) == session.request(provider)
                    assert await turn.messages(provider) == session.messages(provider)
                await turn.answer(assistant("Lost."))

        asyncio.run(run())

    def test_runs_tools_side_by_side_and_keeps_each_result(self, session: Session) -> None:
        together = asyncio.Barrier(5)

        async def meet(order: int) -> str:
            await together.wait()
            return f"{order} is lost"

        async def run() -> None:
            async with session.turn("Where?", model="anthropic:m") as turn:
                await turn.answer(CALLS)
                await asyncio.gather(*(turn.run(call, meet) for call in turn.open_tool_calls))
                assert turn.open_tool_calls == ()
                assert await turn.answer(assistant("Lost.")) == assistant("Lost.")

        asyncio.run(run())
        assert session.usage().calls == 2, "one announced after the input, one after the last result"
        assert session.verify() == []

    def test_repeats_what_is_recorded_under_its_key(self, session: Session) -> None:
        ran: list[int] = []

        async def count(order: int) -> str:
            ran.append(order)
            return "lost"

        async def run(*, stops: bool) -> None:
            async with session.turn("Where?", key="k") as turn:
                await turn.answer(CALLS)
                for call in turn.open_tool_calls[:3] if stops else turn.open_tool_calls:
                    await turn.run(call, count)
                if not stops:
                    await turn.answer(assistant("Lost."))

        asyncio.run(run(stops=True))
        asyncio.run(run(stops=False))
        asyncio.run(run(stops=False))
        assert ran == [0, 1, 2, 3, 4]
        assert [entry.role for entry in session.path()].count("tool") == 5
        assert session.path()[-1].message == assistant("Lost.")


class TestLeavingIt:
    def test_by_an_error_marks_the_session_as_failed(self, session: Session) -> None:
        async def run() -> None:
            async with session.turn("Where?"):
                raise OSError("no network")

        with pytest.raises(OSError, match="no network"):
            asyncio.run(run())
        assert (session.row.status, session.row.holder) == ("failed", None)
        assert session.row.error == "OSError: no network"

    def test_by_a_cancellation_marks_it_as_cancelled_and_loses_nothing(self, session: Session) -> None:
        async def run() -> None:
            async with session.turn("Where?") as turn:
                await turn.answer(CALLS)
                await turn.run(turn.open_tool_calls[0], look)
                await asyncio.sleep(30)

        async def main() -> None:
            task = asyncio.create_task(run())
            while [entry.role for entry in session.path()].count("tool") == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert (session.row.status, session.row.holder) == ("cancelled", None)
        assert [entry.role for entry in session.path()] == ["system", "user", "assistant", "tool"]

    def test_while_it_is_being_opened_gives_the_lease_back(
        self, store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit, is_committing = store.backend.commit, threading.Event()

        def slow(change: Any) -> Any:
            is_committing.set()
            time.sleep(0.1)
            return commit(change)

        async def main() -> None:
            monkeypatch.setattr(store.backend, "commit", slow)
            task = asyncio.create_task(session.turn("Where?").__aenter__())
            await asyncio.to_thread(is_committing.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert session.row.holder is None
        assert store.session(session.session_id).open_tool_calls == ()

    def test_a_second_turn_is_refused_meanwhile(self, store: Store, session: Session) -> None:
        async def main() -> None:
            async with session.turn("Where?") as turn:
                with pytest.raises(SessionRunning):
                    async with store.session(session.session_id).turn("And?"):
                        pass
                await turn.answer(assistant("Lost."))
                with pytest.raises(InvalidOperation, match="has ended"):
                    await turn.answer(assistant("Again."))

        asyncio.run(main())


def test_nothing_of_the_store_runs_on_the_event_loop(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    for name in ("commit", "path", "session", "journal", "control_entries", "branches", "draft", "detail"):
        method = getattr(store.backend, name)

        def noted(*args: Any, _method: Any = method, **kwargs: Any) -> Any:
            threads.add(threading.get_ident())
            return _method(*args, **kwargs)

        monkeypatch.setattr(store.backend, name, noted)

    async def run() -> None:
        turning = session.turn("Where?", tools=[oakleaf.tool(look)])
        async with turning as turn:
            await turn.request("anthropic")
            await turn.answer(CALLS)
            while turn.open_tool_calls:
                await turn.run(turn.open_tool_calls[0], look_here)
            assert not turn.is_cancel_requested
            await turn.answer(assistant("Lost."))
            assert turn.done

    asyncio.run(run())
    assert threads
    assert threading.get_ident() not in threads
