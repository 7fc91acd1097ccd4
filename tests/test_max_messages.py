"""A maximum of messages is a setting on the path: every reader of a path shows the context that the model was given."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

import oakleaf
from oakleaf import Budget, Limits, ScriptedModel, Session, Store, ToolCall, assistant, system, user
from oakleaf.core.context import build_context
from oakleaf.core.fit import fit
from oakleaf.ext import read
from oakleaf.log.runtime import real_runtime
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.wire import find_provider

Texts = list[str]


class RecordingModel(ScriptedModel):
    """Answers with a number and keeps the texts of each request."""

    def __init__(self, *answers: Any) -> None:
        self.given: list[Texts] = []
        waiting = list(answers)

        def answer(request: Any) -> Any:
            self.given.append(texts(request.context))
            answer = waiting.pop(0) if waiting else f"answer {len(self.given)}"
            if isinstance(answer, Exception):
                raise answer
            return answer

        super().__init__(answer)


def texts(context: Any) -> Texts:
    return [item.message.text for item in context.items]


def shown(session: Session) -> list[Texts]:
    """Return the context before each answer of the path, from `session.context`; other readers are compared to it."""
    contexts = []
    for entry in session.path():
        if entry.role != "assistant" or not entry.step:
            continue
        before = entry.seq - 1
        context = session.context(before)
        path = session.path()[:before]
        assert context == build_context(path)
        provider = find_provider("anthropic")
        assert session.request("anthropic", at=before) == provider.project(context, read(session).blob)
        assert read(session).at(session.log.leaf_at(before)).context_within(Budget()) == context
        contexts.append(texts(context))
    return contexts


def exported(session: Session) -> list[Texts]:
    """Return the input of each model event of the Inspect export."""
    file = io.BytesIO()
    session.export(file, format="inspect")
    (sample,) = json.loads(file.getvalue())["samples"]
    pool = sample["events_data"]["messages"]
    return [
        [
            pool[n]["content"] if isinstance(pool[n]["content"], str) else pool[n]["content"][0]["text"]
            for first, last in event["input_refs"]
            for n in range(first, last)
            if pool[n]["role"] != "system"
        ]
        for event in sample["events"]
        if event["event"] == "model"
    ]


def long_session(store: Store) -> tuple[Session, RecordingModel]:
    """Three turns: without a maximum, with one of 3, and with what holds from then on."""
    session, model = store.start("a", [system("You help.")]), RecordingModel()
    session.send_sync("question 1", model=model)
    session.send_sync("question 2", model=model, limits=Limits(max_messages=3))
    session.send_sync("question 3", model=model)
    session.send_sync("question 4", model=model, limits=Limits(max_messages=0))
    assert [len(given) for given in model.given] == [1, 3, 3, 7]
    return session, model


class TestReaders:
    def test_each_reader_shows_what_was_sent(self, store: Store) -> None:
        session, model = long_session(store)
        assert shown(session) == model.given
        assert exported(session) == model.given

    def test_a_fork_shows_what_was_sent(self, store: Store) -> None:
        session, model = long_session(store)
        fork = session.fork(at=session.leaf.seq - 3)  # before the last maximum
        assert shown(fork) == model.given[:3]
        fork.send_sync("another", model=model)
        assert (
            texts(fork.context(fork.leaf.seq - 1)) == model.given[-1] == ["question 3", "answer 3", "another"]
        )

    @pytest.mark.parametrize("has_parent", [True, False])
    def test_a_bundle_of_a_fork_shows_what_was_sent(self, store: Store, has_parent: bool) -> None:
        session, model = long_session(store)
        fork = session.fork()
        there = Store(MemoryStore(), real_runtime())
        for one in (session, fork) if has_parent else (fork,):
            file = io.BytesIO()
            one.export(file)
            file.seek(0)
            there.import_bundle(file)
        assert shown(there.session(fork.session_id)) == model.given

    def test_a_fork_of_a_purged_session_shows_what_was_sent(self, store: Store) -> None:
        session, model = long_session(store)
        fork = session.fork()
        store.delete(session.session_id)
        store.purge(session.session_id)
        assert shown(fork) == model.given

    def test_a_rewind_returns_to_the_maximum_that_stood_there(self, store: Store) -> None:
        session, _ = long_session(store)
        session.rewind(session.leaf.seq - 3)
        model = RecordingModel()
        session.send_sync("again", model=model)
        assert model.given == [["question 3", "answer 3", "again"]]

    def test_a_budget_cuts_what_the_maximum_leaves(self, store: Store) -> None:
        session, _ = long_session(store)
        session.set(limits=Limits(max_messages=5))
        for most in range(2, 9):
            budget = Budget(messages=most)
            fitted = read(session).context_within(budget)
            assert fitted == fit(session.context(), budget).context
            assert len(fitted.items) == min(most, 5) // 2 * 2


class TestWriters:
    def test_a_resume_changes_the_calls_after_it_alone(self, store: Store) -> None:
        session = store.start("a")
        for n in range(3):
            session.append([user(f"question {n}"), assistant("ok")])
        model = RecordingModel(assistant(ToolCall("c1", "look")), ConnectionError("gone"), "done")
        tool = oakleaf.tool(effect="read")(look)
        with pytest.raises(ConnectionError):
            session.send_sync("now", model=model, tools=[tool], limits=Limits(max_messages=5))
        other = store.session(session.session_id)
        other.resume_sync(model=model, tools=[tool], limits=Limits(max_messages=3))
        first, _, second = model.given
        assert (len(first), len(second)) == (5, 3)
        assert shown(other)[-2:] == [first, second]

    def test_own_loop_is_given_what_its_path_says(self, store: Store) -> None:
        session, _ = long_session(store)
        session.set(limits={"max_messages": 3})
        with session.turn("question 5") as turn:
            request = session.request("anthropic")
            turn.answer(assistant("answer 5"))
        assert [message["content"][0]["text"] for message in request["messages"]] == shown(session)[-1]
        assert shown(session)[-1] == ["question 4", "answer 4", "question 5"]

    def test_async_own_loop_sees_a_maximum_set_between_steps(self, store: Store) -> None:
        session, _ = long_session(store)
        counts: list[int] = []

        async def run() -> None:
            async with session.turn("question 5") as turn:
                counts.append(len(await turn.messages("anthropic")))
                await turn.answer(assistant(ToolCall("c1", "look")))
                await turn.result("c1", "found")
                await asyncio.to_thread(session.set, limits=Limits(max_messages=4))
                counts.append(len(await turn.messages("anthropic")))
                await turn.answer(assistant("answer 5"))

        asyncio.run(run())
        assert counts == [9, 3]

    def test_a_task_begins_with_the_maximum_of_its_parent(self, store: Store) -> None:
        seeds = [message for n in range(3) for message in (user(f"q{n}"), assistant("a"))]

        @oakleaf.tool(effect="idempotent")
        async def ask_child(ctx: oakleaf.ToolContext) -> str:
            """Asks."""
            return await ctx.task("what now", seeds=seeds)

        session = store.start("a")
        session.set(limits=Limits(max_messages=3))
        model = RecordingModel(assistant(ToolCall("c1", "ask_child")))
        session.send_sync("go", model=model, tools=[ask_child])
        assert [len(given) for given in model.given] == [1, 3, 3]
        (child,) = [
            store.session(row.session_id) for row in store.all_sessions(parent_session=session.session_id)
        ]
        assert shown(child) == [model.given[1]]

    @pytest.mark.parametrize("wrong", [-1, "3", 1.5, True])
    def test_a_wrong_maximum_is_refused(self, store: Store, wrong: Any) -> None:
        session = store.start("a")
        with pytest.raises(oakleaf.errors.OakleafError):
            session.set(limits={"max_messages": wrong})
        assert session.path() == []


class TestReplay:
    @pytest.mark.parametrize(
        ("arguments", "lengths"),
        [
            ({}, [1, 3, 3, 7]),
            ({"limits": Limits(max_messages=5)}, [1, 3, 5, 5]),
            ({"limits": Limits(max_messages=0)}, [1, 3, 5, 7]),
        ],
    )
    def test_a_replay_repeats_the_maximum_or_has_its_own(
        self, store: Store, arguments: dict[str, Any], lengths: list[int]
    ) -> None:
        session, _ = long_session(store)
        model = RecordingModel()
        report = session.replay_sync(model=model, **arguments)
        assert [len(given) for given in model.given] == lengths
        assert shown(store.session(report.replay)) == model.given

    def test_recorded_answers_keep_the_recorded_maximum(self, store: Store) -> None:
        session, model = long_session(store)
        report = session.replay_sync(limits=Limits(max_messages=1))
        assert shown(store.session(report.replay)) == model.given
        assert report.is_same


def look() -> str:
    """Look."""
    return "found"
