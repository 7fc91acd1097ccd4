"""Real SDKs against a loopback server: what a client gives, what it sends, and how each fault is told."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
import subprocess
import sys
import threading
import tomllib
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import aclosing, suppress
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest

import oakleaf
from oakleaf import wire
from oakleaf.core.codec import encode
from oakleaf.core.context import with_endpoint
from oakleaf.core.drafts import Draft
from oakleaf.core.messages import Attachment, Message, Reasoning, Text, ToolCall, user
from oakleaf.core.usage import Usage
from oakleaf.errors import ContextOverflow, ModelError, ModelUnavailable, Overloaded, TruncatedReply
from oakleaf.ext import read
from oakleaf.install import install_line
from oakleaf.models.base import Delta, Model, Request
from oakleaf.models.names import model_by_name
from oakleaf.providers import connections
from oakleaf.wire import Answer, find_provider
from support import fake_providers
from support.fake_providers import (
    USAGE,
    BrokenStream,
    Call,
    Completion,
    ErrorReply,
    FakeProviders,
    HangUp,
    Redirect,
    Reply,
    Stall,
)
from support.model_calls import KEY, SCHEMA, TOOLS, client, listen, request_of, run
from support.paths import ROOT
from support.random_logs import PNG

pytestmark = [pytest.mark.extra, pytest.mark.usefixtures("clean_environment")]

PROVIDERS = list(wire.PROVIDERS)
VARIABLES = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "anthropic", "anthropic"),
    "openai-chat": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "openai", "openai"),
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "openai", "openai"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "gemini", "google.genai"),
}
SIGNATURE = re.compile(r"SIG-([a-z-]+)-(\d+);")
SEALED = re.compile(r"U0lHL[A-Za-z0-9+/_-]*={0,2}")  # the same in base64, as Gemini has it

providers = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture(autouse=True, scope="module")
def no_proxy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variables in VARIABLES.values():
        monkeypatch.delenv(variables[0], raising=False)
        monkeypatch.delenv(variables[1], raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [thread for thread in left if not thread.name.startswith(("oakleaf-log", "oakleaf-lease"))] == []


def ask(
    provider: str, *replies: Reply, request: Request | None = None
) -> tuple[list[Delta], Answer, FakeProviders]:
    with FakeProviders(*replies) as server:
        deltas, answer = run(listen(client(provider, server), request or request_of()))
    return deltas, answer, server


def fail(provider: str, reply: Reply, kind: type[ModelError]) -> ModelError:
    with FakeProviders(reply) as server:
        with pytest.raises(kind) as raised:
            run(listen(client(provider, server), request_of()))
        assert len(server.requests) == 1  # the SDK tries nothing twice: that is ours
    error = raised.value
    assert type(error) is kind
    assert str(error).startswith(f"{provider}:some-model gave no answer: ")
    assert KEY not in str(error)
    assert error.__context__ is None
    return error


@providers
class TestAnswer:
    def test_text_comes_in_pieces_and_then_whole(self, provider):
        deltas, answer, _ = ask(provider, Completion("hello, this is a text"))
        assert len(deltas) > 2
        assert "".join(delta.text for delta in deltas) == "hello, this is a text"
        assert answer.message == oakleaf.assistant("hello, this is a text")
        assert answer.provider == provider
        assert "loopback" in answer.model

    def test_usage_is_all_the_model_read_and_wrote(self, provider):
        _, answer, _ = ask(provider, Completion("hi"))
        cached = {"anthropic": Usage(USAGE[0] + 3, USAGE[1], 3), "openai": Usage(*USAGE, 3)}
        assert answer.usage == cached.get(provider, Usage(*USAGE))

    def test_reasoning_is_apart_and_the_signature_is_evidence(self, provider):
        deltas, answer, _ = ask(provider, Completion("so it is", "let me think about it"))
        assert "".join(delta.reasoning for delta in deltas) == "let me think about it"
        assert answer.message.parts[:2] == (Reasoning("let me think about it"), Text("so it is"))
        assert (answer.evidence is None) == (provider == "openai-chat")
        assert "SIG" not in str(answer.message)

    def test_parallel_calls_in_chunks_are_whole_and_never_halved(self, provider):
        first, second = '{"city": "São Paulo", "days": [1, 2]}', '{"city": "Oslo"}'
        calls = (Call("a1", "weather", first), Call("b2", "weather", second), Call("c3", "f"))
        deltas, answer, _ = ask(provider, Completion("I look.", calls=calls))
        assert answer.message.calls == tuple(ToolCall(c.id, c.name, json.loads(c.arguments)) for c in calls)
        assert "".join(delta.text for delta in deltas) == "I look."

    def test_two_calls_of_one_id_are_two_calls(self, provider):
        calls = (Call("same", "f", '{"city": "a"}'), Call("same", "f", '{"city": "b"}'))
        _, answer, _ = ask(provider, Completion(calls=calls))
        assert [call.arguments["city"] for call in answer.message.calls] == ["a", "b"]

    def test_an_empty_answer_is_an_answer(self, provider):
        deltas, answer, _ = ask(provider, Completion())
        assert (deltas, answer.message.parts) == ([], ())
        assert answer.finish is not None

    def test_a_refusal_is_an_answer_in_the_models_words(self, provider):
        deltas, answer, _ = ask(provider, Completion("I will not do that", refuses=True))
        assert answer.message.text == "I will not do that" == "".join(delta.text for delta in deltas)
        finishes = {"anthropic": "refusal", "openai-chat": "stop", "openai": "completed", "gemini": "SAFETY"}
        assert answer.finish == finishes[provider]


@pytest.mark.parametrize("provider", ["anthropic", "openai-chat", "openai"])  # Gemini sends arguments whole
@pytest.mark.parametrize("written", ['{"city": "/', "{city: /}", "[1]"])
def test_arguments_other_than_objects_are_kept_raw(provider, written):
    """Anthropic's SDK closes what the token limit cut off: a path that ends too early would be acted upon."""
    _, answer, _ = ask(provider, Completion(calls=(Call("a", "f", written),), is_cut_short=True))
    assert answer.message.calls == (ToolCall("a", "f", {}, written),)
    assert answer.finish in ("max_tokens", "length", "max_output_tokens")


