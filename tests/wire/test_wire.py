"""The laws that hold for every provider, for every prefix of every log."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from oakleaf import wire
from oakleaf.core.context import Context, Item, build_context
from oakleaf.core.entries import Compaction, Entry, Uncompaction
from oakleaf.core.fit import Budget, fit
from oakleaf.core.messages import Reasoning, Text, ToolCall, assistant, system, tool_result, user
from oakleaf.core.turns import cursor_after
from oakleaf.errors import TurnTooLarge, UnknownProvider, UnrecognizedReply
from oakleaf.wire import first_difference, parse_history, parse_reply, render
from oakleaf.wire.tool_pairs import NO_RESULT
from support.random_logs import blobs, budgets, path_of, paths, thorough_settings

providers = pytest.mark.parametrize("name", list(wire.PROVIDERS))
SERIAL = re.compile(r"serial-(\d+);")
SIGNATURE = re.compile(r"SIG-(.+?)-\d+-\d+;")
SEALED = re.compile(r"U0lHL[A-Za-z0-9+/]*={0,2}")  # the same in base64, as Gemini has it


def history(request: dict[str, Any]) -> list[dict[str, Any]]:
    [key] = request.keys() & {provider.history for provider in wire.PROVIDERS.values()}
    return request[key]


def calls(request: dict[str, Any]) -> list[tuple[str, str]]:
    """(id, everything written of the call) of each call, in order; on Gemini its place stands for its id."""
    pairs = []
    for index, message in enumerate(history(request)):
        if message.get("type") == "function_call":
            pairs.append((message["call_id"], message["arguments"]))
        for call in message.get("tool_calls", ()):
            pairs.append((call["id"], str(call["function"])))
        for block in blocks(message):
            if block.get("type") == "tool_use":
                pairs.append((block["id"], str(block["input"])))
        parts = [part["functionCall"] for part in message.get("parts", ()) if "functionCall" in part]
        pairs.extend((f"{index + 1}.{n}", str(call["args"])) for n, call in enumerate(parts))
    return pairs


def results(request: dict[str, Any]) -> list[tuple[str, str]]:
    """(id, text) of each result, in order."""
    pairs = []
    for index, message in enumerate(history(request)):
        if message.get("type") == "function_call_output":
            pairs.append((message["call_id"], all_text(message["output"])))
        if message.get("role") == "tool":
            pairs.append((message["tool_call_id"], message["content"]))
        for block in blocks(message):
            if block.get("type") == "tool_result":
                texts = [piece["text"] for piece in block["content"] if piece["type"] == "text"]
                pairs.append((block["tool_use_id"], "\n".join(texts)))
        parts = [part["functionResponse"] for part in message.get("parts", ()) if "functionResponse" in part]
        pairs.extend((f"{index}.{n}", all_text(response["response"])) for n, response in enumerate(parts))
    return pairs


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def all_text(value: Any) -> str:
    """All text of a request, each piece on its own."""
    if isinstance(value, dict):
        return "\n".join(all_text(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(all_text(item) for item in value)
    return value if isinstance(value, str) else ""


def window(path: list[Entry], budget: Budget) -> Context | None:
    try:
        return fit(build_context(path), budget).context
    except TurnTooLarge:
        return None


@given(path=paths(), budget=budgets)
@thorough_settings
def test_every_prefix_of_every_log_is_accepted_in_every_budget(path, budget):
    for end in range(len(path) + 1):
        for context in (build_context(path[:end]), window(path[:end], budget)):
            if context is None:
                continue
            for provider in wire.PROVIDERS.values():
                request = provider.project(context, blobs)
                assert provider.violations(request) == []
                _pairs_are_whole(request)
                _nothing_is_lost(context, request)
                assert b"DETAILS" not in render(request)


FORBIDDEN: dict[str, dict[str, Any]] = {
    "anthropic": {"tool_choice": {"type": "none"}},
    "openai": {"tool_choice": "none"},
    "openai-chat": {"tool_choice": "none"},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
}
CHOICES: dict[str, dict[str, Any]] = {
    "anthropic": {"tool_choice": {"type": "any"}},
    "openai": {"tool_choice": "required", "parallel_tool_calls": False},
    "openai-chat": {"tool_choice": "required", "parallel_tool_calls": False},
    "gemini": {"tool_config": {"functionCallingConfig": {"mode": "ANY"}, "retrievalConfig": {}}},
}


@given(path=paths(), is_stored=st.booleans())
@thorough_settings
def test_calls_in_the_history_and_a_choice_come_with_tools(path, is_stored):
    for end in range(len(path) + 1):
        context = build_context(path[:end])
        definitions = context.settings.tool_definitions
        recorded = definitions is not None and bool(definitions.names) and is_stored
        for name, provider in wire.PROVIDERS.items():
            options = {**(context.settings.options or {}), **CHOICES[name]}
            chosen = replace(context, settings=replace(context.settings, options=options))
            request = provider.project(chosen, blobs if is_stored else lambda digest: None)
            assert provider.violations(request) == []
            is_callable = recorded and definitions.is_callable
            assert ("tools" in request) == (is_callable or any(item.message.calls for item in context.items))
            is_forbidden = FORBIDDEN[name].items() <= _without_retrieval(request).items()
            assert is_forbidden == ("tools" in request and not is_callable)


def _without_retrieval(request: dict[str, Any]) -> dict[str, Any]:
    config = {key: value for key, value in request.get("toolConfig", {}).items() if key != "retrievalConfig"}
    return {**request, "toolConfig": config} if config else request


def _pairs_are_whole(request: dict[str, Any]) -> None:
    """Each call has one result, in call order, and it is the one that answers it."""
    call_pairs, answered = calls(request), results(request)
    assert [call_id for call_id, _ in call_pairs] == [call_id for call_id, _ in answered]
    assert len({call_id for call_id, _ in call_pairs}) == len(call_pairs)
    for (_, call), (_, result) in zip(call_pairs, answered, strict=True):
        [serial] = SERIAL.findall(call)
        assert set(SERIAL.findall(result)) <= {serial}


def _nothing_is_lost(context: Context, request: dict[str, Any]) -> None:
    """Every text of every result is there, and only a call without result has a placeholder."""
    text = all_text(history(request))
    tool_results = [result for item in context.items for result in item.message.results]
    for result in tool_results:
        for piece in result.content:
            assert not isinstance(piece, Text) or not piece.text.strip() or piece.text in text
    serials = {
        serial
        for result in tool_results
        for p in result.content
        if isinstance(p, Text)
        for serial in SERIAL.findall(p.text)
    }
    for (_, call), (_, content) in zip(calls(request), results(request), strict=True):
        assert (NO_RESULT in content) <= (SERIAL.findall(call)[0] not in serials)
    call_count = sum(len(item.message.calls) for item in context.items)
    assert sum(NO_RESULT in content for _, content in results(request)) >= call_count - len(tool_results)


@given(path=paths())
@thorough_settings
def test_a_signature_goes_back_to_the_issuer_only(path):
    """The provider may change at every turn: each prefix is written for each of them."""
    for end in range(len(path) + 1):
        context = build_context(path[:end])
        for name, provider in wire.PROVIDERS.items():
            for issuer in SIGNATURE.findall(with_decoded_signatures(provider.project(context, blobs))):
                assert issuer == name


def with_decoded_signatures(request: dict[str, Any]) -> str:
    """A request and, behind it, the signatures that lie in it as base64."""
    rendered = render(request).decode()
    return rendered + " ".join(base64.b64decode(sealed).decode() for sealed in SEALED.findall(rendered))


@given(path=paths())
@thorough_settings
def test_sent_messages_never_change_later(path):
    """Wherever no batch is open the request is the beginning of every later one, compactions apart."""
    for name in wire.PROVIDERS:
        was = None
        for end in range(1, len(path) + 1):
            if isinstance(path[end - 1].payload, Compaction | Uncompaction):
                was = None
            if cursor_after(path[:end]).open_calls:
                continue
            now = _history(name, build_context(path[:end]))
            if _has_open_hosted_call(now) or (name == "openai" and _waits_for_output(path[:end])):
                continue  # until its provider continues it, or something else follows
            assert was is None or first_difference(was, now) is None
            was = now


def _has_open_hosted_call(request: dict[str, Any]) -> bool:
    blocks = [block for message in request.get("messages", ()) for block in message["content"] or ()]
    blocks = [block for block in blocks if isinstance(block, dict)]
    results = {block["tool_use_id"] for block in blocks if block["type"].endswith("_tool_result")}
    return any(
        block["type"] in ("server_tool_use", "mcp_tool_use") and block["id"] not in results
        for block in blocks
    )


def _waits_for_output(path: list[Entry]) -> bool:
    """Whether the user's own tools are asked for outputs: nothing is sent before they have given all of them."""
    outputs: set[str] = set()
    for entry in reversed([entry for entry in path if entry.role in ("user", "assistant")]):
        proofs = [] if entry.evidence is None else list(entry.evidence.parts.values())
        if entry.role == "assistant":
            blocks = [proof.get("block", {}) for proof in proofs]
            calls = {b["call_id"] for b in blocks if "call_id" in b and not b["type"].endswith("_output")}
            return not calls <= outputs
        if not proofs:
            return False
        outputs |= {proof["item"]["call_id"] for proof in proofs}
    return False


