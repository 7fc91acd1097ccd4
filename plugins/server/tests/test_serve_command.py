"""`oakleaf serve`: what its flags say, and what is said where the plugin is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf.cli.terminal import AgentOptions, read_options
from oakleaf.core.entries import Settings
from oakleaf.install import install_line
from oakleaf_server.commands import _agent
from support import workspace_plugin
from support.terminal import oakleaf
from support.without_posix import WITHOUT_POSIX

NO_KEYS = {"ANTHROPIC_API_KEY": "", "ANTHROPIC_BASE_URL": ""}


class TestFlags:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("--offer nonsense", "--offer nonsense: there is no model with this name"),
            ("--offer anthropic:x", "set ANTHROPIC_API_KEY"),
            ("--client-token ann", "write OWNER=SECRET"),
            ("--person ann=", "write NAME=SECRET"),
            ("--set limits.turns=3", "need --model"),
            ("--grace soon", "grace='soon' is invalid"),
        ],
    )
    def test_a_flag_that_cannot_be_used_is_named(self, store_path: Path, line: str, words: str) -> None:
        result = oakleaf("serve", *line.split(), store=store_path, **NO_KEYS)
        assert (result.code, words in result.err) == (2, True)

    def test_a_host_that_is_not_ours_is_not_called_a_port(self, store_path: Path) -> None:
        result = oakleaf("serve", "--host", "192.0.2.1", "--token", "a secret", store=store_path)
        assert (result.code, "--host" in result.err, "--port" in result.err) == (2, True, False)

    def test_a_server_answers_with_the_configured_defaults(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workspace_plugin.use(monkeypatch)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OAKLEAF_CONFIG", str(tmp_path / "config.toml"))
        monkeypatch.delenv("OAKLEAF_MODEL", raising=False)
        (tmp_path / "one.json").write_text(json.dumps(["One."]))
        lines = '[chat]\nmax_turns = 7\nallowed_commands = ["git"]\nfs_scope = "project"\n'
        (tmp_path / "config.toml").write_text(lines)
        agent = _agent(
            read_options(models=["scripted:one.json"], changes=["workspace.dir=.", "limits.rounds=3"]), ()
        )
        assert (agent.limits_of(Settings()).turns, agent.limits_of(Settings()).rounds, agent.commands) == (
            7,
            3,
            ("git",),
        )
        assert agent.workspace is not None
        assert agent.workspace.fs_scope_tier == "project"
        assert agent.limits_of(Settings(limits={"turns": 9})).turns == 0  # the session's own
        assert _agent(AgentOptions(), ()).limits_of(Settings()).turns == 7


class TestAgentFile:
    FILE = 'model = "scripted:one.json"\ntools = ["shop.py"]\napproval = ["look", "read_file"]\n[workspace]\ndir = "."\n'
    SHOP = "import oakleaf\n@oakleaf.tool\ndef look() -> str:\n    'Look.'\n    return 'x'\n"

    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        workspace_plugin.use(monkeypatch)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "one.json").write_text(json.dumps(["One."]))
        (tmp_path / "shop.py").write_text(self.SHOP)
        (tmp_path / "support.toml").write_text(self.FILE)
        return "support.toml"

    def test_a_server_answers_with_its_model_tools_and_approvals(self, file: str) -> None:
        agent = _agent(read_options(agent=file, changes=["limits.rounds=3"]), ())
        assert (agent.model_names, agent.limits_of(Settings()).rounds) == (["scripted:one.json"], 3)
        with library.open("memory:") as store:
            tools = {tool.name: tool.approval for tool in agent.tools_of(store.start())}
        assert tools == {"look": True, "read_file": True}

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            ("--agent support", "name an agent file"),
            ("--set prompt=x", "the request says it"),
            ("--set trigger=x", "the request says it"),
            ("--set context.git_ref=x", "the request says it"),
        ],
    )
    def test_what_a_request_says_is_refused(self, store_path: Path, words: str, why: str) -> None:
        refused = oakleaf("serve", *words.split(), store=store_path)
        assert (refused.code, why in refused.err) == (2, True), refused.err


class TestPlugin:
    def test_the_command_stands_in_the_help(self) -> None:
        assert "Serve the API and the viewer over HTTP." in oakleaf("help", "all").out

    def test_a_missing_plugin_is_named_with_its_install_line(self, tmp_path: Path) -> None:
        for package in Path(sysconfig.get_path("purelib")).iterdir():
            if not package.name.startswith("oakleaf_server"):
                (tmp_path / package.name).symlink_to(package)
        paths = [tmp_path, *(path for path in sys.path if path and not path.endswith("site-packages"))]
        script = (
            "import sys; from oakleaf.cli.main import outcome; sys.exit(outcome(['serve', '--port', '0']))"
        )
        done = subprocess.run(
            [sys.executable, "-S", "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "no installed plugin adds the verb 'serve'" in done.stderr
        assert install_line("server") in done.stderr

    def test_the_server_needs_nothing_that_only_posix_has(self) -> None:
        script = WITHOUT_POSIX + "import oakleaf_server.commands, oakleaf_server.app\nprint('sound')\n"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr[-3000:]