class TestRequest:
    @providers
    def test_tools_and_the_prompt_are_sent_in_the_vendors_shape(self, provider):
        _, _, server = ask(provider)
        body = server.requests[0].body
        first = body["tools"][0]
        fields = {
            "anthropic": lambda: (first["name"], first["input_schema"]),
            "openai-chat": lambda: (first["function"]["name"], first["function"]["parameters"]),
            "openai": lambda: (first["name"], first["parameters"]),
            "gemini": lambda: [
                first["functionDeclarations"][0][key] for key in ("name", "parametersJsonSchema")
            ],
        }
        assert tuple(fields[provider]()) == ("weather", SCHEMA)
        assert "Be brief." in json.dumps(body)

    @providers
    def test_without_tools_no_tools_are_named(self, provider):
        _, _, server = ask(provider, request=request_of(tools=()))
        assert "tools" not in server.requests[0].body

    @pytest.mark.parametrize(
        ("provider", "options", "fields"),
        [
            (
                "anthropic",
                {"temperature": 0, "top_k": 5, "max_tokens": 9, "stop": "END", "effort": "low"},
                {
                    "temperature": 0,
                    "top_k": 5,
                    "max_tokens": 9,
                    "stop_sequences": ["END"],
                    "output_config": {"effort": "low"},
                },
            ),
            (
                "openai",
                {"temperature": 0, "max_tokens": 9, "effort": "low", "reasoning": {"summary": "auto"}},
                {
                    "temperature": 0,
                    "max_output_tokens": 9,
                    "reasoning": {"effort": "low", "summary": "auto"},
                },
            ),
            (
                "openai-chat",
                {"temperature": 0, "max_tokens": 9, "seed": 7, "min_p": 0.1, "extra_body": {"mirostat": 2}},
                {"temperature": 0, "max_tokens": 9, "seed": 7, "min_p": 0.1, "mirostat": 2},
            ),
            (
                "gemini",
                {"temperature": 0, "max_tokens": 9, "stop": ["a"], "effort": "low"},
                {
                    "generationConfig": {
                        "temperature": 0,
                        "maxOutputTokens": 9,
                        "stopSequences": ["a"],
                        "thinkingConfig": {"thinkingLevel": "LOW"},
                    }
                },
            ),
        ],
    )
    def test_options_are_sent_in_the_vendors_fields(self, provider, options, fields):
        request = request_of(**options)
        _, _, server = ask(provider, request=request)
        body = server.requests[0].body
        endpoint = client(provider, server).endpoint_for(request.context.settings)
        context = with_endpoint(request.context, provider, endpoint)
        output = find_provider(provider).project(context, request.blobs)
        assert {name: body.get(name) for name in fields} == fields
        assert {name: output[name] for name in fields} == fields

    def test_anthropic_gets_a_limit_by_default(self):
        _, _, server = ask("anthropic")
        assert server.requests[0].body["max_tokens"] == 8192

    def test_nothing_is_stored_at_openai(self):
        _, _, server = ask("openai")
        body = server.requests[0].body
        assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])

    def test_a_model_without_reasoning_is_not_asked_for_sealing(self):
        refusal = ErrorReply(400, "Encrypted content is not supported with this model.")
        _, answer, server = ask("openai", refusal, Completion("hi"))
        assert answer.message.text == "hi"
        assert ["include" in request.body for request in server.requests] == [True, False]

    @providers
    def test_media_are_sent(self, provider):
        _, _, server = ask(provider, request=request_of(user("what is it?", Attachment(PNG, "image/png"))))
        assert server.requests[0].problems == []
        assert base64.b64encode(PNG).decode()[:20] in json.dumps(server.requests[0].body)

    @providers
    def test_an_illegal_history_is_refused_in_the_vendors_words(self, provider):
        with FakeProviders() as server, pytest.raises(ModelError, match=r"\(400\)"):
            run(
                listen(client(provider, server), request_of(user("hi"), oakleaf.assistant("I was not asked")))
            )
        assert server.requests[0].problems != []


