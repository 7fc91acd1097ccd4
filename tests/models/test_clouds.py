"""Vendors' models on clouds by name: the vendors' own client classes, with the environment's credentials."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec import Struct

import oakleaf
from oakleaf.core.messages import user
from oakleaf.core.usage import Usage
from oakleaf.errors import ModelUnavailable
from oakleaf.models.availability import available_models
from oakleaf.models.base import model_name
from oakleaf.models.names import model_by_name, stored_model
from oakleaf.models.prices import price
from oakleaf.models.windows import window_by_name
from support.fake_providers import Call, Completion, ErrorReply, FakeProviders
from support.model_calls import KEY, listen, request_of, run


class TokenServer(ThreadingHTTPServer):
    """Gives tokens to a service account of Google."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TokenAnswer)
        self.url = f"http://127.0.0.1:{self.server_port}/token"

    def __enter__(self) -> TokenServer:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class TokenAnswer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"access_token": "ya29.token", "expires_in": 3600, "token_type": "Bearer"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Cloud(Struct, frozen=True):
    """A name, the variables that lead to a server, and the request that arrives there."""

    name: str
    variables: Callable[[FakeProviders], dict[str, str]]
    path: str
    provider: str
    header: tuple[str, str]
    """The header with the credentials, and the begin of its value."""


CLOUDS = {
    "Bedrock": Cloud(
        "anthropic-bedrock:anthropic.claude-some-v1:0",
        lambda server: {
            "ANTHROPIC_BEDROCK_BASE_URL": server.url,
            "AWS_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
        },
        "/model/anthropic.claude-some-v1:0/invoke-with-response-stream",
        "anthropic",
        ("authorization", "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"),
    ),
    "Vertex": Cloud(
        "anthropic-vertex:claude-some@20260101",
        lambda server: {"ANTHROPIC_VERTEX_BASE_URL": server.url, "CLOUD_ML_REGION": "us-east5"},
        "/projects/p/locations/us-east5/publishers/anthropic/models/claude-some@20260101:streamRawPredict",
        "anthropic",
        ("authorization", "Bearer ya29.token"),
    ),
    "Azure": Cloud(
        "azure:my-deployment",
        lambda server: {
            "AZURE_OPENAI_ENDPOINT": server.url,
            "AZURE_OPENAI_API_KEY": KEY,
            "OPENAI_API_VERSION": "2026-01-01",
        },
        "/openai/responses?api-version=2026-01-01",
        "openai",
        ("api-key", KEY),
    ),
    "Gemini on Vertex": Cloud(
        "gemini-vertex:gemini-some",
        lambda server: {"GOOGLE_VERTEX_BASE_URL": server.url, "GOOGLE_CLOUD_LOCATION": "us-east5"},
        "/v1beta1/projects/p/locations/us-east5/publishers/google/models/gemini-some:streamGenerateContent?alt=sse",
        "gemini",
        ("authorization", "Bearer ya29.token"),
    ),
}
clouds = pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
VARIABLES = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "AWS_PROFILE",
    "AWS_DEFAULT_REGION",
    "AWS_BEARER_TOKEN_BEDROCK",
    "ANTHROPIC_VERTEX_PROJECT_ID",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
    "CLOUD_ML_REGION",
    "AZURE_OPENAI_AD_TOKEN",
    "AZURE_OPENAI_ENDPOINT",
    "AZURE_OPENAI_API_KEY",
    "OPENAI_API_VERSION",
]


