"""Real runners of Google's ADK on Oakleaf: tools, approvals, agents side by side, rewinds, and a process that is killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, SequentialAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.errors import InvocationNotFoundError, StaleSessionError
from google.adk.events.event import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.adk.tools import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from test_adk import ANN, APP, Service, says

import oakleaf
from oakleaf import draw_tree
from oakleaf.cli.main import oakleaf as command
from oakleaf.store import Store

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*deprecated:DeprecationWarning"
    ),  # agents side by side, by ADK itself
    pytest.mark.filterwarnings(
        r"ignore:.*\[EXPERIMENTAL\]:UserWarning"
    ),  # going on with an invocation, likewise
]

USED = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=2)


def calls(*pairs: tuple[str, dict[str, Any]]) -> types.Content:
    parts = [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in pairs]
    return types.Content(role="model", parts=parts)


class Script(BaseLlm):
    """Says one line after the other, by how often it has spoken in what it is shown."""

    model: str = "gemini-script"
    lines: list[Any]
    requests: list[list[str]] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        self.requests.append([part.text for content in contents for part in content.parts or () if part.text])
        line = self.lines[sum(content.role == "model" for content in contents)]
        answer = types.Content(role="model", parts=[types.Part(text=line)]) if isinstance(line, str) else line
        yield LlmResponse(content=answer, model_version=self.model, usage_metadata=USED)


def look(order: int, tool_context: ToolContext) -> dict[str, Any]:
    """Look an order up."""
    tool_context.state["seen"] = [*(tool_context.state.get("seen") or []), order]
    tool_context.state["user:last"] = order
    return {"order": order, "status": "lost"}


def pay(amount: int) -> dict[str, Any]:
    """Pay somebody."""
    return {"paid": amount}


class Shop:
    """A runner on a service, and one user of it."""

    def __init__(self, store: Store, agent: BaseAgent, **about: Any) -> None:
        self.service = Service(store)
        self.runner = (
            Runner(app=App(name=APP, root_agent=agent, **about), session_service=self.service.service)
            if about
            else Runner(app_name=APP, agent=agent, session_service=self.service.service)
        )

    def say(self, words: str | types.Content | None, **how: Any) -> list[Event]:
        async def listen() -> list[Event]:
            message = types.UserContent(words) if isinstance(words, str) else words
            run = self.runner.run_async(user_id=ANN, session_id="one", new_message=message, **how)
            return [event async for event in run]

        return asyncio.run(listen())

    def rewind(self, invocation_id: str) -> None:
        where = {"user_id": ANN, "session_id": "one"}
        asyncio.run(self.runner.rewind_async(**where, rewind_before_invocation_id=invocation_id))

    def session(self) -> Session:
        return self.service.load("one")

    def below(self) -> oakleaf.Session:
        return self.service.oakleaf(self.session())

    def messages(self) -> list[oakleaf.Message]:
        return [entry.message for entry in self.below().path() if entry.message is not None]


def helper(*lines: Any, **about: Any) -> LlmAgent:
    return LlmAgent(name="helper", model=Script(lines=list(lines)), **{"tools": [look], **about})


def shop(store: Store, agent: BaseAgent, **about: Any) -> Shop:
    result = Shop(store, agent, **about)
    result.service.create("one")
    return result


TWO = calls(("look", {"order": 41}), ("look", {"order": 42}))


class TestRunning:
    def test_a_run_with_two_tools_at_once_is_a_session_of_oakleaf_s(self, store: Store) -> None:
        here = shop(store, helper(TWO, "Both are lost.", "Good bye.", output_key="answer"))
        here.say("Where are they?")
        here.say("Thank you.")
        assert [message.role for message in here.messages()] == [
            *("user", "assistant", "tool", "assistant"),
            *("user", "assistant"),
        ]
        assert here.session().state == {"seen": [41, 42], "answer": "Good bye.", "user:last": 42}
        below = here.below()
        assert (below.row.turns, below.row.status, below.usage().calls) == (2, "idle", 3)
        assert [call.model for call in below.model_calls()] == ["gemini-script"] * 3
        assert [entry.message.text for entry in below.transcript()] == [
            *("Where are they?", "Both are lost."),
            *("Thank you.", "Good bye."),
        ]
        assert list(store.verify()) == []

    def test_what_a_person_must_approve_runs_after_he_did(self, store: Store) -> None:
        tool = FunctionTool(pay, require_confirmation=True)
        here = shop(store, helper(calls(("pay", {"amount": 5})), "Paid.", tools=[tool]))
        confirmation = [call for event in here.say("Pay 5") for call in event.get_function_calls()][-1]
        assert confirmation.name == "adk_request_confirmation"
        yes = types.FunctionResponse(id=confirmation.id, name=confirmation.name, response={"confirmed": True})
        here.say(types.Content(role="user", parts=[types.Part(function_response=yes)]))
        assert here.messages()[-1].text == "Paid."
        assert here.messages()[-2].results[0].content[0].text == '{"paid":5}'
        assert list(store.verify()) == []

    def test_agents_side_by_side_and_one_after_the_other(self, store: Store) -> None:
        both = ParallelAgent(
            name="both",
            sub_agents=[
                LlmAgent(
                    name=name,
                    model=Script(lines=[calls(("look", {"order": n})), f"{name} is done."]),
                    tools=[look],
                    output_key=f"temp:{name}",
                )
                for n, name in enumerate(("left", "right"))
            ],
        )
        last = LlmAgent(name="last", model=Script(lines=["Both: {temp:left} {temp:right}"] * 9))
        here = shop(store, SequentialAgent(name="all", sub_agents=[both, last]))
        events = here.say("Go")
        session = here.session()
        assert [event.id for event in session.events[1:]] == [
            event.id for event in events if not event.partial
        ]
        assert [event.branch for event in session.events[1:]] == [event.branch for event in events]
        assert {"left is done.", "right is done."} <= {message.text for message in here.messages()}
        assert list(store.verify()) == []

    def test_what_adk_compacts_it_shows_compacted_and_oakleaf_keeps_all(self, store: Store) -> None:
        agent = helper("one", "two", "three")
        summarizer = LlmEventSummarizer(llm=Script(lines=["So far: little."]))
        config = EventsCompactionConfig(compaction_interval=2, overlap_size=0, summarizer=summarizer)
        here = shop(store, agent, events_compaction_config=config)
        for words in ("first", "second", "third"):
            here.say(words)
        assert isinstance(agent.model, Script)
        assert agent.model.requests[-1] == ["So far: little.", "third"]
        assert [message.text for message in here.messages()][:3] == ["first", "one", "second"]
        assert list(store.verify()) == []

    def test_who_is_cancelled_in_the_middle_leaves_a_session_that_goes_on(self, store: Store) -> None:
        here = shop(store, helper("one", "two"))

        async def stopped() -> None:
            message = types.UserContent("first")
            run = here.runner.run_async(user_id=ANN, session_id="one", new_message=message)
            waiting = asyncio.ensure_future(anext(run))
            for _ in range(30):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await run.aclose()

        asyncio.run(stopped())
        here.say("second")
        assert here.messages()[-2].text == "second"
        assert list(store.verify()) == []

    def test_two_turns_at_once_are_not_woven_into_one(self, store: Store) -> None:
        here = shop(store, helper("one", "two", "three"))
        loaded = here.session()
        here.say("first")
        with pytest.raises(StaleSessionError):
            here.service.append(loaded, says("second"))
        assert [message.text for message in here.messages()] == ["first", "one"]


class TestRewinding:
    def test_the_leaf_moves_back_and_what_was_said_since_stays_in_the_tree(self, store: Store) -> None:
        agent = helper("one", TWO, "three", "four")
        here = shop(store, agent)
        here.say("first")
        taken_back = here.say("second")[0].invocation_id
        assert here.session().state["seen"] == [41, 42]
        here.rewind(taken_back)
        assert [message.text for message in here.messages()] == ["first", "one"]
        assert here.session().state == {"seen": None, "user:last": 42}
        assert here.session().events[-1].actions.rewind_before_invocation_id == taken_back
        here.say("third")
        model = agent.model
        assert isinstance(model, Script)
        assert "second" not in model.requests[-1]
        assert "third" in model.requests[-1]
        below = here.below()
        assert len(below.branches()) == 2
        assert "second" in draw_tree(below)
        assert list(store.verify()) == []

    def test_an_invocation_nobody_knows_moves_nothing(self, store: Store) -> None:
        here = shop(store, helper("one"))
        here.say("first")
        before = here.session()
        with pytest.raises(InvocationNotFoundError):
            here.rewind("nobody")
        assert here.session() == before


def _run_until_killed(place: str, pipe: Connection) -> None:
    def refund(order: int) -> str:
        """Give the money back."""
        pipe.send(order)
        time.sleep(600)
        return "never"

    store = oakleaf.open(place)
    agent = helper("Hello.", calls(("look", {"order": 41}), ("refund", {"order": 41})), tools=[look, refund])
    here = shop(store, agent, resumability_config=ResumabilityConfig(is_resumable=True))
    here.say("hi")
    here.say("Refund 41")


def _count_until_killed(place: str, pipe: Connection) -> None:
    service = Service(oakleaf.open(place))
    session = service.find("one") or service.create("one", user__n=0, app__n=0)
    while True:
        n = session.state["user:n"] + 1
        service.change(session, n=n, user__n=n, app__n=n)
        pipe.send(n)


def killed_in_a_tool(place: str) -> None:
    """Another process runs an agent on the store, and dies in the middle of its second tool."""
    with child_process(_run_until_killed, place) as connection:
        assert connection.poll(60)
        assert connection.recv() == 41


@contextmanager
def child_process(work: Callable[[str, Connection], None], place: str) -> Iterator[Connection]:
    """What another process tells, until it is killed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(place, theirs))
    child.start()
    theirs.close()  # so that what it told can be read to its end
    yield ours
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


