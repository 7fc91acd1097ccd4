"""`session.events()`: every event of a session once and in order, from any process, with the answer in flight."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Event, ScriptedModel, Session, Store, ToolCall, assistant, system, user
from oakleaf.agent.events import fact_event
from oakleaf.errors import InvalidArgument, NotFound

SENDER = """
import asyncio
import sys
import oakleaf
from oakleaf import Answer, Delta, Usage, assistant

WORDS = "It was found in Zanzibar behind the harbour .".split()


class Talker:
    provider, model = "talker", "talker-1"

    async def stream(self, request):
        for word in WORDS:
            yield Delta(text=word + " ")
            await asyncio.sleep(0.3)
        yield Answer(assistant(" ".join(WORDS)), Usage(1, 1, 0, 0), None, self.provider, self.model, "stop")


with oakleaf.open(sys.argv[1]) as store:
    store.session("s").send_sync("Where?", model=Talker())
"""


@oakleaf.tool(effect="read")
def look() -> str:
    """Look."""
    return "lost"


def all_events(session: Session) -> list[Event]:
    """Return the events of the journal as it is now."""
    return [fact_event(fact, session.log.appended_entries(fact)) for fact in session.journal()]


async def first(count: int, session: Session, after: int | None = None) -> list[Event]:
    events: list[Event] = []
    async for event in session.events(after):
        if event.journal_number is not None:
            events.append(event)
        if len(events) == count:
            break
    return events


class TestEvents:
    def test_they_are_those_of_the_journal_from_any_number(self, any_store: Store) -> None:
        session = any_store.start("support", [system("You help.")])
        model = ScriptedModel([assistant(ToolCall("c1", "look", {})), "Lost."])
        session.send_sync("Where?", model=model, tools=[look])
        for number in range(150):
            session.append([user(f"{number}")])
        session.title("Lost")
        known = all_events(session)
        assert asyncio.run(first(len(known), session, 0)) == known
        assert asyncio.run(first(20, session, len(known) - 20)) == known[-20:]

    def test_those_to_come_follow_without_a_gap(self, any_store: Store) -> None:
        session = any_store.start()
        before = len(all_events(session))

        async def run() -> list[Event]:
            following = asyncio.create_task(first(30, session))
            while not following.done():
                await asyncio.sleep(0.01)
                other = await any_store.aio.session(session.session_id)
                await other.aio.append([user("one"), user("two")])
            return await following

        events = asyncio.run(run())
        assert [event.journal_number for event in events] == [*range(before + 1, before + 31)]
        assert events == all_events(any_store.session(session.session_id))[before : before + 30]

    def test_an_answer_of_another_process_is_told_in_flight(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.db"
        with oakleaf.open(path) as store:
            session = store.start(session_id="s")

            async def run() -> list[Event]:
                sender = await asyncio.create_subprocess_exec(sys.executable, "-c", SENDER, path)
                events = []
                async for event in session.events():
                    events.append(event)
                    if event.type == "session:turn_completed":
                        break
                assert await sender.wait() == 0
                return events

            events = asyncio.run(run())
        names = [event.type for event in events]
        answer = next(event.data["text"] for event in events if event.type == "session:answer")
        drafts = [event.data["text"] for event in events if event.type == "session:draft"]
        assert names.index("session:input") < names.index("session:draft") < names.index("session:answer")
        assert all((answer + " ").startswith(draft) for draft in drafts)

    def test_a_runner_that_is_killed_changes_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.db"
        with oakleaf.open(path) as store:
            session = store.start(session_id="s")

            async def run() -> None:
                sender = subprocess.Popen([sys.executable, "-c", SENDER, path])
                numbers = []
                async for event in session.events(0):
                    numbers.append(event.journal_number)
                    if event.type == "session:draft":
                        sender.kill()
                        break
                sender.wait()
                handle = await store.aio.session("s")
                await (await handle.aio.resume(model=ScriptedModel(["Found."]), take_over=True))
                last = max(filter(None, numbers))
                async for event in session.events(last):
                    assert event.journal_number in (None, last + 1)
                    last = event.journal_number or last
                    if event.type == "session:turn_completed":
                        break

            asyncio.run(run())
            assert store.session("s").transcript()[-1].text == "Found."


class TestEnd:
    def test_a_cancelled_reader_is_done_at_once(self, any_store: Store) -> None:
        session = any_store.start()

        async def run() -> None:
            following = asyncio.create_task(first(1, session))
            await asyncio.sleep(0)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(run())

    def test_a_purged_session_is_not_found(self, any_store: Store) -> None:
        session = any_store.start()

        async def run() -> None:
            following = asyncio.create_task(first(10, session, 0))
            await any_store.aio.delete(session.session_id)
            await any_store.aio.purge(session.session_id)
            with pytest.raises(NotFound):
                await following

        asyncio.run(run())

    @pytest.mark.parametrize("after", [-1, 10_000])
    def test_a_number_that_is_not_there_is_refused(self, after: int, any_store: Store) -> None:
        with pytest.raises(InvalidArgument, match="the number of an event, 0 to"):
            asyncio.run(first(1, any_store.start(), after))
