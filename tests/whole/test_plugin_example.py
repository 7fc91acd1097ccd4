"""examples/plugin, a stranger's distribution, installed into a fresh environment and used by the commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, Tool

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv"]
CHAT = """\
{"from": "customer", "text": "Where is order 41?", "at": 1767225600}
{"from": "agent", "text": "It is lost.", "at": 1767225660}
{"from": "nobody"}
"""


class Environment:
    """A virtual environment with the library, the server, MCP and the example, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        self.run(*UV, "venv", "--quiet", "--python", sys.executable, "venv")
        plugins = (ROOT / "plugins/server", ROOT / "plugins/mcp")
        projects = (f"{ROOT}[cli]", *plugins, ROOT / "examples/plugin")
        self.pip("install", "-c", ROOT / "constraints.txt", *projects)

    def pip(self, verb: str, *arguments: str | Path) -> None:
        self.run(*UV, "pip", verb, "--quiet", "--python", self.bin / "python", *arguments)

    @property
    def variables(self) -> dict[str, str]:
        names = ("PYTHON", "OAKLEAF", "VIRTUAL")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        return inherited | {"OAKLEAF_CONFIG": os.devnull, "XDG_DATA_HOME": str(self.folder)}

    def run(self, *command: str | Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.variables | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-3000:])
        return done

    def oakleaf(self, *arguments: str, code: int = 0) -> str:
        done = self.run(self.bin / "oakleaf", *arguments, code=code)
        return done.stderr if code else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.oakleaf(*arguments, "--json"))

    @contextmanager
    def serving(self, store: str) -> Iterator[str]:
        """Serve a store; yield the server's address."""
        command = [self.bin / "oakleaf", "--store", store, "serve", "--port", "0", "--no-open"]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            assert server.stdout is not None
            try:
                found = (re.search(r"http://[\w.:]+", line) for line in server.stdout)
                yield next(address for address in found if address is not None)[0]
            finally:
                server.terminate()
                server.wait(30)


def read(address: str) -> str:
    with urlopen(address) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("stranger"))
    (environment.folder / "chats").mkdir()
    (environment.folder / "chats/first.acme").write_text(CHAT)
    return environment


def test_a_strangers_distribution_adds_what_it_says(environment: Environment) -> None:
    report = environment.json("plugins", "--check")
    assert report["problems"] == []
    (acme,) = [each for each in report["plugins"] if each["distribution"] == "acme-oakleaf"]
    assert acme["adds"] == {
        "exports": ["minutes"],
        "importers": ["acme"],
        "pages": ["wall"],
        "stores": ["jsonl"],
        "verbs": ["headlines"],
    }
    look = environment.oakleaf("help", "all").partition("\nLook:")[2].partition("\n\n")[0]
    assert re.search(r"headlines +Print the first words of the latest sessions\.", look)
    assert "acme: a folder of .acme files" in " ".join(environment.oakleaf("import", "--help").split())


@pytest.mark.parametrize("store", ["sessions.db", "jsonl://sessions.jsonl"])
def test_the_commands_use_importer_command_page_and_store(environment: Environment, store: str) -> None:
    imported = environment.json("--store", store, "import", "--from", "acme", "chats")
    (session,) = imported["imported"]
    assert (session["session_id"], session["entries"]) == ("acme-first", 2)
    assert list(session["losses"]) == ["a line that is no message"]
    assert environment.oakleaf("--store", store, "headlines") == "acme-first  Where is order 41?\n"
    (listed,) = environment.json("--store", store, "ls")["sessions"]
    assert (listed["id"], listed["agent"]) == ("acme-first", "acme-support")
    assert environment.json("--store", store, "verify")["problems"] == []
    assert "It is lost." in environment.oakleaf("--store", store, "show", "latest")
    assert "acme-first@2" in environment.oakleaf("--store", store, "search", "lost")
    minutes = "1. user: Where is order 41?\n2. assistant: It is lost.\n"
    assert environment.oakleaf("--store", store, "export", "latest", "--format", "minutes") == minutes
    with environment.serving(store) as address:
        assert json.loads(read(f"{address}/api/wall"))["headings"] == ["Where is order 41?"]
        (page,) = json.loads(read(f"{address}/api"))["pages"]
        assert (page["name"], page["title"]) == ("wall", "Wall")
        assert "p.wall-card" in read(f"{address}{page['script']}")
        (style,) = re.findall(r'rel="stylesheet" href="([^"]+)"', read(f"{address}/wall"))
        assert ".wall-card" in read(f"{address}{style}")