@pytest.fixture(autouse=True)
def google_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A service account whose tokens come from a server of this machine."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with TokenServer() as tokens:
        account = {
            "type": "service_account",
            "project_id": "p",
            "client_email": "agent@p.iam.gserviceaccount.com",
            "private_key": key.decode(),
            "token_uri": tokens.url,
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        yield


def point(cloud: Cloud, server: FakeProviders, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cloud.variables(server).items():
        monkeypatch.setenv(name, value)


@clouds
class TestCall:
    def test_request_is_that_of_the_vendors_class(
        self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        completion = Completion("I look.", calls=(Call("a", "weather", '{"city": "Rome"}'),))
        with FakeProviders(completion) as server:
            point(cloud, server, monkeypatch)
            [model] = available_models([cloud.name])
            _, answer = run(listen(model, request_of(user("Is it raining?"))))
        [request] = server.requests
        assert (request.path, request.problems) == (cloud.path, [])
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert headers[cloud.header[0]].startswith(cloud.header[1])
        assert "Is it raining?" in json.dumps(request.body)
        assert answer.message.text == "I look."
        assert [call.arguments for call in answer.message.calls] == [{"city": "Rome"}]
        assert (answer.provider, model_name(model)) == (cloud.provider, cloud.name)

    def test_session_goes_on_by_its_stored_name(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each `send_sync` has an event loop of its own."""
        with (
            FakeProviders(Completion("One."), Completion("Two.")) as server,
            oakleaf.open("memory:") as store,
        ):
            point(cloud, server, monkeypatch)
            session = store.start()
            assert session.send_sync("hi", model=cloud.name, options={"max_tokens": 9}).text == "One."
            assert session.row.model == cloud.name
            model = stored_model(cloud.name, session.session_id)
            assert session.send_sync("and?", model=model).text == "Two."
            assert session.request() == session.request(cloud.provider)
            assert session.verify() == []
        assert len(server.requests) == 2

    def test_refused_credentials_name_their_source(
        self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FakeProviders(ErrorReply(401, f"no such key: {KEY}")) as server:
            point(cloud, server, monkeypatch)
            with pytest.raises(ModelUnavailable) as raised:
                run(listen(model_by_name(cloud.name), request_of()))
        assert "check " in str(raised.value)
        assert KEY not in str(raised.value) or cloud.name[:5] != "azure"


class TestRefusal:
    @clouds
    def test_a_name_has_no_address(self, cloud: Cloud) -> None:
        """The credentials of the environment go where the environment says."""
        with FakeProviders() as server:
            name = f"{cloud.name}@{server.url}"
            for find in (model_by_name, lambda name: stored_model(name, "s")):
                with pytest.raises(ModelUnavailable, match=r"address of a cloud.*set \w+"):
                    find(name)
        assert server.requests == []

    @clouds
    @pytest.mark.parametrize(
        "name",
        [
            "arn:aws:bedrock:us-east-1:123:inference-profile/x",
            "arn:aws:x",
            "projects/other/locations/l/endpoints/e",
            "../x",
            "m?x",
            "m%2F",
            "m\n",
        ],
    )
    @pytest.mark.attack
    def test_a_name_leads_to_no_other_account(self, cloud: Cloud, name: str) -> None:
        prefix = cloud.name.partition(":")[0]
        with pytest.raises(ModelUnavailable, match="pass a client object"):
            stored_model(f"{prefix}:{name}", "s")

    @pytest.mark.parametrize(
        ("name", "variable"),
        [
            ("anthropic-vertex:m", "CLOUD_ML_REGION"),
            ("azure:m", "AZURE_OPENAI_ENDPOINT"),
        ],
    )
    def test_a_missing_variable_is_named_before_the_call(self, name: str, variable: str) -> None:
        with pytest.raises(ModelUnavailable, match=f"set {variable} in the environment"):
            available_models([name])
        with pytest.raises(ModelUnavailable, match=f"set {variable} in the environment"):
            run(listen(model_by_name(name), request_of()))

    @pytest.mark.parametrize("name", ["anthropic-vertex:m", "gemini-vertex:m"])
    def test_missing_credentials_of_google(
        self, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("CLOUD_ML_REGION", "us-east5")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
        with pytest.raises(ModelUnavailable, match=r"absent.json.*gcloud auth"):
            run(listen(model_by_name(name), request_of()))


@pytest.mark.parametrize(
    "name",
    [
        "anthropic-bedrock:eu.anthropic.claude-sonnet-4-20250514-v1:0",
        "anthropic-vertex:claude-sonnet-4@20250514",
        "azure:gpt-4o",
        "gemini-vertex:gemini-2.5-flash",
    ],
)
def test_price_and_window_are_known(name: str) -> None:
    model = model_by_name(name)
    assert price(Usage(1_000, 10, 0, 0), model.provider, model.model) is not None
    assert (window_by_name(name) or 0) > 100_000