@providers
class TestFault:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
    def test_passing_faults_are_overloaded(self, provider, status):
        error = fail(provider, ErrorReply(status, "please wait", retry_after="7"), Overloaded)
        assert error.after == 7
        assert "please wait" in str(error)

    def test_a_gateway_that_answers_in_html_is_overloaded(self, provider):
        assert fail(provider, ErrorReply(502, is_html=True), Overloaded).after is None

    def test_who_cannot_be_reached_is_overloaded(self, provider):
        with FakeProviders() as server:
            pass
        with pytest.raises(Overloaded, match="could not be reached"):
            run(listen(client(provider, server), request_of()))

    def test_who_says_nothing_is_overloaded(self, provider, monkeypatch):
        for module in ("connections", "gemini"):
            monkeypatch.setattr(f"oakleaf.providers.{module}.TIMEOUT_SECONDS", 0.05)
        assert "could not be reached" in str(fail(provider, Stall(), Overloaded))

    def test_too_large_a_request_is_an_overflow(self, provider):
        fail(provider, ErrorReply(413, "Request exceeds the maximum size"), ContextOverflow)

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_wrong_key_is_told_by_variable_and_never_shown(self, provider, status):
        error = fail(provider, ErrorReply(status, f"Incorrect API key provided: {KEY}."), ModelUnavailable)
        assert VARIABLES[provider][0] in str(error)

    def test_a_key_is_not_shown_where_long_words_are_cut(self, provider):
        assert "sk-very" not in str(fail(provider, ErrorReply(400, "x" * 390 + KEY), ModelError))

    def test_an_unknown_model_is_no_model(self, provider):
        assert "model: some-model" in str(
            fail(provider, ErrorReply(404, "model: some-model"), ModelUnavailable)
        )

    @pytest.mark.parametrize("status", [400, 422])
    def test_any_other_refusal_is_told_in_the_vendors_words(self, provider, status):
        error = fail(provider, ErrorReply(status, "temperature: must be below 2"), ModelError)
        assert f"temperature: must be below 2 ({status})" in str(error)

    @pytest.mark.parametrize("how", ["cut", "end", "nothing", "garbage"])
    def test_an_answer_without_an_end_is_cut_off(self, provider, how):
        if (provider, how) == ("openai-chat", "nothing"):
            return  # asked again without streaming: test_openai_servers
        fail(provider, BrokenStream(how), TruncatedReply)

    def test_a_chunk_of_another_shape_cuts_the_answer_off(self, provider):
        fail(provider, BrokenStream("nonsense"), TruncatedReply)

    def test_half_a_tool_call_is_never_an_answer(self, provider):
        says = Completion(calls=(Call("a", "f", '{"city": "' + "x" * 60 + '"}'),) * 3)
        fail(provider, BrokenStream("end", says), TruncatedReply)

    def test_trouble_told_in_the_middle_of_a_stream_is_overloaded(self, provider):
        fail(provider, BrokenStream("trouble"), Overloaded)

    def test_a_stream_left_early_leaves_nothing_open(self, provider):
        async def leave() -> Delta | Answer:
            async with aclosing(client(provider, server).stream(request_of())) as pieces:
                async for piece in pieces:
                    return piece
            raise AssertionError

        with FakeProviders(Completion("a long story, " * 50)) as server:
            assert run(leave()) == Delta(text="a lon")

    def test_a_call_can_be_cancelled(self, provider):
        async def cancel() -> None:
            call = asyncio.create_task(listen(client(provider, server), request_of()))
            while not server.requests and not call.done():
                await asyncio.sleep(0.001)
            call.cancel()
            await call

        with FakeProviders(Stall()) as server, pytest.raises(asyncio.CancelledError):
            run(cancel())


