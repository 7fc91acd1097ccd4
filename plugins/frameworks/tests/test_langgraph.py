"""Oakleaf under LangGraph: its own conformance suite, its own saver beside ours, and the session that is left behind."""

from __future__ import annotations

import asyncio
import io
import operator
import os
import re
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Thread
from typing import Annotated, Any, cast

import langgraph_graphs
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from langgraph_graphs import Twin, agent, asking, asks_a_person, comparable, on, weather, with_a_subgraph
from typing_extensions import TypedDict

import oakleaf
from oakleaf.cli.main import oakleaf as command
from oakleaf.core.codec import from_json, to_json
from oakleaf.core.redact import Redactor, unpack_bytes
from oakleaf.errors import InvalidArgument, InvalidText
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_frameworks.langgraph import thread_log
from oakleaf_frameworks.langgraph.messages import ValueCodec
from oakleaf_frameworks.langgraph.saver import OakleafSaver
from support.runtime import deterministic_runtime
from support.sessions import exported, tasks_of

HELLO = {"messages": [HumanMessage("Weather in Bonn?", id="h1")]}
ANSWERS = [asking("1", "Bonn"), AIMessage("It is sunny.", id="a1")]
GRAPHS = langgraph_graphs.__file__
TALK = ["Weather in Bonn?", "", "sunny in Bonn", "It is sunny."]


@pytest.fixture
def saver(store: Store) -> OakleafSaver:
    return OakleafSaver(store)


def session_of(store: Store, thread: str) -> Session:
    session = store.latest(thread)
    assert session is not None
    return session


def roles_and_texts(session: Session) -> list[tuple[str | None, str]]:
    """Role and words of what stands on the path."""
    session.refresh()
    messages = [entry.message for entry in session.path() if entry.message is not None]
    return [(m.role, m.text or "".join(p.text for r in m.results for p in r.content)) for m in messages]  # type: ignore[union-attr]


def texts(state: Any) -> list[str]:
    return [message.content for message in state["messages"]]


def put(saver: OakleafSaver, thread: str, values: dict[str, Any], parent: Any = None, **meta: Any) -> Any:
    """One checkpoint with these values, all of them new."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, 1)
    config = parent or on(thread, checkpoint_ns="")
    return saver.put(config, checkpoint, {"source": "loop", "step": 1, **meta}, dict.fromkeys(values, 1))  # type: ignore[typeddict-item]


def count_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries and facts each read of the store returns from now on."""
    read: list[int] = []
    path, journal = store.backend.path, store.backend.journal

    def counted_path(*args: Any, **kwargs: Any) -> Any:
        snapshot = path(*args, **kwargs)
        read.append(len(snapshot.entries))
        return snapshot

    def counted_journal(*args: Any, **kwargs: Any) -> Any:
        facts = journal(*args, **kwargs)
        read.append(len(facts))
        return facts

    monkeypatch.setattr(store.backend, "path", counted_path)
    monkeypatch.setattr(store.backend, "journal", counted_journal)
    return read


class TestSuite:
    def test_every_capability_of_the_conformance_suite_holds(self, store: Store) -> None:
        @checkpointer_test(name="oakleaf")
        async def create() -> Any:
            yield OakleafSaver(store)

        report = asyncio.run(validate(create))
        failed = {name: result.failures for name, result in report.results.items() if not result.passed}
        assert failed == {}
        assert set(report.results) == {capability.value for capability in Capability}
        assert sum(result.tests_passed for result in report.results.values()) >= 81
        assert list(store.verify()) == []


def extended(state: list[str], writes: Any) -> list[str]:
    return [*(state or []), *(word for write in writes for word in write)]


