"""git at tier sandboxed: no option, setting or hook of it runs a program, and no other repository is read."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from oakleaf.errors import OutOfScope
from oakleaf.ext import ScopeTier
from oakleaf_workspace.commands import CommandResult, Shell
from oakleaf_workspace.scope import Scope

pytestmark = pytest.mark.attack

PROGRAM = "#!/bin/sh\necho ran >> {}\ncat\n"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a repository, and a program in it that tells when it runs."""
    root = tmp_path / "root"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "a.txt").write_text(f"echo inside >> {tmp_path / 'ran'}\n")
    (root / "evil").write_text(PROGRAM.format(tmp_path / "ran"))
    (root / "evil").chmod(0o755)
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def has_run(root: Path) -> bool:
    return (root.parent / "ran").exists()


def run(root: Path, line: str, tier: ScopeTier = "sandboxed", *, approved: bool = False) -> CommandResult:
    environ = {"PATH": os.environ["PATH"], "HOME": str(root.parent), "GIT_EXTERNAL_DIFF": "./evil"}
    shell = Shell(Scope(root, tier, frozenset({"git"})), lambda data, mime: "", environ)
    return asyncio.run((shell.run_approved if approved else shell.run)(shlex.split(line)))


class TestOptions:
    @pytest.mark.parametrize(
        "line",
        [
            "git grep -Osh inside",
            "git grep -nOsh inside",
            "git grep --open-files-in-pager=sh inside",
            "git grep --open-f=sh inside",
            "git grep -O./evil inside",
            "git grep -nO./evil inside",
            "git grep --open-files-in-pager=./evil inside",
            "git grep --open-f=./evil inside",
            "git grep -e inside -e -- -O./evil",
            "git fetch --upload-pack=./evil .",
            "git fetch --upl=./evil .",
            "git fetch-pack --exec=./evil .",
            "git ls-remote --exec=./evil .",
            "git ls-remote 'ext::./evil'",
            "git clone -u ./evil . b",
            "git clone -c core.fsmonitor=./evil . b",
            "git clone --config core.fsmonitor=./evil . b",
            "git init --template=evil b",
            "git -c core.fsmonitor=./evil status",
            "git -ccore.fsmonitor=./evil status",
            "git --config-env=core.fsmonitor=HOME status",
            "git --exec-path=. status",
            "git --git-dir=b status",
            "git --work-tree=b status",
            "git -C b status",
            "git config core.fsmonitor ./evil",
            "git config alias.x '!./evil'",
            "git difftool -yx ./evil HEAD",
            "git mergetool",
            "git bisect run ./evil",
            "git rebase -x ./evil HEAD",
            "git rebase --exec=./evil HEAD",
            "git filter-branch --tree-filter ./evil",
            "git submodule foreach ./evil",
            "git archive --exec=./evil --remote=. HEAD",
            "git push --receive-pack=./evil . main",
            "git commit --trailer x",
            "git merge -s evil main",
            "git fetch b",
            "git pull host:path",
            "git log --output=b",
            "git diff --ext-diff HEAD",
            "git x",
        ],
    )
    def test_none_runs_a_program_or_names_another_repository(self, root: Path, line: str) -> None:
        made = root / "b"
        made.mkdir()
        git(made, "init", "-q")
        git(made, "config", "core.fsmonitor", "../evil")
        with pytest.raises(OutOfScope):
            run(root, line)
        if line != "git fetch b":  # the name of a remote may be approved, and a folder is none
            with pytest.raises(OutOfScope, match=r"tier sandboxed|may be a path outside"):
                run(root, line, approved=True)
        else:
            assert "not allowed" in run(root, line, approved=True).output
        assert not has_run(root)

    @pytest.mark.parametrize(
        "line",
        [
            "git status",
            "git log --oneline -p",
            "git grep -n inside",
            "git diff HEAD",
            "git show HEAD:a.txt",
            "git ls-files -s",
            "git checkout -q -b other",
            "git add -A",
            "git rev-parse --show-toplevel",
        ],
    )
    def test_what_coding_needs_runs_without_approval(self, root: Path, line: str) -> None:
        (root / "a.txt").write_text("changed\ninside\n")
        done = run(root, line)
        assert done.exit_code == 0, done.output
        assert not has_run(root)

    def test_a_commit_runs_after_approval(self, root: Path) -> None:
        (root / "a.txt").write_text("changed\n")
        for name in ("pre-commit", "post-commit", "commit-msg"):
            (root / ".git/hooks" / name).symlink_to(root / "evil")
        git(root, "config", "user.name", "a")
        git(root, "config", "user.email", "a@example.com")
        with pytest.raises(OutOfScope, match="a person must approve it; shell_approved asks"):
            run(root, "git commit -am second")
        assert run(root, "git commit -am second", approved=True).exit_code == 0
        assert run(root, "git log --format=%s -1").output == "second"
        assert not has_run(root)


