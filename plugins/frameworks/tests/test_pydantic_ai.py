"""The conversation store of Pydantic AI on Oakleaf: what the framework saves comes back, and it is a real session all the same."""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, ToolReturn
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.messages import (
    CachePoint,
    CompactionPart,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

import oakleaf
from oakleaf import Settings, assistant, user
from oakleaf.cli.main import oakleaf as command
from oakleaf.errors import InvalidText, StaleLeaf
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_frameworks.pydantic_ai.conversation_store import OakleafConversationStore, OakleafSteps
from support.fake_providers import Completion, FakeProviders
from support.sessions import exported

WHEN = datetime(2026, 11, 16, 9, tzinfo=UTC)
PNG = BinaryContent(b"\x89PNG\r\n\x1a\n\0\0\xff\xfe", media_type="image/png")
LARGE = BinaryContent(PNG.data + bytes(90), media_type="image/png")
BASE64 = LARGE.base64


def request_message(*parts: Any, **about: Any) -> ModelRequest:
    return ModelRequest(
        [UserPromptPart(part, timestamp=WHEN) if isinstance(part, str) else part for part in parts], **about
    )


def response_message(*parts: Any, **about: Any) -> ModelResponse:
    return ModelResponse(
        [TextPart(part) if isinstance(part, str) else part for part in parts], timestamp=WHEN, **about
    )


def calls(call_id: str, arguments: Any = None) -> ToolCallPart[Any]:
    return ToolCallPart("lookup", {"order": 41} if arguments is None else arguments, call_id)


def got(call_id: str, content: Any = "lost", **about: Any) -> ToolReturnPart[Any]:
    return ToolReturnPart("lookup", content, call_id, timestamp=WHEN, **about)


SPENT = RequestUsage(input_tokens=11, output_tokens=7, cache_read_tokens=3, details={"reasoning": 2})
ORDINARY: list[ModelMessage] = [
    request_message(
        "Where is it?", instructions="You help.", run_id="run-1", conversation_id="con-1", timestamp=WHEN
    ),
    response_message(
        ThinkingPart("hm", signature="sealed-by-its-issuer", provider_name="anthropic"),
        "Let me see.",
        calls("a"),
        calls("b"),
        usage=SPENT,
        model_name="claude-sonnet-4-5",
        provider_name="anthropic",
        provider_response_id="msg_1",
        finish_reason="tool_call",
    ),
    request_message(got("a"), got("b", {"status": ["lost"]}), instructions="You help."),
    response_message(
        "It is lost.",
        usage=SPENT,
        model_name="claude-sonnet-4-5",
        provider_name="anthropic",
        finish_reason="stop",
    ),
]
ODD: list[ModelMessage] = [
    request_message(SystemPromptPart("Be brief.", timestamp=WHEN), "and now", metadata={"mine": 1}),
    request_message(UserPromptPart(["one"], timestamp=WHEN)),
    request_message(
        UserPromptPart(
            ["this?", PNG, ImageUrl("https://x.test/a.png"), CachePoint(), TextContent("t")], timestamp=WHEN
        )
    ),
    request_message(UserPromptPart([], timestamp=WHEN)),
    request_message(),
    request_message("", instructions="Now you are rude."),
    request_message(
        RetryFeedbackPart("try again", retry=RetryInfo("model_retry", attempt=1), timestamp=WHEN)
    ),
    response_message(),
    response_message(
        "", calls("text", '{"order": 41}'), calls("compact", '{"order":41}'), calls("cut", '{"order": ')
    ),
    response_message(calls("nothing", "")),
    response_message(
        ThinkingPart("", id="rs_1", signature="s", provider_details={"k": [1]}),
        TextPart("x", id="msg_2"),
        state="interrupted",
    ),
    response_message(FilePart(PNG, id="f", provider_name="openai")),
    request_message(
        f"a link in words {LARGE.data_uri} and more", UserPromptPart([BASE64, LARGE], timestamp=WHEN)
    ),
    response_message(
        ThinkingPart(f"see {LARGE.data_uri}", signature="s", provider_name="anthropic"),
        f'{{"image": "{BASE64}"}}',
        "and more",
        calls("large", {"data": BASE64, "media_type": "image/png"}),
        provider_name="anthropic",
    ),
    request_message(got("large", {"image": LARGE, "again": BASE64})),
    response_message(
        NativeToolCallPart("web_search", {"q": 1}, "n"),
        NativeToolReturnPart("web_search", {"r": []}, "n", timestamp=WHEN),
    ),
    response_message(
        CompactionPart(
            "short", id="cmp_1", provider_name="openai", provider_details={"encrypted_content": "e"}
        )
    ),
    request_message(got("text", [1, {"a": None}]), got("cut", 1.5, outcome="failed"), "and a word"),
    request_message(got("compact", None, outcome="denied", metadata={"by": "ann"})),
    request_message(got("nobody asked", PNG)),
]


def dumped(messages: Sequence[ModelMessage]) -> Any:
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")


def on_a_loop(law: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(law)
    def test(*args: Any, **named: Any) -> None:
        asyncio.run(law(*args, **named))

    return test


def on_memory() -> OakleafConversationStore:
    return OakleafConversationStore(Store(MemoryStore()))


def talk(*messages: ModelMessage, name: str = "con-1") -> Conversation:
    return Conversation(messages=list(messages), conversation_id=name)


async def load_conversation(store: ConversationStore, name: str = "con-1") -> Conversation:
    conversation = await store.load(name)
    assert conversation is not None
    return conversation


async def stored_session(store: OakleafConversationStore, name: str = "con-1") -> oakleaf.Session:
    oakleaf_session = await store.oakleaf_session(name)
    assert oakleaf_session is not None
    assert oakleaf_session.verify() == []
    return oakleaf_session


class TestAMessage:
    @pytest.mark.parametrize("n", range(len(ORDINARY) + len(ODD)))
    @on_a_loop
    async def test_comes_back_as_it_was_saved(self, n: int) -> None:
        store, message = on_memory(), [*ORDINARY, *ODD][n]
        await store.save(talk(*ORDINARY, message))
        assert dumped((await load_conversation(store)).messages) == dumped([*ORDINARY, message])
        await stored_session(store)

    @settings(max_examples=100)
    @given(st.lists(st.lists(st.sampled_from([*ORDINARY, *ODD]), max_size=5), max_size=4), st.integers(0, 9))
    @on_a_loop
    async def test_comes_back_in_any_order(self, saves: list[list[ModelMessage]], most: int) -> None:
        store, conversation = on_memory(), talk()
        for messages in saves:
            conversation.messages.extend(messages)
            await store.save(conversation)
        if saves:
            assert dumped((await load_conversation(store)).messages) == dumped(conversation.messages)
            last = await store.load("con-1", limit=most)
            assert last is not None
            assert dumped(last.messages) == dumped(
                conversation.messages[max(0, len(conversation.messages) - most) :]
            )
            await stored_session(store)

    @on_a_loop
    async def test_is_an_ordinary_entry(self) -> None:
        store = on_memory()
        await store.save(talk(*ORDINARY))
        oakleaf_session = await stored_session(store)
        assert [entry.role or entry.kind for entry in oakleaf_session.path()] == [
            "settings",
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
        ]
        assert oakleaf_session.path()[0].payload == Settings(prompt="You help.")
        assert [entry.role for entry in oakleaf_session.transcript()] == ["user", "assistant"]
        assert [call.arguments for call in oakleaf_session.path()[2].message.calls] == [{"order": 41}] * 2

    @on_a_loop
    async def test_keeps_its_words_once(self) -> None:
        store = on_memory()
        long = [
            request_message("question " * 99, instructions="rules " * 99),
            response_message("answer " * 99),
            request_message("again", instructions="rules " * 99),
        ]
        await store.save(talk(*long))
        text = exported(await stored_session(store), "jsonl")
        assert [text.count(word * 9) for word in ("question ", "rules ", "answer ")] == [11] * 3

    @on_a_loop
    async def test_keeps_what_is_sealed_from_everybody_but_its_issuer(self) -> None:
        store = on_memory()
        await store.save(talk(*ORDINARY))
        oakleaf_session = await stored_session(store)
        assert "sealed-by" not in exported(oakleaf_session, "jsonl")
        assert "sealed-by" not in json.dumps(oakleaf_session.messages("openai"))
        assert "sealed-by" in json.dumps(oakleaf_session.messages("anthropic"))

    @on_a_loop
    async def test_tells_the_ledger_what_it_cost(self) -> None:
        store = on_memory()
        await store.save(talk(*ORDINARY))
        oakleaf_session = await stored_session(store)
        assert [(call.answer_seq, call.model, call.provider) for call in oakleaf_session.model_calls()] == [
            (3, "claude-sonnet-4-5", "anthropic"),
            (6, "claude-sonnet-4-5", "anthropic"),
        ]
        assert (
            oakleaf_session.usage().input_tokens,
            oakleaf_session.usage().cache_read_tokens,
            oakleaf_session.usage().unpriced_calls,
        ) == (22, 6, 0)
        assert oakleaf_session.row.model == "claude-sonnet-4-5"

    @on_a_loop
    async def test_costs_what_the_framework_says(self) -> None:
        """Searches, and cache writes that are kept for an hour, have prices of their own."""
        report = {
            "input_tokens": 10,
            "output_tokens": 5,
            "cache_creation_input_tokens": 100_000,
            "cache_creation": {"ephemeral_1h_input_tokens": 100_000},
            "server_tool_use": {"web_search_requests": 3},
        }
        by = {"provider": "anthropic", "provider_url": "", "provider_fallback": "anthropic"}
        usage = RequestUsage.extract({"model": "claude-sonnet-4-5", "usage": report}, **by)
        answer = ModelResponse(
            [TextPart("Found.")], usage=usage, model_name="claude-sonnet-4-5", provider_name="anthropic"
        )
        store = on_memory()
        await store.save(talk(request_message("Search."), answer))
        (call,) = (await stored_session(store)).model_calls()
        assert call.price is not None
        assert call.price.microcents == answer.cost().total_price * 100_000_000

    @on_a_loop
    async def test_that_cannot_be_kept_is_refused_and_nothing_is_written(self) -> None:
        store = on_memory()
        conversation = talk(*ORDINARY)
        await store.save(conversation)
        conversation.messages.append(request_message("half a character \ud800"))
        with pytest.raises((InvalidText, UnicodeError, ValueError)):
            await store.save(conversation)
        assert dumped((await load_conversation(store)).messages) == dumped(ORDINARY)

    @on_a_loop
    async def test_may_be_long_and_hostile(self) -> None:
        store, messages = (
            on_memory(),
            [request_message("x\0y" * 3_000_000), response_message("'; drop table entry --")],
        )
        await store.save(talk(*messages))
        assert dumped((await load_conversation(store)).messages) == dumped(messages)


ACTS = st.one_of(
    st.tuples(st.just("say"), st.lists(st.sampled_from([*ORDINARY, *ODD]), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["branch", "fork", "rewrite", "back"]), st.integers(0, 6)),
    st.tuples(st.sampled_from(["delete"]), st.just(0)),
)


class TestTheStore:
    def test_stands_on_a_store_and_on_nothing_else(self) -> None:
        with pytest.raises(TypeError, match=r"oakleaf\.open"):
            OakleafConversationStore("agent.db")

    @settings(max_examples=60)
    @given(st.lists(ACTS, max_size=7))
    @on_a_loop
    async def test_does_what_the_frameworks_own_does(self, acts: list[tuple[str, Any]]) -> None:
        ours, theirs = on_memory(), InMemoryConversationStore()
        for act, what in acts:
            outcomes = [await acted(store, act, what) for store in (ours, theirs)]
            assert outcomes[0] == outcomes[1]
        names = [
            sorted(r.conversation_id for r in await store.list_conversations()) for store in (ours, theirs)
        ]
        assert names[0] == names[1]
        for name in names[0]:
            await stored_session(ours, name)

    @on_a_loop
    async def test_goes_on_where_another_object_stopped(self, store: Store) -> None:
        entries = await OakleafConversationStore(store, agent="support").save(talk(*ORDINARY), scope="ann")
        again = OakleafConversationStore(store)
        conversation = await load_conversation(again)
        conversation.messages.append(request_message("And 42?"))
        entries += await again.save(conversation)
        stored_entries = await again.load_entries("con-1")
        assert stored_entries is not None
        assert [(one.id, one.parent_id) for one in stored_entries] == [
            (one.id, one.parent_id) for one in entries
        ]
        row = (await stored_session(again)).row
        assert (row.conversation_id, row.title, row.agent, row.tags) == (
            "con-1",
            "con-1",
            "support",
            {"scope": "ann"},
        )

    @on_a_loop
    async def test_finds_an_entry_of_a_conversation_that_it_has_not_read(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        entries = []
        for name in ("con-1", "con-2", "con-3"):
            conversation = talk(name=name)
            conversation.messages.extend([request_message(name), response_message(f"to {name}")])
            entries += await conversations.save(conversation)
        store.start("another", [oakleaf.user("not a conversation of the framework")])
        for entry in entries:
            cold = OakleafConversationStore(store)
            assert dumped([(await cold.read_entry(entry.id)).message]) == dumped([entry.message])
            history = await OakleafConversationStore(store).read_history(entry.id)
            assert history[-1].id == entry.id
        with pytest.raises(LookupError, match="in no conversation of this store"):
            await conversations.read_entry("unknown")

    @on_a_loop
    async def test_reads_no_other_conversation_to_find_the_head_of_one(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conversations = OakleafConversationStore(store)
        heads = []
        for number in range(12):
            conversation = talk(name=f"con-{number}")
            conversation.messages.extend([request_message("q"), response_message(f"to {number}")])
            heads.append((await conversations.save(conversation))[-1])
        read: list[str] = []
        path = store.backend.path

        def recorded_path(session_id: str, **kwargs: Any) -> Any:
            read.append(session_id)
            return path(session_id, **kwargs)

        monkeypatch.setattr(store.backend, "path", recorded_path)
        for number, head in enumerate(heads[:3]):
            read.clear()
            cold = OakleafConversationStore(store)
            assert dumped([(await cold.read_entry(head.id)).message]) == dumped([head.message])
            session = store.latest(f"con-{number}")
            assert session is not None
            assert set(read) == {session.session_id}

    @on_a_loop
    async def test_refuses_who_has_not_seen_what_another_saved(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        first = talk(*ORDINARY[:1])
        await conversations.save(first)
        with pytest.raises(ConversationConflict):
            await conversations.save(talk(response_message("never loaded")))
        late = await load_conversation(OakleafConversationStore(store))
        first.messages.append(response_message("one"))
        await conversations.save(first)
        late.messages.append(response_message("two"))
        with pytest.raises(ConversationConflict):
            await OakleafConversationStore(store).save(late)
        assert dumped((await load_conversation(conversations)).messages) == dumped(first.messages)

    @on_a_loop
    async def test_lets_one_of_many_win_who_save_at_once(self, store: Store) -> None:
        first = talk(*ORDINARY)
        await OakleafConversationStore(store).save(first)
        for n in range(5):
            stores = [OakleafConversationStore(store) for _ in range(4)]
            conversations_seen = [await load_conversation(one) for one in stores]
            for conversation in conversations_seen:
                conversation.messages.append(request_message(f"round {n}"))
            done = await asyncio.gather(
                *map(OakleafConversationStore.save, stores, conversations_seen), return_exceptions=True
            )
            assert sorted(type(one).__name__ for one in done) == [*["ConversationConflict"] * 3, "list"]
        assert len((await load_conversation(OakleafConversationStore(store))).messages) == 9

    @on_a_loop
    async def test_goes_behind_the_notes_that_others_add_meanwhile(self, store: Store) -> None:
        conversations, conversation = OakleafConversationStore(store), talk(*ORDINARY)
        await conversations.save(conversation)
        session = await stored_session(conversations)

        def add_notes() -> None:
            for _ in range(50):
                with suppress(StaleLeaf):
                    store.session(session.session_id).note({"from": "elsewhere"})

        notes = threading.Thread(target=add_notes)
        notes.start()
        for n in range(20):
            conversation.messages.append(request_message(f"{n}"))
            await conversations.save(conversation)
        notes.join()
        assert dumped((await load_conversation(conversations)).messages) == dumped(conversation.messages)
        assert (await stored_session(conversations)).verify() == []

    @on_a_loop
    async def test_lists_the_newest_first_and_by_scope(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        for name, scope in (("a", "ann"), ("b", "bob"), ("c", "ann")):
            await conversations.save(talk(request_message("hi"), name=name), scope=scope)
        again = await load_conversation(conversations, "a")
        again.messages.append(response_message("hello"))
        await conversations.save(again)
        assert [record.conversation_id for record in await conversations.list_conversations()] == [
            "a",
            "c",
            "b",
        ]
        assert [r.conversation_id for r in await conversations.list_conversations(scope="ann", limit=1)] == [
            "a"
        ]
        assert await conversations.load("b", scope="ann") is None

    @on_a_loop
    async def test_leaves_a_branch_and_comes_back_to_it(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        conversation = talk(*ORDINARY)
        entries = await conversations.save(conversation)
        branched = await conversations.branch("con-1", at=2, expected_revision=conversation.revision)
        branched.messages.append(request_message(got("a", "found!"), got("b")))
        await conversations.save(branched)
        (record,) = await conversations.list_conversations()
        assert record.branches == [entries[-1].id]
        back = await conversations.branch(
            "con-1", from_entry=record.branches[0], expected_revision=branched.revision
        )
        assert dumped(back.messages) == dumped(ORDINARY)
        assert len((await stored_session(conversations)).branches()) == 2

    @on_a_loop
    async def test_forks_without_copying(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        await conversations.save(talk(*ORDINARY), scope="ann")
        fork = await conversations.fork("con-1", at=2, new_conversation_id="a try")
        assert dumped(fork.messages) == dumped(ORDINARY[:2])
        oakleaf_session = await stored_session(conversations, "a try")
        assert (
            oakleaf_session.row.relation,
            len(oakleaf_session.entries()),
            len(oakleaf_session.path()),
        ) == (
            "fork",
            1,
            4,
        )
        fork.messages.append(request_message(got("a"), got("b")))
        await conversations.save(fork)
        await conversations.delete("con-1")
        assert dumped((await load_conversation(conversations, "a try")).messages) == dumped(fork.messages)
        with pytest.raises(ConversationConflict):
            await conversations.save(talk(request_message("x"), name="a try"))

    @on_a_loop
    async def test_deletes_into_the_trash(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        conversation = talk(*ORDINARY)
        await conversations.save(conversation)
        session_id = (await stored_session(conversations)).session_id
        await conversations.delete("con-1")
        assert await conversations.load("con-1") is None
        with pytest.raises(ConversationConflict):
            await conversations.save(conversation)
        store.restore(session_id)
        assert dumped((await load_conversation(conversations)).messages) == dumped(ORDINARY)

    @on_a_loop
    async def test_knows_what_oakleaf_has_said_in_between(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        conversation = talk(*ORDINARY)
        await conversations.save(conversation)
        (await stored_session(conversations)).append([user("by hand"), assistant("noted"), user("and more")])
        conversation.messages.append(request_message("late"))
        with pytest.raises(ConversationConflict):
            await conversations.save(conversation)
        latest = await load_conversation(conversations)
        assert [message.kind for message in latest.messages[-3:]] == ["request", "response", "request"]
        latest.messages.append(request_message("now I know"))
        await conversations.save(latest)
        assert dumped((await load_conversation(conversations)).messages) == dumped(latest.messages)

    @on_a_loop
    async def test_goes_on_with_any_session_of_oakleaf(self, store: Store) -> None:
        session = store.start("support", [oakleaf.system("You help.")], conversation_id="con-1")
        session.append([user("Hi"), assistant("Hello.", oakleaf.ToolCall("c", "look", {"n": 1}))])
        session.append([oakleaf.tool_result("c", "seen"), assistant("Seen.")])
        conversations = OakleafConversationStore(store)
        conversation = await load_conversation(conversations)
        kinds = [[part.part_kind for part in message.parts] for message in conversation.messages]
        assert kinds == [["system-prompt", "user-prompt"], ["text", "tool-call"], ["tool-return"], ["text"]]
        conversation.messages.append(request_message("And?"))
        await conversations.save(conversation)
        assert dumped((await load_conversation(conversations)).messages) == dumped(conversation.messages)
        assert (await stored_session(conversations)).session_id == session.session_id

    @on_a_loop
    async def test_moves_in_a_bundle_without_what_is_sealed(self, store: Store) -> None:
        await OakleafConversationStore(store).save(talk(*ORDINARY))
        bundle = io.BytesIO()
        (await stored_session(OakleafConversationStore(store))).export(bundle)
        elsewhere = Store(MemoryStore())
        elsewhere.import_bundle(io.BytesIO(bundle.getvalue()))
        unsealed = dumped(ORDINARY)
        unsealed[1]["parts"][0]["signature"] = None
        assert dumped((await load_conversation(OakleafConversationStore(elsewhere))).messages) == unsealed

    @on_a_loop
    async def test_of_another_space_or_owner_is_another(self, tmp_path: Path) -> None:
        for who in ({}, {"space": "elsewhere"}, {"owner": "ann"}):
            with oakleaf.open(tmp_path / "agent.db", **who) as store:
                conversations = OakleafConversationStore(store)
                await conversations.save(talk(request_message(str(who))))
                assert len((await load_conversation(conversations)).messages) == 1


async def acted(store: ConversationStore, act: str, what: Any) -> Any:
    """One thing done to a conversation, and what it holds then: or what refused it."""
    conversation = await store.load("con-1") or talk()
    if act == "say":
        conversation.messages.extend(what)
    if act in ("say", "rewrite"):
        if act == "rewrite":
            conversation.messages[what:] = [response_message(f"rewritten {what}")]
        await store.save(conversation)
    elif conversation.revision is None:
        return None
    elif act == "branch" and what <= len(conversation.messages):
        await store.branch("con-1", at=what, expected_revision=conversation.revision)
    elif act == "back":
        record = next(r for r in await store.list_conversations() if r.conversation_id == "con-1")
        if what < len(record.branches):
            await store.branch("con-1", from_entry=record.branches[what], expected_revision=record.revision)
    elif act == "fork" and what <= len(conversation.messages):
        name = f"fork {len(await store.list_conversations())} {what}"
        if await store.load(name) is None:
            await store.fork("con-1", at=what, new_conversation_id=name)
    elif act == "delete":
        await store.delete("con-1")
    loaded_conversation = await store.load("con-1")
    if loaded_conversation is None:
        return None
    (record,) = (r for r in await store.list_conversations() if r.conversation_id == "con-1")
    branches = [dumped([e.message for e in await store.read_history(tip)]) for tip in record.branches]
    return dumped(loaded_conversation.messages), loaded_conversation.usage, branches


# -- runs ------------------------------------------------------------------------------------------


def answers(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse([TextPart("lost")], usage=SPENT)
    return ModelResponse(
        [TextPart("let me see"), *(calls(f"c{n}", {"order": n}) for n in (41, 42))], usage=SPENT
    )


def support(*capabilities: Any, lookup: Any = None, **about: Any) -> Agent[None, Any]:
    agent = Agent(FunctionModel(answers), instructions="You help.", capabilities=capabilities, **about)
    agent.tool_plain(lookup or slow_and_fast(), name="lookup")
    return agent


def slow_and_fast() -> Callable[[int], Coroutine[Any, Any, dict[str, int]]]:
    """Of two calls at once the later is the faster."""
    is_done = asyncio.Event()

    async def lookup(order: int) -> dict[str, int]:
        if order == 41:
            await is_done.wait()
        is_done.set()
        return {"lost": order}

    return lookup


class TestARun:
    @pytest.mark.parametrize("is_stepwise", [False, True], ids=["saved", "step by step"])
    @on_a_loop
    async def test_is_kept_whole_and_goes_on(self, store: Store, is_stepwise: bool) -> None:
        conversations = OakleafConversationStore(store)
        steps = [OakleafSteps(conversations)] if is_stepwise else []
        conversation = talk()
        for n in (1, 2):
            result = await support(*steps).run("Where?", conversation=conversation)
            if not is_stepwise:
                await conversations.save(result)
            conversation = await load_conversation(conversations)
            assert dumped(conversation.messages) == dumped(result.all_messages())
            assert (conversation.usage.requests, conversation.usage.tool_calls) == (2 * n, 2 * n)
            assert result.conversation.revision == conversation.revision
        oakleaf_session = await stored_session(conversations)
        assert [entry.role for entry in oakleaf_session.transcript()] == ["user", "assistant"] * 2
        assert oakleaf_session.usage().input_tokens == 44
        assert len(oakleaf_session.branches()) == 1

    @on_a_loop
    async def test_may_go_on_with_its_result(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        agent = support(OakleafSteps(conversations))
        result = await agent.run("Where?", conversation=talk())
        await conversations.save(result)  # not needed, and no harm
        await support(OakleafSteps(conversations)).run("And?", conversation=result.conversation)
        assert len((await load_conversation(conversations)).messages) == 8

    @on_a_loop
    async def test_may_be_streamed_or_walked_through(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        agent = Agent(TestModel(), capabilities=[OakleafSteps(conversations)])
        agent.tool_plain(look_up, name="lookup")
        async with agent.run_stream("Where?", conversation=talk()) as streamed:
            assert "lost" in await streamed.get_output()
        assert dumped((await load_conversation(conversations)).messages) == dumped(streamed.all_messages())
        async with agent.iter("And?", conversation=await load_conversation(conversations)) as walk:
            async for _ in walk:
                pass
        assert walk.result is not None
        assert dumped((await load_conversation(conversations)).messages) == dumped(walk.result.all_messages())
        assert len((await stored_session(conversations)).branches()) == 1

    @on_a_loop
    async def test_waits_for_a_person_and_goes_on_elsewhere(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        for steps in ([], [OakleafSteps(conversations)]):
            name = f"con-{len(steps)}"
            agent: Agent[None, Any] = Agent(
                FunctionModel(answers), capabilities=steps, output_type=[str, DeferredToolRequests]
            )
            agent.tool_plain(look_up, name="lookup", requires_approval=True)
            waits = await agent.run("Where?", conversation=talk(name=name))
            if not steps:
                await conversations.save(waits)
            conversation = await load_conversation(OakleafConversationStore(store), name)
            requests = conversation.deferred_tool_requests
            assert requests is not None
            assert [call.tool_call_id for call in requests.approvals] == ["c41", "c42"]
            done = await agent.run(
                conversation=conversation, deferred_tool_results=requests.build_results(approve_all=True)
            )
            if not steps:
                await conversations.save(done)
            assert (await load_conversation(conversations, name)).deferred_tool_requests is None
            path = (await stored_session(conversations, name)).path()
            assert [entry.role for entry in path if entry.role] == [
                "user",
                "assistant",
                "tool",
                "tool",
                "assistant",
            ]


async def look_up(order: int) -> dict[str, int]:
    return {"lost": order}


class TestOverHttp:
    @on_a_loop
    async def test_a_run_of_a_real_client_is_kept_and_its_history_is_taken_back(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)
        with FakeProviders(
            Completion("It is lost.", "I think"), Completion("It still is.", "I think again")
        ) as vendor:
            client = AsyncOpenAI(base_url=vendor.url_for("openai"), api_key="none")
            model = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, instructions="You help.", capabilities=[OakleafSteps(conversations)])
            for text in ("Where?", "And?"):
                conversation = await conversations.load("con-1") or talk()
                async with agent.run_stream(text, conversation=conversation) as streamed:
                    await streamed.get_output()
                assert dumped((await load_conversation(conversations)).messages) == dumped(
                    streamed.all_messages()
                )
            await client.close()
            assert [request.problems for request in vendor.requests] == [[]] * 2
            assert "SIG-openai" in json.dumps(vendor.bodies("openai")[1])
        session = await stored_session(conversations)
        assert "SIG-openai" not in exported(session, "jsonl")
        assert (session.usage().calls, session.usage().input_tokens) == (2, 22)


class TestTools:
    @on_a_loop
    async def test_are_on_the_path_as_the_model_is_given_them_and_again_only_when_they_change(
        self, store: Store
    ) -> None:
        conversations = OakleafConversationStore(store)
        with FakeProviders(*[Completion("It is lost.")] * 3) as vendor:
            client = AsyncOpenAI(base_url=vendor.url_for("openai"), api_key="none")
            model = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=client))
            for tools in ([look_up], [look_up], []):
                agent = Agent(
                    model, instructions="You help.", tools=tools, capabilities=[OakleafSteps(conversations)]
                )
                conversation = await conversations.load("con-1") or talk()
                async with agent.run_stream("Where?", conversation=conversation) as streamed:
                    await streamed.get_output()
            await client.close()
        session = await stored_session(conversations)
        settings = [entry.payload for entry in session.path() if isinstance(entry.payload, oakleaf.Settings)]
        named = [one.tool_definitions.names for one in settings if one.tool_definitions is not None]
        assert named == [("look_up",), ()]
        answers = [entry.seq for entry in session.path() if entry.role == "assistant"]
        for seq, body in zip(answers, vendor.bodies("openai"), strict=True):
            request = session.request("openai", at=seq - 1)
            assert request.get("instructions") == "You help."
            names = [(tool["name"], tool["parameters"]["properties"]) for tool in body.get("tools", ())]
            assert [
                (tool["name"], tool["parameters"]["properties"]) for tool in request.get("tools", ())
            ] == names


class TestSteps:
    @on_a_loop
    async def test_are_durable_before_what_follows_them(self, store: Store) -> None:
        conversations, steps = OakleafConversationStore(store), list[tuple[str, list[str]]]()

        def roles() -> list[str]:
            session = store.latest("con-1")
            return [] if session is None else [entry.role for entry in session.path() if entry.role]

        def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            steps.append(("model", roles()))
            return answers(messages, info)

        async def lookup(order: int) -> str:
            while order == 42 and "tool" not in roles():
                await asyncio.sleep(0.001)  # until the other's result is there
            steps.append((f"tool {order}", roles()))
            return "lost"

        agent: Agent[None, str] = Agent(FunctionModel(model), capabilities=[OakleafSteps(conversations)])
        agent.tool_plain(lookup)
        await asyncio.wait_for(agent.run("Where?", conversation=talk()), 10)
        asked_first = ["user", "assistant"]
        assert steps == [
            ("model", ["user"]),
            ("tool 41", asked_first),
            ("tool 42", [*asked_first, "tool"]),
            ("model", [*asked_first, "tool", "tool"]),
        ]

    @on_a_loop
    async def test_of_a_run_that_was_given_an_old_conversation_are_refused_before_the_model_is_called(
        self, store: Store
    ) -> None:
        conversations = OakleafConversationStore(store)
        await conversations.save(talk(*ORDINARY))
        called: list[int] = []

        def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            called.append(len(messages))
            return ModelResponse([TextPart("hm")])

        for old in (talk(), talk(*ORDINARY[:2], response_message("other"))):
            agent = Agent(FunctionModel(model), capabilities=[OakleafSteps(conversations)])
            with pytest.raises(ConversationConflict):
                await agent.run("Where?", conversation=old)
        assert called == []
        window = await conversations.load("con-1", limit=2)
        await Agent(FunctionModel(model), capabilities=[OakleafSteps(conversations)]).run(
            "And?", conversation=window
        )
        assert dumped((await load_conversation(conversations)).messages[:4]) == dumped(ORDINARY)
        assert len((await load_conversation(conversations)).messages) == 6

    @on_a_loop
    async def test_keep_what_a_tool_says_beside_its_result(self, store: Store) -> None:
        async def lookup(order: int) -> Any:
            return ToolReturn({"lost": order}, content=["look", PNG], metadata={"order": order})

        conversations = OakleafConversationStore(store)
        result = await support(OakleafSteps(conversations), lookup=lookup).run("Where?", conversation=talk())
        assert dumped((await load_conversation(conversations)).messages) == dumped(result.all_messages())
        await stored_session(conversations)

    @on_a_loop
    async def test_keep_a_result_once_in_whatever_order_it_landed(self, store: Store) -> None:
        conversations = OakleafConversationStore(store)

        async def lookup(order: int) -> dict[str, int]:
            session = store.latest("con-1")
            assert session is not None
            while order == 41 and not any(entry.role == "tool" for entry in session.path()):
                await asyncio.sleep(0.001)  # until the other's result is there
                session.refresh()
            return {"lost": order}

        agent = support(OakleafSteps(conversations), lookup=lookup)
        await asyncio.wait_for(agent.run("Where?", conversation=talk()), 10)
        path = (await stored_session(conversations)).path()
        landed = [
            entry.message.results[0].call_id for entry in path if entry.role == "tool" and entry.message
        ]
        assert landed == ["c42", "c41"]
        assert not any("content" in step for note in path for step in _steps_of_edits(note.payload))


def _steps_of_edits(payload: Any) -> set[str]:
    data = payload.data.get("pydantic_ai", {}) if isinstance(payload, oakleaf.Note) else {}
    return {str(step) for path, *_ in data.get("rest", []) for step in path}


# -- a killed process ------------------------------------------------------------------------------


def is_killed_in_its_second_tool(path: Path) -> None:
    store = oakleaf.open(path)

    async def lookup(order: int) -> str:
        session = store.latest("con-1")
        assert session is not None
        while order == 42 and session.refresh().leaf.seq < 5:
            await asyncio.sleep(0.001)
        if order == 42:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{order} is lost"

    agent = support(OakleafSteps(OakleafConversationStore(store)), lookup=lookup)
    asyncio.run(agent.run("Where?", conversation=talk()))


class TestAKilledProcess:
    @pytest.fixture
    def killed(self, tmp_path: Path) -> Path:
        """Forked: it need not load the framework again, which takes seconds."""
        path = tmp_path / "agent.db"
        child = multiprocessing.get_context("fork").Process(target=is_killed_in_its_second_tool, args=[path])
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        return path

    @on_a_loop
    async def test_has_lost_nothing_that_had_happened(self, killed: Path) -> None:
        session = await stored_session(OakleafConversationStore(oakleaf.open(killed)))
        assert [entry.role for entry in session.path() if entry.role] == ["user", "assistant", "tool"]
        assert [call.call.id for call in session.open_tool_calls] == ["c42"]
        assert session.usage().input_tokens == 11

    @pytest.mark.parametrize("prompt", [None, "And?"])
    @on_a_loop
    async def test_is_followed_by_one_that_goes_on(self, killed: Path, prompt: str | None) -> None:
        conversations = OakleafConversationStore(oakleaf.open(killed))
        conversation = await load_conversation(conversations)
        if prompt is not None:
            (await stored_session(conversations)).close_batch(
                "the run was cut off: it may have happened", outcome="unknown"
            )
            conversation = await load_conversation(conversations)
        result = await support(OakleafSteps(conversations), lookup=look_up).run(
            prompt, conversation=conversation
        )
        assert dumped((await load_conversation(conversations)).messages) == dumped(result.all_messages())
        text = json.dumps(dumped(result.all_messages()))
        assert "41 is lost" in text
        assert ("may have happened" in text) == (prompt is not None)
        await stored_session(conversations)

    def test_is_told_whole_at_the_command_line(self, killed: Path) -> None:
        result = CliRunner().invoke(command, ["--store", str(killed), "show", "con-1"])
        assert result.exit_code == 0, result.output
        for word in ("Where?", "let me see", "lookup", "41 is lost", "started, outcome unknown"):
            assert word in result.output


class TestThePage:
    def test_runs_as_it_stands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        page = Path(__file__).parents[3] / "docs" / "frameworks" / "pydantic-ai.md"
        blocks = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        monkeypatch.chdir(tmp_path)
        assert blocks
        exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "page"})
