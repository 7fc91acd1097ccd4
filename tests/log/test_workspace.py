"""The workspace of a session: what is detected, what is refused, and where it fills in a prompt."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from oakleaf import ScriptedModel, Settings, Workspace, assistant, system, user
from oakleaf.core.redact import Redactor
from oakleaf.errors import InvalidArgument, SecretInWorkspace
from oakleaf.log.workspace import Selection
from oakleaf.store import Store

KEY = f"sk-ant-{'k' * 30}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("working_dir", 5),
        ("working_dir", ""),
        ("working_dir", Path("/w")),
        ("active_file", 5),
        ("git_ref", b"main"),
        ("fs_scope_tier", "evil"),
        ("fs_scope_tier", ["full"]),
        ("selection", "a.py:1-2"),
        ("variables", [("a", "b")]),
        ("variables", {"a": 1}),
        ("variables", {5: "a"}),
    ],
)
def test_what_a_workspace_cannot_hold_is_refused_by_the_parameters_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Workspace(**{"working_dir": "/w", name: value})


@pytest.mark.parametrize(
    ("about", "name"), [(("a", 0, 1), "start_line"), (("a", 3, 2), "end_line"), ((5, 1, 1), "file")]
)
def test_a_selection_is_lines_of_a_file(about: tuple[Any, Any, Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Selection(*about)


def test_something_else_than_a_workspace_is_refused_and_nothing_is_stored(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="workspace"):
        store.start("a", workspace={"working_dir": "/w"})  # type: ignore[arg-type]
    assert list(store.all_sessions()) == []


@pytest.mark.attack
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"variables": {"customer": "Ann", "token": f"Bearer {KEY}"}}, "variable 'token'"),
        ({"variables": {"login": "correct horse battery"}}, "variable 'login'"),
        ({"variables": {KEY: "x"}}, "variable '[redacted]'"),
        ({"active_file": f"{KEY}.txt"}, "active_file"),
        ({"git_ref": KEY}, "git_ref"),
        ({"selection": Selection(KEY, 1, 2)}, "selection"),
    ],
)
def test_a_secret_in_a_workspace_is_refused_by_name_and_nothing_is_stored(
    store: Store, fields: dict[str, Any], named: str
) -> None:
    """What is refused is said without its value: the message of the error is shown and logged."""
    store.runtime = replace(store.runtime, redactor=Redactor({"LOGIN": "correct horse battery"}))
    for start in (store.start, partial(store.latest_or_start, "con_1")):
        with pytest.raises(SecretInWorkspace) as caught:
            start("a", workspace=Workspace(working_dir="/w", **fields))
        assert caught.value.field == named
        assert KEY not in str(caught.value)
        assert "correct horse" not in str(caught.value)
    assert list(store.all_sessions()) == []


class TestGitRef:
    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        folder = tmp_path / "repository"
        _git(tmp_path, "init", "-q", "-b", "trunk", str(folder))
        _git(folder, "commit", "-q", "--allow-empty", "-m", "first")
        return folder

    def test_a_worktree_has_its_own_branch_also_inside_of_its_repository(self, repository: Path) -> None:
        _git(repository, "worktree", "add", "-q", "-b", "topic/one", str(repository / "trees" / "one"))
        (repository / "trees" / "one" / "deep").mkdir()
        assert Workspace.detect(working_dir=str(repository)).git_ref == "trunk"
        assert Workspace.detect(working_dir=str(repository / "trees" / "one" / "deep")).git_ref == "topic/one"

    def test_a_submodule_has_its_own_head(self, repository: Path, tmp_path: Path) -> None:
        outer = tmp_path / "outer"
        _git(tmp_path, "init", "-q", "-b", "main", str(outer))
        _git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "sub")
        _git(outer / "sub", "checkout", "-q", "-b", "inner")
        assert Workspace.detect(working_dir=str(outer / "sub")).git_ref == "inner"
        commit = _git(outer / "sub", "rev-parse", "HEAD")
        _git(outer / "sub", "checkout", "-q", "--detach")
        assert Workspace.detect(working_dir=str(outer / "sub")).git_ref == commit

    def test_what_is_no_repository_has_none(self, repository: Path) -> None:
        (repository / "broken").mkdir()
        (repository / "broken" / ".git").write_text("gitdir: /nowhere\n")
        assert Workspace.detect(working_dir=str(repository / "broken")).git_ref is None


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class TestSlots:
    def test_every_prompt_is_filled_in_seeds_settings_forks_and_replays(self, store: Store) -> None:
        workspace = Workspace(working_dir="/w", variables={"team": "blue"})
        session = store.start("a", [system("Work in {{ctx.working_dir}}.")], workspace=workspace)
        session.append([user("q"), assistant("a")])
        slots = "For {{ctx.team}} {{ ctx.fs_scope_tier }} {{ctx.unknown}}"
        filled = "For blue sandboxed {{ctx.unknown}}"
        assert session.context().system == ("Work in /w.",)
        assert session.fork(prompt=slots).context().system == (filled,)
        assert session.fork(prompt_patch=slots).context().system == ("Work in /w.", filled)
        report = session.replay_sync(prompt=slots, model=ScriptedModel(["b"]))
        assert store.session(report.replay).context().system == (filled,)
        session.set(prompt=slots)
        assert session.context().system == (filled,)
        session.append([Settings(prompt_patch=slots)])
        assert session.context().system == (filled, filled)
        assert session.verify() == []

    def test_without_a_workspace_a_slot_stays(self, store: Store) -> None:
        session = store.start("a", [system("In {{ctx.working_dir}}.")])
        session.set(prompt_patch="{{ctx.team}}")
        assert session.context().system == ("In {{ctx.working_dir}}.", "{{ctx.team}}")


def test_every_field_of_a_workspace_is_filled_in(store: Store) -> None:
    workspace = Workspace(working_dir="/w", active_file="a.py", selection=Selection("f.py", 3, 9))
    text = (
        "{{ctx.active_file}} {{ctx.selection}} {{ctx.selection.file}} {{ctx.selection.end_line}} {{ctx.no}}"
    )
    session = store.start("a", [system(text)], workspace=workspace)
    assert session.path()[0].message.text == "a.py f.py:3-9 f.py 9 {{ctx.no}}"
