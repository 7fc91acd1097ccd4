"""Models called through a client object of the caller's: real SDKs, each against a loopback server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from google import genai
from google.auth.credentials import AnonymousCredentials
from google.oauth2.credentials import Credentials as GoogleCredentials
from msgspec import Struct

import oakleaf
from oakleaf.core.messages import user
from oakleaf.errors import InvalidReplay, ModelError, ModelUnavailable, Overloaded, TurnFailed
from oakleaf.models.names import is_model_name, model_by_name, stored_model
from oakleaf.models.windows import window_by_name
from support.fake_providers import Call, Completion, ErrorReply, FakeProviders, ReceivedRequest
from support.model_calls import KEY, listen, request_of, run


class Kind(Struct, frozen=True):
    """One class of client objects."""

    name: str
    client: Callable[[FakeProviders], Any]
    path: str
    headers: dict[str, str]
    class_name: str


def _bedrock(server: FakeProviders) -> Any:
    return anthropic.AsyncAnthropicBedrock(
        aws_access_key="AKIDEXAMPLE", aws_secret_key="secret", aws_region="eu-west-1", base_url=server.url
    )


def _vertex(server: FakeProviders) -> Any:
    return anthropic.AsyncAnthropicVertex(
        region="us-east5", project_id="p", credentials=GoogleCredentials("ya29.static"), base_url=server.url
    )


def _azure(server: FakeProviders) -> Any:
    return openai.AsyncAzureOpenAI(azure_endpoint=server.url, api_key=KEY, api_version="2026-01-01")


def _gemini(server: FakeProviders) -> Any:
    return genai.Client(api_key=KEY, http_options={"base_url": server.url})


def _gemini_vertex(server: FakeProviders) -> Any:
    return genai.Client(
        vertexai=True,
        project="p",
        location="us-east5",
        credentials=GoogleCredentials("ya29.static"),
        http_options={"base_url": server.url},
    )


KINDS = {
    "Anthropic": Kind(
        "anthropic:claude-some",
        lambda server: anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url),
        "/v1/messages",
        {"authorization": f"Bearer {KEY}"},
        "AsyncAnthropic",
    ),
    "Bedrock": Kind(
        "anthropic:anthropic.claude-some-v1:0",
        _bedrock,
        "/model/anthropic.claude-some-v1:0/invoke-with-response-stream",
        {},
        "AsyncAnthropicBedrock",
    ),
    "Vertex": Kind(
        "anthropic:claude-some@20260101",
        _vertex,
        "/projects/p/locations/us-east5/publishers/anthropic/models/claude-some@20260101:streamRawPredict",
        {"authorization": "Bearer ya29.static"},
        "AsyncAnthropicVertex",
    ),
    "OpenAI": Kind(
        "openai:gpt-some",
        lambda server: openai.AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1"),
        "/v1/responses",
        {"authorization": f"Bearer {KEY}"},
        "AsyncOpenAI",
    ),
    "OpenAI Chat": Kind(
        "openai-chat:gpt-some",
        lambda server: openai.AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1"),
        "/v1/chat/completions",
        {"authorization": f"Bearer {KEY}"},
        "AsyncOpenAI",
    ),
    "Azure": Kind(
        "openai:gpt-some",
        _azure,
        "/openai/responses?api-version=2026-01-01",
        {"api-key": KEY},
        "AsyncAzureOpenAI",
    ),
    "Azure Chat": Kind(
        "openai-chat:my-deployment",
        _azure,
        "/openai/deployments/my-deployment/chat/completions?api-version=2026-01-01",
        {"api-key": KEY},
        "AsyncAzureOpenAI",
    ),
    "Gemini": Kind(
        "gemini:gemini-some",
        _gemini,
        "/v1/models/gemini-some:streamGenerateContent?alt=sse",
        {"x-goog-api-key": KEY},
        "Client",
    ),
    "Gemini on Vertex": Kind(
        "gemini:gemini-some",
        _gemini_vertex,
        "/v1beta1/projects/p/locations/us-east5/publishers/google/models/gemini-some:streamGenerateContent?alt=sse",
        {"authorization": "Bearer ya29.static"},
        "Client",
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key of the environment helps a client object."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return iter(())


def is_signed(request: ReceivedRequest, url: str) -> bool:
    """Whether AWS would take the request for one of the holder of this secret."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    fields = dict(
        field.strip().split("=", 1) for field in headers["authorization"].split(" ", 1)[1].split(",")
    )
    signed = {name: headers[name] for name in fields["SignedHeaders"].split(";") if name != "host"}
    again = AWSRequest("POST", url + request.path, signed, request.raw)
    again.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(Credentials("AKIDEXAMPLE", "secret"), "bedrock", "eu-west-1")
    text = signer.string_to_sign(again, signer.canonical_request(again))
    return bool(fields["Signature"] == signer.signature(text, again))