class TestBesideLangGraphsOwn:
    """Each graph runs on both savers at once; whatever it reads must be the same from both."""

    def test_an_agent_with_a_tool(self, store: Store, saver: OakleafSaver) -> None:
        both = Twin(saver)
        graph = agent(ANSWERS).compile(checkpointer=both)
        assert texts(graph.invoke(HELLO, on("1"))) == TALK
        assert len(list(graph.get_state_history(on("1")))) == 5
        assert len(list(both.list(on("1"), filter={"source": "loop"}, limit=2))) == 2
        assert list(store.verify()) == []

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_an_agent_whatever_the_durability(self, saver: OakleafSaver, durability: Any) -> None:
        graph = agent(ANSWERS).compile(checkpointer=Twin(saver))
        graph.invoke(HELLO, on("1"), durability=durability)
        assert texts(graph.get_state(on("1")).values) == TALK

    def test_interrupts_and_what_they_are_resumed_with(self, store: Store, saver: OakleafSaver) -> None:
        graph = asks_a_person().compile(checkpointer=Twin(saver))
        graph.invoke(HELLO, on("1"))
        assert graph.get_state(on("1")).interrupts[0].value == {"what": "name"}
        graph.invoke(Command(resume="Ada"), on("1"))
        assert graph.get_state(on("1")).interrupts[0].value == "age"
        assert texts(graph.invoke(Command(resume=36), on("1")))[-1] == "Ada is 36"
        assert list(store.verify()) == []

    def test_a_state_that_is_edited_in_every_way(self, store: Store, saver: OakleafSaver) -> None:
        both = Twin(saver)
        graph = agent(ANSWERS).compile(checkpointer=both)
        graph.invoke(HELLO, on("1"))
        past = list(graph.get_state_history(on("1")))
        graph.invoke(None, past[2].config)  # again from before the tool
        graph.update_state(on("1"), {"messages": [HumanMessage("Weather in Rome?", id="h1")]})
        graph.update_state(on("1"), {"messages": [RemoveMessage("h1")]})
        graph.update_state(past[3].config, {"messages": [AIMessage("Never mind.", id="n")]}, as_node="model")
        graph.invoke({"messages": [HumanMessage("Again.", id="h2")]}, on("1"))
        assert len(list(both.list(on("1")))) == len(list(graph.get_state_history(on("1")))) > 10
        assert list(store.verify()) == []

    def test_subgraphs_each_in_a_namespace_of_its_own(self, store: Store, saver: OakleafSaver) -> None:
        both = Twin(saver)
        graph = with_a_subgraph(ANSWERS).compile(checkpointer=both)
        assert texts(graph.invoke(HELLO, on("1"))) == [*TALK, "Goodbye."]
        assert len({one.config["configurable"]["checkpoint_ns"] for one in both.list(on("1"))}) == 2
        assert list(store.verify()) == []

    def test_tasks_that_run_beside_each_other(self, store: Store, saver: OakleafSaver) -> None:
        class Sums(TypedDict):
            numbers: list[int]
            sums: Annotated[list[int], operator.add]

        def add(state: Any) -> Any:
            return {"sums": [state["n"] + 1]}

        builder = StateGraph(Sums)
        builder.add_node("add", add)
        builder.add_conditional_edges(START, lambda state: [Send("add", {"n": n}) for n in state["numbers"]])
        graph = builder.add_edge("add", END).compile(checkpointer=Twin(saver))
        assert graph.invoke({"numbers": list(range(12))}, on("1"))["sums"] == list(range(1, 13))
        assert graph.get_state(on("1")).values["sums"] == list(range(1, 13))
        assert list(store.verify()) == []

    def test_a_function_with_tasks(self, saver: OakleafSaver) -> None:
        @task
        def double(n: int) -> int:
            return n * 2

        @entrypoint(checkpointer=Twin(saver))
        def work(n: int, *, previous: int | None = None) -> int:
            return (previous or 0) + double(n).result()

        assert [work.invoke(n, on("1")) for n in (1, 2, 3)] == [2, 6, 12]

    def test_channels_that_keep_what_was_added(self, saver: OakleafSaver) -> None:
        class Words(TypedDict):
            words: Annotated[list[str], DeltaChannel(extended, snapshot_frequency=3)]

        def echo(state: Any) -> Any:
            return {"words": [f"{len(state['words'])} words"]}

        def history(checkpointer: Any) -> list[Any]:
            graph = StateGraph(Words).add_node("echo", echo).add_edge(START, "echo").compile(checkpointer)
            for n in range(5):
                graph.invoke({"words": [f"word {n}"]}, on("1"))
            graph.update_state(list(graph.get_state_history(on("1")))[5].config, {"words": ["and back"]})
            return [state.values for state in graph.get_state_history(on("1"))]

        messages = history(saver)
        assert messages == history(InMemorySaver())
        saver.prune(["1"])
        pruned = StateGraph(Words).add_node("echo", echo).add_edge(START, "echo").compile(saver)
        assert pruned.get_state(on("1")).values == messages[0], "pruning cuts no line"

    def test_an_agent_that_runs_in_an_event_loop(self, store: Store, saver: OakleafSaver) -> None:
        graph = with_a_subgraph(ANSWERS).compile(checkpointer=Twin(saver))

        async def run() -> Any:
            state = await graph.ainvoke(HELLO, on("1"))
            return state, [one async for one in graph.aget_state_history(on("1"))]

        state, past = asyncio.run(run())
        assert texts(state) == [*TALK, "Goodbye."]
        assert len(past) == 4
        assert list(store.verify()) == []


def grow(messages: list[BaseMessage], n: int, how: str) -> list[BaseMessage]:
    """The messages after one more step of a graph that does as it likes with them."""
    match how:
        case "removes":
            return messages[: n % 3] + messages[n % 3 + 1 :]
        case "edits" if messages:
            at = n % len(messages)
            return [*messages[:at], HumanMessage(f"edited {n}", id=messages[at].id), *messages[at + 1 :]]
        case "asks":
            return [
                *messages,
                AIMessage("", id=f"{n}", tool_calls=[{"name": "f", "args": {}, "id": f"c{n % 3}"}]),
            ]
        case "answers":
            return [*messages, ToolMessage("done", tool_call_id=f"c{n % 3}", id=f"{n}")]
        case _:
            return [*messages, HumanMessage(f"{n}", id=f"{n}"), AIMessage("yes", id=f"{n} yes")][
                : len(messages) + 1 + n % 2
            ]


HOW = st.sampled_from(["says", "asks", "answers", "removes", "edits", "writes", "turns to the other"])


class TestAnyHistory:
    @given(st.lists(st.tuples(HOW, st.integers(0, 9), st.booleans()), max_size=16))
    def test_whatever_is_put_behind_whatever_is_told_as_langgraphs_own_tells_it(self, steps: Any) -> None:
        store = Store(MemoryStore(), deterministic_runtime())
        savers = [OakleafSaver(store), OakleafSaver(store)]  # two processes, as far as each knows
        both, history = Twin(savers[0]), list[tuple[Any, list[BaseMessage]]]()
        for n, (how, back, is_next) in enumerate(steps):
            parent, messages = (
                history[-1 if is_next else -(back % len(history)) - 1] if history else (None, [])
            )
            if how == "turns to the other":
                both.ours = savers[both.ours is savers[0]]
                both.get_tuple(on("1"))
            elif how == "writes" and parent is not None:
                writes = [("messages", [n]), ("__error__", f"no {n}")][: 1 + back % 2]
                both.put_writes(parent, writes, f"task {back}", f"path {9 - back}")
            else:
                longer = grow(messages, n, how)
                checkpoint, new = empty_checkpoint(), {"messages": f"{n}.1", "n": f"{n}.1"}
                checkpoint["channel_values"] = {"messages": longer, "n": n, "kept": "as it was"}
                checkpoint["channel_versions"] = {**new, "kept": "0.1"}
                parent_config = parent or on("1", checkpoint_ns="")
                fresh = new if parent else checkpoint["channel_versions"]
                history.append(
                    (both.put(parent_config, checkpoint, {"source": "loop", "step": n}, fresh), longer)
                )
        for saver in (*savers, OakleafSaver(store)):
            both.ours = saver
            both.get_tuple(on("1"))
            assert len(list(both.list(on("1")))) == len(history)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(thread_log, "WINDOW", 1)
            for count, (config, _) in enumerate(history, 1):
                both.ours = OakleafSaver(store)  # a process that has read nothing
                both.get_tuple(config)
                both.ours = OakleafSaver(store)
                assert len(list(both.list(on("1"), limit=count))) == count
        both.ours.copy_thread("1", "2")
        assert [comparable(one) for one in saver.list(on("2"))] == [
            comparable(one) for one in saver.list(on("1"))
        ]
        assert list(store.verify()) == []