class TestKilled:
    @pytest.fixture(params=["sqlite", "postgres"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        if request.param == "sqlite":
            return str(tmp_path / "agent.db")
        url: str = request.getfixturevalue("database").url
        return url

    def test_nothing_is_lost_and_a_person_goes_on(self, place: str) -> None:
        killed_in_a_tool(place)
        with oakleaf.open(place) as store:
            agent = helper("Hello.", None, "I do not know whether it was refunded.")
            here = Shop(store, agent)
            assert [call.call.name for call in here.below().open_tool_calls] == ["look", "refund"]
            assert list(store.verify()) == []
            command_result = CliRunner().invoke(command, ["--store", place, "show", "one"])
            assert command_result.exit_code == 0, command_result.output
            for text in ("Refund 41", "refund", "started, outcome unknown"):
                assert text in command_result.output
            here.say("And?")
            closed, question, answered = here.messages()[-3:]
            assert {result.outcome for result in closed.results} == {"unknown"}
            assert (question.text, answered.text) == ("And?", "I do not know whether it was refunded.")
            unknown, answer, _ = here.session().events[-3:]
            assert (unknown.author, answer.author) == ("helper", "user")
            assert ["may or may not" in str(r.response) for r in unknown.get_function_responses()] == [
                True
            ] * 2
            assert list(store.verify()) == []

    def test_nothing_is_lost_and_adk_goes_on_with_the_invocation(self, place: str) -> None:
        killed_in_a_tool(place)
        ran: list[int] = []

        def refund(order: int) -> str:
            """Give the money back."""
            ran.append(order)
            return "refunded"

        with oakleaf.open(place) as store:
            agent = helper("Hello.", None, "Refunded.", tools=[look, refund])
            here = Shop(store, agent, resumability_config=ResumabilityConfig(is_resumable=True))
            here.say(None, invocation_id=here.session().events[-1].invocation_id)
            assert ran == [41]
            assert here.messages()[-1].text == "Refunded."
            assert here.below().open_tool_calls == ()
            assert [message.role for message in here.messages()[2:]] == [
                "user",
                "assistant",
                "tool",
                "assistant",
            ]
            assert list(store.verify()) == []

    def test_whenever_it_happens_what_was_acknowledged_is_there_and_all_scopes_agree(
        self, place: str
    ) -> None:
        count = 0
        for further in (1, 2, 3, 5, 8):  # where in the next event the signal lands is left to chance
            with child_process(_count_until_killed, place) as lines:
                until = count + further
                while count < until:
                    assert lines.poll(60)
                    count = lines.recv()
            with suppress(EOFError):
                while True:
                    count = lines.recv()
            with oakleaf.open(place) as store:
                session = Service(store).load("one")
                last = session.events[-1].actions.state_delta["n"]
                assert count <= last <= count + 1
                assert [event.actions.state_delta["n"] for event in session.events] == list(
                    range(1, last + 1)
                )
                assert session.state == {"n": last, "user:n": last, "app:n": last}
                assert list(store.verify()) == []
                count = last


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs/frameworks/adk.md"
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(page), "exec"), namespace)
    assert namespace["fork"].transcript()[-1].message.text == "It rains."
    namespace["store"].close()
