"""The whole request is a function of the leaf: prompt, tools, messages and options, byte for byte, in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

import oakleaf
from oakleaf import Attachment, Limits, ScriptedModel, Session, Store, ToolCall, assistant, system, user
from oakleaf.ext import read
from oakleaf.models.names import model_by_name
from oakleaf.wire import PROVIDERS, render
from support.fake_providers import Call, Completion, ErrorReply, FakeProviders, RawReply, Reply
from support.paths import ROOT
from support.random_logs import PNG, SOAK

TOOLS = [
    {
        "name": f"tool_{number}",
        "description": f"Does {number} things to an order, and says what it did.",
        "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]},
    }
    for number in range(8)
]


def digests(store: Store) -> dict[str, str]:
    """The digest of every session's request for every provider."""
    return {
        f"{row.session_id} {provider}": sha256(
            render(store.session(row.session_id).request(provider))
        ).hexdigest()
        for row in store.all_sessions()
        for provider in PROVIDERS
    }


def random_session(store: Store, random: Random) -> Session:
    session = store.start(seeds=[system("You help.")])
    for number in range(random.randint(1, 5)):
        if random.random() < 0.4:
            session.set(
                options={"temperature": random.choice([None, 0, 0.5]), "max_tokens": random.randint(1, 999)}
            )
        if random.random() < 0.2:
            session.set(prompt=f"You help, politely ({number}).")
        tools = random.sample(TOOLS, random.randint(0, 4)) if random.random() < 0.7 else None
        with session.turn(f"question {number}", tools=tools) as turn:
            if tools:
                turn.answer(assistant(ToolCall("c1", str(tools[0]["name"]), {"order": number})))
                turn.result("c1", "done " * random.randint(1, 99))
            turn.answer(assistant("answer"))
        if random.random() < 0.2:
            session.rewind(random.randint(1, session.leaf.seq))
        if random.random() < 0.2:
            session = session.fork(options={"max_tokens": 7})
    return session


def test_requests_of_random_sessions_are_byte_equal_in_another_process(tmp_path: Path) -> None:
    random = Random(15)
    with oakleaf.open(tmp_path / "s.db", synchronous="normal") as store:
        for _ in range(1_000 if SOAK else 60):
            random_session(store, random)
        here = digests(store)
    assert in_another_process("digests", tmp_path / "s.db") == here
    assert len(here) >= 240


def in_another_process(function: str, path: Path) -> Any:
    """What a function of this module returns for the store at this path."""
    script = (
        f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import oakleaf; from test_request import {function}\n"
        f"with oakleaf.open(sys.argv[1]) as store: print(json.dumps({function}(store)))"
    )
    there = subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True, text=True)
    return json.loads(there.stdout)


@pytest.mark.parametrize("loop", ["ours", "own"])
def test_tools_and_options_that_stay_the_same_cost_nothing_a_turn(tmp_path: Path, loop: str) -> None:
    """Beside the words of the conversation: a settings entry and a blob, once; less than 100 bytes a turn is the promise."""
    sizes, turns = [], 300
    for tools in ([], TOOLS):
        path = tmp_path / f"{len(sizes)}.db"
        with oakleaf.open(path, synchronous="normal") as store:
            session = store.start()
            session.set(options={"temperature": 0} if tools else {})
            specs = [oakleaf.tool(name=str(tool["name"]), effect="read")(_described) for tool in tools]
            for number in range(turns):
                if loop == "ours":
                    model, limits = ScriptedModel(["answer"]), Limits(turns=turns)
                    session.send_sync(f"question {number}", model=model, tools=specs, limits=limits)
                else:
                    with session.turn(f"question {number}", tools=tools or None) as turn:
                        turn.answer(assistant("answer"))
            stored = read(session).storage()
            facts = [fact.data for fact in session.journal() if fact.kind == "turn_started"]
        assert "tool_names" not in facts[-1]
        assert (stored.tool_sets, stored.settings) == ((1, 2) if tools else (0, 1))
        assert stored.tool_bytes == stored.blob_bytes
        assert stored.settings_bytes < 400  # once: the options, the names of the tools and their effects
        sizes.append(path.stat().st_size)
    assert (sizes[1] - sizes[0]) / turns < 100