class TestRepositoryOfAStranger:
    """An archive that was unpacked may bring a repository along."""

    @pytest.mark.parametrize(
        "setting",
        [
            "core.fsmonitor",
            "core.sshCommand",
            "core.editor",
            "core.pager",
            "core.hooksPath",
            "core.worktree",
            "core.alternateRefsCommand",
            "diff.external",
            "diff.x.textconv",
            "diff.x.command",
            "filter.x.clean",
            "filter.x.process",
            "merge.x.driver",
            "gpg.program",
            "credential.helper",
            "alias.status",
            "include.path",
            "includeIf.gitdir:**.path",
            "remote.origin.uploadpack",
            "url.x.insteadOf",
            "extensions.worktreeConfig",
            "branch.main.mergeOptions",
            "unheard.of",
        ],
    )
    def test_a_setting_that_may_name_a_program_is_refused_by_name(self, root: Path, setting: str) -> None:
        with (root / ".gitattributes").open("w") as file:
            file.write("* diff=x filter=x merge=x\n")
        value = "true" if setting.startswith("extensions.") else "./evil"
        git(root, "config", "--file", ".git/config", setting, value)
        (root / "a.txt").write_text("changed\n")
        for line in ("git status", "git diff", "git add ."):
            with pytest.raises(OutOfScope, match=f"(?i)it sets .*{setting.rpartition('.')[2]}.*tier project"):
                run(root, line)
        assert not has_run(root)

    def test_usual_settings_are_not(self, root: Path) -> None:
        git(root, "remote", "add", "origin", "https://example.com/a.git")
        git(root, "config", "branch.feature/x.remote", "origin")
        git(root, "config", "user.name", "Ann")
        assert run(root, "git status").exit_code == 0

    def test_hooks_do_not_run(self, root: Path) -> None:
        for name in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman"):
            (root / ".git/hooks" / name).symlink_to(root / "evil")
        assert run(root, "git checkout -q -b other").exit_code == 0
        assert not has_run(root)

    @pytest.mark.parametrize("how", ["file", "link", "commondir", "alternates"])
    def test_one_that_leads_elsewhere_is_refused(self, root: Path, tmp_path: Path, how: str) -> None:
        other = tmp_path / "other"
        (root / ".git").rename(other)
        if how == "file":
            (root / ".git").write_text(f"gitdir: {other}\n")
        elif how == "link":
            (root / ".git").symlink_to(other)
        else:
            git(root, "init", "-q")
            name = "commondir" if how == "commondir" else "objects/info/alternates"
            (root / ".git" / name).write_text(f"{other}{'/objects' if how == 'alternates' else ''}\n")
        with pytest.raises(OutOfScope, match=r"repository.*tier project"):
            run(root, "git log")
        assert "first" in run(root, "git log --all", "project").output or how == "alternates"

    def test_one_above_the_workspace_is_not_found(self, root: Path) -> None:
        (root / "sub").mkdir()
        assert run(root / "sub", "git log").exit_code == 128
        assert "first" in run(root / "sub", "git log", "project").output

    def test_a_folder_that_looks_like_one_is_none(self, root: Path) -> None:
        bare = root / "bare"
        git(root, "init", "-q", "--bare", str(bare))
        git(bare, "config", "core.fsmonitor", "../evil")
        git(bare, "config", "core.bare", "false")
        assert run(bare, "git status").exit_code == 128
        assert not has_run(root)

    def test_a_submodule_with_settings_of_its_own_is_refused(self, root: Path) -> None:
        sub = root / "sub"
        sub.mkdir()
        git(sub, "init", "-q")
        git(sub, "commit", "-q", "--allow-empty", "-m", "x")
        git(root, "add", "sub")
        git(root, "commit", "-qm", "with a submodule")
        git(sub, "config", "core.fsmonitor", "../evil")
        with pytest.raises(OutOfScope, match="submodule"):
            run(root, "git status")
        assert not has_run(root)