def test_a_verb_is_on_every_surface_by_being_registered(environment: Environment) -> None:
    flags = ("--store", "wide.db")
    environment.oakleaf(*flags, "import", "--from", "acme", "chats")
    expected = {
        "schema_version": 1,
        "headlines": [{"session": "acme-first", "words": "Where is order 41?"}],
    }
    refusal = "order='newest' is invalid; expected one of active, created"
    assert environment.json(*flags, "headlines", "--limit", "1") == expected
    assert refusal in environment.oakleaf(*flags, "headlines", "--order", "newest", code=2)
    assert "By which time they are the latest." in environment.oakleaf("headlines", "--help")
    with environment.serving("wide.db") as address:
        assert json.loads(read(f"{address}/api/headlines?limit=1")) == expected
        with pytest.raises(HTTPError) as refused:
            read(f"{address}/api/headlines?order=newest")
        assert json.loads(refused.value.read())["detail"] == refusal
        described = json.loads(read(f"{address}/openapi.json"))["paths"]["/api/headlines"]["get"]
        assert [one["name"] for one in described["parameters"]] == ["limit", "order"]
    tool, answered, wrong = over_mcp(environment, "wide.db")
    assert set(tool.input_schema["properties"]) == {"limit", "order"}
    assert answered.structured_content == expected
    assert refusal in str(wrong.content)


def over_mcp(environment: Environment, store: str) -> tuple[Tool, CallToolResult, CallToolResult]:
    """Return the tool `headlines` as a client sees it, and the answers to a right and to a wrong call."""
    words = ["--store", store, "mcp"]
    server = StdioServerParameters(
        command=str(environment.bin / "oakleaf"),
        args=words,
        env=environment.variables,
        cwd=str(environment.folder),
    )

    async def talk() -> tuple[Tool, CallToolResult, CallToolResult]:
        async with Client(server) as client:
            (tool,) = [one for one in (await client.list_tools()).tools if one.name == "headlines"]
            answered = await client.call_tool("headlines", {"limit": 1})
            return tool, answered, await client.call_tool("headlines", {"order": "newest"})

    return asyncio.run(talk())


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("headl", ["headlines"]), ("headlines --o", ["--order"]), ("headlines --order c", ["created"])],
)
def test_a_verb_is_completed(environment: Environment, typed: str, completed: list[str]) -> None:
    words = {"COMP_WORDS": f"oakleaf {typed}", "COMP_CWORD": str(typed.count(" ") + 1)}
    found = environment.run(environment.bin / "oakleaf", _OAKLEAF_COMPLETE="bash_complete", **words).stdout
    assert [line.partition(",")[2] for line in found.splitlines()] == completed


def test_a_store_of_a_stranger_keeps_turns_forks_and_the_trash(environment: Environment) -> None:
    """Two commands are two processes: what one wrote the other reads from the file."""
    flags = ("--store", "jsonl://turns.jsonl")
    (environment.folder / "script.json").write_text('["It is found."]')
    environment.oakleaf(*flags, "run", "--model", "scripted:script.json", "Where is order 42?")
    (row,) = environment.json(*flags, "ls")["sessions"]
    assert row["turns"] == 1
    environment.oakleaf(*flags, "fork", f"{row['id']}@1")
    assert len(environment.json(*flags, "ls")["sessions"]) == 2
    environment.oakleaf(*flags, "copy", "--all", "--to", "copied.db")
    environment.oakleaf(*flags, "rm", row["id"], "--yes")
    environment.oakleaf(*flags, "purge", row["id"], "--yes")
    for store in (flags, ("--store", "copied.db")):
        assert environment.json(*store, "verify")["problems"] == []
    assert "oakleaf --store jsonl://turns.jsonl copy --all" in environment.oakleaf(
        *flags, "backup", "b.db", code=2
    )


def test_without_the_distribution_its_names_are_unknown_in_words(environment: Environment) -> None:
    environment.oakleaf("--store", "left.db", "import", "--from", "acme", "chats")
    environment.pip("uninstall", "acme-oakleaf")
    try:
        assert "unknown command 'headlines'" in environment.oakleaf("headlines", code=2)
        refused = environment.oakleaf("--store", "jsonl://sessions.jsonl", "ls", code=2)
        assert "a path or memory: (no plugin adds a store)" in refused
        assert "acme" in environment.oakleaf("import", "--from", "acme", "chats", code=2)
        assert environment.json("plugins", "--check")["problems"] == []
        assert len(environment.json("--store", "left.db", "ls")["sessions"]) == 1
    finally:
        environment.pip("install", "--no-deps", ROOT / "examples/plugin")