def public(client: Any) -> dict[str, Any]:
    """Return the public attributes of a client that are no parts of its API."""
    plain = str | int | float | dict | bool | None
    return {
        name: value for name, value in vars(client).items() if name[0] != "_" and isinstance(value, plain)
    }


@kinds
class TestCall:
    def test_request_has_the_clients_path_and_credentials(self, kind):
        completion = Completion("I look.", calls=(Call("a", "weather", '{"city": "Rome"}'),))
        with FakeProviders(completion) as server:
            model = oakleaf.model(kind.name, client=kind.client(server))
            deltas, answer = run(listen(model, request_of(user("Is it raining?"), max_tokens=9)))
        [request] = server.requests
        assert request.path == kind.path
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert {name: headers[name] for name in kind.headers} == kind.headers
        if kind.class_name == "AsyncAnthropicBedrock":
            assert is_signed(request, server.url)
        text = json.dumps(request.body)
        assert [word in text for word in ("Be brief.", "Is it raining?", "weather", "Looks out")] == [
            True
        ] * 4
        assert "".join(delta.text for delta in deltas) == answer.message.text == "I look."
        assert [call.arguments for call in answer.message.calls] == [{"city": "Rome"}]
        assert (answer.provider, model.model) == tuple(kind.name.split(":", 1))

    def test_client_is_left_open_and_as_it_was(self, kind):
        async def call_twice() -> None:
            client = kind.client(server)
            model = oakleaf.model(kind.name, client=client)
            before = public(client)
            assert before or kind.class_name == "Client"
            try:
                for _ in range(2):
                    await listen(model, request_of())
                    assert public(client) == before
                assert not (hasattr(client, "is_closed") and client.is_closed())
            finally:
                await (client.aio.aclose() if kind.class_name == "Client" else client.close())

        with FakeProviders(keeps_alive=True) as server:  # which waits for every connection to be closed
            run(call_twice())
        assert server.connections == 1

    def test_wrong_credentials_are_told(self, kind):
        with (
            FakeProviders(ErrorReply(401, f"no such key: {KEY}")) as server,
            pytest.raises(ModelUnavailable, match=f"credentials of the {kind.class_name}") as raised,
        ):
            run(listen(oakleaf.model(kind.name, client=kind.client(server)), request_of()))
        if KEY in str(kind.headers) and kind.class_name != "Client":  # whose key nobody can read
            assert KEY not in str(raised.value)

    def test_absent_server_is_overloaded(self, kind):
        with FakeProviders() as server:
            pass
        client = kind.client(server)
        if kind.class_name != "Client":
            client.max_retries = 0
        with pytest.raises(Overloaded, match="could not be reached"):
            run(listen(oakleaf.model(kind.name, client=client), request_of()))


@kinds
class TestRecord:
    def test_session_names_provider_model_and_class(self, kind):
        name = f"{kind.name}@client:{kind.class_name}"
        with FakeProviders() as server, oakleaf.open("memory:") as store:
            session = store.start()
            assert session.send_sync("hi", model=oakleaf.model(kind.name, client=kind.client(server))).text
            assert session.row.model == name
        assert not is_model_name(name)
        for find in (model_by_name, lambda name: stored_model(name, "s")):
            with pytest.raises(ModelUnavailable) as raised:
                find(name)
            assert f"oakleaf.model({kind.name!r}, client={kind.class_name}(…))" in str(raised.value)

    def test_another_process_continues_with_another_client(self, kind, tmp_path):
        completion = Completion(calls=(Call("a", "wait", "{}"),))

        @oakleaf.tool(approval=True)
        def wait() -> str:
            """Wait."""
            return "done"

        with FakeProviders(completion, Completion("It is done.")) as server:
            for number in range(2):
                model = oakleaf.model(kind.name, client=kind.client(server))
                with oakleaf.open(tmp_path / "s.db") as store:
                    if number:
                        session = store.session("s")
                        session.approve(session.open_tool_calls[0])
                        result = session.resume_sync(model=model, tools=[wait])
                    else:
                        result = store.start(session_id="s").send_sync("hi", model=model, tools=[wait])
        assert (result.status, result.text) == ("completed", "It is done.")
        assert [request.problems for request in server.requests] == [[], []]


