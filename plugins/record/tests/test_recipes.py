"""Each program that a recipe names: its files are read, and what keeps its calls from the proxy is said before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oakleaf_record.recipes import find_recipe
from oakleaf_record.upstreams import find_upstreams
from support.fake_providers import Completion, FakeProviders
from support.terminal import oakleaf

OBSTACLES = [
    ("codex", ".codex/config.toml", 'model_provider = "azure"', "model_provider=azure"),
    ("gemini", ".gemini/settings.json", '{"security": {"auth": {"selectedType": "oauth-personal"}}}', "oauth-personal"),
    ("claude", ".claude/settings.json", '{"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}', "CLAUDE_CODE_USE_BEDROCK=1"),
    ("opencode", ".config/opencode/opencode.jsonc", '{"a": {"baseURL": "x"}} // mine', "opencode.jsonc"),
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(("program", "file", "text", "said"), OBSTACLES)
def test_a_way_past_the_proxy_is_named(home: Path, program: str, file: str, text: str, said: str) -> None:
    recipe = find_recipe((program,))
    assert recipe.obstacle({}) is None
    write(home / file, text)
    assert said in str(recipe.obstacle({}))
    for damaged in ("", "{", "[]", "\x00\xff"):
        write(home / file, damaged)
        assert recipe.obstacle({}) is None


@pytest.mark.parametrize(
    ("program", "file", "text", "name"),
    [
        ("codex", ".codex/config.toml", 'openai_base_url = "https://gateway.example/v1"', "openai"),
        ("claude", ".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "https://gateway.example/v1"}}', "anthropic"),
    ],
)  # fmt: skip
def test_the_address_in_a_programs_file_stays_its_upstream(
    home: Path, program: str, file: str, text: str, name: str
) -> None:
    """A key of a gateway would be sent to the vendor."""
    write(home / file, text)
    urls = {up.name: up.url for up in find_upstreams(find_recipe((program,)).settings({}))}
    assert urls[name] == "https://gateway.example/v1"


def test_a_program_gets_its_arguments_and_variables(home: Path) -> None:
    command, variables = find_recipe(("/opt/codex", "exec", "hi")).apply(
        ("/opt/codex", "exec", "hi"), {}, "http://127.0.0.1:1"
    )
    assert command == ("/opt/codex", "-c", 'openai_base_url="http://127.0.0.1:1/openai/v1"', "exec", "hi")
    assert variables == {}
    own = {"GEMINI_API_BASE": "https://gateway.example"}
    assert find_recipe(("aider",)).apply(("aider",), own, "http://127.0.0.1:1") == (("aider",), own)


CODEX = f"""#!{sys.executable}
import json, sys, urllib.request
url = sys.argv[2].partition("=")[2].strip('"')
body = json.dumps({{"model": "m", "stream": True, "input": sys.argv[3]}}).encode()
print(len(urllib.request.urlopen(urllib.request.Request(url + "/responses", body)).read()) > 0)
"""


def test_a_program_of_a_recipe_is_recorded_or_told_why_not(tmp_path: Path) -> None:
    (tmp_path / "codex").write_text(CODEX)
    (tmp_path / "codex").chmod(0o755)
    with FakeProviders(Completion("hello"), judges=False) as fake:
        arguments = ("record", "--upstream", f"openai={fake.url}/v1", "--", str(tmp_path / "codex"), "hi")
        variables = {"CODEX_HOME": str(tmp_path / ".codex")}
        ran = oakleaf(*arguments, home=tmp_path, **variables)
        write(tmp_path / ".codex/config.toml", 'model_provider = "azure"')
        told = oakleaf(*arguments, home=tmp_path, **variables)
    assert (ran.out, "1 call in 1 session" in ran.err) == ("True\n", True), ran.err
    assert "codex calls its model by another way, which is not recorded: model_provider=azure" in told.err
