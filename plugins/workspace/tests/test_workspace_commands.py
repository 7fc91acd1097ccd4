"""The commands with a workspace: tools in a folder, and files that follow a rewind or a redo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import Session
from oakleaf.ext import read
from support.terminal import PROMPT, Terminal, oakleaf

MODEL = ("--model", "scripted:script.json")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path


def script(home: Path, *lines: object) -> None:
    (home / "script.json").write_text(json.dumps(lines))


def latest(home: Path) -> Session:
    session = library.open(home / "agent.db").latest()
    assert session is not None
    return session


class TestRun:
    def test_a_workspace_gives_files_within_its_scope(self, home: Path) -> None:
        (home / "project").mkdir()
        call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hello"}}
        script(home, {"calls": [call]}, "Written.")
        done = oakleaf(
            "run",
            "hi",
            *MODEL,
            "--set",
            "workspace.dir=project",
            "--set",
            "workspace.scope=project",
            home=home,
        )
        assert done.stdout == "Written.\n", done.stderr
        assert (home / "project" / "a.txt").exists() == ("✓ write_file" in done.stderr)

    def test_what_is_no_variable_is_refused_before_anything_is_written(self, home: Path) -> None:
        script(home, "Hi.")
        done = oakleaf(
            "run", "hi", *MODEL, "--set", "workspace.dir=.", "--set", "workspace.env=A=b", home=home
        )
        assert (done.code, "name of an environment variable" in done.err) == (2, True)
        assert not (home / "agent.db").exists()

    def test_the_scope_and_the_commands_are_those_of_the_configuration(self, home: Path) -> None:
        (home / "config.toml").write_text('[chat]\nfs_scope = "project"\nallowed_commands = ["echo"]\n')
        script(home, {"calls": [{"name": "shell", "arguments": {"argv": ["echo", "hello"]}}]}, "Done.")
        words = ("run", "hi", *MODEL, "--set", "workspace.dir=.")
        for flags, expected in (
            ((), ("project", False)),
            (("--set", "workspace.allow=ls", "--set", "workspace.scope=sandboxed"), ("sandboxed", True)),
        ):
            done = oakleaf(*words, *flags, home=home)
            assert done.code == 0, done.err
            session = latest(home)
            (result,) = [r for entry in session.path() if entry.message for r in entry.message.results]
            workspace = json.loads(read(session).detail().workspace or b"{}")
            assert (workspace["fs_scope_tier"], result.error) == expected


class TestFiles:
    @pytest.mark.attack
    def test_a_bundle_cannot_say_which_files_are_restored(self, tmp_path: Path) -> None:
        folder = tmp_path / "project"
        folder.mkdir()
        (tmp_path / "m.yaml").write_text(
            "- calls: [{name: write_file, arguments: {path: a.txt, text: two}}]\n- done\n"
        )
        model = f"scripted:{tmp_path / 'm.yaml'}"
        words = ("run", "go", "--model", model, "--set", f"workspace.dir={folder}")
        oakleaf(*words, store=tmp_path / "theirs.db", home=tmp_path)
        bundle = tmp_path / "theirs.oakleaf"
        oakleaf("export", "latest", "-o", bundle, "--blobs", store=tmp_path / "theirs.db", home=tmp_path)
        store = tmp_path / "ours.db"
        assert oakleaf("import", bundle, store=store, home=tmp_path).code == 0
        for home in (tmp_path, folder):
            refused = oakleaf("rewind", "latest@0", "--files", "--yes", store=store, home=home)
            assert (refused.code, (folder / "a.txt").read_text()) == (1, "two")
            assert "a.txt (it came with an import" in refused.err
        accepted = ("--files", "--accept-imported", "--yes")
        done = oakleaf("rewind", "latest@0", *accepted, store=store, home=folder)
        assert (done.code, (folder / "a.txt").exists()) == (0, False)
        assert "(from an import)" in done.err

    def test_rewind_restores_files_by_a_plan(self, tmp_path: Path) -> None:
        folder = tmp_path / "project"
        folder.mkdir()
        (folder / "a.txt").write_text("one")
        (tmp_path / "m.yaml").write_text(
            "- calls: [{name: write_file, arguments: {path: a.txt, text: two}}]\n"
            "- calls: [{name: write_file, arguments: {path: b.txt, text: new}}]\n- done\n"
        )
        store = tmp_path / "s.db"
        model = f"scripted:{tmp_path / 'm.yaml'}"
        oakleaf("run", "go", "--model", model, "--set", f"workspace.dir={folder}", store=store, home=tmp_path)
        elsewhere = oakleaf("rewind", "latest@0", "--files", "--yes", store=store, home=tmp_path)
        assert elsewhere.code == 2
        assert f"cd {folder}" in elsewhere.err
        words = ("rewind", "latest@0", "--files")
        result = oakleaf(*words, "--json", store=store, home=folder)
        assert (result.code, [file["kind"] for file in result.json["files"]]) == (1, ["restore", "delete"])
        assert f"restore   {folder}/a.txt" in result.err
        assert "pass --yes" in result.err
        (folder / "b.txt").write_text("mine")
        refused = oakleaf(*words, "--yes", store=store, home=folder)
        assert refused.code == 1
        assert "b.txt (it was changed elsewhere since entry" in refused.err
        assert "--skip-changed leaves them as they are" in refused.err
        done = oakleaf(*words, "--yes", "--skip-changed", store=store, home=folder)
        assert done.code == 0, done.err
        assert "1 restored, 1 left as they are" in done.err
        assert ((folder / "a.txt").read_text(), (folder / "b.txt").read_text()) == ("one", "mine")
        assert oakleaf("rewind", "latest@0", "--yes", store=store, home=tmp_path).code == 2
        (folder / "b.txt").unlink()
        plain = oakleaf("redo", store=store, home=tmp_path)
        assert "2 files of the agent not written again: that is oakleaf redo --files" in plain.err
        oakleaf("rewind", "latest@0", store=store, home=tmp_path)
        words = ("redo", "--files")
        planned = oakleaf(*words, "--json", store=store, home=folder)
        assert (planned.code, [file["kind"] for file in planned.json["files"]]) == (
            1,
            ["restore", "recreate"],
        )
        redone = oakleaf(*words, "--yes", store=store, home=folder)
        assert (redone.code, "1 restored, 1 recreated" in redone.err) == (0, True), redone.err
        assert ((folder / "a.txt").read_text(), (folder / "b.txt").read_text()) == ("two", "new")
        assert oakleaf("redo", "--yes", store=store, home=tmp_path).code == 2

    def test_chat_offers_to_restore_what_the_agent_wrote(self, home: Path) -> None:
        folder = home / "project"
        folder.mkdir()
        (folder / "a.txt").write_text("one")
        call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "two"}}
        script(home, {"text": "", "calls": [call]}, "Done.")
        with Terminal("chat", *MODEL, "--set", f"workspace.dir={folder}", home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.prompt("go")
            assert (folder / "a.txt").read_text() == "two"
            terminal.enter("/rewind 0")
            assert "restore" in terminal.wait_for("Restore these files, too?")
            terminal.enter("y")
            terminal.wait_for("Now at entry 0")
        assert (folder / "a.txt").read_text() == "one"
        assert latest(home).leaf.seq == 0