@providers
class TestConnection:
    """A connection to a vendor takes two or three round trips, and milliseconds of CPU for its TLS."""

    def test_calls_of_a_loop_share_a_client_until_the_loop_ends(self, provider):
        async def call_often() -> None:
            for number in range(4):
                model = client(provider, server)
                _, answer = await listen(model, request_of(user(f"number {number}")))
                assert answer.message.text == f"answer {number}"

        replies = [Completion(f"answer {number}") for number in range(4)]
        with FakeProviders(
            *replies, keeps_alive=True
        ) as server:  # which waits for every connection to be closed
            run(call_often())
        assert server.connections == 1

    def test_calls_at_the_same_time_send_own_histories(self, provider):
        async def call_all() -> None:
            requests = [request_of(user(f"number {number}")) for number in range(20)]
            await asyncio.gather(*(listen(client(provider, server), request) for request in requests))

        with FakeProviders(keeps_alive=True) as server:
            run(call_all())
            run(call_all())
        bodies = [json.dumps(body) for body in server.bodies(provider)]
        assert [sum(f'number {number}"' in body for body in bodies) for number in range(20)] == [2] * 20

    def test_one_that_the_server_has_closed_meanwhile_is_replaced(self, provider):
        async def call_twice() -> None:
            await listen(client(provider, server), request_of())
            server.close_idle_connections()
            await listen(client(provider, server), request_of())

        with FakeProviders(keeps_alive=True) as server:
            run(call_twice())
        assert (server.connections, len(server.requests)) == (2, 2)

    @pytest.mark.parametrize("is_reset", [False, True])
    def test_a_connection_closed_at_the_next_request_is_replaced(self, provider, is_reset):
        """It had closed the connection before it saw the request; the other connections may be as old."""

        async def call_again() -> Answer:
            await asyncio.gather(*(listen(client(provider, server), request_of()) for _ in range(3)))
            server.replies = [HangUp(is_reset), Completion("here")]
            _, answer = await listen(client(provider, server), request_of(user("are you there?")))
            _, another = await listen(client(provider, server), request_of())
            assert another.message.text == "ok"
            return answer

        with FakeProviders(keeps_alive=True) as server:
            assert run(call_again()).message.text == "here"
        assert (server.connections, len(server.requests)) == (4, 6)
        assert server.bodies(provider)[3] == server.bodies(provider)[4]

    def test_a_replaced_connection_costs_no_call_and_no_pause(self, provider):
        async def talk(session: oakleaf.Session) -> None:
            for text in ("first", "second"):
                async for event in session.send(text, model=client(provider, server)):
                    assert event.type != "session:retry"

        replies = [Completion("one"), HangUp(), Completion("two")]
        with FakeProviders(*replies, keeps_alive=True) as server, oakleaf.open("memory:") as store:
            session = store.start()
            run(talk(session))
            assert [call.failed for call in session.model_calls()] == [False, False]
            assert session.path()[-1].message.text == "two"

    def test_a_request_is_retried_once_and_not_on_a_new_connection(self, provider):
        async def call_in_vain() -> None:
            for count, replies in enumerate([[HangUp()], [Completion("one"), HangUp(), HangUp()]]):
                server.replies = replies
                for _ in range(count):
                    await listen(client(provider, server), request_of())
                with pytest.raises(Overloaded, match="could not be reached"):
                    await listen(client(provider, server), request_of())

        with FakeProviders(keeps_alive=True) as server:
            run(call_in_vain())
        assert len(server.requests) == 1 + 3

    def test_a_request_the_server_may_have_read_is_not_retried(self, provider, monkeypatch):
        monkeypatch.setattr(connections, "ROUND_TRIP_SECONDS", 0.0)

        async def call_twice() -> None:
            await listen(client(provider, server), request_of())
            with pytest.raises(Overloaded, match="could not be reached"):
                await listen(client(provider, server), request_of())

        with FakeProviders(Completion("one"), HangUp(), keeps_alive=True) as server:
            run(call_twice())
        assert len(server.requests) == 2

    def test_calls_with_another_key_have_their_own(self, provider):
        async def call_with_two_keys() -> None:
            await listen(client(provider, server), request_of())
            await listen(client(provider, server, key="another-key-" + "x" * 20), request_of())

        with FakeProviders(keeps_alive=True) as server:
            run(call_with_two_keys())
        assert server.connections == 2

    @pytest.mark.parametrize("status", [307, 308])
    def test_a_redirect_is_sent_the_same_request(self, provider, status):
        if provider == "gemini":  # whose SDK follows none
            fail(provider, Redirect(status), ModelError)
            return
        _, answer, server = ask(provider, Redirect(status), Completion("moved"))
        assert answer.message.text == "moved"
        [first, second] = server.bodies(provider)
        assert first == second

    def test_a_redirect_to_a_page_is_not_sent_the_history(self, provider):
        with FakeProviders(Redirect(302)) as server, pytest.raises(ModelError):
            run(listen(client(provider, server), request_of()))
        assert b"".join(server.bodies_of_gets) == b""

    def test_idle_connections_are_closed(self, provider, monkeypatch):
        """A crowd of calls, and each key of many, left theirs open for as long as the process lived."""
        monkeypatch.setattr(connections, "KEPT_SECONDS", 0.05)

        async def call_and_wait() -> None:
            keys = [KEY] * 12 + [f"another-key-{number}-{'x' * 20}" for number in range(3)]
            for _ in range(2):
                await asyncio.gather(*(listen(client(provider, server, key), request_of()) for key in keys))
                async with asyncio.timeout(20):
                    while server.open_connections:
                        await asyncio.sleep(0.001)

        with FakeProviders(keeps_alive=True) as server:
            run(call_and_wait())
        assert len(server.requests) == 30

    def test_a_request_is_freed_at_the_end_of_the_call(self, provider):
        """The timers of its timeouts, which asyncio keeps for ten minutes after they were cancelled, know its context."""

        async def memory_of_calls() -> int:
            tracemalloc.start()
            for number in range(8):
                await listen(client(provider, server), request_of(user(f"{number}" + "x" * 500_000)))
                server.requests.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        with FakeProviders(keeps_alive=True) as server:
            try:
                run(listen(client(provider, server), request_of()))  # which imports the SDK
                assert run(memory_of_calls()) < 2_000_000
            finally:
                tracemalloc.stop()

    @pytest.mark.filterwarnings("ignore:unclosed")
    def test_an_event_loop_that_has_ended_is_freed(self, provider):
        """Each `send_sync` left its event loop in memory."""

        def loop_of_call(*, is_shut_down: bool) -> weakref.ref[asyncio.AbstractEventLoop]:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(listen(client(provider, server), request_of()))
            # The SDK of Gemini starts a task at its end.
            loop.run_until_complete(loop.shutdown_asyncgens() if is_shut_down else asyncio.sleep(0))
            loop.close()
            return weakref.ref(loop)

        with FakeProviders(keeps_alive=True) as server:  # which waits for every connection to be closed
            loops = [loop_of_call(is_shut_down=is_shut_down) for is_shut_down in (False, True)]
            gc.collect()
            assert [loop() for loop in loops] == [None, None]


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("anthropic", "prompt is too long: 212345 tokens > 200000 maximum"),
        ("anthropic", "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        (
            "openai-chat",
            "This model's maximum context length is 128000 tokens. However, your messages have more",
        ),
        ("openai-chat", "the request exceeds the available context size. try increasing the context size"),
        ("openai", "Your input exceeds the context window of this model. Please adjust your input."),
        ("gemini", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    ],
)
def test_too_long_a_history_is_an_overflow(provider, words):
    assert words in str(fail(provider, ErrorReply(400, words), ContextOverflow))


