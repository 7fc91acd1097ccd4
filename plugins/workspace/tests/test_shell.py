"""Commands: what may start, what it inherits, and that nothing of it is left when it ends."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from oakleaf.errors import InvalidArgument, OutOfScope
from oakleaf.ext import ScopeTier
from oakleaf_workspace.command_rules import check, reason_to_ask
from oakleaf_workspace.commands import CommandResult, Shell, environment
from oakleaf_workspace.scope import Scope
from support.processes import dies, is_alive, wait_until

ALLOWED = frozenset({"git status", "git log", "git commit", "pytest", "cat", "sh", "python3"})
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LANG": "C.UTF-8"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.txt").write_text("inside\n")
    (root / "link").symlink_to("/etc")
    return root


def shell(root: Path, tier: ScopeTier = "project", timeout: float = 20.0) -> tuple[Shell, list[bytes]]:
    spilled: list[bytes] = []

    def spill(data: bytes, mime: str) -> str:
        spilled.append(data)
        return f"blob-{len(spilled)}"

    return Shell(Scope(root, tier, ALLOWED), spill, ENVIRON, timeout), spilled


def ran(root: Path, argv: list[str], tier: ScopeTier = "project", timeout: float = 20.0) -> CommandResult:
    return asyncio.run(shell(root, tier, timeout)[0].run(argv))


class TestAllowList:
    @pytest.mark.parametrize("tier", ["sandboxed", "project"])
    @pytest.mark.parametrize(
        "line",
        [
            "rm -rf .",
            "git push",
            "git",
            "git -C . status",
            "git -c core.pager=evil status",
            "git statusx",
            "gitx status",
            "./git status",
            "/usr/bin/git status",
            "GIT status",
            "'git status'",
            "src/../cat src/a.txt",
            "' cat' src/a.txt",
            "env cat src/a.txt",
            "'cat\0' src/a.txt",
            "''",
        ],
    )
    def test_what_is_not_on_it_does_not_start(self, root: Path, tier: ScopeTier, line: str) -> None:
        with pytest.raises(OutOfScope):
            check(Scope(root, tier, ALLOWED), shlex.split(line))

    @pytest.mark.parametrize("argv", [[], "cat src/a.txt", ["cat", 1], [None]])
    def test_what_is_no_list_of_words_is_refused(self, root: Path, argv: Sequence[str]) -> None:
        with pytest.raises(InvalidArgument):
            check(Scope(root, "full"), argv)

    def test_an_empty_one_lets_nothing_start(self, root: Path) -> None:
        for entry in (frozenset(), frozenset({""}), frozenset({" "})):
            with pytest.raises(OutOfScope):
                check(Scope(root, "project", entry), ["cat"])

    def test_full_starts_anything(self, root: Path) -> None:
        assert ran(root, ["/bin/echo", "x"], "full").output == "x"


class TestSandboxedArguments:
    @pytest.mark.parametrize(
        "argument",
        [
            "/etc/passwd",
            "..",
            "../x",
            "src/../../x",
            "link/passwd",
            "--file=/etc/passwd",
            "--file=../x",
            "--file=link/passwd",
            "-f/etc/passwd",
            "-f../x",
            "-xf/etc/passwd",
            "-f~/x",
            "~/.ssh/id_rsa",
            "a:/etc/passwd",
            "@/etc/passwd",
            "@../x",
            "file:///etc/passwd",
            "https://evil.example",
            "x,/etc/passwd",
            "a b /etc/passwd",
            "--output=.git/hooks/pre-commit",
            "src/.GIT/config",
        ],
    )
    def test_none_may_be_a_path_outside_the_root(self, root: Path, argument: str) -> None:
        with pytest.raises(OutOfScope, match="may be a path outside"):
            check(Scope(root, "sandboxed", ALLOWED), ["cat", argument])
        check(Scope(root, "project", ALLOWED), ["cat", argument])

    @pytest.mark.parametrize(
        "argument", ["src/a.txt", "-n", "--x=src", "main..HEAD", "HEAD~1", ".gitignore", "..x", "-k=a or b"]
    )
    def test_the_others_pass(self, root: Path, argument: str) -> None:
        check(Scope(root, "sandboxed", ALLOWED), ["cat", argument])
        check(Scope(root, "sandboxed", ALLOWED), ["cat", str(root / "src")])


class TestApproval:
    @pytest.mark.parametrize(
        "line",
        [
            "git commit",
            "git commit -m x",
            "git -C /elsewhere commit",
            "git --git-dir=x commit",
            "git --git-dir x commit",
            "git --no-pager -P commit",
            "git -c user.name=x commit",
            "git -c alias.st=commit st",
            "git --exec-path=/evil status",
            "git --config-env=core.pager=X log",
            "git ci",
            "git commit-tree x",
            "git merge x",
            "git cherry-pick x",
            "git revert x",
            "git rebase x",
            "git am x",
            "git pull",
            "git push",
            "git stash",
            "/usr/bin/git commit",
            "./git commit",
            "GIT commit",
            "git-commit",
            "env git commit",
            "env X=1 git commit",
            "timeout 5 git commit",
            "sh -c 'git commit -m x'",
            "sh -c 'cd src;git commit'",
            "sh -c 'echo $(git commit)'",
            "sh -c 'git status; git commit'",
            "sh -c 'g\"\"it com\\mit'",
            "sh -c '/usr/bin/git commit'",
            "sh -c 'git $WORD'",
            "xargs git commit",
            "git grep -Osh x",
            "git grep -nOsh x",
            "git grep --open-files-in-pager=sh x",
            "git grep --open-f=sh x",
            "git grep -e -- --open-files-in-pager=sh",
            "git fetch --upload-pack=./evil .",
            "git fetch --upl=./evil .",
            "git ls-remote --exec=./evil .",
            "git clone -c core.fsmonitor=./evil . b",
            "git init --template=evil",
            "git --git-dir=evil status",
            "git --work-tree=evil status",
            "git diff --ext-diff",
            "git log --output=x",
            "git show --textconv",
            "git cat-file --filters HEAD:x",
            "git blame --contents x y",
            "git help status",
            "git status --help",
            "git rebase --exec ./evil",
            "git bisect run ./evil",
            "git config core.fsmonitor ./evil",
        ],
    )
    def test_a_commit_wants_it_however_it_is_dressed(self, root: Path, line: str) -> None:
        argv = shlex.split(line)
        assert reason_to_ask(Scope(root, "full"), argv)
        with pytest.raises(OutOfScope, match="approve"):
            ran(root, argv, "full")

    @pytest.mark.parametrize(
        "line",
        [
            "git status",
            "git log --grep commit",
            "git -C src diff",
            "git log --oneline -5 -p -n3 --format=%h -Sx -- src",
            "git grep -nie x --and -e y -- src",
            "git diff HEAD~1 --stat -U5 -M90%",
            "git status -sb --porcelain=v2",
            "git checkout -b x",
            "git add -A",
            "git init -qb main",
            "git --no-pager show commit",
            "git --version",
            "git",
            "pytest -k commit",
            "cat .git/config",
            "cat .gitignore",
            "sh -c 'git status; git log'",
            "echo digit commit",
        ],
    )
    def test_the_rest_does_not(self, root: Path, line: str) -> None:
        assert reason_to_ask(Scope(root, "project"), shlex.split(line)) is None

    def test_a_yes_does_not_widen_the_tier(self, root: Path) -> None:
        with pytest.raises(OutOfScope, match="allow-list"):
            asyncio.run(shell(root)[0].run_approved(["git", "push"]))

    def test_a_yes_lets_it_run(self, root: Path) -> None:
        assert (
            asyncio.run(shell(root, "sandboxed")[0].run_approved(["git", "commit", "--dry-run"])).exit_code
            is not None
        )


class TestEnvironment:
    @pytest.mark.attack
    @pytest.mark.parametrize(
        "name",
        [
            *("ANTHROPIC_API_KEY", "api_key", "GITHUB_TOKEN", "PGPASSWORD", "SSH_AUTH_SOCK", "DATABASE_URL"),
            *(
                "KUBECONFIG",
                "NETRC",
                "PIP_INDEX_URL",
                "UV_INDEX_ACME_USERNAME",
                "VAULT_ADDR",
                "NPM_CONFIG__AUTH",
            ),
            *(
                "SENTRY",
                "SLACK_WEBHOOK",
                "AZURE_CLIENT_ID",
                "BORG_PASSCOMMAND",
                "MNEMONIC",
                "PINCODE",
                "LC_SECRET",
            ),
            *("GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "LD_PRELOAD", "PYTHONSTARTUP", "BASH_ENV", "PATHS"),
        ],
    )
    def test_a_variable_is_inherited_only_if_it_is_listed_or_named(self, root: Path, name: str) -> None:
        for tier in ("sandboxed", "project", "full"):
            assert name not in environment(Scope(root, tier), {name: "x"})
            assert environment(Scope(root, tier, env=frozenset({name})), {name: "x"})[name] == "x"

    @pytest.mark.parametrize(
        "name", ["HOME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "TMPDIR", "USER", "SHELL"]
    )
    def test_listed_ones_are_inherited_at_every_tier(self, root: Path, name: str) -> None:
        for tier in ("sandboxed", "project", "full"):
            assert environment(Scope(root, tier), {name: "x"})[name] == "x"

    @pytest.mark.parametrize("name", ["", "A=b", "A B", "1A", "A\0"])
    def test_what_is_no_name_is_refused(self, root: Path, name: str) -> None:
        with pytest.raises(InvalidArgument, match="name of an environment variable"):
            Scope(root, env=frozenset({name}))

    def test_path_leads_to_no_file_of_the_model(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "alias").symlink_to(root / "src")
        path = {"PATH": f".::src:{root}/src:{tmp_path}/alias:/usr/bin"}
        assert environment(Scope(root), path)["PATH"] == "/usr/bin"
        assert environment(Scope(root, "project"), path)["PATH"] == f"{root}/src:{tmp_path}/alias:/usr/bin"

    def test_a_command_sees_what_is_left(self, root: Path) -> None:
        scope = Scope(root, "full", env=frozenset({"A"}))
        runner = Shell(scope, lambda data, mime: "x", {**ENVIRON, "MINE": "hunter2", "A": "b"})
        env_output = asyncio.run(runner.run(["/usr/bin/env"])).output
        assert "hunter2" not in env_output
        assert "A=b" in env_output.splitlines()


@pytest.mark.attack
class TestProgramsThatRunPrograms:
    """At tier sandboxed: sed, awk and their like need approval, and so do options that run a program."""

    @pytest.mark.parametrize(
        "line",
        [
            "sed w/etc/x src/a.txt",
            "sed -n e src/a.txt",
            "sed -i s/a/b/ src/a.txt",
            "awk 'BEGIN{system(\"id\")}'",
            "gawk 1 src/a.txt",
            "/usr/bin/awk 1",
            "find . -exec id ;",
            "find . -okdir id ;",
            "sort --compress-program=id src/a.txt",
            "sort --compress-prog id src/a.txt",
            "sort --files0-from=src/a.txt",
            "split --filter=id src/a.txt",
            "rg --pre id x",
            "fd -x id",
            "tar xf a.tar --to-command=id",
            "tar -Iid -xf a.tar",
            "xargs -a src/a.txt id",
            "env id",
            "timeout 5 id",
            "python3 -c 1",
            "python3.11 -m http.server",
            "perl -e 1",
            "node x.js",
            "sh src/a.txt",
            "rsync -e id a b",
            "less src/a.txt",
        ],
    )
    def test_they_need_approval_although_they_are_allowed(self, root: Path, line: str) -> None:
        argv = shlex.split(line)
        scope = Scope(root, "sandboxed", frozenset({argv[0]}))
        with pytest.raises(OutOfScope, match=r"a person must approve it|may be a path outside"):
            asyncio.run(Shell(scope, lambda data, mime: "", ENVIRON).run(argv))
        assert reason_to_ask(scope, argv)
        assert reason_to_ask(Scope(root, "project", scope.commands), argv) is None

    @pytest.mark.parametrize(
        ("entry", "line"),
        [
            ("python3 -m pytest", "python3 -m pytest -x src"),
            ("sh src/build.sh", "sh src/build.sh -c all"),
            ("find", "find . -name '*.py'"),
            ("sort", "sort -u src/a.txt"),
            ("rg", "rg -n pre src"),
            ("pytest", "pytest -k sed"),
            ("make", "make test"),
        ],
    )
    def test_an_entry_that_names_the_program_and_other_options_need_none(
        self, root: Path, entry: str, line: str
    ) -> None:
        scope = Scope(root, "sandboxed", frozenset({entry}))
        check(scope, shlex.split(line))
        assert reason_to_ask(scope, shlex.split(line)) is None

    @pytest.mark.parametrize("entry", ["python3", "python3 -m", "sh -c", "sed -n"])
    def test_an_entry_that_names_no_program_does_not_help(self, root: Path, entry: str) -> None:
        argv = [*entry.split(), "x"]
        assert reason_to_ask(Scope(root, "sandboxed", frozenset({entry})), argv)


class TestRun:
    def test_tells_output_errors_and_exit_code(self, root: Path) -> None:
        done = ran(root, ["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.output, done.exit_code) == ("out\nerr", 3)
        assert done.text == "out\nerr\n[exit code 3]"

    def test_runs_in_the_root_without_a_shell_or_input(self, root: Path) -> None:
        assert ran(root, ["cat", "src/a.txt"], "sandboxed").output == "inside"
        assert ran(root, ["cat"]).output == ""
        assert (
            ran(root, ["python3", "-c", "import sys; print(sys.argv[1:])", "$HOME", "|", "*"]).output
            == "['$HOME', '|', '*']"
        )

    def test_a_line_of_shell_wants_tier_full(self, root: Path) -> None:
        for tier in ("sandboxed", "project"):
            with pytest.raises(OutOfScope):
                ran(root, ["/bin/sh", "-c", "echo x | cat"], tier)
        assert ran(root, ["/bin/sh", "-c", "echo x | cat"], "full").output == "x"
        with pytest.raises(OutOfScope, match="approve"):
            ran(root, ["/bin/sh", "-c", "git add . && git commit -m x"], "full")

    def test_a_missing_program_is_an_error(self, root: Path) -> None:
        with pytest.raises((FileNotFoundError, PermissionError)):
            ran(root, ["no-such-program"], "full")

    def test_bytes_that_are_no_text_become_text_any_store_keeps(self, root: Path) -> None:
        output = ran(root, ["sh", "-c", r"printf 'a\377\355\240\200b'"]).output
        assert (output[0], output[-1], "\ufffd" in output) == ("a", "b", True)
        assert output.encode().decode() == output

    def test_long_output_is_spilled_and_its_end_is_shown(self, root: Path) -> None:
        runner, spills = shell(root)
        done = asyncio.run(runner.run(["python3", "-c", "print('x\\n' * 100_000 + 'the end')"]))
        assert len(done.output) < 17_000
        assert done.output.endswith("the end")
        assert "read_spill('blob-1'" in done.output
        assert len(spills[0]) == 200_007

    def test_endless_output_neither_fills_memory_nor_blocks(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("oakleaf_workspace.commands._MAX_OUTPUT_BYTES", 1_000)
        done = ran(root, ["python3", "-c", "print('x' * 5_000_000)"])
        assert done.exit_code == 0
        assert "4,999,001 more bytes were not kept" in done.output

    @pytest.mark.parametrize("timeout", [0, -1, float("nan")])
    def test_a_timeout_that_is_none_is_refused(self, root: Path, timeout: float) -> None:
        with pytest.raises(InvalidArgument):
            asyncio.run(shell(root)[0].run(["cat"], timeout))


FAMILY = "sleep 60 & echo $! > child; (sleep 60 & echo $! > grandchild; wait) & echo $$ > self; "

AWAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("new", "w").write(str(os.getpid()))
        os.rename("new", "away")
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists("away"): time.sleep(0.005)
"""
HOST = """
import asyncio, sys
from pathlib import Path
from oakleaf_workspace.scope import Scope
from oakleaf_workspace.commands import Shell
shell = Shell(Scope(Path(sys.argv[1]), "full"), lambda data, mime: "", {"PATH": "/usr/bin:/bin"})
asyncio.run(shell.run([sys.executable, "-c", sys.argv[2]]))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
class TestNothingIsLeft:
    def family(self, root: Path) -> list[int]:
        return [int((root / name).read_text()) for name in ("self", "child", "grandchild")]

    def test_a_timeout_kills_the_whole_group(self, root: Path) -> None:
        done = ran(root, ["sh", "-c", FAMILY + "echo before; trap '' TERM; wait"], timeout=0.5)
        assert done.exit_code is None
        assert done.text == "before\n[stopped after 0.5 s, with all processes it had started]"
        assert all(dies(pid) for pid in self.family(root))

    def test_a_cancel_kills_the_whole_group(self, root: Path) -> None:
        async def cancelled() -> None:
            task = asyncio.create_task(shell(root)[0].run(["sh", "-c", FAMILY + "wait"]))
            while not all(
                (root / name).exists() and (root / name).read_text() for name in ("self", "grandchild")
            ):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not is_alive(self.family(root)[0]), "its leader was waited for"

        asyncio.run(cancelled())
        assert all(dies(pid) for pid in self.family(root))

    def test_what_it_left_in_the_background_ends_with_it(self, root: Path) -> None:
        started = time.monotonic()
        done = ran(root, ["sh", "-c", FAMILY + "while [ ! -s grandchild ]; do :; done; echo done"])
        assert (done.output, done.exit_code) == ("done", 0)
        assert time.monotonic() - started < 10
        assert all(dies(pid) for pid in self.family(root))

    @pytest.mark.attack
    @pytest.mark.parametrize("end", ["ends", "times out", "is cancelled"])
    def test_a_process_that_left_the_session_ends_with_the_command(self, root: Path, end: str) -> None:
        """It forks twice and calls setsid between: it has another parent, group and session, and holds the output open."""
        argv = [sys.executable, "-c", AWAY + ("" if end == "ends" else "time.sleep(60)")]

        async def run() -> CommandResult | None:
            task = asyncio.create_task(
                shell(root, "full", timeout=1.5 if end == "times out" else 20)[0].run(argv)
            )
            if end != "is cancelled":
                return await task
            while not (root / "away").exists():
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return None

        started = time.monotonic()
        done = asyncio.run(run())
        assert done is None or done.exit_code == (0 if end == "ends" else None)
        assert not is_alive(int((root / "away").read_text())), "it was waited for"
        assert time.monotonic() - started < 15

    @pytest.mark.attack
    def test_a_process_that_forks_and_ends_without_pause_is_caught(self, root: Path) -> None:
        comet = (
            "import os,time\nos.setsid() if os.fork() == 0 else os._exit(0)\nend = time.time() + 20\n"
            "while time.time() < end:\n if os.fork(): os._exit(0)\n open('comet','w').write(str(time.time()))"
        )
        assert ran(root, [sys.executable, "-c", comet], "full").exit_code == 0
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and self.is_in(pid, root)]
        assert left == []

    def is_in(self, pid: str, folder: Path) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/cwd") == str(folder)
        except OSError:
            return False

    @pytest.mark.attack
    def test_a_command_ends_when_this_process_is_killed(self, root: Path) -> None:
        host = subprocess.Popen([sys.executable, "-c", HOST, str(root), AWAY + "time.sleep(60)"])
        with host:
            wait_until((root / "away").exists)
            host.kill()
        assert dies(int((root / "away").read_text()))

    def test_a_signal_that_ended_it_is_told(self, root: Path) -> None:
        assert ran(root, ["sh", "-c", "kill -SEGV $$"]).exit_code == -11
        assert ran(root, ["sh", "-c", "kill -9 0"]).exit_code == -9, "its group is its own"

    def test_no_descriptor_is_left_open(self, root: Path) -> None:
        ran(root, ["cat"])
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            ran(root, ["cat"])
            with pytest.raises((FileNotFoundError, PermissionError)):
                ran(root, ["no-such-program"], "full")
        assert len(os.listdir("/proc/self/fd")) == before