def _described(order: int) -> str:
    """Does things to an order, and says what it did."""
    return str(order)


# -- what is shown is what was sent ----------------------------------------------------------------

KEY = "sk-very-secret-0123456789"
LOOK = Completion("I look.", "hm", (Call("c1", "look", '{"order": 41}'), Call("c2", "fail", "{}")))
HISTORY = [LOOK, Completion("It is lost.", "so it is"), Completion("A cat."), LOOK, Completion("Yes.")]
OPTIONS: dict[str, dict[str, Any]] = {
    "anthropic": {"temperature": 0, "max_tokens": 900, "stop": ["END"], "effort": "low"},
    "openai": {"max_tokens": 900, "effort": "low", "reasoning": {"summary": "auto"}},
    "openai-chat": {"max_tokens": 900, "effort": "low", "seed": 7, "extra_body": {"mirostat": 2}},
    "gemini": {
        "max_tokens": 900,
        "effort": "low",
        "stop": "END",
        "thinking_config": {"includeThoughts": True},
    },
}


@oakleaf.tool(effect="read")
def look(order: int, note: str | None = None) -> str:
    """Look an order up."""
    return f"order {order} is lost"


@oakleaf.tool(effect="read")
def fail() -> str:
    """Fail."""
    raise ValueError("no")


def shown_requests(store: Store) -> list[dict[str, Any]]:
    """The requests of all answered calls, in order."""
    calls = [
        (call.at, row.session_id, call)
        for row in store.all_sessions()
        for call in store.session(row.session_id).model_calls()
        if not call.failed
    ]
    return [
        store.session(session_id).request(call.provider or "", at=call.after_seq)
        for _, session_id, call in sorted(calls, key=lambda place: place[0])
    ]


def request_bodies(server: FakeProviders, count: int | None = None) -> Iterator[dict[str, Any]]:
    """What arrived but the model and how to stream."""
    for request in server.requests[-count:] if count else server.requests:
        assert request.problems == []
        yield {
            name: value
            for name, value in request.body.items()
            if name not in ("model", "stream", "stream_options")
        }


def model_of(provider: str, server: FakeProviders, name: str = "some-model") -> Any:
    model = model_by_name(f"{provider}:{name}@{server.url_for(provider)}")
    return type(model)(name, base_url=server.url_for(provider), key=KEY)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "s.db"