@providers
@pytest.mark.parametrize("key", ["x", "context", "maximum context"])
def test_an_overflow_is_recognised_before_the_key_is_hidden(provider, key):
    """The key x made it "ma[key]imum conte[key]t": nothing was compacted, and the message was unreadable."""
    words = "This model's maximum context length is 128000 tokens."
    with FakeProviders(ErrorReply(400, words)) as server, pytest.raises(ContextOverflow) as raised:
        run(listen(client(provider, server, key), request_of()))
    assert words.replace("maximum context", "[key]" if len(key) >= 8 else "maximum context") in str(
        raised.value
    )


def test_an_overflow_told_after_many_words_is_recognised():
    fail("openai-chat", ErrorReply(400, "x" * 500 + " maximum context length"), ContextOverflow)


def test_an_overflow_is_known_by_the_code_too():
    fail("openai", ErrorReply(400, "Too much.", code="context_length_exceeded"), ContextOverflow)


@providers
def test_whatever_comes_is_an_answer_or_a_model_error(provider, monkeypatch):
    """Wrecked streams: no error of an SDK gets through, and what is an answer can be kept."""
    speak = fake_providers.STREAMS[provider]
    completion = Completion("hello world", "thinking hard", (Call("a", "f", '{"city": "x"}'), Call("b", "f")))

    async def listen_to_wrecks(model: Model) -> int:
        answers = 0
        for seed in range(15):
            wrecks = list(_wrecked(speak(completion, seed), Random(seed)))
            monkeypatch.setitem(fake_providers.STREAMS, provider, lambda *_, wrecks=wrecks: wrecks)
            with suppress(ModelError):
                _, answer = await listen(model, request_of())
                encode(answer.message)
                answers += 1
        return answers

    with FakeProviders() as server:
        assert run(listen_to_wrecks(client(provider, server))) < 15