class TestConversation:
    def test_the_messages_of_a_state_are_entries_once_each(self, store: Store, saver: OakleafSaver) -> None:
        graph = agent(ANSWERS).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        session = session_of(store, "1")
        assert roles_and_texts(session) == list(
            zip(["user", "assistant", "tool", "assistant"], TALK, strict=True)
        )
        assert len([entry for entry in session.entries() if entry.message is not None]) == 4
        assert session.path()[-1].turn == 0, "the turn is over"

    def test_what_a_provider_reports_goes_to_the_ledger(self, store: Store, saver: OakleafSaver) -> None:
        agent(ANSWERS).compile(checkpointer=saver).invoke(HELLO, on("1"))
        (call,) = session_of(store, "1").model_calls()
        assert (call.model, call.provider) == ("m-1", "acme")
        assert session_of(store, "1").row.model == "m-1"
        assert (call.usage.input_tokens, call.usage.output_tokens, call.usage.cache_read_tokens) == (10, 5, 4)

    def test_what_was_written_to_the_cache_has_its_own_price(self, store: Store, saver: OakleafSaver) -> None:
        """LangChain counts Anthropic's cache writes by how long they are kept, and 0 in all."""
        details = {"cache_creation": 0, "ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 100_000}
        answer = AIMessage(
            "Fine.",
            id="a",
            usage_metadata={
                "input_tokens": 100_000,
                "output_tokens": 0,
                "total_tokens": 100_000,
                "input_token_details": cast(Any, details),
            },
            response_metadata={"model_name": "claude-sonnet-4-5", "model_provider": "anthropic"},
        )
        agent([answer]).compile(checkpointer=saver).invoke(HELLO, on("1"))
        (call,) = session_of(store, "1").model_calls()
        assert call.usage.cache_write_tokens == 100_000
        assert call.price is not None
        assert call.price.microcents == 60_000_000, "$6 for a million that are kept for an hour"

    def test_a_call_of_a_subgraph_is_counted_once(self, store: Store, saver: OakleafSaver) -> None:
        with_a_subgraph(ANSWERS).compile(checkpointer=saver).invoke(HELLO, on("1"))
        session = session_of(store, "1")
        assert len(session.model_calls("tree")) == 1
        assert [child.row.title for child in tasks_of(session)] == ["helper"]

    def test_what_is_given_to_a_graph_was_not_said_by_its_model(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        graph = agent([AIMessage("Fine.", id="a")]).compile(checkpointer=saver)
        graph.invoke({"messages": [asking("9", "Oslo"), HumanMessage("How are you?", id="h")]}, on("1"))
        assert session_of(store, "1").model_calls() == []

    def test_an_edited_message_is_a_branch_and_the_old_one_stays(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        graph = agent(ANSWERS).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        graph.update_state(on("1"), {"messages": [AIMessage("It rains.", id="a1")]})
        session = session_of(store, "1")
        assert [words for _, words in roles_and_texts(session)] == [*TALK[:3], "It rains."]
        assert sum(e.message is not None and e.message.text == TALK[3] for e in session.entries()) == 1
        assert len(session.model_calls()) == 1, "what was written again was paid once"
        assert session.verify() == []

    def test_a_call_that_was_left_open_is_closed_and_the_graph_does_not_see_it(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        messages = [*HELLO["messages"], asking("1", "Bonn"), HumanMessage("Stop.", id="h2")]
        late = [*messages, ToolMessage("sunny", tool_call_id="call-1", id="t")]
        first = put(saver, "1", {"messages": messages})
        second = put(saver, "1", {"messages": late}, first)
        for config, expected in ((first, messages), (second, late)):
            checkpoint = saver.get_tuple(config)
            assert checkpoint is not None
            assert checkpoint.checkpoint["channel_values"]["messages"] == expected
        session = session_of(store, "1")
        assert [role for role, _ in roles_and_texts(session)] == ["user", "assistant", "tool", "user"]
        assert session.path()[2].message.results[0].outcome == "interrupted"  # type: ignore[union-attr]
        assert session.verify() == []

    def test_a_long_talk_grows_by_what_is_said(self, tmp_path: Path) -> None:
        def stored_bytes(turns: int) -> int:
            with oakleaf.open(tmp_path / f"{turns}.db", synchronous="normal") as store:
                saver, config, messages = OakleafSaver(store), None, list[BaseMessage]()
                for n in range(turns):
                    messages.append(HumanMessage("word " * 50, id=f"h{n}"))
                    config = put(saver, "1", {"messages": list(messages)}, config)
                return sum(
                    len(stored.entry.body)
                    for stored in store.backend.entries(session_of(store, "1").session_id)
                )

        assert stored_bytes(80) < 2.2 * stored_bytes(40)

    def test_a_process_that_has_not_read_a_long_thread_reads_only_what_it_returns(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = count_reads(store, monkeypatch)
        saver, config, counts = OakleafSaver(store), None, list[list[int]]()
        messages = [HumanMessage("Count.", id="h1"), AIMessage("I count.", id="a1")]
        for checkpoints in (30, 300):
            for n in range(checkpoints):
                config = put(saver, "1", {"messages": messages, "n": n}, config)
                if n % 5 == 0:
                    saver.put_writes(config, [("n", n + 1)], "t")
            newest = list(saver.list(on("1"), limit=10))
            ninth = newest[8].config
            reads: list[tuple[Callable[[OakleafSaver], Any], Any]] = [
                (lambda cold: [cold.get_tuple(on("1"))], newest[:1]),
                (lambda cold: cold.list(on("1"), limit=5), newest[:5]),
                (lambda cold: cold.list(None, limit=5), newest[:5]),
                (lambda cold, ninth=ninth: [cold.get_tuple(ninth)], newest[8:9]),
                (lambda cold, ninth=ninth: cold.list(on("1"), before=ninth, limit=1), newest[9:]),
            ]
            counts.append([])
            for reading, expected in reads:
                read.clear()
                assert [*map(comparable, reading(OakleafSaver(store)))] == [*map(comparable, expected)]
                counts[-1].append(sum(read))
        assert all(long <= short + 2 for short, long in zip(*counts, strict=True)), counts

    def test_the_checkpoints_of_a_run_are_dropped_without_reading_other_threads(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = count_reads(store, monkeypatch)
        counts = list[int]()
        for threads in (3, 30):
            saver = OakleafSaver(store, agent=f"agent with {threads}")
            for thread in range(threads):
                config = None
                for n in range(8):
                    name = f"{threads} {thread}"
                    config = put(saver, name, {"n": n}, config, run_id=f"run {name} {n // 4}")
            fork = session_of(store, f"{threads} 1").fork()
            read.clear()
            cold = OakleafSaver(store, agent=f"agent with {threads}")
            cold.delete_for_runs([f"run {threads} 1 0", "run of nobody"])
            counts.append(sum(read))
            sizes = [len(list(saver.list(on(name)))) for name in (f"{threads} 1", fork.row.conversation_id)]
            assert sizes == [4, 4], "a fork inherits the checkpoints of the run"
            assert len(list(saver.list(on(f"{threads} 2")))) == 8
        assert counts[1] == counts[0]

    def test_show_reads_as_a_conversation(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            agent(ANSWERS).compile(checkpointer=OakleafSaver(store)).invoke(HELLO, on("1"))
        result = CliRunner().invoke(command, ["--store", str(tmp_path / "a.db"), "show", "latest"])
        assert result.exit_code == 0
        for words in ("Weather in Bonn?", "weather", "sunny in Bonn", "It is sunny."):
            assert words in result.output
        assert "checkpoint" not in result.output

    def test_the_command_line_finds_a_thread_and_shows_no_checkpoints(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            for number in range(9):  # some are also the beginning of another's id
                agent(ANSWERS).compile(checkpointer=OakleafSaver(store)).invoke(HELLO, on(str(number)))
            expected = session_of(store, "7").session_id

        def run(*words: str) -> str:
            done = CliRunner().invoke(command, ["--store", str(tmp_path / "a.db"), *words])
            return str(done.stdout)

        assert expected in run("show", "7")
        tree = run("tree", "7")
        assert "It is sunny." in tree
        assert "note" not in tree
        assert len(re.findall("[│●] +[0-9]", tree)) == len(TALK)
        assert "sunny" in run("search", "sunny")
        assert "note" not in run("search", "sunny")


SERDE = JsonPlusSerializer()
ODD: list[BaseMessage] = [
    HumanMessage(""),
    HumanMessage("named", name="Ada", id="1", additional_kwargs={"a": [1, None, {"b": 1.5}]}),
    HumanMessage([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], id="2"),
    HumanMessage(["bare", {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}], id="3"),
    HumanMessage([{"type": "image", "base64": "aGk=", "mime_type": "image/png"}], id="4"),
    HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "aGk0" * 40}}], id="5"),
    HumanMessage("a link in words data:image/png;base64," + "aGk0" * 40, id="6"),
    HumanMessage([{"type": "image", "base64": "aGk0" * 40, "mime_type": "image/png"}], id="6b"),
    HumanMessage("iVBORw0KGgo" + "A" * 89, id="6c"),
    HumanMessage("\0 and \u2028 and 😀", id="7"),
    HumanMessage("tuple beside", id="8", additional_kwargs={"t": (1, 2), "f": float("inf")}),
    HumanMessage("extra field", id="9", favourite="blue"),
    SystemMessage("Be kind.", id="10"),
    AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Yes"}], id="11"),
    AIMessage("", id="12", invalid_tool_calls=[{"name": "f", "args": "{", "id": "x", "error": "no", "type": "invalid_tool_call"}]),
    AIMessageChunk(content="a part", id="13"),
    ChatMessage(role="critic", content="Not so good.", id="14"),
    AIMessage("", id="15", tool_calls=[{"name": "f", "args": {"x": [1, {"y": None}]}, "id": None}]),
]  # fmt: skip


class TestMessages:
    def test_a_message_comes_back_equal_and_is_written_once(self, store: Store) -> None:
        more = HumanMessage("more", id="m")
        first = put(OakleafSaver(store), "1", {"messages": ODD})
        second = put(OakleafSaver(store), "1", {"messages": [*ODD, more]}, first)
        checkpoint = OakleafSaver(store).get_tuple(second)
        assert checkpoint is not None
        expected = [
            SERDE.loads_typed(SERDE.dumps_typed(message)) for message in ODD
        ]  # of tuples it makes lists
        for one, other in zip(
            checkpoint.checkpoint["channel_values"]["messages"], [*expected, more], strict=True
        ):
            assert one == other
            assert type(one) is type(other)
        session = session_of(store, "1")
        assert len(session.branches()) == 1
        assert session.verify() == []

    def test_a_result_keeps_its_status_and_its_artifact(self, store: Store, saver: OakleafSaver) -> None:
        artifact = {"page": "a page", "size": 1}
        result = ToolMessage(
            "no", tool_call_id="call-1", status="error", artifact=artifact, id="t", name="weather"
        )
        config = put(saver, "1", {"messages": [asking("1", "Bonn"), result]})
        checkpoint = OakleafSaver(store).get_tuple(config)
        assert checkpoint is not None
        assert checkpoint.checkpoint["channel_values"]["messages"][1] == result
        assert session_of(store, "1").path()[1].message.results[0].error  # type: ignore[union-attr]

    def test_a_message_that_a_node_changed_in_place_is_written_anew(self, saver: OakleafSaver) -> None:
        question, answer = HumanMessage("before", id="h"), asking("1", "Bonn")
        steps = [put(saver, "1", {"messages": [question, answer]})]
        answer.tool_calls[0]["args"]["city"] = "Rome"
        steps.append(put(saver, "1", {"messages": [question, answer]}, steps[-1]))
        question.content = "after"
        steps.append(put(saver, "1", {"messages": [question, answer]}, steps[-1]))
        checkpoint = [saver.get_tuple(step).checkpoint["channel_values"]["messages"] for step in steps]  # type: ignore[union-attr]
        assert [(one.content, other.tool_calls[0]["args"]["city"]) for one, other in checkpoint] == [
            ("before", "Bonn"),
            ("before", "Rome"),
            ("after", "Rome"),
        ]

    def test_what_is_done_to_a_message_that_was_read_reaches_nobody_else(self, saver: OakleafSaver) -> None:
        message = HumanMessage("hello", id="h", additional_kwargs={"deep": {"down": [1]}})
        config = put(saver, "1", {"messages": [message]})
        for one in (message, saver.get_tuple(config).checkpoint["channel_values"]["messages"][0]):  # type: ignore[union-attr]
            one.additional_kwargs["deep"]["down"].append(2)
        again = saver.get_tuple(config).checkpoint["channel_values"]["messages"][0]  # type: ignore[union-attr]
        assert again.additional_kwargs == {"deep": {"down": [1]}}

    def test_a_picture_is_shown(self, store: Store, saver: OakleafSaver) -> None:
        put(saver, "1", {"messages": [ODD[4]]})
        (media,) = session_of(store, "1").path()[0].message.media  # type: ignore[union-attr]
        assert store.blob(media) == b"hi"

    def test_half_a_character_is_refused_and_nothing_is_lost(self, store: Store, saver: OakleafSaver) -> None:
        first = put(saver, "1", {"messages": HELLO["messages"]})
        with pytest.raises(InvalidText):
            put(saver, "1", {"messages": [*HELLO["messages"], HumanMessage("\ud800")]}, first)
        with pytest.raises(InvalidText):
            put(saver, "1", {"messages": [HumanMessage("\ud800")]}, first)
        assert roles_and_texts(session_of(store, "1")) == [("user", "Weather in Bonn?")]
        put(saver, "1", {"messages": [*HELLO["messages"], HumanMessage("on", id="h2")]}, first)
        assert [words for _, words in roles_and_texts(session_of(store, "1"))] == ["Weather in Bonn?", "on"]


WHOLE = st.integers(-(2**63), 2**64 - 1)
ANY = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats() | st.text() | st.binary() | st.uuids() | st.datetimes(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.sets(WHOLE)
    ),
)


class Inverted:
    """A cipher."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "inverted", bytes(255 - byte for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(255 - byte for byte in ciphertext)


class InvertedSerializer(JsonPlusSerializer):
    """Encrypts as a subclass of LangGraph's own serializer."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        return kind, Inverted().encrypt(data)[1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0], Inverted().decrypt("inverted", data[1])))


@dataclass
class Login:
    """An object that JSON does not restore: it goes through the serde."""

    name: str
    key: str


class TestValues:
    @given(ANY)
    def test_a_value_comes_back_as_from_the_serde_itself(self, value: Any) -> None:
        values = ValueCodec(SERDE, Redactor())
        decoded = values.decode(from_json(to_json(values.encode(value), "value")))
        assert repr(decoded) == repr(SERDE.loads_typed(SERDE.dumps_typed(value)))

    def test_bytes_are_never_taken_for_a_key(self) -> None:
        values = ValueCodec(SERDE, Redactor())
        looks = b"\x00\x8c\xda" * 40
        assert Redactor().may_contain_secret(b64encode(looks))
        assert not Redactor().may_contain_secret(to_json(values.encode({"bytes": looks}), "value"))

    def test_an_unchanged_value_is_stored_once(self, store: Store, saver: OakleafSaver) -> None:
        pages = ["x" * 10_000]
        config: Any = on("1", checkpoint_ns="")
        for n in range(5):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"pages": pages, "n": n}
            checkpoint["channel_versions"] = {"pages": 1, "n": n + 1}
            new = {"n": n + 1} if n else {"n": 1, "pages": 1}
            config = saver.put(config, checkpoint, {"source": "loop", "step": n}, new)
        bodies = [stored.entry.body for stored in store.backend.entries(session_of(store, "1").session_id)]
        assert sum(len(body) for body in bodies) < 15_000
        assert [one.checkpoint["channel_values"] for one in OakleafSaver(store).list(on("1"))] == [
            {"pages": pages, "n": n} for n in (4, 3, 2, 1, 0)
        ]

    def test_a_secret_never_becomes_durable(self) -> None:
        runtime = oakleaf.log.runtime.Runtime(*(getattr(deterministic_runtime(), name) for name in ("now", "new_id", "holder", "is_gone")), Redactor(unnamed=["hunter2hunter2"]))  # fmt: skip
        store = Store(MemoryStore(), runtime)
        saver = OakleafSaver(store)
        graph = agent([AIMessage("hunter2hunter2 it is", id="a")]).compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("it is hunter2hunter2", id="h")]}, on("1"))
        graph.invoke({"messages": [HumanMessage("again", id="h2")]}, on("1"))
        messages = [*saver.get_tuple(on("1")).checkpoint["channel_values"]["messages"]]  # type: ignore[union-attr]
        messages.append(ToolMessage("hunter2hunter2", tool_call_id="of no call", id="t"))
        config = put(saver, "1", {"messages": messages}, saver.get_tuple(on("1")).config)  # type: ignore[union-attr]
        assert comparable(saver.get_tuple(config)) == comparable(OakleafSaver(store).get_tuple(config))
        session = session_of(store, "1")
        assert all(
            b"hunter2" not in stored.entry.body for stored in store.backend.entries(session.session_id)
        )
        assert len(session.branches()) == 1

    def test_a_state_is_kept_as_it_is_where_redaction_is_off(self, store: Store) -> None:
        key = "AKIA" + "Q" * 16

        def answer(state: MessagesState) -> Any:
            return {"messages": [AIMessage(f"The key is {key}.")]}

        for redact in (True, False):
            saver, thread = OakleafSaver(store, redact=redact), on(f"redact {redact}")
            graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
            graph.compile(checkpointer=saver).invoke({"messages": [HumanMessage(key)]}, thread)
            state = graph.compile(checkpointer=OakleafSaver(store)).get_state(thread)
            assert (texts(state.values) == [key, f"The key is {key}."]) == (not redact)
        session = session_of(store, "redact False")
        assert key not in exported(session, "markdown")  # exports are redacted by who opens the store

    @pytest.mark.parametrize("redact", [True, False])
    def test_a_secret_in_an_object_of_the_state_is_masked_and_the_object_stays(
        self, store: Store, redact: bool
    ) -> None:
        """On write, or else in what is exported to be shared: the bytes of the serde were left as they were."""
        key = "AKIA" + "Q" * 16

        class State(MessagesState):
            login: Any

        def answer(state: State) -> Any:
            return {"messages": [AIMessage("Yes.")], "login": Login("ann", key)}

        saver, thread = OakleafSaver(store, redact=redact), on("1")
        graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer")
        graph.compile(checkpointer=saver).invoke({"messages": [HumanMessage("Hi.")]}, thread)
        login = graph.compile(checkpointer=OakleafSaver(store)).get_state(thread).values["login"]
        masked = Login("ann", "[redacted]**********")
        assert login == (masked if redact else Login("ann", key))
        session = session_of(store, "1")
        packed = re.findall(r'"serde":\["\w+","([^"]*)"', exported(session, "jsonl"))
        assert packed
        assert all(key.encode() not in unpack_bytes(text) for text in packed)
        bundle = io.BytesIO()
        result = session.export(bundle, redact=True)
        assert bool(result.report.redactions) == (not redact)
        shared = oakleaf.open("memory:")
        imported = shared.import_bundle(io.BytesIO(bundle.getvalue()))
        copied = on(shared.session(imported.session_id).row.conversation_id)
        assert graph.compile(checkpointer=OakleafSaver(shared)).get_state(copied).values["login"] == masked

    @pytest.mark.parametrize("serde", [EncryptedSerializer(Inverted()), InvertedSerializer()])
    def test_a_serde_that_encrypts_leaves_nothing_in_clear(self, store: Store, serde: Any) -> None:
        saver = OakleafSaver(store, serde=serde)
        graph = agent(ANSWERS).compile(checkpointer=Twin(saver))
        assert texts(graph.invoke(HELLO, on("1"))) == TALK
        bodies = b"".join(one.entry.body for one in store.backend.entries(session_of(store, "1").session_id))
        assert b"Bonn" not in bodies
        assert b"sunny" not in bodies


