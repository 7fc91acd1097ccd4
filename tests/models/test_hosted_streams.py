"""Real SDKs and streams with blocks of hosted tools, split anywhere: the answer is the one that came in one piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf import ProviderBlock, wire
from oakleaf.core.context import Context, Item
from oakleaf.core.messages import user
from oakleaf.errors import ModelError
from oakleaf.models.base import Delta, Model, Request
from oakleaf.models.names import model_by_name
from oakleaf.store import Store
from oakleaf.wire import Answer
from support import fake_providers
from support.fake_providers import BrokenStream, Completion, FakeProviders
from support.hosted_answers import GROUPS, anthropic_pairs, random_blocks, reply
from support.random_logs import SOAK

pytestmark = pytest.mark.extra

issuers = pytest.mark.parametrize("issuer", list(GROUPS))
Block = dict[str, Any]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def client(issuer: str, server: FakeProviders) -> Model:
    model = model_by_name(f"{issuer}:some-model@{server.url_for(issuer)}")
    return type(model)("some-model", base_url=server.url_for(issuer), key="sk-0123456789")


async def listen(model: Model) -> tuple[str, Answer]:
    text, answers = "", []
    request = Request(Context((), (Item(user("hi"), 1, 1),)), lambda _: None)
    async for piece in model.stream(request):
        if isinstance(piece, Delta):
            text += piece.text
        else:
            answers.append(piece)
    return text, answers[0]


def sse(event: Block) -> bytes:
    return (
        f"event: {event.get('type', 'message')}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
    )


def halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def stream(issuer: str, blocks: list[Block], finish: str | None = None) -> list[bytes]:
    """Return the events of an answer in the documented order."""
    whole = reply(issuer, blocks, finish)
    if issuer == "anthropic":
        return [sse(event) for event in anthropic_events(whole)]
    if issuer == "openai":
        return [sse(event) for event in openai_events(whole)]
    parts = whole["candidates"][0]["content"]["parts"]
    chunks: list[Block] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts
    ]
    chunks[-1]["candidates"][0]["finishReason"] = finish or "STOP"
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]


def anthropic_events(whole: Block) -> Iterator[Block]:
    started = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    yield {"type": "message_start", "message": started}
    for index, block in enumerate(whole["content"]):
        empty, deltas = dict(block), []
        if block["type"] == "text":
            empty["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in halves(block["text"])]
            cited = empty.pop("citations", [])
            deltas += [{"type": "citations_delta", "citation": citation} for citation in cited]
        elif block["type"] == "thinking":
            empty |= {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        elif "input" in block:
            empty["input"] = {}
            pieces = halves(json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "ping"}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": 5, "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0}}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def openai_events(whole: Block, *, has_output: bool = True) -> Iterator[Block]:
    whole = {**whole, "id": "resp_1", "created_at": 1, "parallel_tool_calls": True, "tools": []}
    yield {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        if item["type"] == "web_search_call":
            yield {"type": "response.web_search_call.searching", **place}
        for content in item.get("content", []):
            for piece in halves(content.get("text", "")):
                delta = {"content_index": 0, "delta": piece, "logprobs": []}
                yield {"type": "response.output_text.delta", **place, **delta}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    output = whole["output"] if has_output else []
    yield {"type": "response.completed", "response": {**whole, "output": output}}


@issuers
def test_a_stream_split_anywhere_is_the_answer_in_one_piece(
    issuer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []
    monkeypatch.setitem(fake_providers.STREAMS, issuer, lambda *_: pieces)

    # Gemini's SDK refuses what it does not know, so a part of a newer API never gets as far as here.
    @given(data=st.data())
    @settings(
        max_examples=300 if SOAK else 5,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    def check(data: st.DataObject) -> None:
        blocks = [*data.draw(random_blocks(issuer)), *GROUPS[issuer](99)[8 if issuer == "openai" else 7]]
        if issuer == "gemini":  # texts without a signature are joined: they are pieces of one
            blocks = [b for b in blocks if "partOfANewerApi" not in b and b.keys() != {"text"}]
            blocks = [{"text": "plain"}, *blocks, {"text": "ends"}] if blocks else [{"text": "plain"}]
        body = b"".join(stream(issuer, blocks))
        ends = data.draw(st.one_of(st.just(list(range(len(body)))), st.lists(st.integers(0, len(body)))))
        ends = sorted({0, *ends, len(body)})
        pieces[:] = [body[a:b] for a, b in pairwise(ends)]
        text, answer = asyncio.run(listen(client(issuer, server)))
        expected = wire.parse_reply(reply(issuer, blocks))
        assert (answer.message, answer.evidence) == (expected.message, expected.evidence)
        letters = iter(answer.message.text)
        assert all(letter in letters for letter in text)  # in this order; a refusal is not shown as it comes

    with FakeProviders() as server:
        check()


def test_an_unknown_delta_is_kept_and_the_text_around_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strange = {"type": "strange_delta", "x": 1}
    events = list(anthropic_events(reply("anthropic", [{"type": "strange"}, {"type": "text", "text": "hi"}])))
    events.insert(2, {"type": "content_block_delta", "index": 0, "delta": strange})
    monkeypatch.setitem(fake_providers.STREAMS, "anthropic", lambda *_: [sse(event) for event in events])
    with FakeProviders() as server:
        _, answer = asyncio.run(listen(client("anthropic", server)))
    assert answer.message == oakleaf.assistant(ProviderBlock("strange"), "hi")
    assert answer.evidence is not None
    assert answer.evidence.parts["0"]["raw"]["unread_deltas"] == [strange]


def test_items_sent_only_singly_are_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reply("openai", [group[0] for group in GROUPS["openai"](1)[:1] + GROUPS["openai"](2)[8:9]])
    events = [sse(event) for event in openai_events(whole, has_output=False)]
    monkeypatch.setitem(fake_providers.STREAMS, "openai", lambda *_: events)
    with FakeProviders() as server:
        _, answer = asyncio.run(listen(client("openai", server)))
    assert answer.message == wire.parse_reply(whole).message


def test_a_paused_answer_is_continued_after_a_restart_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    use, result = anthropic_pairs(1)[0]
    bodies = [
        stream("anthropic", [{"type": "text", "text": "I look. "}, use], "pause_turn"),
        stream("anthropic", [result, {"type": "text", "text": "Cats sleep."}]),
    ] * 2
    numbers = iter(bodies)
    monkeypatch.setitem(fake_providers.STREAMS, "anthropic", lambda *_: next(numbers))
    with FakeProviders() as server:
        session = store.start("a")
        ended = session.send_sync("q", model=client("anthropic", server))
        assert (ended.text, session.usage().calls) == ("Cats sleep.", 2)
        with session.turn("again") as turn:  # left in the middle, as by a crash
            turn.answer(reply("anthropic", [anthropic_pairs(2)[0][0]], "pause_turn"))
        assert not turn.done
        next(numbers)
        again = store.session(session.session_id)
        again.resume_sync(model=client("anthropic", server))
    assert [request.problems for request in server.requests] == [[], [], []]
    paused = server.requests[1].body["messages"][-1]
    assert paused == {"role": "assistant", "content": [{"type": "text", "text": "I look. "}, use]}
    assert [message["role"] for message in session.request("anthropic")["messages"]] == [
        *("user", "assistant", "user", "assistant")
    ]
    entry = session.path()[1]
    assert (entry.finish, entry.internal) == ("pause_turn", True)


@issuers
def test_an_error_within_a_stream_is_shown_with_the_words(issuer: str) -> None:
    messages = {"anthropic": "Overloaded", "openai": "The server had an error", "gemini": "overloaded"}
    broken = BrokenStream("trouble", Completion("once upon a time"))
    with FakeProviders(broken) as server, pytest.raises(ModelError) as raised:
        asyncio.run(listen(client(issuer, server)))
    assert messages[issuer] in str(raised.value)
