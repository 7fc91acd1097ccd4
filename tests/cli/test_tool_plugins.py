"""The keys and options that plugins of tools carry out: workspace, mcp and --files, where a plugin is missing or broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import oakleaf
from oakleaf import plugins, user
from oakleaf.cli.main import oakleaf as command
from oakleaf.errors import PluginBroken, PluginMissing

GO = ("run", "go", "--model", "scripted:model.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store whose session was rewound, in an environment without plugins of tools."""
    monkeypatch.setattr(plugins, "providers", lambda: ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.yaml").write_text("- done\n")
    with oakleaf.open(tmp_path / "agent.db") as store:
        session = store.start(session_id="ses_1")
        session.append([user("one")])
        session.append([oakleaf.assistant("two")])
        session.rewind(1)
    return tmp_path


@pytest.fixture
def broken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin of the name `workspace` that raises when it is imported."""
    (folder / "bad_workspace.py").write_text("raise RuntimeError('the disk is upside down')\n")
    monkeypatch.syspath_prepend(folder)
    bad = plugins.Provider(plugins.TOOLS, "workspace", "bad_workspace", "stranger", "1.0")
    monkeypatch.setattr(plugins, "providers", lambda: (bad,))


def run(*words: str) -> Result:
    return CliRunner().invoke(command, ["--store", "agent.db", *words])


def leaf() -> int:
    with oakleaf.open("agent.db") as store:
        return store.session("ses_1").leaf.seq


def session_count() -> int:
    with oakleaf.open("agent.db") as store:
        return len(store.sessions().sessions)


class TestMissing:
    @pytest.mark.parametrize(
        ("words", "flag", "extra"),
        [
            ([*GO, "--set", "workspace.dir=."], "workspace.dir", "workspace"),
            ([*GO, "--set", "mcp.servers=npx x"], "mcp.servers", "mcp"),
            (["replay", "ses_1", "--mode", "dry", "--set", "mcp.servers=npx x"], "mcp.servers", "mcp"),
        ],
        ids=["run workspace", "run mcp", "replay mcp"],
    )
    def test_an_option_names_what_to_install(
        self, folder: Path, words: list[str], flag: str, extra: str
    ) -> None:
        refused = run(*words)
        assert refused.exit_code == 2
        assert f"{flag}: no installed plugin adds the tool '{extra}'; install it with: pip" in refused.output
        assert f"[{extra}]" in refused.output
        assert (leaf(), session_count()) == (1, 1)

    @pytest.mark.parametrize("words", [("rewind", "ses_1@0"), ("redo", "ses_1")])
    def test_a_move_with_files_names_what_to_install(self, folder: Path, words: tuple[str, ...]) -> None:
        refused = run(*words, "--files")
        assert isinstance(refused.exception, PluginMissing)
        assert "no installed plugin adds the tool 'workspace'" in str(refused.exception)
        assert leaf() == 1

    def test_what_needs_no_files_works(self, folder: Path) -> None:
        assert run("redo", "ses_1").exit_code == 0
        assert leaf() == 2
        assert run("rewind", "ses_1@1").exit_code == 0
        assert run("run", "go", "--model", "scripted:model.yaml").exit_code == 0

    def test_a_session_is_told_which_tools_of_a_workspace_it_misses(self, folder: Path) -> None:
        with oakleaf.open("agent.db") as store:
            store.start(session_id="ses_2", tool_names=["write_file"])
        done = run("run", "go", "--resume", "ses_2", "--model", "scripted:model.yaml")
        assert done.exit_code == 0, done.output
        assert "running without write_file" in done.output


@pytest.mark.usefixtures("broken")
class TestBroken:
    def test_an_option_says_what_is_wrong_and_nothing_moves(self) -> None:
        refused = run("rewind", "ses_1@0", "--files")
        assert isinstance(refused.exception, PluginBroken)
        assert "the disk is upside down" in str(refused.exception)
        assert leaf() == 1

    def test_what_needs_no_files_works_and_says_what_is_wrong(self) -> None:
        done = run("redo", "ses_1")
        assert done.exit_code == 0
        assert "the disk is upside down" in done.output
        assert leaf() == 2


def test_the_commands_import_no_plugin_of_tools() -> None:
    code = "import oakleaf.cli.agent_options, oakleaf.verbs.moves, oakleaf.cli.chat.chat, sys\n"
    code += "print([name for name in sys.modules if name.startswith(('oakleaf_mcp', 'oakleaf_workspace'))])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_the_library_imports_no_plugin_of_tools_and_runs_without() -> None:
    """Every module is imported, and a turn with a tool runs, where neither package can be found."""
    code = """
import importlib, pkgutil, sys
sys.modules["oakleaf_mcp"] = sys.modules["oakleaf_workspace"] = None
import oakleaf
for part in ("agent", "turn", "replay", "log", "session", "store", "ext", "cli"):
    module = importlib.import_module(f"oakleaf.{part}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"oakleaf.{part}."):
        importlib.import_module(found.name)
for name in oakleaf.ext.__all__:
    getattr(oakleaf.ext, name)

@oakleaf.tool(effect="read")
def look() -> str:
    "Look."
    return "seen"

session = oakleaf.open("memory:").start()
call = oakleaf.assistant(oakleaf.ToolCall("c1", "look", {}))
print(session.send_sync("go", model=oakleaf.ScriptedModel([call, "done"]), tools=[look]).text)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, "done\n"), shown.stderr