def _wrecked(events: Iterable[bytes], random: Random) -> Iterator[bytes]:
    for event in events:
        fate = random.random()
        head, _, data = event.partition(b"data: ")
        if fate < 0.3 and b"[DONE]" not in event:
            yield head + b"data: " + json.dumps(_wreck(json.loads(data), random)).encode() + b"\n\n"
        elif fate < 0.33:
            yield event[: random.randrange(len(event))] + b"\n\n"
        elif fate < 0.95:
            yield event


def _wreck(value: Any, random: Random) -> Any:
    if random.random() < 0.12:
        return random.choice([None, 7, "x", [], {}, [None], {"a": 1}, True, -1])
    if isinstance(value, dict):
        return {key: _wreck(inner, random) for key, inner in value.items() if random.random() > 0.05}
    return [_wreck(inner, random) for inner in value] if isinstance(value, list) else value


def test_an_error_event_of_responses_is_known_by_the_code(monkeypatch):
    event = b'data: {"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}\n\n'
    monkeypatch.setitem(fake_providers.STREAMS, "openai", lambda says, number: [event])
    assert "slow down" in str(fail("openai", Completion(), Overloaded))


@providers
def test_one_model_may_be_asked_by_many_at_once(provider):
    async def ask_all(model: Model) -> list[str]:
        answers = await asyncio.gather(*(listen(model, request_of()) for _ in range(5)))
        return [answer.message.text for _, answer in answers]

    with FakeProviders(*(Completion(f"answer {n}") for n in range(5))) as server:
        answers = run(ask_all(client(provider, server)))
    assert sorted(answers) == [f"answer {n}" for n in range(5)]