def _history(name: str, context: Context) -> dict[str, Any]:
    """A request without the system prompt, which settings may change."""
    provider = wire.find_provider(name)
    messages = history(provider.project(context, blobs))
    prompts = [prompt for prompt in context.system if prompt.strip()] if name == "openai-chat" else []
    return {provider.history: messages[len(prompts) :]}


@given(path=paths(), name=st.sampled_from(list(wire.PROVIDERS)))
def test_the_same_leaf_renders_the_same_bytes(path, name):
    project = wire.find_provider(name).project
    assert render(project(build_context(path), blobs)) == render(project(build_context(list(path)), blobs))


@given(path=paths(), name=st.sampled_from(list(wire.PROVIDERS)))
@thorough_settings
def test_a_projection_reads_back_to_the_same_projection(path, name):
    provider = wire.find_provider(name)
    messages = history(provider.project(build_context(path), blobs))
    items = [
        Item(parsed.message, seq, 0, evidence=parsed.evidence)
        for seq, parsed in enumerate(provider.parse_history(messages), 1)
    ]
    again = history(provider.project(Context((), tuple(items)), blobs))
    bare = {"openai": _bare_items, "gemini": _bare_contents}.get(name, _bare_messages)
    assert bare(again) == bare(messages)


# Messages come without evidence, so thinking, signatures and native ids cannot be sent again.


