"""The key `mcp.servers`, through the real entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import oakleaf as library
import oakleaf_mcp
from oakleaf.cli.mcp_servers import load_servers
from oakleaf.cli.rendering.error_text import CommandError
from support.paths import ROOT
from support.processes import dies, wait_until
from support.terminal import OAKLEAF, Terminal, environment, oakleaf

SERVER = f"{sys.executable} -S {ROOT / 'tests/support/mcp_stdio_server.py'}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.yaml").write_text("- calls: [{name: t_echo, arguments: {text: hello}}]\n- done\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def has_open_call(path: Path) -> bool:
    if not path.exists():
        return False
    with library.open(path) as store:
        session = store.latest()
        return session is not None and bool(session.open_tool_calls)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--token", "8"), "--token needs --http"),
        (("--http", "8379"), "write it like 127.0.0.1:8379"),
        (("--http", "localhost:99999"), "write it like 127.0.0.1:8379"),
    ],
)
def test_no_address_and_a_token_without_one_are_refused(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    refused = oakleaf("mcp", *words, store=tmp_path / "s.db")
    assert (refused.code, problem in refused.err) == (2, True)


class TestRun:
    def test_a_named_server_has_its_tools_called_by_that_name(self, folder: Path) -> None:
        done = oakleaf(
            "--store",
            "s.db",
            "run",
            "go",
            "--model",
            "scripted:model.yaml",
            "--set",
            f"mcp.servers=t={SERVER}",
            home=folder,
        )
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        assert "t_echo" in done.stderr
        with library.open(folder / "s.db") as store:
            row = store.sessions().sessions[0]
            assert "t_echo" in row.tool_names
            assert "t_dotted_name" in row.tool_names

    @pytest.mark.parametrize("servers", ["servers = ['t={}']", "[mcp.servers]\nt = '{}'"])
    def test_an_agent_file_names_servers_and_the_calls_that_wait(self, folder: Path, servers: str) -> None:
        text = f"model = 'scripted:model.yaml'\napproval = ['t_echo']\n[mcp]\n{servers.format(SERVER)}\n"
        (folder / "agent.toml").write_text(text)
        run = ("--store", "s.db", "run", "go", "--agent", "agent.toml")
        waits = oakleaf(*run, home=folder)
        assert (waits.returncode, "waiting for approval: t_echo" in waits.stderr) == (1, True), waits.stderr
        unknown = oakleaf(*run, "--set", "approval=t_nothing", home=folder)
        assert (unknown.returncode, "approval names t_nothing" in unknown.stderr) == (2, True)
        every = oakleaf(*run, "--set", "approval=null", "--set", "mcp.approve=true", home=folder)
        assert (every.returncode, "waiting for approval: t_echo" in every.stderr) == (1, True)
        assert oakleaf(*run, "--set", "approval=null", home=folder).stdout == "done\n"

    def test_a_private_address_is_refused_with_the_file_that_allows_it(self, folder: Path) -> None:
        """The hint named an argument of the Python API."""
        run = ["--store", "s.db", "run", "go", "--model", "scripted:model.yaml", "--set"]
        refused = oakleaf(*run, "mcp.servers=http://127.0.0.2:9/mcp", home=folder)
        assert refused.code == 2
        assert '"hosts"' in refused.err
        assert "hosts=[" not in refused.err
        server = {"url": "http://127.0.0.2:9/mcp", "hosts": ["127.0.0.2:9"]}
        (folder / "servers.json").write_text(json.dumps({"mcpServers": {"t": server}}))
        assert "check that it runs there" in oakleaf(*run, "mcp.servers=servers.json", home=folder).err

    def test_a_script_that_is_named_like_the_package_is_told(self, folder: Path) -> None:
        """It was imported as the package: "mcp.server is not installed", or a script that waits for its client."""
        (folder / "mcp.py").write_text("import sys\nsys.stdin.read()\n")
        (folder / "shop.py").write_text(
            "import oakleaf\n@oakleaf.tool\ndef look() -> str:\n    'Look.'\n    return 'x'\n"
        )
        words = ("--store", "s.db", "run", "go", "--model", "scripted:model.yaml", "--set", "tools=shop.py")
        # A process of its own: this one has imported the package.
        command = [*OAKLEAF, *words, "--set", f"mcp.servers={SERVER}"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(folder), timeout=60)
        assert done.returncode == 2
        assert f"{folder / 'mcp.py'} hides the package mcp; rename that file" in done.stderr

    def test_a_server_that_does_not_start_leaves_no_session(self, folder: Path) -> None:
        words = ("--store", "s.db", "run", "go", "--model", "scripted:model.yaml")
        done = oakleaf(*words, "--set", "mcp.servers=no-such-program", home=folder)
        assert done.returncode == 2
        assert "there is no program 'no-such-program'; install it" in done.stderr
        done = oakleaf(
            *words, "--set", f"mcp.servers={SERVER}", "--set", f"mcp.servers={SERVER} --stubborn", home=folder
        )
        assert done.returncode == 2
        assert "two tools are named echo" in done.stderr
        assert "--set mcp.servers='b=COMMAND' names them b_…" in done.stderr
        assert oakleaf("--store", "s.db", "ls", "--json", home=folder).stdout.count("ses_") == 0

    def test_ctrl_c_ends_the_server_with_the_turn(self, folder: Path) -> None:
        (folder / "model.yaml").write_text("- calls: [{name: hang, arguments: {}}]\n- done\n")
        pids = folder / "pids"
        words = (
            "run",
            "go",
            "--model",
            "scripted:model.yaml",
            "--set",
            f"mcp.servers={SERVER} --stubborn --pids {pids}",
        )
        with Terminal(*words, home=folder) as terminal:
            wait_until(lambda: has_open_call(folder / "agent.db"))
            terminal.type("\x03")
            assert terminal.wait() == 130
        assert all(dies(int(pid)) for pid in pids.read_text().split())


class TestFile:
    """The servers of a JSON file, as other programs keep them."""

    def load(self, folder: Path, **servers: object) -> list[oakleaf_mcp.McpServer]:
        (folder / "s.json").write_text(json.dumps({"mcpServers": servers}))
        return load_servers([str(folder / "s.json")])

    def test_variables_are_replaced_from_the_environment(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GITHUB_TOKEN", "abc")
        (server,) = self.load(
            folder,
            hub={
                "type": "stdio",
                "command": "npx",
                "args": ["-y", "${NAME:-hub}"],
                "env": {"TOKEN": "${GITHUB_TOKEN}"},
                "prefix": "h_",
                "approval": ["rm"],
            },
            off={"command": "x", "disabled": True},
        )
        assert (server.argv, dict(server.env), server.prefix) == (
            ("npx", "-y", "hub"),
            {"TOKEN": "abc"},
            "h_",
        )
        assert server.needs_approval("rm")
        assert not server.needs_approval("ls")

    def test_an_address_has_headers(self, folder: Path) -> None:
        (server,) = self.load(
            folder, docs={"url": "https://example.com/mcp", "headers": {"a": "b"}, "trust": True}
        )
        assert (server.url, dict(server.headers), server.trust) == (
            "https://example.com/mcp",
            {"a": "b"},
            True,
        )

    def test_what_is_wrong_is_named(self, folder: Path) -> None:
        for entry, reason in (
            ({"command": "x", "url": "http://y"}, "needs either command or url"),
            ({"command": "x", "env": {"A": "${NO_SUCH_VARIABLE}"}}, "NO_SUCH_VARIABLE is not set"),
            ({"command": 1}, "Expected `str"),
        ):
            with pytest.raises(CommandError, match=reason):
                self.load(folder, x=entry)
        with pytest.raises(CommandError, match=r"need mcp\.servers"):
            load_servers([], trust=True)
