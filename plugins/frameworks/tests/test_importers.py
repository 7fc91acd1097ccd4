"""Importers on what the real frameworks write: their own code makes the file, ours reads it without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, Runner, Usage
from agents.extensions.memory.advanced_sqlite_session import AdvancedSQLiteSession
from agents.memory import SQLiteSession
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from support.import_sources import entries_of, import_all, import_one, memory_store, write_sqlite


def texts(path: list) -> list[str]:  # type: ignore[type-arg]
    return [entry.message.text for entry in path if entry.message is not None]


class TestOpenAIAgents:
    def test_a_plain_session_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        session = SQLiteSession("s1", path)
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": "lost"}
        items = [{"role": "user", "content": "q"}, call, result, {"role": "assistant", "content": "a"}]
        asyncio.run(session.add_items(items))  # type: ignore[arg-type]
        session.close()
        with memory_store() as store:
            ours, report = import_one(store, "openai-agents", path)
            assert [e.role for e in entries_of(ours)] == ["user", "assistant", "tool", "assistant"]
            assert report.losses == {}

    def test_branches_and_usage_of_an_advanced_one_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        asyncio.run(self.conversation(path))
        with memory_store() as store:
            ours, report = import_one(store, "openai-agents", path)
            assert texts(entries_of(ours)) == ["first", "1", "other", "3"]
            assert [branch.parent_seq for branch in ours.branches()] == [0, 2]
            usage = ours.usage()
            assert (usage.calls, usage.input_tokens, usage.output_tokens) == (3, 60, 6)
            assert report.losses == {}

    async def conversation(self, path: Path) -> None:
        session = AdvancedSQLiteSession(session_id="s1", db_path=path, create_tables=True)
        agent = Agent("guide", model=Counting())
        for text in ("first", "second"):
            await session.store_run_usage(await Runner.run(agent, text, session=session))
        await session.create_branch_from_turn(2, "other")
        await session.store_run_usage(await Runner.run(agent, "other", session=session))
        session.close()

    def test_an_open_one_is_read_with_its_log(self, tmp_path: Path) -> None:
        session = SQLiteSession("s1", tmp_path / "a.db")
        asyncio.run(session.add_items([{"role": "user", "content": "q"}]))
        with memory_store() as store:
            assert [report.entries for report in import_all(store, "openai-agents", tmp_path / "a.db")] == [1]
        session.close()


class TestADK:
    async def conversation(self, service: BaseSessionService) -> dict[str, Any]:
        """Returns the state ADK shows."""
        session = await service.create_session(
            app_name="shop",
            user_id="ann",
            session_id="s1",
            state={"mood": "calm", "user:name": "Ann", "cart": {"a": 1}},
        )
        part = types.Part
        call = part(function_call=types.FunctionCall(id="adk-1", name="look", args={"order": 41}))
        call.thought_signature = b"\xfb\xef\xff"
        response = part(
            function_response=types.FunctionResponse(id="adk-1", name="look", response={"result": "lost"})
        )
        picture = part(
            inline_data=types.Blob(data=b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe\xfd", mime_type="image/png")
        )
        spent = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=3)
        changed = EventActions(state_delta={"cart": {"b": 2}, "app:open": True, "temp:x": 1})
        for author, role, parts, more in (
            ("user", "user", [part(text="Where is 41?"), picture], {}),
            ("guide", "model", [part(text="Look.", thought=True), call], {"usage_metadata": spent}),
            ("guide", "user", [response], {"actions": changed}),
            (
                "guide",
                "model",
                [part(text="It is lost.")],
                {"usage_metadata": spent, "model_version": "gemini-2.5-pro"},
            ),
        ):
            content = types.Content(role=role, parts=parts)
            await service.append_event(
                session, Event(author=author, invocation_id="i1", content=content, **more)
            )
        loaded_session = await service.get_session(app_name="shop", user_id="ann", session_id="s1")
        assert loaded_session is not None
        return dict(loaded_session.state)

    @pytest.mark.parametrize("kind", ["database", "sqlite"])
    def test_a_session_of_each_service_is_read(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "adk.db"

        async def talk() -> dict[str, Any]:
            if kind == "sqlite":
                return await self.conversation(SqliteSessionService(str(path)))
            async with DatabaseSessionService(f"sqlite+aiosqlite:///{path}") as service:
                return await self.conversation(service)

        session = asyncio.run(talk())
        with memory_store() as store:
            ours, report = import_one(store, "adk", path)
            entries = [e for e in entries_of(ours) if e.message is not None]
            assert [e.role for e in entries] == ["user", "assistant", "tool", "assistant"]
            assert texts(entries)[-1] == "It is lost."
            assert ours.state == session
            assert (ours.usage().calls, ours.usage().input_tokens, ours.usage().output_tokens) == (2, 20, 6)
            (call,) = [p for m in ours.messages("gemini") for p in m["parts"] if "functionCall" in p]
            assert call["thoughtSignature"] == "++//"
            assert report.losses == {}


class TestLangGraph:
    """Its own serializer packs what its own graph made, into the tables of its `SqliteSaver`."""

    def thread(self, path: Path) -> None:
        saver = InMemorySaver()
        spent = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
        call = {"name": "look", "args": {"order": 41}, "id": "c1"}
        answers = iter(
            [
                AIMessage("I look.", tool_calls=[call], usage_metadata=spent),  # type: ignore[arg-type]
                AIMessage("It is lost.", usage_metadata=spent),  # type: ignore[arg-type]
                AIMessage("Bye."),
                AIMessage("Here."),
            ]
        )

        def agent(state: MessagesState) -> dict[str, Any]:
            return {"messages": [next(answers)], "mood": {"seen": [len(state["messages"])]}}

        graph = StateGraph(Moody)
        graph.add_node("agent", agent)
        graph.add_node("tools", ToolNode([look]))
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", tools_condition)
        graph.add_edge("tools", "agent")
        app = graph.compile(checkpointer=saver)
        thread: Any = {"configurable": {"thread_id": "t1"}}
        app.invoke({"messages": [HumanMessage("Where is 41?")]}, thread)  # type: ignore[arg-type]
        middle = app.get_state(thread).config
        app.invoke({"messages": [HumanMessage("Thanks")]}, thread)  # type: ignore[arg-type]
        app.invoke({"messages": [HumanMessage("And 42?")]}, middle)  # type: ignore[arg-type]
        rows = []
        for checkpoint in saver.list(thread):
            kind, packed = JsonPlusSerializer().dumps_typed(checkpoint.checkpoint)
            about = {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": checkpoint.checkpoint["id"]}
            rows.append({"table": "checkpoints", **about, "type": kind, "checkpoint": packed})
        write_sqlite(path, rows)

    def test_a_thread_is_read_with_its_branches_and_its_state(self, tmp_path: Path) -> None:
        self.thread(tmp_path / "lg.db")
        with memory_store() as store:
            ours, report = import_one(store, "langgraph", tmp_path / "lg.db")
            assert texts(entries_of(ours)) == [
                "Where is 41?",
                "I look.",
                "",
                "It is lost.",
                "And 42?",
                "Here.",
            ]
            assert len(ours.branches()) == 2
            assert ours.state == {"mood": {"seen": [5]}}
            assert (ours.usage().calls, ours.usage().input_tokens) == (2, 20)
            assert report.losses == {}


class Moody(MessagesState):
    mood: dict[str, Any]


@tool
def look(order: int) -> str:
    """Look an order up."""
    return f"lost {order}"


class Counting(Model):
    """A model that says how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    async def get_response(self, *_: object, **__: object) -> ModelResponse:
        self.calls += 1
        text = ResponseOutputText(annotations=[], text=str(self.calls), type="output_text")
        message = ResponseOutputMessage(
            id=f"msg_{self.calls}", content=[text], role="assistant", status="completed", type="message"
        )
        spent = Usage(requests=1, input_tokens=10 * self.calls, output_tokens=self.calls, total_tokens=11)
        return ModelResponse(output=[message], usage=spent, response_id=None)

    def stream_response(self, *_: object, **__: object) -> AsyncIterator[Any]:
        raise NotImplementedError