def _bare_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**message, "content": [block for block in blocks(message) if "thinking" not in block["type"]]}
        if blocks(message)
        else message
        for message in messages
    ]


def _bare_items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the assistant says in a row is one text."""
    bare: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") == "reasoning":
            continue
        if item.get("role") == "assistant":
            texts = [block["text"] for block in blocks(item)] or [item["content"]]
            before = bare.pop()["content"] if bare and bare[-1].get("role") == "assistant" else ""
            item = {"role": "assistant", "content": before + "".join(texts)}
        bare.append({key: value for key, value in item.items() if key != "id"})
    return bare


def _bare_contents(contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A blank text is sent for its signature only."""
    bare: list[dict[str, Any]] = []
    for content in contents:
        texts = [part for part in content["parts"] if part.get("text", "x").strip()]
        parts = [_unsigned(part) for part in texts]
        if bare and bare[-1]["role"] == content["role"]:
            bare[-1]["parts"].extend(parts)
        elif parts:
            bare.append({"role": content["role"], "parts": parts})
    return bare


def _unsigned(part: dict[str, Any]) -> dict[str, Any]:
    [key] = part.keys() - {"thoughtSignature"}
    value = part[key]
    return {key: {k: v for k, v in value.items() if k != "id"} if isinstance(value, dict) else value}