def test_a_prompt_blocked_by_gemini_is_told_with_the_reason(monkeypatch):
    blocked = b'data: {"promptFeedback": {"blockReason": "SAFETY"}}\n\n'
    monkeypatch.setitem(fake_providers.STREAMS, "gemini", lambda says, number: [blocked])
    with FakeProviders() as server, pytest.raises(ModelError, match="SAFETY"):
        run(listen(client("gemini", server), request_of()))


class TestOtherServers:
    """Those that speak OpenAI's Chat Completions, each a little differently."""

    def stream(self, monkeypatch: pytest.MonkeyPatch, *deltas: dict[str, Any]) -> Message:
        chunks = [*map(fake_providers.chunk, deltas), fake_providers.chunk({}, "stop")]
        monkeypatch.setitem(fake_providers.STREAMS, "openai-chat", lambda says, number: chunks)
        return ask("openai-chat")[1].message

    def test_an_id_and_a_name_in_every_chunk_are_one_id_and_one_name(self, monkeypatch):
        pieces = ['{"city":', ' "Rom"}']
        deltas = [
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": piece}}]}
            for piece in pieces
        ]
        assert self.stream(monkeypatch, *deltas).calls == (ToolCall("a", "f", {"city": "Rom"}),)

    def test_calls_that_share_an_index_are_told_apart_by_their_ids(self, monkeypatch):
        deltas = [
            {"tool_calls": [{"index": 0, "id": call, "function": {"name": "f", "arguments": "{}"}}]}
            for call in "ab"
        ]
        assert self.stream(monkeypatch, *deltas).calls == (ToolCall("a", "f"), ToolCall("b", "f"))

    def test_a_call_without_an_id_is_given_one(self, monkeypatch):
        delta = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
        assert self.stream(monkeypatch, delta).calls == (ToolCall("call_0", "f"),)

    def test_reasoning_under_either_name_is_kept(self, monkeypatch):
        message = self.stream(monkeypatch, {"reasoning": "hm"}, {"content": "so"})
        assert message.parts == (Reasoning("hm"), Text("so"))

    def test_a_server_of_ones_own_needs_no_key(self):
        with FakeProviders() as server:
            run(listen(model_by_name(f"openai-chat:qwen3:8b@{server.url}/v1"), request_of()))
        assert server.requests[0].body["model"] == "qwen3:8b"


