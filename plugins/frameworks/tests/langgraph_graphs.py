"""Graphs to keep: an agent with a tool, one that asks, subgraphs; and a saver that compares ours with LangGraph's own.

Run as a program it is an agent to kill: it says what it is at, turn by turn, and waits in the middle of a tool.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from typing import Any

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

import oakleaf
from oakleaf.core.facts import Moved
from oakleaf.store import Store
from oakleaf.stores.base import Change, CommitResult
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf_frameworks.langgraph.saver import OakleafSaver


def on(thread: str, **more: str) -> Any:
    """A config, as LangGraph's callers write one."""
    return {"configurable": {"thread_id": thread, **more}}


def asking(name: str, city: str) -> AIMessage:
    """A model's answer that calls the tool, with what a provider reports."""
    return AIMessage(
        "",
        id=f"ask-{name}",
        tool_calls=[{"name": "weather", "args": {"city": city}, "id": f"call-{name}"}],
        usage_metadata={
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "input_token_details": {"cache_read": 4},
        },
        response_metadata={"model_name": "m-1", "model_provider": "acme", "finish_reason": "tool_calls"},
    )


@tool
def weather(city: str) -> str:
    """What the sky over a city looks like."""
    return f"sunny in {city}"


def agent(
    answers: Sequence[BaseMessage], tools: Sequence[Any] = (weather,)
) -> StateGraph[Any, Any, Any, Any]:
    """The usual agent: a model that answers as scripted, and its tools."""
    model = FakeMessagesListChatModel(responses=list(answers))

    def answer(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", answer)
    builder.add_node("tools", ToolNode(list(tools)))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


def asks_a_person() -> StateGraph[Any, Any, Any, Any]:
    """Waits for a person twice in one node."""

    def ask(state: MessagesState) -> Any:
        name, age = interrupt({"what": "name"}), interrupt("age")
        return {"messages": [AIMessage(f"{name} is {age}", id="told")]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)


def with_a_subgraph(answers: Sequence[BaseMessage]) -> StateGraph[Any, Any, Any, Any]:
    """The agent as one node of another graph, which goes on with what it said."""

    def close(state: MessagesState) -> Any:
        return {"messages": [AIMessage("Goodbye.", id="bye")]}

    builder = StateGraph(MessagesState)
    builder.add_node("helper", agent(answers).compile())
    builder.add_node("close", close)
    return builder.add_edge(START, "helper").add_edge("helper", "close").add_edge("close", END)


class Twin(BaseCheckpointSaver[Any]):
    """Whatever a graph puts goes to both; whatever it reads must be the same from both."""

    def __init__(self, ours: OakleafSaver) -> None:
        super().__init__()
        self.ours, self.theirs = ours, InMemorySaver()

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.theirs.get_next_version(current, channel)  # it takes versions for unique, ours does not

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        ours, theirs = self.ours.get_tuple(config), self.theirs.get_tuple(config)
        compare(ours, theirs)
        return ours

    def list(self, config: Any, **query: Any) -> Iterator[CheckpointTuple]:
        ours = list(self.ours.list(config, **query))
        theirs = sorted(
            self.theirs.list(config, **query), key=lambda one: str(one.checkpoint["id"]), reverse=True
        )
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other)
        return iter(ours)

    def put(self, config: Any, checkpoint: Any, *more: Any) -> Any:
        still = self._still(checkpoint)
        self.theirs.put(config, still, *more)
        return self.ours.put(config, still, *more)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        still = self._still(writes)
        self.theirs.put_writes(config, still, task_id, task_path)
        self.ours.put_writes(config, still, task_id, task_path)

    def _still(self, value: Any) -> Any:
        """Its own copy: the graph goes on meanwhile, and gives an id to a message that has none."""
        return self.serde.loads_typed(self.serde.dumps_typed(value))

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        ours, theirs = await self.ours.aget_tuple(config), self.theirs.get_tuple(config)
        compare(ours, theirs)
        return ours

    async def alist(self, config: Any, **query: Any) -> AsyncIterator[CheckpointTuple]:
        for one in self.list(config, **query):
            yield one

    async def aput(self, config: Any, checkpoint: Any, *more: Any) -> Any:
        still = self._still(checkpoint)
        self.theirs.put(config, still, *more)
        return await self.ours.aput(config, still, *more)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        still = self._still(writes)
        self.theirs.put_writes(config, still, task_id, task_path)
        await self.ours.aput_writes(config, still, task_id, task_path)


def comparable(one: CheckpointTuple | None) -> Any:
    """All that a tuple tells, the names in its configs aside."""
    if one is None:
        return None
    parent = None if one.parent_config is None else one.parent_config["configurable"]["checkpoint_id"]
    return (
        one.config["configurable"]["checkpoint_id"],
        one.checkpoint,
        one.metadata,
        parent,
        one.pending_writes,
    )


def compare(our_tuple: CheckpointTuple | None, their_tuple: CheckpointTuple | None) -> None:
    ours, theirs = comparable(our_tuple), comparable(their_tuple)
    if ours != theirs:
        raise AssertionError(f"ours:   {ours}\ntheirs: {theirs}")


def worked(url: str) -> None:
    """Turn after turn, until somebody kills it."""

    @tool("weather")
    def slow(city: str) -> str:
        """It never comes back from Rome."""
        print(f"in {city}", flush=True)
        time.sleep(600 if city == "Rome" else 0)
        return f"sunny in {city}"

    answers = [asking("1", "Bonn"), AIMessage("Sunny.", id="said-1"), asking("2", "Rome")]
    with oakleaf.open(url) as store:
        graph = agent(answers, [slow]).compile(checkpointer=OakleafSaver(store))
        for n in count(1):
            question = HumanMessage(f"Question {n}", id=f"asked-{n}")
            graph.invoke({"messages": [question]}, on("killed"), durability="sync")
            print(f"answered {n}", flush=True)


class Dying(SqliteStore):
    """A store whose process dies as soon as a session was moved."""

    def commit(self, change: Change) -> CommitResult:
        done = super().commit(change)
        if isinstance(change.fact, Moved):
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def edited(url: str) -> None:
    """Edits its first message, and dies between the move to before it and what was to follow."""
    with Store(Dying(url)) as store:
        graph = agent([AIMessage("Sunny.", id="said")]).compile(checkpointer=OakleafSaver(store))
        graph.invoke({"messages": [HumanMessage("Bonn?", id="asked")]}, on("killed"))
        graph.update_state(on("killed"), {"messages": [HumanMessage("Rome?", id="asked")]})


if __name__ == "__main__":
    {"worked": worked, "edited": edited}[sys.argv[1]](sys.argv[2])