def test_bytes_are_the_same_in_another_process():
    code = (
        "from support.random_logs import path_of, blobs; from oakleaf import wire; from oakleaf.core.context import build_context;"
        "from oakleaf.core.messages import *;"
        "call = ToolCall('é', 'a.b', {'z': 1, 'a': 2});"
        "p = path_of(user('hi'), assistant('x ', call), tool_result('é', 'r'));"
        "print([wire.render(w.project(build_context(p), blobs)) for w in wire.PROVIDERS.values()])"
    )
    digests = set()
    for seed in "1", "2":
        env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}
        digests.add(
            subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout
        )
    assert len(digests) == 1


def test_no_sdk_is_imported():
    code = "import sys, oakleaf.wire; print([m for m in ('anthropic', 'openai', 'google', 'pydantic') if m in sys.modules])"
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


class TestRegistry:
    def test_a_provider_is_found_by_name(self):
        assert wire.find_provider("anthropic").name == "anthropic"

    def test_an_unknown_provider_is_named_with_the_known(self):
        with pytest.raises(
            UnknownProvider, match="'bedrock'; use one of anthropic, openai-chat, openai, gemini"
        ):
            wire.find_provider("bedrock")

    @providers
    def test_every_provider_is_registered_under_the_own_name(self, name):
        assert wire.PROVIDERS[name].name == name


class TestRead:
    def test_our_own_message_passes_through(self):
        assert parse_reply(assistant("hi")) == wire.Answer(assistant("hi"))

    @pytest.mark.parametrize(
        "reply",
        [
            user("hi"),
            "text",
            None,
            42,
            {},
            {"role": "user", "content": "hi"},
            {"error": {"message": "overloaded"}},
            {"choices": []},
            {"choices": [{"message": {"role": "user", "content": "x"}}]},
            {"type": "message", "role": "assistant"},
            {"type": "message", "role": "assistant", "content": [{"type": "server_tool_use"}]},
            {"role": "assistant", "content": [{"type": "text", "text": None}]},
            {"role": "assistant", "content": 7},
            {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
            {"object": "response", "status": "failed", "error": {"code": "server_error"}, "output": []},
            {"object": "response", "status": "completed", "output": [{"type": "web_search_call"}]},
            {"candidates": []},
            {"promptFeedback": {"blockReason": "SAFETY"}},
            {"role": "model"},
        ],
        ids=str,
    )
    def test_other_replies_than_answers_are_refused_by_name(self, reply):
        with pytest.raises(UnrecognizedReply):
            parse_reply(reply)

    def test_a_bare_assistant_message_of_any_shape_is_an_answer(self):
        assert parse_reply({"role": "assistant", "content": "hi"}).message == assistant("hi")
        block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        assert parse_reply({"role": "assistant", "content": [block]}).provider == "anthropic"
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        answer = parse_reply({"role": "assistant", "content": None, "tool_calls": [call]})
        assert (answer.provider, answer.message) == ("openai-chat", assistant(ToolCall("a", "f")))
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
        assert (parse_reply(item).provider, parse_reply(item).message) == ("openai", assistant("hi"))
        content = {"role": "model", "parts": [{"functionCall": {"name": "f", "id": "a"}}]}
        assert (parse_reply(content).provider, parse_reply(content).message) == (
            "gemini",
            assistant(ToolCall("a", "f")),
        )

    def test_a_refusal_is_known_by_the_message_around(self):
        refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
        assert (parse_reply(refusal).provider, parse_reply(refusal).message) == (
            "openai-chat",
            assistant("no"),
        )
        assert (parse_reply({**refusal, "type": "message"}).provider) == "openai"


def parse_messages(messages):
    return [parsed.message for parsed in parse_history(messages)]


class TestReadAnyMessages:
    def test_plain_text_is_the_same_for_both(self):
        messages = parse_messages([{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}])
        assert messages == [system("be"), user("hi")]

    def test_shapes_may_be_mixed(self):
        messages = parse_messages(
            [
                user("ours"),
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "b", "content": "s"},
                {"role": "assistant", "content": "done"},
            ]
        )
        assert messages == [
            user("ours"),
            assistant(ToolCall("a", "f", {"x": 1})),
            tool_result("a", "r"),
            assistant(ToolCall("b", "g", malformed="{")),
            tool_result("b", "s"),
            assistant("done"),
        ]
        path_of(*messages)

    def test_the_items_of_one_answer_are_read_as_one_message(self):
        messages = parse_messages(
            [
                {"role": "user", "content": "hi"},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "b", "output": "s"},
                {"type": "function_call_output", "call_id": "a", "output": "r"},
                {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": 1}}}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "o"}}}]},
                user("ours"),
            ]
        )
        assert messages == [
            user("hi"),
            assistant(Reasoning(), ToolCall("a", "f"), ToolCall("b", "g")),
            tool_result("b", "s"),
            tool_result("a", "r"),
            assistant(ToolCall("call_1_f", "f", {"x": 1})),
            tool_result("call_1_f", "o"),
            user("ours"),
        ]
        path_of(*messages)

    @pytest.mark.parametrize(
        "bad",
        [
            {},
            {"content": "x"},
            {"role": "robot", "content": "x"},
            "x",
            {"role": "tool"},
        ],
    )
    def test_a_message_without_a_known_role_is_refused(self, bad):
        with pytest.raises(UnrecognizedReply):
            parse_messages([bad])


