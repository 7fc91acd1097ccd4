"""What a model's name may do: an operator's names any address and any script, a stored one neither."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from oakleaf.core.context import Context, Item
from oakleaf.core.entries import Settings
from oakleaf.core.messages import user
from oakleaf.errors import ModelRefused, ModelUnavailable
from oakleaf.models.base import Model, Request
from oakleaf.models.names import address_of, model_by_name, stored_model
from support.fake_providers import ErrorReply, FakeProviders

KEY = "sk-very-secret-0123456789"
OWN_KEY = "own-key-of-this-server"
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
URLS = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
PROVIDERS = ("anthropic", "openai", "openai-chat", "gemini")
OTHERS = {
    "ANTHROPIC_AUTH_TOKEN": KEY,
    "ANTHROPIC_CUSTOM_HEADERS": f"X-Gateway: {KEY}\nAuthorization: Bearer {KEY}",
    "OPENAI_CUSTOM_HEADERS": f"X-Gateway: {KEY}",
    "OPENAI_ADMIN_KEY": KEY,
    "OPENAI_ORG_ID": KEY,
    "OPENAI_PROJECT_ID": KEY,
}
"""What the SDKs read from the environment beside the key."""

providers = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, *OTHERS):
        monkeypatch.setenv(name, OTHERS.get(name, KEY))
    for name in (*URLS, "OAKLEAF_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,0.0.0.0")


def ask(model: Model) -> None:
    request = Request(Context((), (Item(user("the history"), 1, 1),), Settings()), {}.get)

    async def listen() -> None:
        async for _ in model.stream(request):
            pass

    asyncio.run(listen())


def foreign(server: FakeProviders, provider: str) -> str:
    """Return the server's address in a form that is not a loopback address."""
    return server.url_for(provider).replace("127.0.0.1", "0.0.0.0")


def sent(server: FakeProviders) -> str:
    return " ".join(value for request in server.requests for value in request.headers.values())


@pytest.mark.attack
class TestStored:
    @providers
    def test_a_foreign_address_is_refused_before_anything_is_sent(self, provider: str) -> None:
        with FakeProviders() as server:
            name = f"{provider}:m@{foreign(server, provider)}"
            with pytest.raises(ModelRefused) as refused:
                ask(stored_model(name, "ses_x"))
            assert server.requests == []
        text = refused.value.command_text
        assert all(
            word in text
            for word in (foreign(server, provider), "ses_x", "--model", "OAKLEAF_SERVERS=", "was not asked")
        )

    @pytest.mark.extra
    @providers
    def test_a_loopback_address_gets_no_key(self, provider: str) -> None:
        with FakeProviders() as server:
            ask(stored_model(f"{provider}:m@{server.url_for(provider)}", "ses_x"))
            assert len(server.requests) == 1
            assert KEY not in sent(server)

    @pytest.mark.extra
    @providers
    def test_a_listed_address_gets_the_own_key_only(
        self, provider: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FakeProviders() as server:
            address = foreign(server, provider)
            monkeypatch.setenv("OWN", OWN_KEY)
            monkeypatch.setenv("OAKLEAF_SERVERS", f"http://other.example/v1\n {address}/=OWN")
            ask(stored_model(f"{provider}:m@{address}", "ses_x"))
            ask(model_by_name(f"{provider}:m@{address}"))
            assert len(server.requests) == 2
            assert (KEY in sent(server), sent(server).count(OWN_KEY)) == (False, 2)

    @pytest.mark.extra
    @providers
    def test_a_listed_address_without_a_key_gets_none(
        self, provider: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FakeProviders() as server:
            monkeypatch.setenv("OAKLEAF_SERVERS", foreign(server, provider))
            ask(stored_model(f"{provider}:m@{foreign(server, provider)}", "ses_x"))
            assert (len(server.requests), KEY in sent(server)) == (1, False)

    @pytest.mark.parametrize(
        "address",
        [
            "http://127.0.0.1@evil.example/v1",
            "http://evil.example\\@127.0.0.1/v1",
            "http://127.0.0.1.evil.example/v1",
            "http://localhost.evil.example/v1",
            "http://127.1/v1",
            "http://[::ffff:6.6.6.6]/v1",
            "http://127.0.0.1:80?x=/v1",
            "http://127.0.0.1:80#/v1",
            "http://127.0.0.1/v1 http://evil.example",
            "http://localhost@http://evil.example",
            "http://127.0.0.1/v1\n",
        ],
    )
    def test_lookalikes_of_loopback_are_foreign(self, address: str) -> None:
        with pytest.raises(ModelRefused):
            stored_model(f"openai-chat:m@{address}", "ses_x")

    @pytest.mark.parametrize("path", ["/etc/passwd", "/dev/zero", "script.json"])
    def test_a_script_is_never_read(self, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "script.json").write_text('["Hi."]')
        with pytest.raises(ModelRefused, match=r"ses_x names a script.*pass the model yourself"):
            stored_model(f"scripted:{path}", "ses_x")


class TestStoredAndConfigured:
    @pytest.mark.extra
    @providers
    def test_a_name_without_an_address_is_the_vendors(
        self, provider: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FakeProviders() as server:
            for name in URLS:
                monkeypatch.setenv(name, server.url_for(provider))
            ask(stored_model(f"{provider}:m", "ses_x"))
            ask(stored_model(f"{provider}:m@{server.url_for(provider)}", "ses_x"))
            assert sent(server).count(KEY) >= 2

    @pytest.mark.extra
    @providers
    def test_an_operators_address_gets_the_environments_key(self, provider: str) -> None:
        with FakeProviders() as server:
            ask(model_by_name(f"{provider}:m@{foreign(server, provider)}"))
            assert KEY in sent(server)

    def test_a_list_that_cannot_be_read_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OAKLEAF_SERVERS", "gpu:8000")
        with pytest.raises(
            ModelUnavailable, match=r"\$OAKLEAF_SERVERS cannot be read at 'gpu:8000'; write http://"
        ):
            stored_model("openai-chat:m@http://gpu:8000/v1", "ses_x")

    @pytest.mark.extra
    def test_a_missing_key_of_a_listed_address_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OAKLEAF_SERVERS", "http://gpu:8000/v1=GPU_KEY")
        assert "GPU_KEY" not in os.environ
        with pytest.raises(ModelUnavailable, match="set GPU_KEY in the environment"):
            ask(stored_model("openai-chat:m@http://gpu:8000/v1", "ses_x"))

    @pytest.mark.extra
    def test_a_refused_key_of_a_listed_address_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with FakeProviders(ErrorReply(401)) as server:
            address = server.url_for("openai-chat")
            monkeypatch.setenv("OAKLEAF_SERVERS", address)
            with pytest.raises(ModelUnavailable, match=f"OAKLEAF_SERVERS={address}=VARIABLE"):
                ask(stored_model(f"openai-chat:m@{address}", "ses_x"))

    @pytest.mark.parametrize(
        ("name", "address"),
        [
            ("openai-chat:m@http://h/v1", "http://h/v1"),
            ("openai:m", None),
            ("anthropic:m@2025", None),
            ("scripted:a@http://h", None),
            ("my model@http://h", None),
        ],
    )
    def test_the_address_in_a_name(self, name: str, address: str | None) -> None:
        assert address_of(name) == address
