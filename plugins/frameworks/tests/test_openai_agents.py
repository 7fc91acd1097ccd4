"""The session of OpenAI's Agents SDK on Oakleaf: what the SDK puts in comes back, and it is a real session all the same."""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    OpenAIResponsesModel,
    OutputGuardrailTripwireTriggered,
    Runner,
    RunState,
    SQLiteSession,
    Usage,
    function_tool,
    output_guardrail,
    set_tracing_disabled,
)
from agents.memory import OpenAIResponsesCompactionSession, Session
from agents.testing import ScriptedModel, assistant_message, function_call
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

import oakleaf
from oakleaf import StaleLeaf, assistant, user
from oakleaf.cli.main import oakleaf as command
from oakleaf.errors import InvalidText, NotJson, UnrecognizedReply
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_frameworks.openai_agents.session import OakleafHooks, OakleafSession
from support.fake_providers import Call, Completion, FakeProviders
from support.sessions import exported

set_tracing_disabled(True)  # its exporter would look for a network

PNG = "data:image/png;base64,iVBORw0KGgo="
LARGE = "data:image/png;base64,iVBORw0KGgo" + "A" * 89
SPENT = Usage(requests=1, input_tokens=11, output_tokens=7, total_tokens=18)


def answer_item(text: str, item_id: str = "msg_1") -> Any:
    content = [{"annotations": [], "text": text, "type": "output_text", "logprobs": []}]
    return {
        "id": item_id,
        "content": content,
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }


def call_item(call_id: str, arguments: str = '{"order":41}', **more: Any) -> Any:
    call = {"arguments": arguments, "call_id": call_id, "name": "lookup", "type": "function_call"}
    return call | {"id": f"fc_{call_id}"} | more


def got(call_id: str, output: Any = "lost", **more: Any) -> Any:
    return {"call_id": call_id, "output": output, "type": "function_call_output"} | more