class TestNamed:
    @providers
    def test_key_and_url_come_from_the_environment(self, provider, monkeypatch):
        key, url, _, _ = VARIABLES[provider]
        with FakeProviders() as server:
            monkeypatch.setenv(key, KEY)
            monkeypatch.setenv(url, server.url_for(provider))
            model = model_by_name(f"{provider}:some-model")
            run(listen(model, request_of()))
        assert (model.provider, model.model) == (provider, "some-model")
        assert KEY in " ".join(server.requests[0].headers.values())
        assert KEY not in repr(model)

    @providers
    def test_without_a_key_the_variable_is_named(self, provider):
        with pytest.raises(ModelUnavailable, match=f"no API key was found; set {VARIABLES[provider][0]}"):
            run(listen(model_by_name(f"{provider}:some-model"), request_of()))

    @providers
    def test_without_the_sdk_the_extra_is_named(self, provider, monkeypatch):
        _, _, extra, package = VARIABLES[provider]
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ModelUnavailable, match=re.escape(install_line(extra))):
            run(listen(model_by_name(f"{provider}:some-model"), request_of()))

    @providers
    def test_with_the_sdk_come_prices(self, provider):
        """Else every call would be unpriced, and a cost cap would stop nothing."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        assert "oakleaf[prices]" in project["project"]["optional-dependencies"][VARIABLES[provider][2]]

    def test_a_base_url_that_is_none_is_told(self, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", "127.0.0.1:8080/v1")
        with pytest.raises(ModelUnavailable, match="start it with http://"):
            run(listen(model_by_name("openai-chat:x"), request_of()))

    def test_a_model_may_have_an_at_sign_and_colons(self):
        assert model_by_name("anthropic:claude@20250101").model == "claude@20250101"
        assert model_by_name("openai-chat:a:b@c@https://host:1/v1").model == "a:b@c"

    @pytest.mark.parametrize("name", ["bedrock:claude", "claude", "anthropic:", ""])
    def test_an_unknown_name_is_told_with_the_known(self, name):
        with pytest.raises(
            ModelUnavailable,
            match=r"known names: anthropic:…, anthropic-bedrock:…, .*, gemini-vertex:…, openai:…, openai-chat:…, scripted:…",
        ):
            model_by_name(name)

    def test_no_sdk_is_imported_before_the_first_call(self):
        code = (
            "import sys; from oakleaf.models.names import model_by_name;"
            f"[model_by_name(p + ':x') for p in {PROVIDERS}];"
            "print([m for m in ('anthropic', 'openai', 'google.genai', 'httpx2', 'pydantic') if m in sys.modules])"
        )
        env = {"PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True
        )
        assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def vendors() -> FakeProviders:
    """What four vendors saw of one session of twenty turns with tools, driven by another every turn."""
    with FakeProviders() as server, oakleaf.open("memory:") as store:
        session = store.start(agent="switcher", seeds=[oakleaf.system("You look out of windows.")])
        run(drive(session, server))
        assert session.verify() == []
    return server


async def drive(session: oakleaf.Session, server: FakeProviders) -> None:
    for turn in range(20):
        provider = (PROVIDERS + PROVIDERS[::-1])[turn % 8]
        arguments = json.dumps({"city": f"C{turn}", "z": 1, "a": 2})
        # Ids that no other vendor would take, and that were there before.
        ids = [f"call|{provider}|{turn}|" + "x" * 80, "again"]
        calls = tuple(Call(call_id, "weather", arguments) for call_id in ids)
        server.replies = [
            Completion("I look.", f"thought {turn}", calls),
            Completion(f"Rain {turn}.", "so it is"),
        ]
        await take_turn(session, client(provider, server), turn)


async def take_turn(session: oakleaf.Session, model: Model, number: int) -> None:
    with session.turn(f"How is the weather in C{number}?", tools=map(msgspec.to_builtins, TOOLS)) as turn:
        while True:
            request = Request(session.context(), read(session).blob)
            _, answer = await listen(model, request)
            # As `turn.answer` does, which takes what a vendor said and not yet what a client made of it.
            session.log.append([Draft(answer.message, answer.model, answer.finish, answer.evidence)])
            if not turn.open_tool_calls:
                return
            for waiting in reversed(turn.open_tool_calls):  # results come in any order
                turn.result(waiting.call.id, f"rain in C{number}")


class TestSwitch:
    def test_every_history_is_accepted(self, vendors):
        assert len(vendors.requests) == 40
        assert [request.problems for request in vendors.requests] == [[]] * 40

    def test_a_signature_goes_back_to_the_issuer_only(self, vendors):
        for number, request in enumerate(vendors.requests, 1):
            signatures = SIGNATURE.findall(_decode_signatures(request.body))
            assert {issuer for issuer, _ in signatures} <= {request.provider}
            mine = [
                n
                for n, other in enumerate(vendors.requests[: number - 1], 1)
                if other.provider == request.provider
            ]
            if request.provider != "openai-chat":
                assert [int(n) for _, n in signatures] == mine

    @providers
    def test_a_sent_history_is_a_prefix_of_the_next(self, vendors, provider):
        bodies = vendors.bodies(provider)
        assert len(bodies) == 10
        for was, now in pairwise(bodies):
            assert wire.first_difference(was, now) is None


def _decode_signatures(body: dict[str, Any]) -> str:
    """A request, with the signatures in it that lie there as base64."""
    return SEALED.sub(lambda match: base64.urlsafe_b64decode(match[0]).decode(), json.dumps(body))
