"""The SDK's own method gets the whole request in its own arguments, so that a wrapper around it sees the prompt."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest

import oakleaf
from oakleaf import wire
from oakleaf.core.context import Context, Item
from oakleaf.core.messages import user
from oakleaf.errors import ModelError
from oakleaf.models.base import Request
from support.fake_providers import Call, Completion, FakeProviders
from support.model_calls import client, listen, request_of, run

pytestmark = pytest.mark.extra

METHODS = {
    "anthropic": ("anthropic.resources.messages", "AsyncMessages", "create"),
    "openai": ("openai.resources.responses", "AsyncResponses", "create"),
    "openai-chat": ("openai.resources.chat.completions", "AsyncCompletions", "create"),
    "gemini": ("google.genai.models", "AsyncModels", "generate_content_stream"),
}
providers = pytest.mark.parametrize("provider", wire.PROVIDERS)


class Wrapper:
    """A tracer's wrapper around the stream of an SDK: whoever reads it reads every piece through it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.pieces = 0
        self.is_read = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for piece in self._stream:
            self.pieces += 1
            yield piece
        self.is_read = True


@pytest.fixture
def calls(provider: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], Wrapper]]:
    """The arguments and the reply of each call of the SDK's method, as a tracer sees both."""
    module, kind, name = METHODS[provider]
    owner = getattr(import_module(module), kind)
    method, seen = getattr(owner, name), list[tuple[dict[str, Any], Wrapper]]()

    @functools.wraps(method)
    async def traced(*args: Any, **arguments: Any) -> Wrapper:
        reply = Wrapper(await method(*args, **arguments))
        seen.append((arguments, reply))
        return reply

    monkeypatch.setattr(owner, name, traced)
    return seen


@providers
class TestWrapper:
    def test_a_wrapper_sees_messages_system_tools_and_options(self, provider, calls):
        request = request_of(user("Is it raining?"), temperature=0.5, max_tokens=9)
        with FakeProviders(Completion("It is.")) as server:
            _, answer = run(listen(client(provider, server), request))
        [(seen, _)] = calls
        assert answer.message.text == "It is."
        assert seen["model"] == "some-model"
        assert READ[provider](seen) == ("Be brief.", "Is it raining?", ["weather", "f"], 0.5, 9)

    def test_a_wrapper_sees_the_answer_to_the_end(self, provider, calls):
        completion = Completion("I look.", "a thought", (Call("a", "weather", '{"city": "Rome"}'),))
        with FakeProviders(completion) as server:
            deltas, answer = run(listen(client(provider, server), request_of()))
        [(_, reply)] = calls
        assert reply.is_read
        assert reply.pieces > 3
        assert "".join(delta.text for delta in deltas) == "I look."
        assert [call.arguments for call in answer.message.calls] == [{"city": "Rome"}]


def _read_anthropic(seen: dict[str, Any]) -> tuple[Any, ...]:
    [message] = seen["messages"]
    [text] = message["content"]
    # This version of the SDK has no parameter for the temperature any more.
    return (
        seen["system"][0]["text"],
        text["text"],
        [tool["name"] for tool in seen["tools"]],
        seen["extra_body"]["temperature"],
        seen["max_tokens"],
    )


def _read_openai(seen: dict[str, Any]) -> tuple[Any, ...]:
    tools = [tool["name"] for tool in seen["tools"]]
    [message] = seen["input"]
    return seen["instructions"], _text(message), tools, seen["temperature"], seen["max_output_tokens"]


def _read_chat(seen: dict[str, Any]) -> tuple[Any, ...]:
    tools = [tool["function"]["name"] for tool in seen["tools"]]
    system, message = seen["messages"]
    return _text(system), _text(message), tools, seen["temperature"], seen["max_tokens"]


def _read_gemini(seen: dict[str, Any]) -> tuple[Any, ...]:
    config, [content] = seen["config"], seen["contents"]
    tools = [tool.name for tool in config.tools[0].function_declarations]
    system = config.system_instruction.parts[0].text
    return system, content["parts"][0]["text"], tools, config.temperature, config.max_output_tokens


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else content[0]["text"]