QUESTION: Any = {"content": "Where is it?", "role": "user"}
REASONING: Any = {
    "id": "rs_1",
    "summary": [{"text": "I should look.", "type": "summary_text"}],
    "type": "reasoning",
    "encrypted_content": "gAAAAsealed",
}
ORDINARY: list[Any] = [
    QUESTION,
    REASONING,
    answer_item("Let me see."),
    call_item("a"),
    call_item("b"),
    got("a"),
    got("b"),
    answer_item("Lost."),
]
ODD: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "system", "content": [{"type": "input_text", "text": "Be kind."}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one block"}]},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "this?"}, {"type": "input_image", "image_url": PNG}],
    },
    {
        "role": "user",
        "content": [{"type": "input_image", "image_url": "https://x.test/a.png", "detail": "low"}],
    },
    {"role": "user", "content": [{"type": "input_image", "file_id": "file-1", "detail": "auto"}]},
    {"role": "user", "content": [{"type": "input_hologram", "depth": 3}]},
    {"role": "user", "content": ""},
    {"role": "user", "content": []},
    {"role": "assistant", "content": "bare words"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    answer_item("two")
    | {"content": [*answer_item("one")["content"], *answer_item("two")["content"]], "status": "incomplete"},
    answer_item("cited")
    | {"content": [answer_item("x")["content"][0] | {"annotations": [{"type": "url_citation"}]}]},
    answer_item("of another provider", "__fake_id__") | {"provider_data": {"model": "litellm/x", "n": 1.0}},
    {"id": "rs_2", "summary": [], "type": "reasoning", "content": None, "status": None},
    call_item("spaced", '{"order": 41, "deep": {"a": [1, 2.0, null]}}', status="completed"),
    call_item("malformed", '{"order": '),
    call_item("list", "[1]"),
    call_item("nothing", ""),
    call_item("named", namespace="shop", id=None),
    got(
        "spaced",
        [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": PNG, "detail": "auto"}],
    ),
    got("list", [{"type": "input_text", "text": "one block"}], id="fco_1", status="completed"),
    got("nobody asked for this"),
    got("nothing", {"neither": "text nor a list"}),
    {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    },
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c",
        "action": {"type": "wait"},
        "pending_safety_checks": [],
    },
    {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": PNG},
    },
    {"type": "custom_tool_call", "call_id": "d", "name": "grammar", "input": "free text"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "done"},
    {"type": "apply_patch_call_output", "call_id": "e", "status": "failed"},
    {"type": "mcp_approval_request", "id": "mcpr_1", "arguments": "{}", "name": "n", "server_label": "s"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"},
    {"type": "item_reference", "id": "msg_0"},
    {"type": "from a later version", "n": 1, "is": True, "deep": [[{}]]},
    {"type": 7},
    {},
    {"role": "user", "content": f"a link in words {LARGE} and one more {LARGE}."},
    {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": LARGE[22:], "format": "wav"}}],
    },
    answer_item(f'{{"image": "{LARGE[22:]}"}}'),
    {"id": "rs_3", "summary": [{"text": f"see {LARGE}", "type": "summary_text"}], "type": "reasoning"},
    call_item("large", json.dumps({"data": LARGE[22:], "mimeType": "image/png", "url": LARGE})),
    got("named", json.dumps({"data": LARGE[22:]})),
    {"type": "image_generation_call", "id": "ig_1", "result": LARGE[22:], "status": "completed"},
]


def on_a_loop(law: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(law)
    def test(*args: Any, **named: Any) -> None:
        asyncio.run(law(*args, **named))

    return test


def on_memory() -> OakleafSession:
    return OakleafSession("user-42", Store(MemoryStore()))


async def stored_session(session: OakleafSession) -> oakleaf.Session:
    oakleaf_session = await session.oakleaf_session()
    assert oakleaf_session.verify() == []
    return oakleaf_session


class TestAnItem:
    @pytest.mark.parametrize(
        "item", [*ORDINARY, *ODD], ids=lambda item: f"{item.get('type', item.get('role'))}"
    )
    @on_a_loop
    async def test_comes_back_as_it_was_handed_in(self, item: dict[str, Any]) -> None:
        session = on_memory()
        await session.add_items([QUESTION, item])
        assert json.dumps(await session.get_items(), sort_keys=True) == json.dumps(
            [QUESTION, item], sort_keys=True
        )
        assert await session.pop_item() == item
        await stored_session(session)

    @on_a_loop
    async def test_is_not_stored_twice_where_a_message_says_it_all(self) -> None:
        session = on_memory()
        await session.add_items(ORDINARY)
        path = (await stored_session(session)).path()
        roles = [entry.role for entry in path if entry.role]
        assert roles == ["user", "assistant", "tool", "tool", "assistant"]
        assert [entry.message.details for entry in path if entry.message] == [None] * 5

    @on_a_loop
    async def test_keeps_what_is_sealed_from_everybody_but_its_issuer(self) -> None:
        session = on_memory()
        await session.add_items(
            [*ORDINARY, {"type": "reasoning", **REASONING, "status": None}, answer_item("Bye.", "msg_2")]
        )
        oakleaf_session = await stored_session(session)
        assert "gAAAA" not in exported(oakleaf_session, "jsonl")
        assert "gAAAA" not in json.dumps(oakleaf_session.messages("anthropic"))
        assert REASONING in oakleaf_session.messages("openai")

    @on_a_loop
    async def test_of_a_picture_is_kept_once_as_a_blob(self) -> None:
        session = on_memory()
        picture = {"type": "input_image", "image_url": PNG, "detail": "low"}
        await session.add_items([{"role": "user", "content": [picture]}])
        (entry,) = (await stored_session(session)).path()
        assert entry.message is not None
        assert [media.mime for media in entry.message.media] == ["image/png"]
        assert "iVBOR" not in json.dumps(entry.message.details)

    @pytest.mark.parametrize(
        ("item", "error"),
        [
            ("not an item", UnrecognizedReply),
            (None, UnrecognizedReply),
            ({"role": "user", "content": "half a character \ud800"}, InvalidText),
            (answer_item("x") | {"status": object()}, NotJson),
            ({"type": "later", "n": float("nan")}, NotJson),
        ],
    )
    @on_a_loop
    async def test_that_cannot_be_kept_is_refused_and_nothing_is_written(
        self, item: Any, error: type[Exception]
    ) -> None:
        session = on_memory()
        await session.add_items([QUESTION])
        with pytest.raises(error):
            await session.add_items([answer_item("fine"), item])
        assert await session.get_items() == [QUESTION]

    @on_a_loop
    async def test_may_be_long_and_hostile(self) -> None:
        session = on_memory()
        items = [
            {"role": "user", "content": "x\0y" * 3_000_000},
            {"role": "user", "content": "'; drop table"},
        ]
        await session.add_items(items)
        assert await session.get_items() == items


ACTS = st.one_of(
    st.lists(st.sampled_from([*ORDINARY, *ODD]), max_size=5),
    st.sampled_from(["pop", "pop", "clear"]),
    st.integers(-1, 9),
)


class TestAnySequence:
    @settings(max_examples=150)
    @given(st.lists(ACTS, max_size=8))
    @on_a_loop
    async def test_leaves_what_a_list_would_hold(self, acts: list[Any]) -> None:
        session, expected = on_memory(), list[dict[str, Any]]()
        for act in acts:
            if isinstance(act, list):
                await session.add_items(act)
                expected += act
            elif isinstance(act, int):
                assert await session.get_items(act) == (
                    expected[-act:] if act > 0 else expected if act else []
                )
            elif act == "pop":
                assert await session.pop_item() == (expected.pop() if expected else None)
            else:
                await session.clear_session()
                expected.clear()
        assert await session.get_items() == expected
        await stored_session(session)


class TestASession:
    def test_stands_on_a_store_and_on_nothing_else(self) -> None:
        with pytest.raises(TypeError, match=r"oakleaf\.open"):
            OakleafSession("user-42", "agent.db")

    def test_is_one_to_the_sdk(self) -> None:
        assert isinstance(on_memory(), Session)

    @on_a_loop
    async def test_goes_on_in_another_object_under_its_name(self, store: Store) -> None:
        await OakleafSession("user-42", store, agent="support").add_items(ORDINARY)
        again = OakleafSession("user-42", store)
        assert await again.get_items() == ORDINARY
        assert await OakleafSession("user-43", store).get_items() == []
        oakleaf_session = await stored_session(again)
        assert (
            oakleaf_session.row.conversation_id,
            oakleaf_session.row.title,
            oakleaf_session.row.agent,
        ) == (
            "user-42",
            "user-42",
            "support",
        )

    @on_a_loop
    async def test_of_another_space_or_owner_is_another(self, tmp_path: Path) -> None:
        for who in ({}, {"space": "elsewhere"}, {"owner": "ann"}):
            with oakleaf.open(tmp_path / "agent.db", **who) as store:
                session = OakleafSession("user-42", store)
                await session.add_items([QUESTION])
                assert await session.get_items() == [QUESTION]

    @on_a_loop
    async def test_gives_the_latest_items_of_its_settings(self, store: Store) -> None:
        session = OakleafSession("user-42", store, session_settings={"limit": 2})
        await session.add_items(ORDINARY)
        assert await session.get_items() == ORDINARY[-2:]
        assert await session.get_items(limit=3) == ORDINARY[-3:]
        assert await session.get_items(limit=0) == []

    @on_a_loop
    async def test_that_is_cleared_is_all_there_and_comes_back(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        await session.add_items(ORDINARY)
        await session.clear_session()
        await session.clear_session()
        assert await session.get_items() == []
        oakleaf_session = await stored_session(session)
        assert len(oakleaf_session.entries()) == 5
        oakleaf_session.redo()
        assert await session.get_items() == ORDINARY

    @on_a_loop
    async def test_that_is_popped_from_loses_nothing(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        await session.add_items(ORDINARY)
        leaf = (await session.oakleaf_session()).leaf
        for items in (ORDINARY[:length] for length in range(len(ORDINARY) - 1, -1, -1)):
            await session.pop_item()
            assert await session.get_items() == items
        assert await session.pop_item() is None
        oakleaf_session = await stored_session(session)
        oakleaf_session.checkout(leaf)
        assert await session.get_items() == ORDINARY

    @on_a_loop
    async def test_goes_on_after_a_pop_on_a_branch(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        await session.add_items(ORDINARY)
        await session.pop_item()
        await session.add_items([answer_item("Found!", "msg_3")])
        assert [branch.parent_seq for branch in (await stored_session(session)).branches()] == [0, 4]

    @on_a_loop
    async def test_refuses_a_writer_that_has_not_read_what_another_wrote(self, store: Store) -> None:
        here, there = OakleafSession("user-42", store), OakleafSession("user-42", store)
        assert await here.get_items() == await there.get_items() == []
        await here.add_items([QUESTION])
        with pytest.raises(StaleLeaf):
            await there.add_items([{"role": "user", "content": "second"}])
        assert await there.get_items() == [QUESTION]
        await there.add_items([answer_item("Now I know.")])

    @on_a_loop
    async def test_closes_what_was_left_open_and_does_not_make_it_up_to_the_sdk(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        items = [
            QUESTION,
            call_item("a"),
            call_item("b"),
            got("b"),
            {"role": "user", "content": "Never mind."},
            got("a"),
        ]
        await session.add_items(items)
        assert await session.get_items() == items
        closed = [
            entry.message.results[0]
            for entry in (await stored_session(session)).path()
            if entry.role == "tool"
        ]
        assert [(result.call_id, result.outcome) for result in closed] == [
            ("b", "done"),
            ("a", "interrupted"),
        ]

    @on_a_loop
    async def test_shows_the_sdk_a_summary_in_place_of_what_was_compacted(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        await session.add_items(
            [*ORDINARY, {"role": "user", "content": "And 42?"}, answer_item("Here.", "msg_4")]
        )
        oakleaf_session = await stored_session(session)
        oakleaf_session.compact("Order 41 is lost.")
        first, *rest = await session.get_items()
        assert "Order 41 is lost." in first["content"]
        assert rest == [{"role": "user", "content": "And 42?"}, answer_item("Here.", "msg_4")]
        assert await session.get_items(limit=1) == rest[-1:]
        oakleaf_session.uncompact()
        assert (await session.get_items())[: len(ORDINARY)] == ORDINARY

    @on_a_loop
    async def test_may_stand_on_a_fork_or_on_any_session_of_oakleaf(self, store: Store) -> None:
        source = store.start("support", [oakleaf.system("You help.")])
        source.append([user("Hi"), assistant("Hello.", oakleaf.ToolCall("c", "look", {"n": 1}))])
        source.append([oakleaf.tool_result("c", "seen"), assistant("Seen.")])
        session = OakleafSession("a try", source.fork())
        kinds = [item.get("type", item.get("role")) for item in await session.get_items()]
        assert kinds == ["system", "user", "message", "function_call", "function_call_output", "message"]
        await session.add_items([QUESTION])
        assert len(source.path()) == 5
        assert len((await stored_session(session)).path()) == 6

    @on_a_loop
    async def test_takes_a_compaction_of_openais_as_a_branch(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        await session.add_items(ORDINARY)
        compacting = OpenAIResponsesCompactionSession("user-42", session, client=Compacts(), model="gpt-4.1")
        await compacting.run_compaction({"force": True, "compaction_mode": "input"})
        assert [item["type"] for item in await session.get_items()] == ["compaction"]
        assert len((await stored_session(session)).entries()) == 6

    @on_a_loop
    async def test_replaces_its_last_items_in_one_commit_unless_another_wrote(self, store: Store) -> None:
        summary: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "s"}
        for start in range(3):  # inside an answer, between a call and its result, after them
            session = OakleafSession(f"user-{start}", store)
            await session.add_items(ORDINARY)
            oakleaf_session = await stored_session(session)
            count = sum(fact.kind in ("appended", "moved") for fact in oakleaf_session.journal())
            snapshot = await session._get_compaction_snapshot(3)
            assert snapshot is not None
            assert (snapshot.items, snapshot.complete) == (ORDINARY[-3:], False)
            assert await snapshot.replace_suffix(start, [summary])
            assert await session.get_items() == [*ORDINARY[: len(ORDINARY) - 3 + start], summary]
            oakleaf_session = await stored_session(session)
            assert sum(fact.kind in ("appended", "moved") for fact in oakleaf_session.journal()) == count + 1
            assert not await snapshot.replace_suffix(start, [])
            assert await session._atomic_replace_items([*ORDINARY[:1], summary])
            assert await session.get_items() == [*ORDINARY[:1], summary]

    @on_a_loop
    async def test_moves_in_a_bundle_without_what_is_sealed(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        items = [
            *ORDINARY,
            answer_item("two") | {"status": "incomplete"},
            call_item("spaced", '{"a": 1}', status="completed"),
        ]
        await session.add_items(items)
        bundle = io.BytesIO()
        (await stored_session(session)).export(bundle)
        elsewhere = Store(MemoryStore())
        elsewhere.import_bundle(io.BytesIO(bundle.getvalue()))
        unsealed = [{k: v for k, v in item.items() if k not in ("id", "encrypted_content")} for item in items]
        assert await OakleafSession("user-42", elsewhere).get_items() == unsealed

    @on_a_loop
    async def test_finishes_a_write_whose_caller_is_cancelled(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        writing = asyncio.create_task(session.add_items(ORDINARY))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (await session.oakleaf_session()).leaf.seq == 5
        assert await session.get_items() == ORDINARY

    def test_writes_in_the_order_of_the_calls_in_any_event_loop(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        items = [{"role": "user", "content": f"{n}"} for n in range(40)]

        async def add(some: list[Any]) -> None:
            await asyncio.gather(*(session.add_items([item]) for item in some))

        asyncio.run(add(items[:20]))
        asyncio.run(add(items[20:]))
        assert asyncio.run(session.get_items()) == items


class Compacts:
    """OpenAI's client as far as a compaction needs it."""

    @property
    def responses(self) -> Compacts:
        return self

    async def compact(self, **options: Any) -> Any:
        assert options["model"] == "gpt-4.1"
        return type(
            "Compacted",
            (),
            {"usage": None, "output": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "s"}]},
        )


# -- runs ------------------------------------------------------------------------------------------


def answers(*more: Any) -> ScriptedModel:
    calls = [function_call("lookup", {"order": order}, call_id=f"c{order}") for order in (41, 42)]
    return ScriptedModel(
        [[assistant_message("let me see"), *calls], *(more or ([assistant_message("lost")],))],
        default_usage=SPENT,
    )


def lookup() -> Any:
    """Of two calls at once the later is the faster."""
    is_done = asyncio.Event()

    @function_tool
    async def lookup(order: int) -> str:
        if order == 41:
            await is_done.wait()
        is_done.set()
        return f"{order} is lost"

    return lookup


def support(tool: Any = None, *more: Any, **about: Any) -> Agent[Any]:
    return Agent("support", model=answers(*more), tools=[tool or lookup()], **about)


async def run_whole(
    agent: Agent[Any], session: Any, hooks: OakleafHooks | None, *, is_streamed: bool
) -> None:
    if not is_streamed:
        await Runner.run(agent, "Where?", session=session, hooks=hooks)
        return
    streamed = Runner.run_streamed(agent, "Where?", session=session, hooks=hooks)
    async for _ in streamed.stream_events():
        pass


@pytest.mark.parametrize("is_streamed", [False, True], ids=["at once", "streamed"])
@pytest.mark.parametrize("is_hooked", [False, True], ids=["session", "session and hooks"])
class TestARun:
    @on_a_loop
    async def test_leaves_what_it_leaves_in_the_sdks_own_session(
        self, store: Store, is_hooked: bool, is_streamed: bool
    ) -> None:
        session, own = OakleafSession("user-42", store), SQLiteSession("user-42")
        hooks = OakleafHooks(session) if is_hooked else None
        for _ in range(2):
            await run_whole(support(), session, hooks, is_streamed=is_streamed)
            await run_whole(support(), own, None, is_streamed=is_streamed)
        assert await session.get_items() == await own.get_items()
        for most in range(8):
            assert await session.get_items(most) == await own.get_items(most)
        oakleaf_session = await stored_session(session)
        assert [entry.role for entry in oakleaf_session.transcript()] == ["user", "assistant"] * 2
        assert (len(oakleaf_session.branches()), oakleaf_session.row.status) == (1, "idle")
        while popped := await own.pop_item():
            assert await session.pop_item() == popped
            assert await session.get_items() == await own.get_items()
        await stored_session(session)

    @on_a_loop
    async def test_goes_on_behind_notes_of_others(
        self, store: Store, is_hooked: bool, is_streamed: bool
    ) -> None:
        @function_tool
        async def lookup(order: int) -> str:
            store.session((await stored_session(session)).session_id).note({"order": order})
            return f"{order} is lost"

        session, own = OakleafSession("user-42", store), SQLiteSession("user-42")
        hooks = OakleafHooks(session) if is_hooked else None
        await run_whole(support(lookup), session, hooks, is_streamed=is_streamed)
        await run_whole(support(lookup), own, None, is_streamed=is_streamed)
        assert await session.get_items() == await own.get_items()
        assert sum(entry.kind == "note" for entry in (await stored_session(session)).path()) >= 2


class TestOverHttp:
    @on_a_loop
    async def test_a_run_of_the_real_client_is_kept_and_its_history_is_taken_back(self, store: Store) -> None:
        answer = Completion("let me see", "I think", (Call("call_1", "lookup", '{"order":42}'),))
        session, own = OakleafSession("user-42", store), SQLiteSession("user-42")
        for one, hooks in ((session, OakleafHooks(session)), (own, None)):
            with FakeProviders(answer, Completion("It is lost."), Completion("It still is.")) as vendor:
                client = AsyncOpenAI(base_url=vendor.url_for("openai"), api_key="none")
                settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
                model = OpenAIResponsesModel("gpt-5", client)
                agent = Agent("support", model=model, tools=[lookup()], model_settings=settings)
                for _ in range(2):
                    await run_whole(agent, one, hooks, is_streamed=True)
                assert [request.problems for request in vendor.requests] == [[]] * 3
                await client.close()
        assert await session.get_items() == await own.get_items()
        oakleaf_session = await stored_session(session)
        assert "SIG-openai" in json.dumps(await session.get_items())
        assert "SIG-openai" not in exported(oakleaf_session, "jsonl")
        assert (oakleaf_session.usage().calls, oakleaf_session.usage().unpriced_calls) == (3, 0)


class TestSetup:
    @on_a_loop
    async def test_is_on_the_path_as_the_sdk_sends_it_and_again_only_when_it_changes(
        self, store: Store
    ) -> None:
        """Instructions, tools and handoffs, also those of an agent that takes over."""
        session = OakleafSession("user-42", store)
        other = Agent("other", handoff_description="Knows more.", tools=[lookup()])
        agent = support(None, handoffs=[other], instructions="You help. Key: sk-" + "a1B2" * 12)
        with FakeProviders(*[Completion("It is lost.")] * 4) as vendor:
            client = AsyncOpenAI(base_url=vendor.url_for("openai"), api_key="none")
            for who in (agent, agent, other, agent):
                who.model = OpenAIResponsesModel("gpt-5", client)
                await run_whole(who, session, OakleafHooks(session), is_streamed=True)
            await client.close()
        oakleaf_session = await stored_session(session)
        settings = [
            entry.payload for entry in oakleaf_session.path() if isinstance(entry.payload, oakleaf.Settings)
        ]
        assert [(one.prompt, one.tool_definitions.names) for one in settings] == [
            ("You help. Key: [redacted]", ("lookup", "transfer_to_other")),
            ("", ("lookup",)),
            ("You help. Key: [redacted]", ("lookup", "transfer_to_other")),
        ]
        assert oakleaf_session.row.model == "gpt-5"
        answered = [call.after_seq for call in oakleaf_session.model_calls()]
        for after, body in zip(answered, vendor.bodies("openai"), strict=True):
            request = oakleaf_session.request("openai", at=after)
            assert bool(request.get("instructions")) == bool(body.get("instructions"))
            tools = request["tools"]
            fields = ("type", "name", "description", "parameters")
            sent = [{key: tool[key] for key in fields if tool[key]} for tool in body["tools"]]
            assert tools == [tool | {"strict": False} for tool in sent]


class TestHooks:
    @on_a_loop
    async def test_make_a_call_durable_before_it_runs_and_each_result_as_it_lands(self, store: Store) -> None:
        outputs: dict[int, list[str | None]] = {}

        session = OakleafSession("user-42", store)
        oakleaf_session = await session.oakleaf_session()

        @function_tool
        async def looking(order: int) -> str:
            while order == 42 and store.session(oakleaf_session.session_id).leaf.seq < 4:
                await asyncio.sleep(0.001)  # until the other's result is there
            outputs[order] = [
                entry.role for entry in store.session(oakleaf_session.session_id).path() if entry.role
            ]
            return "lost"

        calls = [function_call("looking", {"order": order}, call_id=f"c{order}") for order in (41, 42)]
        model = ScriptedModel([calls, [assistant_message("both")]])
        agent = Agent("support", model=model, tools=[looking])
        await asyncio.wait_for(Runner.run(agent, "Where?", session=session, hooks=OakleafHooks(session)), 10)
        assert outputs == {41: ["user", "assistant"], 42: ["user", "assistant", "tool"]}
        started = [fact.data for fact in oakleaf_session.journal() if fact.kind == "tool_calls_started"]
        assert started == [{"seq": 3, "indexes": [0, 1]}]

    @on_a_loop
    async def test_tell_the_ledger_of_each_call_beside_its_answer(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        agent = support()
        agent.model.model = "anthropic/claude-sonnet-4-5"
        await Runner.run(agent, "Where?", session=session, hooks=OakleafHooks(session))
        oakleaf_session = await stored_session(session)
        assert [(call.after_seq, call.answer_seq) for call in oakleaf_session.model_calls()] == [
            (2, 3),
            (5, 6),
        ]
        assert {(call.provider, call.model) for call in oakleaf_session.model_calls()} == {
            ("anthropic", "claude-sonnet-4-5")
        }
        assert [entry.model for entry in oakleaf_session.path() if entry.role == "assistant"] == [
            "claude-sonnet-4-5"
        ] * 2
        total = oakleaf_session.usage()
        assert (total.input_tokens, total.output_tokens, total.unpriced_calls) == (22, 14, 0)
        assert total.cost_microcents == 2 * (11 * 300 + 7 * 1500)

    @on_a_loop
    async def test_count_an_answer_a_guardrail_blocks_and_keep_it_off_the_path(self, store: Store) -> None:
        @output_guardrail
        async def never(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            return GuardrailFunctionOutput(None, tripwire_triggered=True)

        session, own = OakleafSession("user-42", store), SQLiteSession("user-42")
        for one, hooks in ((session, OakleafHooks(session)), (own, None)):
            agent = support(None, [assistant_message("a secret")], output_guardrails=[never])
            with pytest.raises(OutputGuardrailTripwireTriggered):
                await Runner.run(agent, "Where?", session=one, hooks=hooks)
        assert await session.get_items() == await own.get_items()
        oakleaf_session = await stored_session(session)
        assert "a secret" not in exported(oakleaf_session, "jsonl", what="all")
        assert [call.answer_seq for call in oakleaf_session.model_calls()] == [3, None]

    @on_a_loop
    async def test_leave_the_last_word_to_the_sdk(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        hooks = Shouts(session)
        await Runner.run(support(), "Where?", session=session, hooks=hooks)
        assert got("c41", "41 is lost") in await session.get_items()
        oakleaf_session = await stored_session(session)
        assert "41 IS LOST" in exported(
            oakleaf_session, "jsonl", what="all"
        )  # what was written ahead is a branch
        assert [call.answer_seq for call in oakleaf_session.model_calls("path")] == [6]

    @pytest.mark.parametrize("is_hooked", [False, True])
    @on_a_loop
    async def test_let_a_run_that_waits_for_approval_go_on_elsewhere(
        self, store: Store, is_hooked: bool
    ) -> None:
        asking = function_tool(look_up, name_override="lookup", needs_approval=True)
        own = SQLiteSession("user-42")
        items: list[list[Any]] = []
        for make in (lambda: OakleafSession("user-42", store), lambda: own):
            agent = support(asking)
            session: Any = make()
            waits = await Runner.run(agent, "Where?", session=session, hooks=_hooks(session, is_hooked))
            assert len(waits.interruptions) == 2
            state = await RunState.from_json(agent, waits.to_state().to_json())
            for call in state.get_interruptions():
                state.approve(call)
            session = make()
            done = await Runner.run(agent, state, session=session, hooks=_hooks(session, is_hooked))
            assert done.final_output == "lost"
            items.append(await session.get_items())
        assert items[0] == items[1]
        kept_session = await stored_session(OakleafSession("user-42", store))
        path, journal = kept_session.path(), kept_session.journal()
        roles = [entry.role for entry in path if entry.role]
        assert roles == ["user", "assistant", "tool", "tool", "assistant"]
        facts = [fact for fact in journal if fact.kind == "tool_calls_started"]
        assert sorted(fact.data["indexes"] for fact in facts) == ([[0], [1]] if is_hooked else [])

    @on_a_loop
    async def test_keep_what_a_run_did_that_failed(self, store: Store) -> None:
        @function_tool(name_override="lookup", failure_error_function=None)
        async def failing(order: int) -> str:
            raise ZeroDivisionError

        session = OakleafSession("user-42", store)
        with pytest.raises(Exception, match="lookup"):
            await Runner.run(support(failing), "Where?", session=session, hooks=OakleafHooks(session))
        for text in ("And?", "Well?"):
            model = ScriptedModel([[assistant_message("I cannot tell")]])
            await Runner.run(
                Agent("support", model=model), text, session=session, hooks=OakleafHooks(session)
            )
        assert "may or may not have run" in json.dumps(model.calls[0].input)
        path = (await stored_session(session)).path()
        roles = ["user", "assistant", "tool", "tool", "user", "assistant", "user", "assistant"]
        assert [entry.role for entry in path if entry.role] == roles

    @on_a_loop
    async def test_take_many_results_back_in_the_order_of_their_calls(self, store: Store) -> None:
        count, done = 20, list[asyncio.Event]()

        @function_tool
        async def looking(order: int) -> str:
            if order < count - 1:
                await done[order + 1].wait()  # the last is the first
            done[order].set()
            return f"{order}"

        done.extend(asyncio.Event() for _ in range(count))
        asking = [function_call("looking", {"order": n}, call_id=f"c{n}") for n in range(count)]
        model = ScriptedModel([asking, [assistant_message("all")]])
        session = OakleafSession("user-42", store)
        agent = Agent("support", model=model, tools=[looking])
        await Runner.run(agent, "Where?", session=session, hooks=OakleafHooks(session))
        await session.pop_item()
        assert await session.get_items(2) == [got("c18", "18"), got("c19", "19")]
        for n in reversed(range(count)):
            assert await session.pop_item() == got(f"c{n}", f"{n}")

    @on_a_loop
    async def test_stop_a_run_that_was_overtaken_before_its_tools_run(self, store: Store) -> None:
        ran: list[int] = []

        @function_tool
        def looking(order: int) -> str:
            ran.append(order)
            return "lost"

        class Overtaken(OakleafHooks):
            async def on_llm_end(self, *args: Any) -> None:
                other = OakleafSession("user-42", store)
                await other.add_items([QUESTION])
                await super().on_llm_end(*args)

        session = OakleafSession("user-42", store)
        model = ScriptedModel([[function_call("looking", {"order": 1}, call_id="c")]])
        agent = Agent("support", model=model, tools=[looking])
        with pytest.raises(StaleLeaf):
            await Runner.run(agent, "Where?", session=session, hooks=Overtaken(session))
        assert ran == []


def look_up(order: int) -> str:
    return f"{order} is lost"


def _hooks(session: Any, is_hooked: bool) -> OakleafHooks | None:
    return OakleafHooks(session) if is_hooked and isinstance(session, OakleafSession) else None


class Shouts(OakleafHooks):
    """Writes another result ahead than the SDK makes of it."""

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        await super().on_tool_end(context, agent, tool, str(result).upper())


class TestUsage:
    @on_a_loop
    async def test_of_a_run_without_hooks_is_told_afterwards(self, store: Store) -> None:
        session = OakleafSession("user-42", store)
        await session.store_run_usage(await Runner.run(support(), "Where?", session=session))
        oakleaf_session = await stored_session(session)
        assert (
            oakleaf_session.usage().calls,
            oakleaf_session.usage().input_tokens,
            oakleaf_session.usage(by="turn")[1].output_tokens,
        ) == (2, 22, 14)


# -- a killed process ------------------------------------------------------------------------------


def in_a_process_of_its_own(work: Callable[..., None], *args: Any) -> int | None:
    """Forked: it need not load the SDK again, which takes seconds."""
    child = multiprocessing.get_context("fork").Process(target=work, args=args)
    child.start()
    child.join(60)
    return child.exitcode


def is_killed_in_its_second_tool(path: Path) -> None:
    @function_tool(name_override="lookup")
    async def dying(order: int) -> str:
        while order == 42 and session_of(path).leaf.seq < 4:
            await asyncio.sleep(0.001)
        if order == 42:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{order} is lost"

    with oakleaf.open(path) as store:
        session = OakleafSession("user-42", store)
        asyncio.run(Runner.run(support(dying), "Where?", session=session, hooks=OakleafHooks(session)))


def session_of(path: Path) -> oakleaf.Session:
    session = oakleaf.open(path).latest("user-42")
    assert session is not None
    return session


class TestAKilledProcess:
    @pytest.fixture
    def killed(self, tmp_path: Path) -> Path:
        path = tmp_path / "agent.db"
        assert in_a_process_of_its_own(is_killed_in_its_second_tool, path) == -signal.SIGKILL
        return path

    def test_has_lost_nothing_that_had_happened(self, killed: Path) -> None:
        session = session_of(killed)
        assert [entry.role for entry in session.path() if entry.role] == ["user", "assistant", "tool"]
        assert [call.call.id for call in session.open_tool_calls] == ["c42"]
        assert session.usage().input_tokens == 11
        assert session.verify() == []

    @on_a_loop
    async def test_is_followed_by_one_that_goes_on_and_tells_the_model(self, killed: Path) -> None:
        session = OakleafSession("user-42", oakleaf.open(killed))
        assert await session.close_batch() == 1
        assert await session.close_batch() == 0
        model = ScriptedModel([[assistant_message("41 is lost, 42 I cannot tell")]])
        await Runner.run(Agent("support", model=model), "And?", session=session, hooks=OakleafHooks(session))
        items = model.calls[0].input
        assert [item.get("type", "input") for item in items].count("function_call_output") == 2
        assert "may or may not have run" in json.dumps(items)
        await stored_session(session)

    @on_a_loop
    async def test_is_followed_by_one_that_goes_on_without_a_word_of_it(self, killed: Path) -> None:
        session = OakleafSession("user-42", oakleaf.open(killed))
        for text in ("And?", "Well?"):
            model = ScriptedModel([[assistant_message("let me think")]])
            await Runner.run(
                Agent("support", model=model), text, session=session, hooks=OakleafHooks(session)
            )
        assert "may or may not have run" in json.dumps(model.calls[0].input)
        await stored_session(session)

    def test_is_told_whole_at_the_command_line(self, killed: Path) -> None:
        result = CliRunner().invoke(command, ["--store", str(killed), "show", "user-42"])
        assert result.exit_code == 0, result.output
        for word in ("Where?", "let me see", "lookup", "41 is lost"):
            assert word in result.output


class TestThePage:
    def test_runs_as_it_stands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        page = Path(__file__).parents[3] / "docs" / "frameworks" / "openai-agents.md"
        blocks = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        monkeypatch.chdir(tmp_path)
        assert blocks
        exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "page"})
