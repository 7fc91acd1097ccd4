"""Servers that speak OpenAI's Chat Completions, each in its own way: the shapes they send, through the real SDK.

The shapes and wordings are those of the servers' public documentation, sources and issues.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

import oakleaf
from oakleaf.core.context import Context, Item
from oakleaf.core.entries import Evidence, Settings
from oakleaf.core.messages import (
    Attachment,
    Message,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    assistant,
    tool_result,
    user,
)
from oakleaf.core.usage import Usage
from oakleaf.errors import ContextOverflow, ModelError, ModelUnavailable, Overloaded, TruncatedReply
from oakleaf.models.base import Delta, Request
from oakleaf.providers.openai_chat import OpenAIChatModel
from oakleaf.providers.sse import EventReader, ServerEvent
from oakleaf.wire import Answer
from support.fake_providers import Completion, FakeProviders, RawReply, Reply

pytestmark = pytest.mark.extra

KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True, scope="module")
def no_proxy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


def request(*messages: Message) -> Request:
    items = tuple(Item(message, seq, 1) for seq, message in enumerate(messages or (user("hi"),), 1))
    return Request(Context(("Be brief.",), items), lambda _: None)


async def listen(model: OpenAIChatModel, asking: Request) -> tuple[list[Delta], Answer]:
    pieces = [piece async for piece in model.stream(asking)]
    answer = pieces.pop()
    assert isinstance(answer, Answer)
    return [piece for piece in pieces if isinstance(piece, Delta)], answer


def model_of(server: FakeProviders, path: str = "/v1") -> OpenAIChatModel:
    return OpenAIChatModel("some-model", base_url=server.url + path, key=KEY)


def ask(*replies: Reply) -> tuple[Answer, FakeProviders]:
    with FakeProviders(*replies) as server:
        _, answer = asyncio.run(listen(model_of(server), request()))
    return answer, server


def fail(*replies: Reply, path: str = "/v1") -> ModelError:
    with FakeProviders(*replies) as server, pytest.raises(ModelError) as raised:
        asyncio.run(listen(model_of(server, path), request()))
    assert KEY not in str(raised.value)
    return raised.value


def refusal(status: int, body: object) -> RawReply:
    if isinstance(body, str):
        return RawReply(body.encode(), status, "text/plain")
    return RawReply(json.dumps(body).encode(), status, "application/json")


def sse(*events: object) -> RawReply:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return RawReply("".join(f"data: {line}\n\n" for line in lines).encode())


OVERFLOWS: dict[str, RawReply] = {
    "OpenAI": refusal(
        400,
        {
            "error": {
                "message": "This model's maximum context length is 128000 tokens. However, your messages resulted in "
                "130001 tokens.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        },
    ),
    "vLLM, old": refusal(
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4744 "
            "in the messages, 256 in the completion). Please reduce the length of the messages or completion.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    "vLLM, decoder prompt": refusal(
        400,
        {
            "error": {
                "message": "The decoder prompt (length 8357) is longer than the maximum model length of 8192. Make "
                "sure that `max_model_len` is no smaller than the number of text tokens.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        },
    ),
    "vLLM, new": refusal(
        400,
        {
            "error": {
                "message": "You passed 4097 input tokens and requested 0 output tokens. However, the model's context "
                "length is only 4096 tokens, resulting in a maximum input length of 4096 tokens.",
                "type": "BadRequestError",
                "param": "input_tokens",
                "code": 400,
            }
        },
    ),
    "vLLM, in the stream": sse(
        {
            "error": {
                "object": "error",
                "message": "The decoder prompt (length 8357) is longer than the maximum model length of 8192.",
                "code": 400,
            }
        },
        "[DONE]",
    ),
    "SGLang": refusal(
        400,
        {
            "object": "error",
            "message": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "code": 400,
        },
    ),
    "TGI": refusal(
        422,
        {
            "error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
            "error_type": "validation",
        },
    ),
    "Together": refusal(
        422,
        {
            "error": {
                "message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 "
                "`inputs` tokens and 512 `max_new_tokens`",
                "type": "invalid_request_error",
                "param": "max_tokens",
                "code": None,
            }
        },
    ),
    "LM Studio": refusal(
        400,
        {
            "error": "Trying to keep the first 4204 tokens when context the overflows. However, the model is loaded "
            "with context length of only 4096 tokens, which is not enough."
        },
    ),
    "LM Studio, to keep": refusal(
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length. Try "
            "to load the model with a larger context length."
        },
    ),
    "LM Studio, in the stream": RawReply(
        b'event: error\ndata: {"error":{"message":"Context size has been exceeded."}}\n\n'
    ),
    "llama.cpp": refusal(
        400,
        {
            "error": {
                "code": 400,
                "message": "request (2358 tokens) exceeds the available context size (2048 tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 2358,
                "n_ctx": 2048,
            }
        },
    ),
    "llama.cpp, 500": refusal(
        500,
        {
            "error": {
                "code": 500,
                "message": "the request exceeds the available context size. try increasing the context size",
                "type": "server_error",
            }
        },
    ),
    "llama.cpp, by its type": refusal(
        400, {"error": {"code": 400, "message": "too big", "type": "exceed_context_size_error"}}
    ),
    "llama-cpp-python": refusal(
        400,
        {
            "error": {
                "message": "This model's maximum context length is 2048 tokens, however you requested 2285 tokens",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        },
    ),
    "llama-cpp-python, 500": refusal(
        500,
        {
            "error": {
                "message": "Requested tokens (2285) exceed context window of 2048",
                "type": "internal_server_error",
            }
        },
    ),
    "ollama": refusal(
        400, {"error": {"message": "the input length exceeds the context length", "code": None}}
    ),
    "ollama, new": refusal(
        400, {"error": {"message": "prompt too long; exceeded max context length by 812 tokens"}}
    ),
    "Groq": refusal(
        400,
        {
            "error": {
                "message": "Please reduce the length of the messages or completion.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        },
    ),
    "Groq, tokens per minute": refusal(
        413,
        {
            "error": {
                "message": "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 8012",
                "type": "tokens",
                "code": "rate_limit_exceeded",
            }
        },
    ),
    "OpenAI, tokens per minute": refusal(
        429,
        {
            "error": {
                "message": "Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 41000. The "
                "input or output tokens must be reduced in order to run successfully.",
                "type": "tokens",
                "code": "rate_limit_exceeded",
            }
        },
    ),
    "Mistral": refusal(
        400,
        {
            "object": "error",
            "message": "Prompt contains 40921 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
            "type": "invalid_request_invalid_args",
            "code": "3051",
        },
    ),
    "DeepSeek": refusal(
        400,
        {
            "error": {
                "message": "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens",
                "type": "invalid_request_error",
                "code": "invalid_request_error",
            }
        },
    ),
    "Kimi": refusal(
        400,
        {
            "error": {
                "message": "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
                "type": "invalid_request_error",
            }
        },
    ),
    "xAI": refusal(
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
    ),
    "Z.ai": refusal(400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    "Qwen, DashScope": refusal(
        400,
        {
            "error": {
                "code": "invalid_parameter_error",
                "message": "Range of input length should be [1, 30720]",
            }
        },
    ),
    "Cohere": refusal(
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 8192 - received 9000"
        },
    ),
    "OpenRouter, from behind": refusal(
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {
                    "raw": '{"error":{"message":"prompt is too long: 213462 tokens > 200000 maximum"}}'
                },
            }
        },
    ),
    "any, 413": refusal(413, ""),
}


def test_every_wording_of_too_long_a_history_is_an_overflow():
    async def kinds(model: OpenAIChatModel) -> dict[str, type[BaseException]]:
        raised: dict[str, type[BaseException]] = {}
        for name in OVERFLOWS:
            [call] = await asyncio.gather(listen(model, request()), return_exceptions=True)
            raised[name] = type(call)
        return raised

    with FakeProviders(*OVERFLOWS.values()) as server:
        assert asyncio.run(kinds(model_of(server))) == dict.fromkeys(OVERFLOWS, ContextOverflow)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_a_session_recovers_from_every_wording(store):
    """Compacted and asked again over the wire; a window in the message is known from then on."""
    for name, reply in OVERFLOWS.items():
        session = store.start()
        session.append([user("hello"), assistant("hi"), user("long " * 900), assistant("answer " * 900)])
        with FakeProviders(reply, Completion("fits")) as server:
            model = model_of(server)
            result = session.send_sync("the question", model=model)
        assert (name, result.text) == (name, "fits")
        first, second = [received.body["messages"] for received in server.requests]
        assert len(json.dumps(second)) < len(json.dumps(first)) * 3 // 4
        assert second[-1]["content"].endswith("the question")
        assert server.requests[-1].problems == []
        windows = session.context().settings.windows
        if "4096" in reply.body.decode():
            assert windows == {model.name: 4_096}


class Refused(Struct, frozen=True):
    reply: RawReply
    reason: str
    kind: type[ModelError] = ModelError


REFUSALS: dict[str, Refused] = {
    "an object": Refused(refusal(400, {"error": {"message": "top_k is unknown"}}), "top_k is unknown (400)"),
    "text in error": Refused(refusal(400, {"error": "top_k is unknown"}), "top_k is unknown (400)"),
    "FastAPI's list": Refused(
        refusal(422, {"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "Field required"}]}),
        "body.messages: Field required (422)",
    ),
    "FastAPI's text": Refused(refusal(400, {"detail": "no such adapter"}), "no such adapter (400)"),
    "a bare message": Refused(refusal(400, {"message": "no such adapter"}), "no such adapter (400)"),
    "vLLM's object": Refused(
        refusal(400, {"object": "error", "message": "bad tool", "type": "BadRequestError", "code": 400}),
        "bad tool (400)",
    ),
    "Mistral's list in message": Refused(
        refusal(
            422,
            {
                "object": "error",
                "message": {"detail": [{"loc": ["body", "x"], "msg": "Extra inputs", "type": "x"}]},
            },
        ),
        "body.x: Extra inputs (422)",
    ),
    "Google's list": Refused(
        refusal(400, [{"error": {"code": 400, "message": "no such field"}}]), "no such field (400)"
    ),
    "a router": Refused(
        refusal(
            400, {"error": {"message": "Provider returned error", "metadata": {"raw": "images are off"}}}
        ),
        "Provider returned error: images are off (400)",
    ),
    "JSON without a text": Refused(refusal(400, {"ok": False, "n": 3}), "{'ok': False, 'n': 3} (400)"),
    "plain text": Refused(refusal(400, "upstream says no"), "upstream says no (400)"),
    "nothing": Refused(refusal(400, ""), "it sent no message (400)"),
    "a page": Refused(
        refusal(502, "<html>\n<head><title>502 Bad Gateway</title></head><body>nginx</body></html>"),
        "502 Bad Gateway (502)",
        Overloaded,
    ),
    "a page without a title": Refused(
        refusal(503, "<!DOCTYPE html><style>p{}</style><p>Down for <b>repair</b>.</p>"),
        "Down for repair . (503)",
        Overloaded,
    ),
    "a rate limit": Refused(
        refusal(429, {"error": {"message": "Too many tokens, please wait before trying again."}}),
        "Too many tokens, please wait before trying again. (429)",
        Overloaded,
    ),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_shown_in_the_servers_words(case):
    error = fail(case.reply)
    assert (type(error), error.reason) == (case.kind, case.reason)


def test_a_base_url_without_a_version_is_named():
    page = refusal(404, "<html><h1>Not Found</h1></html>")
    error = fail(page, path="")
    assert isinstance(error, ModelUnavailable)
    assert error.reason == "Not Found"
    assert "the base URL, which has no /v1" in error.hint
    assert "/v1" not in fail(page).hint


# -- the shapes of answers -------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None = None, finish: object = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields}


def call_chunk(name: str | None = None, arguments: Any = None, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    function = {key: value for key, value in function.items() if value is not None}
    return chunk({"tool_calls": [{**fields, "function": function}]})


def completion(message: dict[str, Any], finish: object = "stop", **fields: Any) -> RawReply:
    body = {"object": "chat.completion", "choices": [{"message": message, "finish_reason": finish}], **fields}
    return RawReply(json.dumps(body).encode(), 200, "application/json")


class Shape(Struct, frozen=True):
    reply: RawReply
    message: Message
    finish: str = "stop"
    usage: Usage | None = None


STOP, DONE = chunk(finish="stop"), "[DONE]"
COUNTS = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
ROME = ToolCall("a", "f", {"city": "Rome"})
OSLO = ToolCall("b", "f", {"city": "Oslo"})
HALVES = [('{"city": ', '"Rome"}'), ('{"city": ', '"Oslo"}')]

SHAPES: dict[str, Shape] = {
    "no finish_reason, but [DONE]": Shape(sse(chunk({"content": "hi"}), DONE), assistant("hi")),
    "an empty finish_reason": Shape(sse(chunk({"content": "hi"}, ""), chunk({}, ""), DONE), assistant("hi")),
    "calls without finish_reason": Shape(
        sse(call_chunk("f", '{"city": "Rome"}', index=0, id="a"), DONE), assistant(ROME), "tool_calls"
    ),
    "content as a list (Mistral)": Shape(
        sse(
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}]}),
            chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m"}]}]}),
            chunk({"content": [{"type": "text", "text": "y"}]}),
            chunk({"content": "es"}),
            chunk({"content": [{"type": "reference", "reference_ids": [1, 2]}]}),
            STOP,
        ),
        assistant(Reasoning("hm"), Text("yes"), ProviderBlock("reference", "reference: 1, 2")),
    ),
    "an image in the answer (OpenRouter)": Shape(
        sse(
            chunk(
                {
                    "content": "see",
                    "images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
                }
            ),
            STOP,
        ),
        assistant("see", Attachment(b"\0\0\0", "image/png")),
    ),
    "a spoken answer (OpenAI)": Shape(
        sse(
            chunk({"audio": {"id": "audio_1", "transcript": "hel"}}),
            chunk({"audio": {"transcript": "lo", "data": "AA"}}),
            chunk({"audio": {"data": "AA", "expires_at": 1}}),
            STOP,
        ),
        assistant("hello", Attachment(b"\0\0\0", "audio/pcm")),
    ),
    "reasoning (OpenRouter, Groq)": Shape(
        sse(chunk({"reasoning": "hm"}), chunk({"content": "yes"}), STOP),
        assistant(Reasoning("hm"), Text("yes")),
    ),
    "both names of the reasoning (vLLM)": Shape(
        sse(chunk({"reasoning": "hm", "reasoning_content": "hm"}), chunk({"content": "yes"}), STOP),
        assistant(Reasoning("hm"), Text("yes")),
    ),
    "function_call": Shape(
        sse(
            chunk({"function_call": {"name": "f", "arguments": ""}}),
            chunk({"function_call": {"arguments": '{"city": "Rome"}'}}),
            chunk(finish="function_call"),
        ),
        assistant(ToolCall("call_0", "f", {"city": "Rome"})),
        "function_call",
    ),
    "function_call and tool_calls for one call (llama-cpp-python)": Shape(
        sse(
            chunk(
                {
                    "function_call": {"name": "f", "arguments": '{"city": "Rome"}'},
                    "tool_calls": [
                        {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"city": "Rome"}'}}
                    ],
                }
            ),
            chunk(finish="tool_calls"),
        ),
        assistant(ROME),
        "tool_calls",
    ),
    "arguments as an object (ollama's native shape, Gemini proxies)": Shape(
        sse(call_chunk("f", {"city": "Rome"}, index=0, id="a"), STOP), assistant(ROME)
    ),
    "calls without index": Shape(
        sse(call_chunk("f", '{"city": "Rome"}', id="a"), call_chunk("f", '{"city": "Oslo"}', id="b"), STOP),
        assistant(ROME, OSLO),
    ),
    "calls without index in pieces": Shape(
        sse(
            call_chunk("f", HALVES[0][0], id="a"),
            call_chunk(None, HALVES[0][1]),
            call_chunk("f", HALVES[1][0], id="b"),
            call_chunk(None, HALVES[1][1]),
            STOP,
        ),
        assistant(ROME, OSLO),
    ),
    "calls side by side without index": Shape(
        sse(
            chunk(
                {
                    "tool_calls": [
                        {"id": "a", "function": {"name": "f", "arguments": HALVES[0][0]}},
                        {"id": "b", "function": {"name": "f", "arguments": HALVES[1][0]}},
                    ]
                }
            ),
            chunk(
                {
                    "tool_calls": [
                        {"function": {"arguments": HALVES[0][1]}},
                        {"function": {"arguments": HALVES[1][1]}},
                    ]
                }
            ),
            STOP,
        ),
        assistant(ROME, OSLO),
    ),
    "calls without id (old TGI)": Shape(
        sse(call_chunk("f", '{"city": "Rome"}', index=0), call_chunk("f", '{"city": "Oslo"}', index=1), STOP),
        assistant(ToolCall("call_0", "f", {"city": "Rome"}), ToolCall("call_1", "f", {"city": "Oslo"})),
    ),
    "calls without id and index": Shape(
        sse(call_chunk("f", '{"city": "Rome"}'), call_chunk("f", '{"city": "Oslo"}'), STOP),
        assistant(ToolCall("call_0", "f", {"city": "Rome"}), ToolCall("call_1", "f", {"city": "Oslo"})),
    ),
    "equal indexes (Gemini)": Shape(
        sse(
            call_chunk("f", '{"city": "Rome"}', index=0, id="a"),
            call_chunk("f", '{"city": "Oslo"}', index=0, id="b"),
            STOP,
        ),
        assistant(ROME, OSLO),
    ),
    "equal indexes and empty ids": Shape(
        sse(
            call_chunk("f", '{"city": "Rome"}', index=0, id=""),
            call_chunk("g", "{}", index=0, id=""),
            STOP,
        ),
        assistant(ToolCall("call_0", "f", {"city": "Rome"}), ToolCall("call_1", "g")),
    ),
    "a new id in each chunk (vLLM)": Shape(
        sse(
            call_chunk("f", "", index=0, id="a"),
            call_chunk(None, HALVES[0][0], index=0, id="x1"),
            call_chunk(None, HALVES[0][1], index=0, id="x2"),
            STOP,
        ),
        assistant(ROME),
    ),
    "a new id and the name in each chunk": Shape(
        sse(
            call_chunk("f", HALVES[0][0], index=0, id="a"),
            call_chunk("f", HALVES[0][1], index=0, id="x"),
            STOP,
        ),
        assistant(ROME),
    ),
    "id and name in each chunk": Shape(
        sse(
            call_chunk("f", HALVES[0][0], index=0, id="a"),
            call_chunk("f", HALVES[0][1], index=0, id="a"),
            call_chunk("f", "", index=0, id="a"),
            STOP,
        ),
        assistant(ROME),
    ),
    "a call repeated whole at the end": Shape(
        sse(
            call_chunk("f", HALVES[0][0], index=0, id="a"),
            call_chunk(None, HALVES[0][1], index=0),
            call_chunk("f", "".join(HALVES[0]), index=0, id="a"),
            STOP,
        ),
        assistant(ROME),
    ),
    "an id that comes late": Shape(
        sse(call_chunk("f", HALVES[0][0], index=0), call_chunk(None, HALVES[0][1], index=0, id="a"), STOP),
        assistant(ROME),
    ),
    "ids as numbers": Shape(
        sse(call_chunk("f", '{"city": "Rome"}', index=0, id=12), STOP),
        assistant(ToolCall("12", "f", {"city": "Rome"})),
    ),
    "the halves of a character in two chunks": Shape(
        sse(chunk({"content": "\ud83d"}), chunk({"content": "\ude00!"}), STOP), assistant("\U0001f600!")
    ),
    "usage in the last chunk, beside the choice": Shape(
        sse(chunk({"content": "hi"}), {**STOP, "usage": COUNTS}, DONE), assistant("hi"), usage=Usage(11, 7)
    ),
    "usage in every chunk, growing (vLLM)": Shape(
        sse(
            chunk({"content": "h"}, usage={**COUNTS, "completion_tokens": 3}),
            chunk({"content": "i"}, usage=COUNTS),
            {**STOP, "usage": None},
        ),
        assistant("hi"),
        usage=Usage(11, 7),
    ),
    "usage in the choice (Kimi)": Shape(
        sse(
            chunk({"content": "hi"}),
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {},
                        "finish_reason": "stop",
                        "usage": {**COUNTS, "cached_tokens": 5},
                    }
                ]
            },
        ),
        assistant("hi"),
        usage=Usage(11, 7, 5),
    ),
    "usage of Groq": Shape(
        sse(chunk({"content": "hi"}), {**STOP, "x_groq": {"id": "r", "usage": COUNTS}}),
        assistant("hi"),
        usage=Usage(11, 7),
    ),
    "a message beside the deltas (Perplexity)": Shape(
        sse(
            {"choices": [{"index": 0, "delta": {"content": "h"}, "message": {"content": "h"}}]},
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": "i"},
                        "message": {"content": "hi"},
                        "finish_reason": "stop",
                    }
                ]
            },
        ),
        assistant("hi"),
    ),
    "a message instead of deltas": Shape(
        sse({"choices": [{"index": 0, "delta": {}, "message": {"content": "hi"}, "finish_reason": "stop"}]}),
        assistant("hi"),
    ),
    "the text of older completions": Shape(
        sse({"choices": [{"text": "hi", "finish_reason": "stop"}]}), assistant("hi")
    ),
    "no stream at all": Shape(
        completion({"role": "assistant", "content": "hi"}, usage=COUNTS), assistant("hi"), usage=Usage(11, 7)
    ),
    "no stream, indented": Shape(
        RawReply(
            json.dumps({"choices": [{"message": {"content": "hi"}}]}, indent=2).encode(),
            200,
            "application/json",
        ),
        assistant("hi"),
    ),
    "lines of every kind": Shape(
        RawReply(
            b"\xef\xbb\xbf: OPENROUTER PROCESSING\r\n\r\nevent: x\r\nid: 1\r\nretry: 9\r\ndata:"
            + json.dumps(chunk({"content": "h"})).encode()
            + b"\r\n\r\rdata: "
            + json.dumps(chunk({"content": "\u2028"}), ensure_ascii=False).encode()
            + b"\ndata: "
            + json.dumps(chunk({"content": "i"}, "stop"), indent=1).replace("\n", "\ndata: ").encode()
            + b"\n\ndata: [DONE]"
        ),
        assistant("h\u2028i"),
    ),
}


@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_every_shape_of_an_answer_is_read_whole(case):
    with FakeProviders(case.reply) as server:
        deltas, answer = asyncio.run(listen(model_of(server), request()))
    assert (answer.message, answer.finish, answer.usage) == (case.message, case.finish, case.usage)
    text = "".join(delta.text for delta in deltas)
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") in case.message.text
    assert "".join(delta.reasoning for delta in deltas) == "".join(
        part.text for part in case.message.parts if isinstance(part, Reasoning)
    )


UNREAD: dict[str, tuple[RawReply, str]] = {
    "no JSON": (sse(chunk({"content": "hi"}), '{"choices": [{"del'), '{"choices": [{"del'),
    "a list": (sse("[1, 2]"), "[1, 2]"),
    "choices that are no list": (sse({"choices": 7}), '{"choices": 7}'),
    "a choice that is no object": (sse({"choices": ["hi"]}), '["hi"]'),
    "content that is a number": (sse(chunk({"content": 7}), STOP), '"content": 7'),
    "a block without text": (
        sse(chunk({"content": [{"type": "text", "words": "hi"}]}), STOP),
        '"words": "hi"',
    ),
    "a part of an unknown type": (
        sse(chunk({"content": [{"type": "hologram", "hologram": "hi"}]}), STOP),
        '"hologram": "hi"',
    ),
    "a call without a name": (
        sse(call_chunk(None, '{"city": "Rome"}', index=0, id="a"), STOP),
        '{"city": "Rome"}',
    ),
    "a call of an unknown type": (
        sse(
            chunk({"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"input": "hi"}}]}),
            STOP,
        ),
        '"custom": {"input": "hi"}',
    ),
    "a second choice": (
        sse(chunk({"content": "hi"}), {"choices": [{"index": 1, "delta": {"content": "no"}}]}),
        '"content": "no"',
    ),
    "no choices": (sse({"id": "c", "output": "hi"}, DONE), '"output": "hi"'),
}


@pytest.mark.parametrize(("reply", "piece"), UNREAD.values(), ids=UNREAD)
def test_an_unreadable_piece_is_an_error_with_the_piece(reply, piece):
    error = fail(reply)
    assert type(error) in (ModelError, TruncatedReply)
    assert piece in str(error.raw)


def test_a_piece_that_cannot_be_read_stays_in_the_journal():
    reply, piece = UNREAD["a part of an unknown type"]
    with FakeProviders(reply) as server, oakleaf.open("memory:") as store:
        session = store.start()
        result = session.send_sync("hi", model=model_of(server))
        [failed] = [
            fact for fact in session.log.store.journal(session.session_id) if fact.kind == "model_call_failed"
        ]
    assert result.status == "failed"
    assert "hologram" in failed.data["why"]
    assert piece in failed.data["raw"]


def test_the_cost_of_an_unusable_answer_is_in_the_ledger():
    unread = chunk({"content": [{"type": "hologram", "hologram": "hi"}]})
    cut = chunk({"content": "hal"})
    for reply in (sse(unread, {**STOP, "usage": COUNTS}), sse({**cut, "usage": COUNTS})):
        with FakeProviders(reply) as server, oakleaf.open("memory:") as store:
            session = store.start()
            assert session.send_sync("hi", model=model_of(server)).status == "failed"
            [call] = session.model_calls()
        assert (call.failed, call.usage) == (True, Usage(11, 7))


def test_malformed_arguments_do_not_end_a_session():
    """vLLM and llama-server parse those of the whole history, and refused every later request."""

    def f(city: str) -> str:
        return city

    broken = sse(call_chunk("f", '{"city": ', index=0, id="a"), chunk(finish="tool_calls"))
    with FakeProviders(broken, YES) as server, oakleaf.open("memory:") as store:
        result = store.start().send_sync("hi", model=model_of(server), tools=[oakleaf.tool(f)])
    assert result.text == "yes"
    assert [request.problems for request in server.requests] == [[], []]
    call, tool_message = server.requests[1].body["messages"][-2:]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"malformed_arguments": '{"city": '}
    assert tool_message["content"].startswith("[error]")


def test_a_stream_is_whole_with_done_and_cut_off_without():
    assert isinstance(fail(sse(chunk({"content": "hal"}))), TruncatedReply)
    assert ask(sse(chunk({"content": "whole"}), DONE))[0].finish == "stop"


def test_an_error_inside_a_stream_is_shown_in_words():
    failed = {"error": {"message": "the GPU fell off", "type": "internal"}}
    assert "the GPU fell off" in fail(sse(chunk({"content": "hal"}), failed)).reason
    assert "the GPU fell off" in fail(sse({**chunk(finish="error"), **failed})).reason
    choice = {"index": 0, "delta": {}, "finish_reason": "error", **failed}
    assert "the GPU fell off" in fail(sse({"choices": [choice]})).reason
    assert (
        "the GPU fell off" in fail(RawReply(b'error: {"code":500,"message":"the GPU fell off"}\n\n')).reason
    )
    error = fail(RawReply(b'{"error":"Unexpected endpoint or method. (POST /chat/completions)"}'), path="")
    assert (type(error), error.reason) == (
        ModelError,
        "Unexpected endpoint or method. (POST /chat/completions)",
    )
    assert "has no /v1" in error.hint


def test_a_web_page_instead_of_an_answer_is_named():
    error = fail(RawReply(b"<!DOCTYPE html><title>Open WebUI</title>", 200, "text/html"), path="")
    assert isinstance(error, ModelUnavailable)
    assert error.reason == "it sent a web page instead of an answer: Open WebUI"


# -- what is asked again, and without what ---------------------------------------------------------


@pytest.mark.parametrize(
    "refused",
    [
        refusal(
            400,
            {
                "object": "error",
                "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), 'msg': 'Extra inputs are "
                "not permitted', 'input': {'include_usage': True}}]",
                "code": 400,
            },
        ),
        refusal(400, {"error": {"message": "Extra inputs are not permitted, field: 'stream_options'"}}),
        refusal(
            422, {"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}
        ),
        refusal(400, {"error": "Unrecognized request argument supplied: stream_options"}),
    ],
)
def test_refused_stream_options_are_left_out_for_good(refused):
    with FakeProviders(refused, sse(chunk({"content": "hi"}), STOP)) as server:
        model = model_of(server)
        for _ in range(2):
            asyncio.run(listen(model, request()))
    assert ["stream_options" in request.body for request in server.requests] == [True, False, False]
    with FakeProviders(refused, refused) as server, pytest.raises(ModelError):
        asyncio.run(listen(model_of(server), request()))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported value: 'stream' does not support true with this model. Only the default (false) value is supported.",
        "Your organization must be verified to stream this model.",
        "Streaming is not supported for this model",
    ],
)
def test_a_server_that_does_not_stream_is_asked_without(message):
    refused = refusal(400, {"error": {"message": message, "param": "stream"}})
    with FakeProviders(refused, completion({"content": "hi"}), completion({"content": "hi"})) as server:
        model = model_of(server)
        for _ in range(2):
            assert asyncio.run(listen(model, request()))[1].message == assistant("hi")
    assert [request.body["stream"] for request in server.requests] == [True, False, False]
    assert "stream_options" not in server.requests[1].body


NOTHING = {
    "an empty body": RawReply(b""),
    "only a role": sse(chunk({"role": "assistant"})),
    "only [DONE]": sse(DONE),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_an_empty_answer_with_200_is_asked_for_the_reason(nothing):
    """As llama-cpp-python answers if the history is too long: the error ends its stream without a word."""
    assert ask(nothing, completion({"content": "hi"}))[0].message == assistant("hi")
    assert type(fail(nothing, OVERFLOWS["llama-cpp-python"])) is ContextOverflow
    error = fail(nothing, RawReply(b""))
    assert (type(error), "nothing" in error.reason) == (ContextOverflow, True)


def test_an_answer_that_stops_before_any_word_is_an_overflow():
    """The history fills the window to the last token."""
    empty = sse(chunk({"role": "assistant"}), chunk(finish="length", usage={"completion_tokens": 0}))
    assert type(fail(empty)) is ContextOverflow
    stream = sse(chunk(finish="length", usage={"completion_tokens": 500}))
    assert ask(stream)[0].finish == "length"


# -- reasoning that a server demands back ----------------------------------------------------------

REASONING_STREAM = sse(
    chunk({"reasoning_content": "hm"}),
    call_chunk("f", '{"city": "Rome"}', index=0, id="a"),
    chunk(finish="tool_calls"),
)
YES = sse(chunk({"content": "yes"}), STOP)
MISSING = [
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
    "Missing `reasoning_content` field in the assistant message at message index 2.",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
]


def after(answer: Answer) -> Request:
    items = [
        Item(user("hi"), 1, 1),
        Item(answer.message, 2, 1, evidence=answer.evidence),
        Item(tool_result("a", "sun"), 3, 1),
    ]
    return Request(Context((), tuple(items)), lambda _: None)


def test_reasoning_goes_back_with_calls_to_the_same_server_only():
    with FakeProviders(REASONING_STREAM, YES) as server, FakeProviders(YES) as other:
        _, answer = asyncio.run(listen(model_of(server), request()))
        asyncio.run(listen(model_of(server), after(answer)))
        asyncio.run(listen(model_of(other), after(answer)))
    assert answer.message.parts == (Reasoning("hm"), ROME)
    assert server.requests[1].body["messages"][1]["reasoning_content"] == "hm"
    assert "reasoning_content" not in other.requests[0].body["messages"][1]
    assert [request.problems for request in (*server.requests, *other.requests)] == [[], [], []]


@pytest.mark.parametrize("message", MISSING)
def test_a_server_that_demands_reasoning_gets_some(message):
    """An answer of another model has none: DeepSeek and Kimi refused every later request of the session."""
    refused = refusal(400, {"error": {"message": message, "type": "invalid_request_error"}})
    with FakeProviders(refused, YES, YES) as server:
        model = model_of(server)
        for _ in range(2):
            asyncio.run(listen(model, after(Answer(assistant(ROME)))))
    reasonings = [request.body["messages"][1].get("reasoning_content") for request in server.requests]
    assert reasonings == [None, " ", " "]
    with FakeProviders(refused, refused) as server, pytest.raises(ModelError, match="reasoning_content"):
        asyncio.run(listen(model_of(server), after(Answer(assistant(ROME)))))


def test_a_contradictory_server_is_not_asked_for_ever():
    demand = refusal(400, {"error": {"message": MISSING[0]}})
    refused = refusal(400, {"error": {"message": "property 'reasoning_content' is unsupported"}})
    with FakeProviders(*[demand, refused] * 9) as server, pytest.raises(ModelError):
        asyncio.run(listen(model_of(server), after(Answer(assistant(ROME)))))
    assert len(server.requests) <= 4


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "max_tokens",
            "max_completion_tokens",
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        ),
        ("max_completion_tokens", "max_tokens", "Unknown field: max_completion_tokens"),
    ],
)
def test_the_limit_of_tokens_has_the_name_that_the_server_knows(name, other, message):
    with FakeProviders(refusal(400, {"error": {"message": message}}), YES, YES) as server:
        model = OpenAIChatModel("some-model", base_url=f"{server.url}/v1", key=KEY)
        # Either name may be asked for: the option max_tokens, or the field by its own name.
        options = {name: 9} if name == "max_tokens" else {"extra_body": {name: 9}}
        question = request()
        context = replace(question.context, settings=Settings(options=options))
        for _ in range(2):
            asyncio.run(listen(model, replace(question, context=context)))
    assert [[request.body.get(name), request.body.get(other)] for request in server.requests] == [
        [9, None],
        [None, 9],
        [None, 9],
    ]


def test_a_server_that_refuses_reasoning_gets_none():
    """Groq and Cerebras."""
    message = "'messages.1' : property 'reasoning_content' is unsupported"
    refused = refusal(400, {"error": {"message": message}})
    evidence = Evidence("openai-chat", {"0": {"field": "reasoning_content"}})
    answer = Answer(assistant(Reasoning("hm"), ROME), evidence=evidence)
    with FakeProviders(refused, YES) as server:
        asyncio.run(listen(model_of(server), after(answer)))
    assert ["reasoning_content" in request.body["messages"][1] for request in server.requests] == [
        True,
        False,
    ]


# -- streams cut at every byte, and all shapes combined --------------------------------------------


def events_of(*pieces: bytes) -> list[ServerEvent]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    events.extend(reader.close())
    return [*events, ServerEvent("body", reader.body)]


@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_a_stream_split_at_any_byte_has_the_same_events(case):
    body = case.reply.body
    whole = events_of(body)
    assert events_of(*(body[at : at + 1] for at in range(len(body)))) == whole
    for at in range(len(body)):
        assert events_of(body[:at], body[at:]) == whole


class Dialect(Struct, frozen=True):
    """How a server writes the stream of an answer."""

    content: str
    reasoning: str
    indexes: str
    ids: str
    names: str
    arguments: str
    finish: str
    usage: str
    line_end: str
    has_blank_lines: bool
    is_ascii: bool
    piece_length: int


dialects = st.builds(
    Dialect,
    content=st.sampled_from(["text", "list", "object"]),
    reasoning=st.sampled_from(["reasoning_content", "reasoning", "both", "thinking"]),
    indexes=st.sampled_from(["numbered", "equal", "missing", "text"]),
    ids=st.sampled_from(["first", "every", "new", "number", "missing", "empty"]),
    names=st.sampled_from(["first", "every"]),
    arguments=st.sampled_from(["text", "pieces", "object"]),
    finish=st.sampled_from(["last", "own", "empty", "missing"]),
    usage=st.sampled_from(["own", "last", "every", "choice", "missing"]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    has_blank_lines=st.booleans(),
    is_ascii=st.booleans(),
    piece_length=st.integers(1, 200),
)
words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), max_size=4)
tool_calls = st.lists(
    st.tuples(
        st.sampled_from(["f", "g"]), st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2)
    ),
    max_size=3,
)


def write_deltas(
    dialect: Dialect, thoughts: list[str], texts: list[str], calls: list[tuple[str, dict[str, str]]]
) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if dialect.content == "text" else None}
    for reasoning in thoughts:
        if dialect.reasoning == "thinking":
            yield {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": reasoning}]}]}
        else:
            fields = (
                ["reasoning_content", "reasoning"] if dialect.reasoning == "both" else [dialect.reasoning]
            )
            yield dict.fromkeys(fields, reasoning)
    for text in texts:
        block = {"type": "text", "text": text}
        yield {"content": {"text": text, "list": [block], "object": block}[dialect.content]}
    for number, (name, arguments) in enumerate(calls):
        for part, piece in enumerate(write_arguments(dialect, arguments)):
            function = {"arguments": piece}
            if part == 0 or dialect.names == "every":
                function["name"] = name
            index = {"numbered": number, "equal": 0, "text": str(number), "missing": None}[dialect.indexes]
            call_id: Any = f"c{number}"
            if dialect.ids == "number":
                call_id = number + 100
            elif dialect.ids in ("missing", "empty") or (dialect.ids == "first" and part):
                call_id = None if dialect.ids == "missing" else ""
            elif dialect.ids == "new" and part:
                call_id = f"c{number}.{part}"
            yield {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def write_arguments(dialect: Dialect, arguments: dict[str, str]) -> list[Any]:
    if dialect.arguments == "object":
        return [arguments]
    text = json.dumps(arguments, ensure_ascii=dialect.is_ascii)
    return [text[at : at + 7] for at in range(0, len(text), 7)] if dialect.arguments == "pieces" else [text]


def write_stream(dialect: Dialect, deltas: list[dict[str, Any]], finish: str) -> RawReply:
    chunks = [chunk(delta, "" if dialect.finish == "empty" else None) for delta in deltas]
    if dialect.finish == "last":
        chunks[-1]["choices"][0]["finish_reason"] = finish
    elif dialect.finish == "own":
        chunks.append(chunk(finish=finish))
    if dialect.usage == "own":
        chunks.append({"choices": [], "usage": COUNTS})
    elif dialect.usage == "last":
        chunks[-1]["usage"] = COUNTS
    elif dialect.usage == "choice":
        chunks[-1]["choices"][0]["usage"] = COUNTS
    elif dialect.usage == "every":
        for number, one in enumerate(chunks, 1):
            one["usage"] = {**COUNTS, "completion_tokens": 7 * number // len(chunks)}
    end = dialect.line_end * (2 if dialect.has_blank_lines else 1)
    lines = [json.dumps(one, ensure_ascii=dialect.is_ascii) for one in chunks] + [DONE]
    body = "".join(f"data: {line}{end}" for line in lines).encode()
    return RawReply(body, piece_length=dialect.piece_length)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeProviders]:
    with FakeProviders() as server:
        yield server


@given(dialect=dialects, thoughts=words, texts=words, calls=tool_calls)
def test_all_shapes_combined_give_the_same_text_and_calls(server, dialect, thoughts, texts, calls):
    if not texts and not calls:
        texts = ["so"]
    finish = "tool_calls" if calls else "stop"
    reply = write_stream(dialect, list(write_deltas(dialect, thoughts, texts, calls)), finish)
    server.replies = [reply]
    server.requests.clear()
    deltas, answer = asyncio.run(listen(model_of(server), request()))
    assert len(server.requests) == 1
    prefix = {"number": "10", "missing": "call_", "empty": "call_"}.get(dialect.ids, "c")
    parts = [Reasoning("".join(thoughts))] if thoughts else []
    parts.extend([Text("".join(texts))] if texts else [])
    parts.extend(ToolCall(f"{prefix}{number}", *call) for number, call in enumerate(calls))
    assert answer.message == assistant(*parts)
    assert "".join(delta.text for delta in deltas) == "".join(texts)
    assert "".join(delta.reasoning for delta in deltas) == "".join(thoughts)
    assert answer.finish == finish
    assert answer.usage == (None if dialect.usage == "missing" else Usage(11, 7))
