"""`oakleaf serve`: what its flags say, and what is said where the plugin is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from oakleaf.cli.terminal import AgentOptions
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
            ("--client-token ann", "write OWNER=TOKEN"),
            ("--max-turns 3", "need --model"),
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
        agent = _agent(AgentOptions(models=("scripted:one.json",), workspace=".", max_rounds=3), ())
        assert (agent.limits_of(Settings()).turns, agent.limits_of(Settings()).rounds, agent.commands) == (
            7,
            3,
            ("git",),
        )
        assert agent.workspace is not None
        assert agent.workspace.fs_scope_tier == "project"
        assert agent.limits_of(Settings(limits={"turns": 9})).turns == 0  # the session's own
        assert _agent(AgentOptions(), ()).limits_of(Settings()).turns == 7


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