A: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
B: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}


class TestExplain:
    def test_a_longer_history_is_no_difference(self):
        assert first_difference({"messages": [A]}, {"messages": [A, B]}) is None

    def test_blocks_added_to_the_last_message_are_no_difference(self):
        longer = {"role": "user", "content": [*A["content"], {"type": "text", "text": "and"}]}
        assert first_difference({"messages": [A]}, {"messages": [longer]}) is None
        assert first_difference({"messages": [A, B]}, {"messages": [longer, B]}) is not None

    @pytest.mark.parametrize(("key", "inner"), [("input", "content"), ("contents", "parts")])
    def test_a_history_of_another_name_may_grow_like_any_other(self, key, inner):
        first, second = {"role": "user", inner: [{"text": "hi"}]}, {"role": "user", inner: [{"text": "so?"}]}
        longer = {"role": "user", inner: [{"text": "hi"}, {"text": "and"}]}
        assert first_difference({key: [first]}, {key: [first, second]}) is None
        assert first_difference({key: [first]}, {key: [longer]}) is None
        assert first_difference({key: [first]}, {key: [second]}).path == f"{key}[0].{inner}[0].text"

    def test_a_switch_of_provider_is_a_difference(self):
        assert first_difference({"messages": [A]}, {"input": [A]}).path == "messages"

    def test_the_first_place_is_named_with_both_values(self):
        other = {"role": "assistant", "content": [{"type": "text", "text": "hullo"}]}
        difference = first_difference({"messages": [A, B]}, {"messages": [A, other]})
        assert (difference.path, difference.before, difference.after) == (
            "messages[1].content[0].text",
            "hello",
            "hullo",
        )
        assert str(difference) == "messages[1].content[0].text was 'hello', now it is 'hullo'"

    def test_a_shorter_history_is_a_difference(self):
        difference = first_difference({"messages": [A, B]}, {"messages": [A]})
        assert difference.path == "messages[1]"
        assert str(difference).endswith("now it is nothing")

    def test_another_system_prompt_comes_first(self):
        was, now = {"system": "a", "messages": [A]}, {"messages": [B]}
        assert first_difference(was, now).path == "system"

    def test_another_order_of_keys_is_a_difference(self):
        """Equal dicts, other bytes: it cost a whole cache."""
        was = {"messages": [{"role": "user", "content": [{"input": {"a": 1, "b": 2}}]}]}
        now = {"messages": [{"role": "user", "content": [{"input": {"b": 2, "a": 1}}]}]}
        assert first_difference(was, now).path == "messages[0].content[0].input (order of keys)"

    def test_one_and_true_and_one_point_nought_differ(self):
        for other in (True, 1.0):
            assert first_difference({"x": 1, "messages": []}, {"x": other, "messages": []}).path == "x"

    def test_long_values_are_cut_in_the_sentence_only(self):
        difference = first_difference({"x": "a" * 500}, {"x": "b"})
        assert len(str(difference)) < 120
        assert difference.before == "a" * 500