READ = {
    "anthropic": _read_anthropic,
    "openai": _read_openai,
    "openai-chat": _read_chat,
    "gemini": _read_gemini,
}


@providers
def test_bytes_of_a_request_begin_the_next(provider, tmp_path):
    """A vendor's cache knows a prompt by its bytes. A resumed session writes the same."""
    completions = [
        Completion("I look.", "a thought", (Call("a", "weather", '{"z": "São", "a": 1.0, "n": null}'),)),
        *(Completion(f"answer {number}", "thinking") for number in range(3)),
    ]

    def weather(z: str, a: float, n: None) -> str:
        """Look out of the window."""
        return "rain ☂\n\u2028"

    with FakeProviders(*completions) as server:
        for number in range(3):
            with oakleaf.open(tmp_path / "store.db") as store:
                session = store.session("s") if number else store.start(session_id="s")
                model = client(provider, server)
                assert session.send_sync(
                    f"question {number}", model=model, tools=[oakleaf.tool(weather)]
                ).text
    histories = [_history(request.raw, wire.find_provider(provider).history) for request in server.requests]
    assert len(histories) == 4
    for history, later in pairwise(histories):
        assert later.startswith(history)


def _history(raw: bytes, name: str) -> bytes:
    """Return the bytes of the list of messages, without its end."""
    start = raw.index(f'"{name}":'.encode()) + len(name) + 3
    text = raw[start:].decode()
    _, end = json.JSONDecoder().raw_decode(text.lstrip())
    return text.lstrip()[: end - 1].encode()


class TestNewerField:
    """A field that a type of Google's SDK cannot hold is sent as it is; a wrapper sees the rest."""

    @pytest.mark.parametrize("provider", ["gemini"])
    @pytest.mark.parametrize("fields", [{"newField": {"a": [1, None]}}, {"thoughtSignature": "YR=="}])
    def test_in_a_message(self, provider, calls, fields):
        contents = [
            {"role": "user", "parts": [{"text": "look"}]},
            {"role": "model", "parts": [{"text": "at this", **fields}]},
            {"role": "user", "parts": [{"text": "again"}]},
        ]
        parsed = wire.find_provider("gemini").parse_history(contents)
        items = tuple(Item(each.message, n, 1, evidence=each.evidence) for n, each in enumerate(parsed, 1))
        request = Request(Context((), items), lambda _: None)
        with (
            FakeProviders() as server,
            suppress(ModelError),
        ):  # the rules of this server are older than the field
            run(listen(client("gemini", server), request))
        seen = calls[0][0]
        assert [content["parts"][0]["text"] for content in seen["contents"]] == ["look", "at this", "again"]
        assert server.requests[0].body["contents"] == contents

    @pytest.mark.parametrize("provider", ["gemini"])
    def test_in_the_options(self, provider, calls):
        request = request_of(
            temperature=0.5, thinking_config={"newField": 1}, safety_settings=[{"new": True}]
        )
        with FakeProviders() as server:
            run(listen(client("gemini", server), request))
        [(seen, _)] = calls
        body = server.requests[0].body
        assert seen["config"].temperature == 0.5 == body["generationConfig"]["temperature"]
        assert body["generationConfig"]["thinkingConfig"] == {"newField": 1}
        assert body["safetySettings"] == [{"new": True}]
        assert [tool["name"] for tool in body["tools"][0]["functionDeclarations"]] == ["weather", "f"]

    @pytest.mark.parametrize("name", ["timeout", "extra_headers"])
    def test_named_like_an_argument_of_the_sdk(self, name):
        request = request_of(extra_body={name: {"a": 1}})
        with FakeProviders() as server:
            run(listen(client("openai-chat", server), request))
        assert server.requests[0].body[name] == {"a": 1}
        assert "a" not in server.requests[0].headers
