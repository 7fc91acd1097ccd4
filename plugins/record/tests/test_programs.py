"""Programs that people record, as npm and PyPI have them: recorded they print what they print without, and their session is right.

They are installed and run in the long form of the tests alone (`make soak`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf_record.recipes import find_recipe
from oakleaf_record.upstreams import child_environment, find_upstreams
from support.fake_providers import Completion, FakeProviders
from support.soak import SOAK
from support.terminal import OAKLEAF

NPM = (
    "@openai/codex@0.169.0",
    "@anthropic-ai/claude-code@2.1.197",
    "@google/gemini-cli@0.61.0",
    "opencode-ai@1.18.33",
)
PYPI = ("aider-chat==0.86.2", "llm==0.36")
PROMPT = "Say hello to Ada."
ANSWER = "Hello, Ada."
AIDER = ("aider", "--no-check-update", "--no-git", "--yes", "--no-pretty", "--message", PROMPT)
COMMANDS = [
    ("codex", "exec", "--skip-git-repo-check", PROMPT),
    ("claude", "-p", PROMPT),
    ("gemini", "--skip-trust", "-p", PROMPT),
    ("opencode", "run", "-m", "anthropic/claude-sonnet-4-5", PROMPT),
    ("opencode", "run", "-m", "openai/gpt-4o", PROMPT),
    ("opencode", "run", "-m", "google/gemini-2.5-flash", PROMPT),
    (*AIDER, "--model", "openai/gpt-4o"),
    (*AIDER, "--model", "anthropic/claude-sonnet-4-5"),
    (*AIDER, "--model", "gemini/gemini-2.5-flash"),
    ("llm", "-m", "gpt-4o-mini", PROMPT),
]
KEYS = (
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENERATIVE_AI_API_KEY",
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs. Each Python program has its own environment: they pin the same packages."""
    folder = tmp_path_factory.mktemp("programs")
    subprocess.run(["npm", "install", "--no-save", "--prefix", folder, *NPM], check=True)
    binaries = folder / "node_modules" / ".bin"
    for requirement in PYPI:
        environment = folder / requirement.partition("==")[0]
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin" / "pip", "install", "--quiet", requirement], check=True)
        name = requirement.partition("-chat")[0].partition("==")[0]
        (binaries / name).symlink_to(environment / "bin" / name)
    return binaries


def environment_of(home: Path, programs: Path) -> dict[str, str]:
    (home / ".gemini").mkdir(parents=True)
    (home / ".gemini" / "settings.json").write_text(
        '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
    )
    (home / ".codex").mkdir()
    kept = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb"}
    return kept | dict.fromkeys(KEYS, "sk-the-key-of-the-program") | {"DISABLE_AUTOUPDATER": "1"}


def run(command: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def steady(output: str) -> str:
    """Return output without the addresses of objects, which aider prints when it has no network."""
    return re.sub(r"0x[0-9a-f]+", "0x", output)


@pytest.mark.skipif(not SOAK, reason="the programs are installed in the long form of the tests, make soak")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:4]))
def test_a_program_prints_the_same_and_has_its_session(
    programs: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with FakeProviders(*[Completion(ANSWER)] * 20, judges=False) as fake:
        environment = environment_of(tmp_path / "direct", programs)
        words, variables = find_recipe(command).apply(
            command, child_environment(environment, fake.url, find_upstreams({})), fake.url
        )
        direct = run(words, variables)
    with FakeProviders(*[Completion(ANSWER)] * 20, judges=False) as fake:
        environment = environment_of(tmp_path / "recorded", programs)
        urls = (f"openai={fake.url}/v1", f"anthropic={fake.url}", f"gemini={fake.url}")
        options = [word for url in urls for word in ("--upstream", url)]
        store = str(tmp_path / "agent.db")
        recorded = run((*OAKLEAF, "--store", store, "record", *options, "--", *command), environment)
        calls = len(fake.requests)
    assert (recorded.returncode, steady(recorded.stdout)) == (direct.returncode, steady(direct.stdout))
    assert ANSWER in recorded.stdout
    with library.open(store) as opened:
        sessions = [opened.session(row.session_id) for row in opened.sessions().sessions]
        assert sum(session.usage().calls for session in sessions) == calls
        paths = [[entry.message for entry in session.path() if entry.message] for session in sessions]
        asked = [path for path in paths if any(PROMPT in message.text for message in path)]
        assert {(path[-1].role, path[-1].text) for path in asked} == {("assistant", ANSWER)}
        assert not list(opened.verify())
