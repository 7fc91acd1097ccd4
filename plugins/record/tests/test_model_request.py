"""A request that passed the proxy is projected to the same provider as it was sent, and to the others without an error."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Session, Store
from oakleaf.core.entries import Endpoint, Settings
from oakleaf.core.usage import MICROCENTS_PER_DOLLAR
from oakleaf.ext import read
from oakleaf.wire import PROVIDERS, find_provider
from oakleaf.wire.left_out import left_out
from oakleaf_record.http_stream import Body
from oakleaf_record.recorder import Recorder
from oakleaf_record.server import ApiCall

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
MARK = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


class Whole:
    """The body of a response that came whole."""

    def __init__(self, data: bytes) -> None:
        self.data, self.length = data, len(data)

    def content(self) -> bytes:
        return self.data


REPLIES: dict[str, dict[str, Any]] = {
    "anthropic": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Fine."}],
        "stop_reason": "end_turn",
    },
    "openai": {
        "object": "response",
        "status": "completed",
        "output": [
            {
                "type": "message",
                "id": "msg_9",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Fine.", "annotations": []}],
            }
        ],
    },
    "openai-chat": {
        "choices": [{"message": {"role": "assistant", "content": "Fine."}, "finish_reason": "stop"}]
    },
    "gemini": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "Fine."}]}, "finishReason": "STOP"}]
    },
}


def recorded(
    store: Store,
    provider: str,
    request: dict[str, Any],
    *,
    host: str = "vendor.test",
    reply: dict[str, Any] | None = None,
    stream: str | None = None,
) -> Session:
    """Record one call; return its session."""
    content = stream or json.dumps(reply or REPLIES[provider])
    body: Body = Whole(content.encode())  # type: ignore[assignment]
    call = ApiCall(
        1,
        provider,
        host,
        "gemini-x" if provider == "gemini" else None,
        "program/1",
        1,
        request=json.dumps(request).encode(),
        status=200,
        content_type="text/event-stream" if stream else "application/json",
        body=body,
        end="complete",
        ended_at=2,
    )
    recorder = Recorder(store)
    recorder.request_sent(call)
    recorder.call_ended(call)
    assert recorder.close()
    assert recorder.gaps == []
    [session_id] = recorder.sessions
    return store.session(session_id)


def sent_again(session: Session, provider: str) -> dict[str, Any]:
    """Return the request before the answer."""
    return session.request(provider, at=session.leaf.seq - 1)


def anthropic_call(*results: dict[str, Any]) -> list[dict[str, Any]]:
    calls = [
        {"type": "tool_use", "id": result["tool_use_id"], "name": "f", "input": {}} for result in results
    ]
    return [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": list(results)},
    ]


ANTHROPIC: dict[str, dict[str, Any]] = {
    "flags of tools": {
        "tools": [{"name": "f", "input_schema": SCHEMA, "strict": True, "defer_loading": True, **MARK}]
    },
    "hosted tools": {
        "tools": [
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
            {"name": "f", "description": "F.", "input_schema": SCHEMA},
            {"type": "code_execution_20260120", "name": "code_execution"},
        ],
    },
    "unnamed options": {"mcp_servers": [{"type": "url", "name": "m", "url": "https://x"}], "betas": ["b"]},
    "odd options": {"stop_sequences": [], "top_k": 40.0, "metadata": {"user_id": "u"}},
    "a marked prompt": {
        "system": [{"type": "text", "text": "Rules.\n\n"}, {"type": "text", "text": "More.", **MARK}]
    },
    "marks in messages": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hi", **MARK},
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "A page."},
                        "title": "Page",
                        **MARK,
                    },
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                        **MARK,
                    },
                ],
            }
        ],
    },
    "results": {
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "messages": anthropic_call(
            {
                "type": "tool_result",
                "tool_use_id": "a",
                "is_error": False,
                "content": [{"type": "text", "text": "1", **MARK}],
            },
            {
                "type": "tool_result",
                "tool_use_id": "b",
                "content": [{"type": "tool_reference", "tool_name": "g"}],
                **MARK,
            },
        ),
    },
    "a system message in the conversation": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
        ]
    },
}

RESPONSES: dict[str, dict[str, Any]] = {
    "nothing added": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
    "stored": {"store": True, "include": ["reasoning.encrypted_content"], "background": False},
    "flags of tools": {
        "tools": [
            {"type": "function", "name": "f", "description": "", "parameters": SCHEMA, "strict": True},
            {"type": "function", "name": "g", "parameters": SCHEMA},
            {
                "type": "namespace",
                "name": "n",
                "description": "N.",
                "tools": [{"type": "function", "name": "h"}],
            },
            {"type": "web_search"},
        ]
    },
    "a prompt among the messages": {
        "instructions": "Rules.",
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
                ],
            },
        ],
    },
    "an answer without ids": {
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]},
            {"type": "tool_search_call", "call_id": None, "arguments": {"query": "f"}, "execution": "server"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "a", "output": "1", "status": "completed"},
        ],
    },
}

CHAT: dict[str, dict[str, Any]] = {
    "flags of tools": {
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "F.", "parameters": SCHEMA, "strict": True},
                **MARK,
            },
            {"type": "openrouter:web_search", "parameters": {"max_results": 3}},
        ]
    },
    "unnamed options": {"n": 1, "provider": {"only": ["x"]}, "stop": [], "top_k": 40.5, "max_tokens": 9},
    "names and roles": {
        "messages": [
            {"role": "developer", "content": "\nRules.\n"},
            {"role": "user", "content": "Hi", "name": "ann"},
            {"role": "assistant", "content": "So", "prefix": True},
            {"role": "user", "content": [{"type": "text", "text": "Hi", **MARK}]},
        ]
    },
    "reasoning": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": "Yes.",
                "reasoning": "hm",
                "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "S"}],
            },
            {"role": "user", "content": "More"},
        ]
    },
    "refusals and results": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "refusal": "I will not."},
            {"role": "user", "content": "Please"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "1", "name": "f"},
        ],
    },
    "parts of other servers": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "document_url", "document_url": "https://x/page.pdf"},
                    {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"},
                    },
                ],
            }
        ]
    },
}


def gemini_call(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", **response}}]},
    ]


DECLARED = [{"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}]
GEMINI: dict[str, dict[str, Any]] = {
    "tools": {"tools": [*DECLARED, {"googleSearch": {}}]},
    "options": {
        "generationConfig": {"responseSchema": {"type": "OBJECT"}, "topK": 40.5, "temperature": 0},
        "labels": {"team": "a"},
    },
    "an object as response": {
        "tools": DECLARED,
        "contents": gemini_call({"response": {"return_value": 7, "more": ["x"]}}),
    },
    "an object as output": {"tools": DECLARED, "contents": gemini_call({"response": {"output": {"a": 1}}})},
    "media within a response": {
        "tools": DECLARED,
        "contents": gemini_call(
            {
                "response": {"output": "see"},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
            }
        ),
    },
    "a file within a response": {
        "tools": DECLARED,
        "contents": gemini_call(
            {
                "response": {"output": "see"},
                "parts": [{"fileData": {"mimeType": "application/pdf", "fileUri": "https://x/files/1"}}],
            }
        ),
    },
    "plain text as media": {
        "contents": [
            {"role": "user", "parts": [{"inlineData": {"mimeType": "text/plain", "data": "QSBwYWdl"}}]}
        ]
    },
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "anthropic": {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    },
    "openai": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
    "openai-chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}
SAMPLES = [
    pytest.param(provider, {**DEFAULTS[provider], **request}, id=f"{provider}: {name}")
    for provider, requests in (
        ("anthropic", ANTHROPIC),
        ("openai", RESPONSES),
        ("openai-chat", CHAT),
        ("gemini", GEMINI),
    )
    for name, request in requests.items()
]


@pytest.fixture
def store() -> Store:
    return oakleaf.open("memory:")


@pytest.mark.parametrize(("provider", "request_"), SAMPLES)
def test_a_recorded_request_is_projected_as_it_was_sent(
    store: Store, provider: str, request_: dict[str, Any]
) -> None:
    session = recorded(store, provider, {"model": "m", **request_})
    assert sent_again(session, provider) == request_
    assert store.session(session.session_id).request(provider) == session.request(provider)
    for other, wire in PROVIDERS.items():
        request = session.request(other)
        assert wire.violations(request) == [], other
    assert session.verify() == []


def test_evidence_of_a_server_stays_with_the_server(store: Store) -> None:
    request = {**DEFAULTS["openai-chat"], **CHAT["reasoning"]}
    session = recorded(store, "openai-chat", {"model": "m", **request}, host="openrouter.test")
    assert sent_again(session, "openai-chat")["messages"][1]["reasoning"] == "hm"
    moved = replace(session.context(), settings=Settings(endpoints={"openai-chat": Endpoint("other.test")}))
    elsewhere = find_provider("openai-chat").project(moved, read(session).blob)
    assert "hm" not in json.dumps(elsewhere)
    assert left_out("openai-chat", moved, read(session).blob) == [
        "1 message with fields of openai-chat@openrouter.test"
    ]


def test_what_is_left_out_for_another_provider_is_said(store: Store) -> None:
    tools = [*ANTHROPIC["hosted tools"]["tools"], *ANTHROPIC["flags of tools"]["tools"]]
    request = {**DEFAULTS["anthropic"], **ANTHROPIC["marks in messages"], "tools": tools[:1], "betas": ["b"]}
    session = recorded(store, "anthropic", {"model": "m", **request})
    lines = left_out("openai", session.context(), read(session).blob)
    assert lines == [
        "option openai has no option 'anthropic.betas'",
        "tool web_search is defined by anthropic",
        "1 message with fields of anthropic",
    ]
    assert left_out("anthropic", session.context(), read(session).blob) == []


def test_anthropic_is_sent_four_cache_marks_at_most(store: Store) -> None:
    text = [{"type": "text", "text": str(number), **MARK} for number in range(6)]
    request = {**DEFAULTS["anthropic"], "system": [{"type": "text", "text": "Rules.", **MARK}]}
    request["messages"] = [{"role": "user", "content": text}]
    again = sent_again(recorded(store, "anthropic", {"model": "m", **request}), "anthropic")
    marked = [block["text"] for block in again["messages"][0]["content"] if "cache_control" in block]
    assert (marked, "cache_control" in again["system"][0]) == (["3", "4", "5"], True)


def test_results_of_calls_that_came_one_by_one_are_kept(store: Store) -> None:
    calls = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "f", "input": {}}]}
        for name in "ab"
    ]
    results = [{"type": "tool_result", "tool_use_id": name, "content": f"r{name}"} for name in "ab"]
    request = {
        **DEFAULTS["anthropic"],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "messages": [*DEFAULTS["anthropic"]["messages"], *calls, {"role": "user", "content": results}],
    }
    session = recorded(store, "anthropic", {"model": "m", **request})
    assert [result.text for message in session.context().messages for result in message.results] == [
        "ra",
        "rb",
    ]


def test_a_streamed_compaction_keeps_the_content(store: Store) -> None:
    events = (
        {"type": "message_start", "message": {"type": "message", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "compaction_delta", "content": text},
            }
            for text in ("So ", "far.")
        ),
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "Fine."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    )
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    session = recorded(store, "anthropic", {"model": "m", **DEFAULTS["anthropic"]}, stream=stream)
    assert session.request("anthropic")["messages"][-1]["content"] == [
        {"type": "compaction", "content": "So far."},
        {"type": "text", "text": "Fine."},
    ]


def test_a_cost_that_the_server_states_is_the_price(store: Store) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "cost": 0.00004, "is_byok": False}
    reply = {**REPLIES["openai-chat"], "model": "vendor/unknown", "usage": usage}
    session = recorded(store, "openai-chat", {"model": "m", **DEFAULTS["openai-chat"]}, reply=reply)
    totals = session.usage()
    assert (totals.cost_microcents, totals.unpriced_calls) == (int(0.00004 * MICROCENTS_PER_DOLLAR), 0)


@pytest.mark.attack
def test_tokens_for_mcp_servers_are_not_recorded(tmp_path: Path) -> None:
    """Plain words, which no pattern takes for a key."""
    server = {"type": "url", "name": "m", "url": "https://x", "authorization_token": "maples-and-oaks"}
    hosted = {
        "type": "mcp",
        "server_label": "m",
        "server_url": "https://x",
        "authorization": "birches-and-elms",
    }
    headers = {"X-Team": "willows-and-ash"}
    with oakleaf.open(tmp_path / "s.db") as store:
        request = {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hi"}],
            "mcp_servers": [server],
        }
        session = recorded(store, "anthropic", request)
        assert sent_again(session, "anthropic")["mcp_servers"] == [
            server | {"authorization_token": "[redacted]"}
        ]
        recorded(store, "openai", {"model": "m", "input": "Hi", "tools": [hosted | {"headers": headers}]})
        bundles = [
            store.session(row.session_id).export(tmp_path / f"{row.session_id}.oakleaf")
            for row in store.sessions()
        ]
        assert len(bundles) == 2
    for file in tmp_path.iterdir():
        assert not [word for word in (b"maples", b"birches", b"willows") if word in file.read_bytes()], file
