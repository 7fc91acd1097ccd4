"""Answers of tools that the provider runs: stored, readable, returned to their issuer as they were, legal for all others."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf import ProviderBlock, Session, user, wire
from oakleaf.core.context import Context, Item
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Evidence
from oakleaf.core.messages import Text
from oakleaf.errors import UnrecognizedReply
from oakleaf.store import Store
from oakleaf.wire import find_provider
from support.hosted_answers import GROUPS, PNG_64, anthropic_pairs, random_blocks, reply
from support.random_logs import PNG, SOAK
from support.sessions import exported

ISSUERS = list(GROUPS)
issuers = pytest.mark.parametrize("issuer", ISSUERS)
SECRET = "correct-horse-battery"


def store_answer(session: Session, issuer: str, blocks: list[dict[str, Any]], question: str = "q") -> None:
    with session.turn(question) as turn:
        message = turn.answer(reply(issuer, blocks))
        for call in message.calls:
            turn.result(call.id, "done")


def answer_blocks(session: Session, issuer: str) -> list[dict[str, Any]]:
    """What is sent back of the only answer."""
    request = session.request(issuer)
    assert find_provider(issuer).violations(request) == []
    messages = request[find_provider(issuer).history]
    if issuer == "openai":
        return [
            item for item in messages if item.get("role") != "user" and not item["type"].endswith("_output")
        ]
    roles = [message["role"] for message in messages]
    answer = messages[roles.index("assistant" if issuer == "anthropic" else "model")]
    return list(answer.get("content") or answer.get("parts"))


@issuers
def test_every_block_returns_to_the_issuer_after_a_restart(issuer: str, store: Store) -> None:
    for number in range(len(GROUPS[issuer](1))):
        blocks = GROUPS[issuer](1)[number]
        blocks = [*blocks, *GROUPS[issuer](2)[-1]] if blocks[-1].get("type") == "thinking" else blocks
        session = store.start("a")
        store_answer(session, issuer, blocks)
        assert answer_blocks(store.session(session.session_id), issuer) == blocks
        assert session.verify() == []


@issuers
@given(data=st.data())
@settings(max_examples=2_000 if SOAK else 25, deadline=None)
def test_random_answers_return_and_are_legal_elsewhere(issuer: str, data: st.DataObject) -> None:
    blocks = data.draw(random_blocks(issuer))
    session = oakleaf.open("memory:").start("a")
    store_answer(session, issuer, blocks)
    assert answer_blocks(session, issuer) == blocks
    session.append([oakleaf.user("and now?")])
    for provider in wire.PROVIDERS.values():
        assert provider.violations(session.request(provider.name), ready=True) == []


@issuers
def test_other_providers_are_told_in_words(issuer: str, store: Store) -> None:
    """What the model knew from a search or from code is not lost by a change of provider."""
    session = store.start("a")
    store_answer(session, issuer, [block for group in GROUPS[issuer](1)[:4] for block in group][:2])
    (text,) = [part.text for part in session.path()[1].message.parts if isinstance(part, ProviderBlock)][:1]
    assert text.startswith(("searched the web: cats", "ran code:"))
    for provider in set(wire.PROVIDERS) - {issuer}:
        assert json.dumps(text)[1:-1] in json.dumps(session.request(provider))
    assert text not in session.path()[1].message.text
    assert store.search(text.split()[-1])


def test_an_unanswered_call_is_text_unless_anthropic_continues(store: Store) -> None:
    use, result = anthropic_pairs(1)[0]
    session = store.start("a")
    with session.turn("q") as turn:
        turn.answer(reply("anthropic", [use], "pause_turn"))
        paused = session.request("anthropic")
        assert paused["messages"][-1] == {"role": "assistant", "content": [use]}
        assert find_provider("anthropic").violations(paused, ready=True) == []
        for other in ("openai", "openai-chat", "gemini"):
            assert find_provider(other).violations(session.request(other), ready=True) == []
        assert not turn.done
        turn.answer(reply("anthropic", [result, {"type": "text", "text": "Cats sleep."}]))
        assert turn.done
    content = session.request("anthropic")["messages"][-1]["content"]
    assert [block["type"] for block in content] == ["server_tool_use", "web_search_tool_result", "text"]
    abandoned = store.start("a")
    with abandoned.turn("q") as turn:
        turn.answer(reply("anthropic", [use], "pause_turn"))
    with abandoned.turn("never mind"):
        request = abandoned.request("anthropic")
    assert request["messages"][1]["content"] == [{"type": "text", "text": "[searched the web: cats]"}]
    assert find_provider("anthropic").violations(request, ready=True) == []


def test_a_result_before_the_call_is_text(store: Store) -> None:
    """Both were sent as blocks, which Anthropic refuses. A result after the next input is none of it either."""
    check_texts(store, reverse=True)
    check_texts(store, reverse=False)


def check_texts(store: Store, *, reverse: bool) -> None:
    session = store.start("a")
    call, result = next(group for group in anthropic_pairs(1) if len(group) == 2)
    for block in (result, call) if reverse else (call, result):
        store_answer(session, "anthropic", [block, {"type": "text", "text": "so"}])
    session.append([user("and now?")])
    blocks = [block for message in session.messages("anthropic") for block in message["content"]]
    assert {block["type"] for block in blocks} == {"text"}


SHELL_CALL = {"type": "shell_call", "id": "sh_1", "call_id": "c1", "action": {"commands": ["ls"]}}
SHELL_OUTPUT = {"type": "shell_call_output", "id": "sho_1", "call_id": "c1", "output": []}


@pytest.mark.parametrize(
    "answers",
    [
        [[SHELL_OUTPUT], [SHELL_CALL]],
        [[SHELL_CALL], [SHELL_OUTPUT]],
        [[SHELL_OUTPUT, SHELL_CALL]],
        [[SHELL_CALL, {**SHELL_CALL, "id": "sh_2"}, SHELL_OUTPUT]],
        [[SHELL_OUTPUT], [SHELL_CALL], [SHELL_OUTPUT]],
        [[SHELL_CALL]],
        [[SHELL_OUTPUT]],
    ],
    ids=str,
)
def test_calls_of_openais_tools_are_text_unless_paired_in_order(
    answers: list[list[dict[str, Any]]], store: Store
) -> None:
    """OpenAI refuses a call without an output after it, and an output without a call before it."""
    session = store.start("a")
    for blocks in answers:
        evidence = Evidence("openai", {str(n): {"block": block} for n, block in enumerate(blocks)})
        answer = oakleaf.assistant(*(ProviderBlock(block["type"], "ls") for block in blocks))
        session.log.append([Draft(oakleaf.user("q")), Draft(answer, evidence=evidence)])
    session.append([oakleaf.user("and now?")])
    items = session.request("openai")["input"]
    assert find_provider("openai").violations({"input": items}, ready=True) == []
    assert not {item.get("type") for item in items} & {"shell_call", "shell_call_output"}


@pytest.mark.parametrize("before", [True, False])
def test_a_users_output_is_sent_right_after_the_call(before: bool, store: Store) -> None:
    output = {"type": "local_shell_call_output", "call_id": "c1", "output": "a"}
    session = store.start("a")
    session.append([oakleaf.user("q"), *([output, SHELL_CALL] if before else [SHELL_CALL, output])])
    session.append([oakleaf.user("and now?")])
    items = session.request("openai")["input"]
    assert find_provider("openai").violations({"input": items}, ready=True) == []
    assert (output in items, SHELL_CALL in items) == (not before, not before)


def test_waiting_code_is_continued_in_the_container(store: Store) -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_0", "name": "code_execution", "input": {"code": "f()"}}
    call = anthropic_pairs(1)[-1][0]
    answer = {**reply("anthropic", [use, call], "tool_use"), "container": {"id": "c_1", "expires_at": "x"}}
    session = store.start("a")
    with session.turn("q") as turn:
        turn.answer(answer)
        turn.result("toolu_1", "41")
        request = session.request("anthropic")
        assert request["container"] == "c_1"
        assert request["messages"][1]["content"] == [use, call]
        assert find_provider("anthropic").violations(request, ready=True) == []
        turn.answer(oakleaf.assistant("done"))
    assert "container" not in session.request("anthropic")


@issuers
def test_a_block_with_a_secret_is_sent_as_text(issuer: str, store: Store) -> None:
    secret_store = oakleaf.open("memory:", secrets={"PIN": SECRET})
    for group in GROUPS[issuer](1):
        marked = json.loads(
            json.dumps(group).replace("cats", SECRET).replace("print", SECRET).replace("lost", SECRET)
        )
        if marked == group:
            continue
        session = secret_store.start("a")
        store_answer(session, issuer, marked)
        entry = secret_store.backend.entries(session.session_id)[1].entry
        assert SECRET.encode() not in entry.body + (entry.evidence or b"")
        session.append([oakleaf.user("and now?")])
        for provider in wire.PROVIDERS.values():
            assert provider.violations(session.request(provider.name), ready=True) == []


LINKS = {
    "anthropic": [
        {"type": "image", "source": {"type": "url", "url": "https://x/cat.png"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}, "title": "Cats"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "cats"}},
        {
            "type": "search_result",
            "source": "https://x",
            "title": "Cats",
            "content": [{"type": "text", "text": "cats"}],
        },
    ],
    "openai": [
        {"type": "input_image", "image_url": "https://x/cat.png", "detail": "high"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG_64}", "detail": "high"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_file", "filename": "a.csv", "file_data": "data:text/csv;base64,YSxi"},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": PNG_64}},
    ],
    "gemini": [
        {"fileData": {"fileUri": "https://x/files/1", "mimeType": "video/mp4"}},
        {
            "inlineData": {"data": PNG_64, "mimeType": "image/png"},
            "videoMetadata": {"startOffset": "1s"},
        },
    ],
}


@issuers
def test_linked_media_return_to_the_provider(issuer: str, store: Store) -> None:
    """In an input, and for two of them in the result of a tool: others get a text in their place."""
    name = "parts" if issuer == "gemini" else "content"
    session = store.start("a")
    role = {"role": "user", name: LINKS[issuer]}
    with session.turn(role) as turn:
        request = store.session(session.session_id).request(issuer)
        assert request[find_provider(issuer).history] == [role]
        turn.answer(oakleaf.assistant("ok"))
    appended = store.start("a")
    appended.append([role])
    assert appended.request(issuer) == request
    for provider in wire.PROVIDERS.values():
        other = appended.request(provider.name)
        assert provider.violations(other, ready=True) == []
        assert "https://x" in json.dumps(other)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "search_result", "source": "https://x", "title": "Cats", "content": [{"type": "text", "text": "They purr."}]},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "They purr."}]}},
        {"type": "document", "title": "Cats", "source": {"type": "content", "content": "They purr."}},
    ],
)  # fmt: skip
def test_citable_text_returns_to_anthropic(block: dict[str, Any], store: Store) -> None:
    """Only the title was stored: exports, other providers and people did not get the text that the model read."""
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    session = store.start("a")
    session.append(
        [{"role": "user", "content": [block, {"type": "text", "text": "What do they do?"}]},
         {"role": "assistant", "content": [use]},
         {"role": "user", "content": [result]}]
    )  # fmt: skip
    for provider in wire.PROVIDERS.values():
        request = session.request(provider.name)
        assert provider.violations(request, ready=True) == []
        assert json.dumps(request).count("They purr.") == 2
    assert exported(session, "markdown").count("They purr.") == 2


def test_media_kept_elsewhere_in_a_result_come_back_too(store: Store) -> None:
    link = LINKS["anthropic"][0]
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "see"}, link]}
    session = store.start("a")
    session.append(
        [oakleaf.user("q"), {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    )
    assert session.request("anthropic")["messages"][-1]["content"] == [result]
    assert "[image: https://x/cat.png]" in json.dumps(session.request("gemini"))
    image = LINKS["openai"][0]
    items = [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [image]},
    ]
    session = store.start("a")
    session.append([oakleaf.user("q"), *items])
    assert session.request("openai")["input"][-1]["output"] == [image]


def test_sources_of_a_gemini_answer_are_kept_and_not_sent(store: Store) -> None:
    grounding = {
        "webSearchQueries": ["cats", "dogs"],
        "groundingChunks": [{"web": {"uri": "https://x/cats", "title": "Cats"}}],
    }
    whole = reply("gemini", [{"text": "Cats sleep."}])
    whole["candidates"][0]["groundingMetadata"] = grounding
    answer = wire.parse_reply(whole)
    assert answer.units == {"web_searches": 1}
    session = store.start("a")
    with session.turn("q") as turn:
        turn.answer(whole)
    assert answer_blocks(session, "gemini") == [{"text": "Cats sleep."}]
    assert session.path()[1].message.parts[1] == ProviderBlock(
        "groundingMetadata", "searched the web: cats; dogs\nCats https://x/cats"
    )
    assert "https://x/cats" in json.dumps(session.request("openai"))


@pytest.mark.extra
def test_searches_and_long_cache_writes_are_paid_for() -> None:
    usage = {
        "input_tokens": 1000,
        "output_tokens": 10,
        "cache_creation_input_tokens": 1000,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 1000},
        "server_tool_use": {"web_search_requests": 2},
    }
    whole = {**reply("anthropic", [{"type": "text", "text": "x"}]), "usage": usage}
    costs = []
    for key in (None, "cache_creation", "server_tool_use"):
        session = oakleaf.open("memory:").start("a")
        with session.turn("q") as turn:
            turn.answer({**whole, "usage": {k: v for k, v in usage.items() if k != key}})
        costs.append(session.usage().cost_microcents)
    per_dollar = 100_000_000
    assert costs[0] - costs[2] == 2 * per_dollar // 100  # $10 for a thousand searches
    assert costs[0] - costs[1] == per_dollar * 225 // 100_000  # $6 instead of $3.75 for a million tokens


def test_a_refusal_says_why() -> None:
    whole = {
        **reply("anthropic", [], "refusal"),
        "stop_details": {"type": "refusal", "explanation": "unsafe"},
    }
    answer = wire.parse_reply(whole)
    assert (answer.finish, answer.message.parts) == ("refusal", (ProviderBlock("refusal", "unsafe"),))


@pytest.mark.extra
def test_sdk_objects_are_read_as_their_json() -> None:
    from anthropic.types import Message as AnthropicMessage
    from google.genai.types import GenerateContentResponse
    from openai.types.responses import Response

    kinds: dict[str, Any] = {
        "anthropic": AnthropicMessage,
        "openai": Response,
        "gemini": GenerateContentResponse,
    }
    for issuer, kind in kinds.items():
        known = [
            g for g in GROUPS[issuer](1) if "newer" not in json.dumps(g) and "Newer" not in json.dumps(g)
        ]
        blocks = [block for group in known[:3] for block in group]
        whole = reply(issuer, blocks)
        build = kind.model_validate if issuer == "gemini" else kind.construct
        assert wire.parse_reply(build(**whole) if issuer != "gemini" else build(whole)) == wire.parse_reply(
            whole
        )


@pytest.mark.parametrize(
    "bad",
    [
        reply("anthropic", [{"type": "server_tool_use", "name": "web_search"}]),
        reply("anthropic", [{"type": "web_search_tool_result", "content": []}]),
        reply("anthropic", [{"text": "without a type"}]),
        reply("openai", [{"type": "web_search_call"}]),
    ],
    ids=str,
)
def test_a_block_that_could_not_be_sent_back_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UnrecognizedReply):
        wire.parse_reply(bad)


def test_an_mcp_approval_without_a_request_is_text(store: Store) -> None:
    request = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "f",
        "arguments": "{}",
    }
    approval = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    session = store.start("a")
    session.append([oakleaf.user("q"), request, approval])
    assert session.request("openai")["input"][1:] == [request, approval]
    alone = store.start("a")
    alone.append([approval])
    assert alone.request("openai")["input"][0]["content"][0]["text"] == "[approved mcpr_1]"
    for provider in wire.PROVIDERS.values():
        assert provider.violations(session.request(provider.name), ready=True) == []


def test_a_shown_block_is_never_sent_as_the_users_words() -> None:
    """A block without its evidence, as after an import, is text for its own issuer too."""
    message = oakleaf.assistant(
        ProviderBlock("server_tool_use", "searched the web: cats"), Text("Cats sleep.")
    )
    context = Context((), (Item(oakleaf.user("q"), 1, 1), Item(message, 2, 1)))
    for provider in wire.PROVIDERS.values():
        assert "[searched the web: cats]" in json.dumps(provider.project(context, lambda _: None))


def test_bytes_in_a_blocks_text_are_stored_apart(store: Store) -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG * 4).decode()
    (item,) = GROUPS["openai"](1)[3]
    item["outputs"] = [{"type": "logs", "logs": f"see {url}"}]
    session = store.start("a")
    store_answer(session, "openai", [item])
    assert b";base64," not in store.backend.entries(session.session_id)[1].entry.body
    assert answer_blocks(session, "openai") == [item]
    assert session.verify() == []
