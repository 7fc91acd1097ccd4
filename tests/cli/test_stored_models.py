"""The model that a stored session names: a stranger's bundle sends no key and no history anywhere, and reads no file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import user
from support.fake_providers import FakeProviders
from support.terminal import oakleaf

KEY = "sk-very-secret-0123456789"
ENVIRONMENT = {
    "ANTHROPIC_API_KEY": KEY,
    "OPENAI_API_KEY": KEY,
    "GEMINI_API_KEY": KEY,
    "NO_PROXY": "0.0.0.0,127.0.0.1",
}
COMMANDS = [
    ["run", "--resume", "ses_evil", "go on"],
    ["run", "--copy", "ses_evil", "go on"],
    ["run", "--overwrite", "ses_evil", "--from-point", "2", "go on"],
    ["resume", "ses_evil"],
    ["chat", "--resume", "ses_evil"],
    ["replay", "ses_evil", "--prompt", "Be brief."],
]
PROVIDERS = ("anthropic", "openai", "openai-chat", "gemini")


@pytest.fixture
def stranger() -> Iterator[FakeProviders]:
    """A server at an address that is not a loopback address by its name."""
    with FakeProviders() as server:
        yield server


def address(server: FakeProviders, provider: str = "openai-chat") -> str:
    return server.url_for(provider).replace("127.0.0.1", "0.0.0.0")


def write_bundle(home: Path, model: str, *, where: str = "row") -> None:
    """Write the bundle of a session with an unanswered input, which names a model in its row, a setting or its spec."""
    with library.open("memory:") as store:
        named = {"row": {"model": model}, "spec": {"model": model, "spec": {"models": [model, model]}}}
        session = store.start(session_id="ses_evil", **named.get(where, {"model": "anthropic:m"}))
        session.append([user("the history"), library.assistant("Yes.")])
        if where == "setting":
            session.set(model=model)
        session.append([user("and then?")])
        session.export(home / "evil.oakleaf")


def run(home: Path, *words: str, **environment: str) -> tuple[int, str]:
    done = oakleaf(*words, home=home, **{**ENVIRONMENT, **environment})
    return done.returncode, done.stderr


@pytest.mark.attack
class TestOfABundle:
    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_resume_sends_nothing_to_its_address(
        self, tmp_path: Path, stranger: FakeProviders, provider: str
    ) -> None:
        write_bundle(tmp_path, f"{provider}:m@{address(stranger, provider)}")
        run(tmp_path, "import", "evil.oakleaf")
        code, text = run(tmp_path, "resume", "ses_evil")
        assert stranger.requests == []
        assert code == 2
        assert all(
            word in text for word in (address(stranger, provider), "ses_evil", "--model", "OAKLEAF_SERVERS")
        )

    @pytest.mark.parametrize("where", ["row", "setting", "spec"])
    def test_no_command_sends_anything(self, tmp_path: Path, stranger: FakeProviders, where: str) -> None:
        write_bundle(tmp_path, f"openai-chat:m@{address(stranger)}", where=where)
        run(tmp_path, "import", "evil.oakleaf")
        for words in COMMANDS:
            code, text = run(tmp_path, *words)
            assert (code != 0, stranger.requests) == (True, []), text
            assert "was not asked: its address" in text, words

    @pytest.mark.parametrize("where", ["row", "setting", "spec"])
    def test_import_names_its_foreign_addresses(self, tmp_path: Path, where: str) -> None:
        write_bundle(tmp_path, "openai-chat:m@http://evil.example/\x1b[2Jv1", where=where)
        code, text = run(tmp_path, "import", "evil.oakleaf")
        assert (code, "names models at http://evil.example/" in text) == (0, True), text
        assert ("\x1b[2J" in text, "OAKLEAF_SERVERS" in text) == (False, True)
        done = oakleaf("import", "evil.oakleaf", "--json", home=tmp_path)
        assert json.loads(done.stdout)["imported"][0]["foreign_addresses"] == [
            "http://evil.example/\x1b[2Jv1"
        ]

    def test_import_names_the_foreign_addresses_of_other_tools(self, tmp_path: Path) -> None:
        lines = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes", "model": "openai-chat:m@http://evil.example/v1"},
        ]
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
        code, text = run(tmp_path, "import", "--from", "chat", "log.jsonl")
        assert (code, "names models at http://evil.example/v1" in text) == (0, True), text

    @pytest.mark.parametrize("address", ["http://127.0.0.1:8080/v1", "http://gpu.example/v1"])
    def test_import_is_silent_about_an_address_that_is_allowed(self, tmp_path: Path, address: str) -> None:
        write_bundle(tmp_path, f"openai-chat:m@{address}")
        _, text = run(tmp_path, "import", "evil.oakleaf", OAKLEAF_SERVERS="http://gpu.example/v1")
        assert "names models" not in text

    def test_a_script_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "script.json").write_text(json.dumps(["One.", "Two."]))
        write_bundle(tmp_path, "scripted:script.json")
        run(tmp_path, "import", "evil.oakleaf")
        code, text = run(tmp_path, "resume", "ses_evil")
        assert (code, "--model scripted:script.json" in text) == (2, True)

    def test_a_fallback_of_its_chain_is_refused_too(self, tmp_path: Path, stranger: FakeProviders) -> None:
        with FakeProviders() as own, library.open("memory:") as store:
            first, second = f"openai:m@{own.url_for('openai')}", f"openai:m@{address(stranger, 'openai')}"
            session = store.start(session_id="ses_evil", model=first, spec={"models": [first, second]})
            session.append([user("the history")])
            session.export(tmp_path / "evil.oakleaf")
            run(tmp_path, "import", "evil.oakleaf")
            code, _ = run(tmp_path, "resume", "ses_evil")
            assert (code, own.requests, stranger.requests) == (2, [], [])


class TestOfOnesOwn:
    def start(self, home: Path, server: FakeProviders, name: str) -> None:
        with library.open(home / "agent.db") as store:
            store.start(session_id="ses_own", model=name).append([user("hi")])

    def test_a_loopback_server_answers_without_a_key(self, tmp_path: Path) -> None:
        with FakeProviders() as server:
            self.start(tmp_path, server, f"openai-chat:m@{server.url_for('openai-chat')}")
            code, text = run(tmp_path, "resume", "ses_own")
            assert (code, len(server.requests)) == (0, 1), text
            assert KEY not in str(server.requests)
            assert f"the session names its model: openai-chat:m@{server.url}" in text

    @pytest.mark.parametrize("how", ["flag", "list", "alias", "environment"])
    def test_another_address_is_allowed_on_purpose(
        self, tmp_path: Path, stranger: FakeProviders, how: str
    ) -> None:
        name = f"openai-chat:m@{address(stranger)}"
        self.start(tmp_path, stranger, name)
        environment = {"list": {"OAKLEAF_SERVERS": address(stranger)}, "environment": {"OAKLEAF_MODEL": name}}
        (tmp_path / "config.toml").write_text(f'[aliases]\ngpu = "{name}"\n' if how == "alias" else "")
        code, text = run(
            tmp_path,
            "resume",
            "ses_own",
            *(["--model", name] if how == "flag" else []),
            OAKLEAF_CONFIG=str(tmp_path / "config.toml"),
            **environment.get(how, {}),
        )
        assert (code, len(stranger.requests)) == (0, 1), text
        assert (KEY in str(stranger.requests)) == (how != "list")

    def test_a_hint_names_the_model_that_must_be_named_again(self, tmp_path: Path) -> None:
        (tmp_path / "script.json").write_text(json.dumps([]))
        _, text = run(tmp_path, "run", "hi", "--model", "scripted:script.json")
        assert "--model scripted:script.json" in text


@pytest.mark.extra
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_client_object_is_asked_for(command: list[str], tmp_path: Path) -> None:
    """The default model is no stand-in for a client object of another program."""
    write_bundle(tmp_path, "anthropic:m@client:AsyncAnthropicBedrock")
    assert run(tmp_path, "import", "evil.oakleaf")[0] == 0
    with FakeProviders() as server:
        environment = {"OAKLEAF_MODEL": "anthropic:other", "ANTHROPIC_BASE_URL": server.url}
        code, error = run(tmp_path, *command, **environment)
    assert (code, server.requests) == (2, [])
    assert "@client:AsyncAnthropicBedrock" in error
    assert "model" in error.partition("@client:AsyncAnthropicBedrock")[2]