@pytest.mark.extra
class TestSent:
    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_the_request_another_process_shows_is_the_one_that_was_sent(
        self, path: Path, provider: str
    ) -> None:
        """Prompt, tools, options, media, reasoning, errors, and a window of turns."""
        with FakeProviders(*HISTORY) as server, oakleaf.open(path, synchronous="normal") as store:
            model = model_of(provider, server)
            session = store.start(seeds=[system("You help.")])
            session.send_sync("where is 41?", model=model, tools=[look, fail], options=OPTIONS[provider])
            session.send_sync(user("what is it?", Attachment(PNG, "image/png")), model=model)
            session.set(prompt="You help, politely.")
            limits = Limits(max_messages=6)
            session.send_sync("look again", model=model, tools=[fail, look], limits=limits)
        bodies = list(request_bodies(server))
        requests = in_another_process("shown_requests", path)
        assert len(requests) == len(bodies) == 5
        for one, other in zip(requests, bodies, strict=True):
            assert one == other
        assert len(bodies[3][PROVIDERS[provider].history]) < len(bodies[2][PROVIDERS[provider].history])

    @pytest.mark.parametrize(
        "refusal",
        [
            "Unsupported parameter: 'max_tokens' is not supported with this model.",
            "Missing `reasoning_content` field in the assistant message at message index 2.",
            "property 'reasoning_content' is unsupported",
        ],
    )
    def test_what_a_server_refuses_once_is_known_to_another_process(self, path: Path, refusal: str) -> None:
        replies: list[Reply] = [LOOK, ErrorReply(400, refusal), Completion("Lost."), Completion("Bye.")]
        with FakeProviders(*replies) as server:
            with oakleaf.open(path, synchronous="normal") as store:
                session = store.start()
                options = {"max_tokens": 900}
                model = model_of("openai-chat", server)
                session.send_sync("where?", model=model, tools=[look, fail], options=options)
            with oakleaf.open(path, synchronous="normal") as store:
                again = store.session(session.session_id)
                again.send_sync("bye", model=model_of("openai-chat", server), tools=[look, fail])
        first, _, *rest = request_bodies(server)
        assert in_another_process("shown_requests", path) == [first, *rest]
        assert len(server.requests) == 4

    def test_what_one_server_wrote_is_not_shown_to_another(self, path: Path) -> None:
        with FakeProviders(LOOK, Completion("Lost.")) as one, FakeProviders(Completion("Bye.")) as other:
            with oakleaf.open(path, synchronous="normal") as store:
                session = store.start()
                session.send_sync("where?", model=model_of("openai-chat", one), tools=[look, fail])
                session.send_sync("bye", model=model_of("openai-chat", other), tools=[look, fail])
            bodies = [*request_bodies(one), *request_bodies(other)]
        assert in_another_process("shown_requests", path) == bodies
        assert [json.dumps(body).count("reasoning_content") for body in bodies] == [0, 1, 0]

    def test_the_next_model_of_a_chain_is_asked_as_it_is_shown(self, path: Path) -> None:
        busy = ErrorReply(503)
        with FakeProviders(LOOK, busy) as one, FakeProviders(Completion("Lost.")) as other:
            with oakleaf.open(path, synchronous="normal") as store:
                chain = [model_of("openai-chat", one), model_of("openai-chat", other)]
                limits = Limits(tries=1)
                store.start().send_sync("where?", model=chain, tools=[look, fail], limits=limits)
            bodies = [next(request_bodies(one)), *request_bodies(other)]
        assert in_another_process("shown_requests", path) == bodies

    def test_a_model_that_does_not_reason_is_shown_without_its_seal(self, path: Path) -> None:
        refusal = ErrorReply(400, "Encrypted content is not supported with this model.")
        with FakeProviders(refusal) as server, oakleaf.open(path, synchronous="normal") as store:
            session = store.start()
            for name in ("plain", "plain", "thinker"):
                session.send_sync("hi", model=model_of("openai", server, name))
        _, *bodies = request_bodies(server)
        assert in_another_process("shown_requests", path) == bodies
        assert ["include" in body for body in bodies] == [False, False, True]


REPLIES = {
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "It is lost."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 4, "output_tokens": 3},
    },
    "openai": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [
            {
                "id": "m_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "It is lost.", "annotations": []}],
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    },
    "openai-chat": {
        "id": "c_1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "It is lost."},
            }
        ],
    },
    "gemini": {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "It is lost."}]}, "finishReason": "STOP"}
        ],
        "modelVersion": "m",
    },
}


def sdk_client(provider: str, url: str) -> Any:
    if provider == "anthropic":
        import anthropic

        return anthropic.Anthropic(api_key="k", base_url=url)
    if provider == "gemini":
        from google import genai

        return genai.Client(api_key="k", http_options={"base_url": url})
    import openai

    return openai.OpenAI(api_key="k", base_url=f"{url}/v1")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.extra
def test_the_call_that_the_page_shows_for_each_sdk_works(provider: str) -> None:
    """The lines of docs/howto/own-loop.md, with tools and options, by the real SDKs."""
    page = (ROOT / "docs/howto/own-loop.md").read_text()
    (line,) = [line for line in page.splitlines() if f'`session.request("{provider}")`' in line]
    request_code, call_code = (cell.strip().strip("`") for cell in line.split("|")[2:4])
    session = oakleaf.open("memory:").start(seeds=[system("You help.")])
    session.set(options={"max_tokens": 99})
    reply = json.dumps(REPLIES[provider]).encode()
    with (
        FakeProviders(RawReply(reply, content_type="application/json")) as server,
        session.turn("Where?", tools=TOOLS[:1]) as turn,
    ):
        expected = session.request(provider)
        names = {"session": session, "client": sdk_client(provider, server.url)}
        names["request"] = eval(request_code, names)
        turn.answer(eval(call_code.replace("model=…", "model='m'"), names))
    (received,) = server.bodies(provider)
    received = json.loads(json.dumps(received).replace("parameters_json_schema", "parametersJsonSchema"))
    assert {key: received[key] for key in expected} == expected  # but for that spelling of Google's SDK
    assert session.path()[-1].message.text == "It is lost."