class TestPlaces:
    """A model of a client object goes where a model goes."""

    def model(self, server: FakeProviders) -> oakleaf.Model:
        return oakleaf.model("anthropic:claude-some", client=KINDS["Anthropic"].client(server))

    def test_chain_takes_the_next_one(self):
        with FakeProviders(ErrorReply(401), Completion("here")) as server, oakleaf.open("memory:") as store:
            azure = oakleaf.model("openai-chat:d", client=_azure(server))
            assert store.start().send_sync("hi", model=[self.model(server), azure]).text == "here"
        assert [request.provider for request in server.requests] == ["anthropic", "openai-chat"]

    def test_replay_asks_it_and_cannot_without_it(self):
        with FakeProviders() as server, oakleaf.open("memory:") as store:
            session = store.start()
            session.send_sync("hi", model=self.model(server))
            with pytest.raises(InvalidReplay, match=r"claude-some@client:AsyncAnthropic.*model=…"):
                session.replay_sync(prompt="Be brief.")
            report = session.replay_sync(prompt="Be brief.", model=self.model(server))
            assert store.session(report.replay).path()[-1].message.text == "ok"
        assert "Be brief." in json.dumps(server.requests[-1].body)

    def test_summariser_is_asked(self):
        async def talk() -> None:
            limits = oakleaf.Limits(
                context_tokens=600, summariser=oakleaf.model("openai:m", client=_azure(server))
            )
            model = self.model(server)
            for number in range(4):
                await session.send(f"question {number} " + "word " * 200, model=model, limits=limits)

        with FakeProviders() as server, oakleaf.open("memory:") as store:
            session = store.start()
            asyncio.run(talk())
            compactions = [e.payload for e in session.path() if isinstance(e.payload, oakleaf.Compaction)]
            assert session.verify() == []
        assert len(server.bodies("openai")) == len(compactions) > 0
        assert len(server.bodies("anthropic")) == 4

    def test_second_event_loop_is_refused(self):
        with FakeProviders() as server, oakleaf.open("memory:") as store:
            session, model = store.start(), self.model(server)
            session.send_sync("hi", model=model)
            with pytest.raises(
                TurnFailed, match=r"was used on another event loop.*make a client object for each run"
            ):
                session.send_sync("hi", model=model).raise_for_status()
            assert session.resume_sync(model=self.model(server)).text == "ok"
        assert len(server.requests) == 2

    def test_window_is_that_of_the_model(self):
        assert window_by_name("openai:gpt-4o@client:AsyncAzureOpenAI") == 128_000

    def test_a_family_needs_no_prefix(self):
        with FakeProviders() as server:
            model = oakleaf.model("claude-some", client=_bedrock(server))
        assert (model.provider, model.model) == ("anthropic", "claude-some")


class TestRefusal:
    @pytest.mark.parametrize(
        ("name", "client"),
        [
            ("anthropic:m", anthropic.Anthropic(api_key=KEY)),
            (
                "anthropic:m",
                anthropic.AnthropicBedrock(aws_access_key="a", aws_secret_key="b", aws_region="c"),
            ),
            ("openai:m", openai.OpenAI(api_key=KEY)),
            ("openai-chat:m", openai.AzureOpenAI(azure_endpoint="http://x", api_key=KEY, api_version="v")),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_client_that_blocks_the_event_loop(self, name, client):
        with pytest.raises(ModelUnavailable, match="is not asynchronous; pass one like"):
            oakleaf.model(name, client=client)

    @pytest.mark.parametrize("name", ["anthropic:m", "openai:m", "openai-chat:m", "gemini:m"])
    @pytest.mark.parametrize("client", [None, "AsyncOpenAI", object()])
    def test_something_else(self, name, client):
        with pytest.raises(ModelUnavailable, match=r"does not answer it.*pass one like"):
            oakleaf.model(name, client=client)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("some-model", "no model with this name"),
            ("anthropic:m@http://127.0.0.1:1", "address of its own"),
            ("anthropic:m@client:AsyncAnthropic", "pass such an object"),
            ("scripted:file.yaml", "a script takes no client object"),
        ],
    )
    def test_name(self, name, words):
        with pytest.raises(ModelUnavailable, match=words):
            oakleaf.model(name, client=anthropic.AsyncAnthropic(api_key=KEY))

    def test_credentials_that_fail_are_an_error_of_the_model(self):
        client = anthropic.AsyncAnthropicVertex(
            region="us-east5",
            project_id="p",
            credentials=AnonymousCredentials(),
            base_url="http://127.0.0.1:1",
        )
        with pytest.raises(ModelError, match=r"Anonymous credentials cannot be refreshed"):
            run(listen(oakleaf.model("anthropic:m", client=client), request_of()))