class TestTree:
    def test_rewinding_the_session_moves_the_thread(self, store: Store, saver: OakleafSaver) -> None:
        graph = agent([*ANSWERS, AIMessage("Hello again.", id="a2")]).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        graph.invoke({"messages": [HumanMessage("And now?", id="h2")]}, on("1"))
        session_of(store, "1").undo()
        stands = graph.get_state(on("1"))
        assert texts(stands.values) == TALK
        saver.put_writes(stands.config, [("messages", [])], "a task")
        session_of(store, "1").tag(a="fact between")
        for other in (saver, OakleafSaver(store)):
            assert other.get_tuple(on("1")).checkpoint["id"] == stands.config["configurable"]["checkpoint_id"]  # type: ignore[union-attr]
        graph.update_state(on("1"), {"messages": [HumanMessage("Else?", id="h3")]})
        session = session_of(store, "1")
        assert [words for _, words in roles_and_texts(session)] == [*TALK, "Else?"]
        assert session.verify() == []

    def test_a_thread_that_is_rewound_to_its_beginning_begins_anew(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        graph = agent([*ANSWERS, AIMessage("Hello.", id="a2")]).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        session_of(store, "1").undo()
        assert graph.get_state(on("1")).values == {}
        assert texts(graph.invoke({"messages": [HumanMessage("Hi.", id="h2")]}, on("1"))) == ["Hi.", "Hello."]
        assert [words for _, words in roles_and_texts(session_of(store, "1"))] == ["Hi.", "Hello."]
        assert list(store.verify()) == []

    def test_a_fork_made_by_oakleaf_is_a_thread_of_its_own(self, store: Store, saver: OakleafSaver) -> None:
        graph = agent([*ANSWERS, AIMessage("Here.", id="a2"), AIMessage("There.", id="a3")]).compile(saver)
        graph.invoke(HELLO, on("1"))
        fork = session_of(store, "1").fork()
        other = on(fork.row.conversation_id)
        graph.invoke({"messages": [HumanMessage("Where?", id="h2")]}, on("1"))
        graph.invoke({"messages": [HumanMessage("Where?", id="h2")]}, other)
        assert texts(graph.get_state(on("1")).values)[-1] == "Here."
        assert texts(graph.get_state(other).values) == [*TALK, "Where?", "There."]
        assert len(list(graph.get_state_history(other))) == 8
        assert list(store.verify()) == []

    def test_what_others_append_to_the_session_is_not_the_graphs(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        graph = agent([*ANSWERS, AIMessage("Bye.", id="a2")]).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        session_of(store, "1").append([oakleaf.user("Not for the graph."), oakleaf.assistant("Indeed.")])
        assert texts(graph.invoke({"messages": [HumanMessage("So?", id="h2")]}, on("1"))) == [
            *TALK,
            "So?",
            "Bye.",
        ]
        session = session_of(store, "1")
        assert [words for _, words in roles_and_texts(session)] == [*TALK, "So?", "Bye."]
        assert len([entry for entry in session.entries() if entry.message is not None]) == 8
        assert session.verify() == []

    def test_a_bundle_goes_on_in_another_store(
        self, saver: OakleafSaver, store: Store, tmp_path: Path
    ) -> None:
        graph = asks_a_person().compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        session_of(store, "1").export(tmp_path / "s.oakleaf")
        with oakleaf.open("memory:") as elsewhere:
            elsewhere.import_bundle(tmp_path / "s.oakleaf")
            there = asks_a_person().compile(checkpointer=OakleafSaver(elsewhere))
            there.invoke(Command(resume="Ada"), on("1"))
            assert texts(there.invoke(Command(resume=36), on("1")))[-1] == "Ada is 36"
            assert list(elsewhere.verify()) == []

    def test_a_copied_thread_shares_its_path_and_has_what_lies_beside_it(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        graph = with_a_subgraph(ANSWERS).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        graph.update_state(on("1"), {"messages": [HumanMessage("Weather in Rome?", id="h1")]})
        saver.copy_thread("1", "2")
        assert [comparable(one) for one in saver.list(on("2"))] == [
            comparable(one) for one in saver.list(on("1"))
        ]
        copy = next(row for row in store.all_sessions(conversation_id="2") if row.relation == "fork")
        assert copy.parent_session == session_of(store, "1").session_id
        assert graph.get_state(on("2")).config["configurable"]["checkpoint_id"] == graph.get_state(on("1")).config["configurable"]["checkpoint_id"]  # fmt: skip
        saver.delete_thread("1")
        graph.update_state(on("2"), {"messages": [AIMessage("On.", id="on")]}, as_node="close")
        assert texts(graph.get_state(on("2")).values)[-1] == "On."
        assert list(store.verify()) == []
        assert store.session(copy.session_id).model_calls() == [], "copied calls are not paid again"

    def test_a_thread_that_waits_before_a_tool_is_copied_whole(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        graph = agent(ANSWERS).compile(checkpointer=saver, interrupt_before=["tools"])
        graph.invoke(HELLO, on("1"))
        saver.copy_thread("1", "2")
        assert [comparable(one) for one in saver.list(on("2"))] == [
            comparable(one) for one in saver.list(on("1"))
        ]
        assert texts(graph.invoke(None, on("2"))) == TALK
        assert list(store.verify()) == []

    def test_what_was_pruned_is_not_told_by_a_copy(self, store: Store, saver: OakleafSaver) -> None:
        graph = agent(ANSWERS).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        saver.prune(["1"])
        graph.update_state(
            on("1"), {"messages": [AIMessage("It rains.", id="a1")]}
        )  # from before the note says so
        saver.copy_thread("1", "2")
        assert len(list(OakleafSaver(store).list(on("2")))) == 2
        assert texts(graph.get_state(on("2")).values) == [*TALK[:3], "It rains."]

    def test_what_a_deleted_run_said_is_no_longer_shown(self, store: Store, saver: OakleafSaver) -> None:
        graph = agent([*ANSWERS, AIMessage("Oops.", id="a2")]).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        graph.invoke({"messages": [HumanMessage("And?", id="h2")]}, on("1", run_id="run-2"))
        saver.delete_for_runs(["run-2"])
        assert texts(graph.get_state(on("1")).values) == TALK
        session = session_of(store, "1")
        assert [words for _, words in roles_and_texts(session)] == TALK
        session.redo()
        assert [words for _, words in roles_and_texts(session)] == [*TALK, "And?", "Oops."], "nothing is gone"

    def test_a_deleted_thread_lies_in_the_trash_and_its_name_is_free(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        graph = with_a_subgraph(ANSWERS).compile(checkpointer=saver)
        graph.invoke(HELLO, on("1"))
        first = session_of(store, "1")
        OakleafSaver(store).delete_thread("1")  # another process does
        assert graph.get_state(on("1")).values == {}
        with_a_subgraph(ANSWERS).compile(checkpointer=saver).invoke(HELLO, on("1"))
        assert session_of(store, "1").session_id != first.session_id
        assert first.row.trashed_at is not None
        assert len(list(saver.list(on("1"), filter={"source": "input"}))) == 2

    def test_a_thread_that_is_deleted_while_it_runs_begins_anew(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        first = put(saver, "1", {"n": 1})
        OakleafSaver(store).delete_thread("1")
        put(saver, "1", {"n": 2}, first)
        assert [one.checkpoint["channel_values"] for one in saver.list(on("1"))] == [{"n": 2}]


class TestWriters:
    def test_two_who_write_at_once_both_keep_what_they_wrote(self, store: Store) -> None:
        first = put(OakleafSaver(store), "1", {"messages": HELLO["messages"]})
        savers = [OakleafSaver(store), OakleafSaver(store)]
        gate = Barrier(2)

        def write(n: int) -> None:
            config, messages = first, list(HELLO["messages"])
            gate.wait()
            for step in range(8):
                messages = [*messages, HumanMessage(f"{n} {step}", id=f"{n} {step}")]
                config = put(savers[n], "1", {"messages": messages}, config)
                savers[n].put_writes(config, [("messages", [step])], f"task {n}")

        writers = [Thread(target=write, args=(n,)) for n in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        lines = [
            one
            for one in OakleafSaver(store).list(on("1"))
            if len(one.checkpoint["channel_values"]["messages"]) == 9
        ]
        assert sorted(
            m.content for one in lines for m in one.checkpoint["channel_values"]["messages"][1:]
        ) == sorted(f"{n} {step}" for n in range(2) for step in range(8))
        assert all(one.pending_writes for one in lines)
        assert [comparable(one) for one in savers[0].list(on("1"))] == [
            comparable(one) for one in savers[1].list(on("1"))
        ]
        assert list(store.verify()) == []

    def test_a_run_in_two_processes_is_dropped_whole(self, store: Store) -> None:
        savers = [OakleafSaver(store), OakleafSaver(store)]
        first = put(savers[0], "1", {"n": 0})
        assert savers[1].get_tuple(first) is not None
        for saver in savers:
            put(saver, "1", {"n": 1}, first, run_id="run")
        assert [len(list(saver.list(on("1")))) for saver in savers] == [3, 3]
        savers[0].delete_for_runs(["run"])
        assert [one.config for saver in savers for one in saver.list(on("1"))] == [first, first]

    def test_writes_may_come_before_their_checkpoint(self, saver: OakleafSaver) -> None:
        checkpoint = empty_checkpoint()
        saver.put_writes(on("1", checkpoint_ns="", checkpoint_id=checkpoint["id"]), [("a", 1)], "t")
        assert saver.get_tuple(on("1")) is None
        config = saver.put(on("1", checkpoint_ns=""), checkpoint, {"source": "loop", "step": 0}, {})
        assert saver.get_tuple(config).pending_writes == [("t", "a", 1)]  # type: ignore[union-attr]

    def test_one_who_is_killed_in_a_tool_loses_nothing_and_the_next_goes_on(self, tmp_path: Path) -> None:
        url = str(tmp_path / "a.db")
        runs = subprocess.Popen([sys.executable, GRAPHS, "worked", url], stdout=subprocess.PIPE, text=True)
        assert runs.stdout is not None
        for line in runs.stdout:
            if line == "in Rome\n":
                os.kill(runs.pid, signal.SIGKILL)
        runs.wait()
        runs.stdout.close()
        with oakleaf.open(url) as store:
            session = session_of(store, "killed")
            assert [words for _, words in roles_and_texts(session)] == [
                "Question 1",
                "",
                "sunny in Bonn",
                "Sunny.",
                "Question 2",
                "",
            ]
            assert [call.call.id for call in session.open_tool_calls] == ["call-2"]
            graph = agent([AIMessage("Sunny too.", id="said-2")]).compile(checkpointer=OakleafSaver(store))
            assert texts(graph.invoke(None, on("killed")))[-2:] == ["sunny in Rome", "Sunny too."]
            assert session.verify() == []
            assert len(session.model_calls()) == 2
        result = CliRunner().invoke(command, ["--store", url, "show", "latest"])
        assert "Sunny too." in result.output

    def test_one_who_is_killed_between_a_move_and_its_append_has_not_moved_the_thread(
        self, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "a.db")
        done = subprocess.run([sys.executable, GRAPHS, "edited", url], check=False)
        assert done.returncode == -signal.SIGKILL
        with oakleaf.open(url) as store:
            graph = agent([AIMessage("Yes.", id="yes")]).compile(checkpointer=OakleafSaver(store))
            assert texts(graph.get_state(on("killed")).values) == ["Bonn?", "Sunny."]
            assert texts(graph.invoke({"messages": [HumanMessage("Sure?", id="sure")]}, on("killed"))) == [
                *("Bonn?", "Sunny.", "Sure?", "Yes.")
            ]
            session = session_of(store, "killed")
            assert [words for _, words in roles_and_texts(session)] == ["Bonn?", "Sunny.", "Sure?", "Yes."]
            assert session.verify() == []


class TestRunOnce:
    """Kills are in `test_kills.py`; here what a resumed graph does with the calls it finds."""

    def run(self, saver: OakleafSaver, ran: list[str], order: str = "41", *, is_async: bool) -> list[str]:
        def pay(order: str) -> str:
            """Pay for an order; what it does is in its name."""
            ran.append(order)
            if ran == ["raises"]:
                raise ConnectionError("no network")
            if order == "interrupts":
                return f"approved by {interrupt('May I?')}"
            return f"paid {order}"

        wraps: Any = {"wrap_tool_call": saver.run_once, "awrap_tool_call": saver.arun_once}
        node = ToolNode([tool("pay")(pay)], handle_tool_errors=False, **wraps)
        builder = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
        graph = builder.compile(checkpointer=saver)
        call = {"name": "pay", "args": {"order": order}, "id": "call"}
        state = graph.get_state(on("1"))
        state_input: Any = None if state.next else {"messages": [AIMessage("", tool_calls=[call])]}
        state_input = Command(resume="Ann") if state.interrupts else state_input
        result = (
            asyncio.run(graph.ainvoke(state_input, on("1")))
            if is_async
            else graph.invoke(state_input, on("1"))
        )
        return texts(result)

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_call_whose_id_was_used_before_is_another_call(
        self, saver: OakleafSaver, is_async: bool
    ) -> None:
        ran: list[str] = []
        self.run(saver, ran, is_async=is_async)
        assert self.run(saver, ran, is_async=is_async) == ["", "paid 41", "", "paid 41"]
        assert ran == ["41", "41"]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_tool_that_raised_or_interrupted_has_ended_and_runs_again(
        self, saver: OakleafSaver, is_async: bool
    ) -> None:
        ran: list[str] = []
        with pytest.raises(ConnectionError):
            self.run(saver, ran, "raises", is_async=is_async)
        assert self.run(saver, ran, is_async=is_async) == ["", "paid raises"]
        self.run(saver, ran, "interrupts", is_async=is_async)
        assert self.run(saver, ran, is_async=is_async)[-1] == "approved by Ann"
        assert ran == ["raises"] * 2 + ["interrupts"] * 2

    def test_nothing_durable_before_the_tool_runs_is_refused(self, saver: OakleafSaver) -> None:
        node = ToolNode([weather], wrap_tool_call=saver.run_once, handle_tool_errors=False)
        graph = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
        with pytest.raises(InvalidArgument, match="exit"):
            graph.compile(checkpointer=saver).invoke(
                {"messages": [asking("1", "Bonn")]}, on("1"), durability="exit"
            )


class TestDocs:
    def test_the_code_of_the_page_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        page = Path(__file__).parents[3] / "docs" / "frameworks" / "langgraph.md"
        blocks = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        monkeypatch.chdir(tmp_path)
        known: dict[str, Any] = {"__name__": "page"}
        exec("\n".join(blocks), known)
        assert list(known["store"].all_sessions())  # the page stored a thread
        assert list(known["store"].verify()) == []
        known["store"].close()


class TestNames:
    @pytest.mark.parametrize("name", [None, ""])
    def test_a_thread_has_a_name(self, saver: OakleafSaver, name: Any) -> None:
        with pytest.raises(InvalidArgument, match="thread_id"):
            saver.get_tuple(on(name))
        with pytest.raises(InvalidArgument, match="thread_id"):
            put(saver, name, {})

    @pytest.mark.parametrize("name", ["a\0b", "\ud800"])
    def test_a_name_no_store_could_keep_is_refused(self, saver: OakleafSaver, name: str) -> None:
        with pytest.raises(InvalidText):
            put(saver, name, {})

    def test_a_number_is_a_name(self, saver: OakleafSaver) -> None:
        config = put(saver, 7, {"n": 1})  # type: ignore[arg-type]
        assert config["configurable"]["thread_id"] == 7
        assert saver.get_tuple(on("7")) is not None

    def test_a_strategy_that_is_none_deletes_nothing(self, saver: OakleafSaver) -> None:
        put(saver, "1", {"n": 1})
        with pytest.raises(InvalidArgument, match="strategy"):
            saver.prune(["1"], strategy="all")
        assert saver.get_tuple(on("1")) is not None

    def test_a_stranger_sees_nothing(self, tmp_path: Path) -> None:
        with (
            oakleaf.open(tmp_path / "a.db", space="a") as mine,
            oakleaf.open(tmp_path / "a.db", space="b") as yours,
        ):
            put(OakleafSaver(mine), "1", {"n": 1})
            stranger = OakleafSaver(yours)
            assert stranger.get_tuple(on("1")) is None
            assert list(stranger.list(None)) == []
            stranger.delete_thread("1")
            stranger.delete_for_runs(["r"])
            assert OakleafSaver(mine).get_tuple(on("1")) is not None

    def test_threads_are_brought_from_another_saver_in_any_order(
        self, store: Store, saver: OakleafSaver
    ) -> None:
        old = InMemorySaver()
        agent(ANSWERS).compile(checkpointer=old).invoke(HELLO, on("1"))
        for one in old.list(None):  # newest first
            parent = one.parent_config or on("1", checkpoint_ns="")
            saver.put(parent, one.checkpoint, one.metadata, one.checkpoint["channel_versions"])
            for task_id, channel, value in one.pending_writes or []:
                saver.put_writes(one.config, [(channel, value)], f"{task_id} {channel}")
        graph = agent([AIMessage("Moved.", id="moved")]).compile(checkpointer=saver)
        assert texts(graph.get_state(on("1")).values) == TALK
        assert texts(graph.invoke({"messages": [HumanMessage("On?", id="h2")]}, on("1")))[-1] == "Moved."
        assert [one.checkpoint["id"] for one in saver.list(on("1"))][3:] == [
            one.checkpoint["id"] for one in old.list(None)
        ]
        assert list(store.verify()) == []
