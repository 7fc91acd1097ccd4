"""Run a command in a workspace.

Knows argument lists, allow-lists, environments and process groups. Does not know how a person approves a command:
`needs_approval` decides which commands need it, `run` refuses those, `run_approved` runs them afterwards. The
allow-list decides what may start, not what it then does: `pytest` runs the code it finds, and allowing `sh`, `env` or
`python` allows everything.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ...errors import InvalidArgument, OutOfScope
from .files import MAX_SHOWN_BYTES, Spill, text_of, truncate
from .process_tree import ProcessTree
from .scope import Scope

_MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""The maximum bytes of output kept; what a program writes beyond is read and dropped."""
_PIPE_SECONDS = 0.5
"""How long to read the rest of the pipe after the command's processes were killed; only one that could not be killed
can still keep it open."""

_SECRET_NAME = re.compile(
    r"KEYS?(_|\d|$)|TOKENS?(_|\d|$)|SECRET|PASSW|PASSPHRASE|PASS$|PWD\w|\wPWD$(?<!OLDPWD)|CREDENTIAL|PRIVATE|COOKIE|AUTH(?!OR)|DSN$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|-----BEGIN |\b(sk|pk|rk)[-_][\w-]{16,}|\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bxox[abprs]-|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\beyJ[\w-]{10,}\.[\w-]{10,}\.|\bglpat-|\bAIza[\w-]{30,}"
)
_SANDBOX_NAME = re.compile(r"PATH|HOME|LANG|LC_[A-Z]+|TZ|TERM|TMPDIR|USER|LOGNAME|SHELL")
_ADDED_VARIABLES = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    # A folder that merely looks like a repository must not supply settings, which name programs to run.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
}

_GIT_OPTIONS_WITH_VALUE = frozenset(
    {"-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source"}
)
_GIT_SAFE_OPTIONS = frozenset(
    {"-P", "--no-pager", "--no-optional-locks", "--literal-pathspecs", "--bare", "--version", "--help"}
)
_GIT_SAFE_COMMANDS = re.compile(
    r"add|blame|branch|cat-file|check-ignore|checkout|clone|count-objects|describe|diff|diff-files"
    r"|diff-index|diff-tree|fetch|for-each-ref|grep|help|init|log|ls-files|ls-remote|ls-tree|merge-base"
    r"|mv|name-rev|restore|rev-list|rev-parse|rm|shortlog|show|show-ref|status|switch|version"
)
"""Commands that make no commit. All others need approval: an unknown one may be an alias of commit."""
MAX_SCRIPT_LENGTH = 10_000
"""A longer script that names git at all needs approval: each git in it would be read to the script's end."""
_GIT_IN_TEXT = re.compile(r"(?<![\w./+-])(?:[\w./-]*/)?git(?=\s|$)")


class CommandResult(Struct, frozen=True):
    argv: tuple[str, ...]
    exit_code: int | None
    """None: stopped after the timeout. Negative: the signal that ended it."""
    output: str
    """Standard output and error as written; if long, their first and last bytes and the handle of the spilled text."""
    timeout: float

    @property
    def text(self) -> str:
        """The output and how the command ended, for the model."""
        if self.exit_code is None:
            end = f"[stopped after {self.timeout:g} s, with all processes it had started]"
        else:
            end = f"[exit code {self.exit_code}]"
        return f"{self.output}\n{end}" if self.output else end


class Shell:
    """Runs the commands of one workspace. `environ` is the environment they inherit from, usually `os.environ`."""

    def __init__(
        self, scope: Scope, spill: Spill, environ: Mapping[str, str], timeout: float = 120.0
    ) -> None:
        self._scope, self._spill, self._timeout = scope, spill, timeout
        self._environ = dict(environ)

    async def run(self, argv: list[str], timeout: float | None = None) -> CommandResult:
        """Run a program with arguments in the workspace's folder. There is no shell: `|`, `>` and `*` have no effect."""
        if needs_approval(argv):
            raise OutOfScope(
                _command_line(argv), "it makes or may make a commit, which needs a person's approval"
            )
        return await self.run_approved(argv, timeout)

    async def run_approved(self, argv: list[str], timeout: float | None = None) -> CommandResult:
        """Run a command that a person approved; what the tier forbids is still refused."""
        check(self._scope, argv)
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        if not seconds > 0:
            raise InvalidArgument("timeout", timeout, "a positive number of seconds")
        environ = environment(self._scope, self._environ)
        exit_code, data, dropped = await _run_process(tuple(argv), self._scope.root, environ, seconds)
        text = text_of(data) + (f"\n[{dropped:,} more bytes were not kept]" if dropped else "")
        head = MAX_SHOWN_BYTES // 4
        output = truncate(text.rstrip("\n"), self._spill, head, MAX_SHOWN_BYTES - head)
        return CommandResult(tuple(argv), exit_code, output, seconds)


def check(scope: Scope, argv: Sequence[str]) -> None:
    """Raise OutOfScope unless the tier and the allow-list permit this command."""
    if isinstance(argv, str) or not argv or not all(isinstance(arg, str) for arg in argv):
        raise InvalidArgument("argv", argv, "a list of strings: the program and its arguments")
    if any("\0" in arg for arg in argv) or not argv[0]:
        raise OutOfScope(_command_line(argv), "it contains a NUL character or names no program")
    if scope.tier == "full":
        return
    allowed = [shlex.split(entry) for entry in sorted(scope.commands)]
    if not any(entry and list(argv[: len(entry)]) == entry for entry in allowed):
        names = ", ".join(sorted(scope.commands)) or "empty"
        raise OutOfScope(_command_line(argv), f"it is not on the allow-list ({names})")
    if scope.tier == "sandboxed":
        for arg in argv[1:]:
            if any(_may_escape(scope.root, path) for path in _possible_paths(arg)):
                raise OutOfScope(
                    _command_line(argv),
                    f"the argument {arg!r} may be a path outside {scope.root}, or in .git",
                )


def needs_approval(argv: Sequence[str]) -> bool:
    """Whether the command makes a commit, or may. `git commit` is recognised in any spelling as an argument list. In
    a shell script this only guards against haste: a script can hide any command."""
    words = [str(arg) for arg in argv]
    if not words:
        return False
    if Path(words[0]).name.casefold() in ("git", "git.exe"):
        return _git_needs_approval(words[1:])
    if Path(words[0]).name.startswith("git-"):
        return _git_needs_approval([Path(words[0]).name[4:], *words[1:]])
    rest = re.sub(r"""[\\'"]|\$\{?@\}?|\$\*""", "", " ".join(words[1:]))
    if len(rest) > MAX_SCRIPT_LENGTH:
        return _GIT_IN_TEXT.search(rest) is not None
    return any(_git_needs_approval(rest[match.end() :].split()) for match in _GIT_IN_TEXT.finditer(rest))


def environment(scope: Scope, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: nothing that looks secret, and a PATH without folders the model can write."""
    variables = {name: value for name, value in environ.items() if not _is_secret(name, value)}
    if scope.tier == "sandboxed":
        variables = {name: value for name, value in variables.items() if _SANDBOX_NAME.fullmatch(name)}
    if scope.tier != "full":
        path = variables.get("PATH", os.defpath)
        folders = [folder for folder in path.split(os.pathsep) if os.path.isabs(folder)]
        if scope.tier == "sandboxed":
            folders = [folder for folder in folders if not _is_inside(scope.root, os.path.realpath(folder))]
        variables["PATH"] = os.pathsep.join(folders)
    return variables | _ADDED_VARIABLES


async def _run_process(
    argv: tuple[str, ...], folder: Path, environ: dict[str, str], seconds: float
) -> tuple[int | None, bytes, int]:
    """Run a command; return its exit code, its output and the number of bytes dropped.

    However it ends, by timeout and cancellation too, every process it started is killed before this returns: nothing
    writes to the workspace afterwards.
    """
    source, sink = os.pipe()
    reader = _PipeReader(source)
    try:
        try:
            tree = ProcessTree(
                argv, env=environ, cwd=folder, streams=(asyncio.subprocess.DEVNULL, sink, sink)
            )
        finally:
            os.close(sink)
        code: int | None = None
        try:
            try:
                code = await asyncio.wait_for(tree.wait(), seconds)
            except (TimeoutError, asyncio.CancelledError) as error:
                tree.kill()
                await tree.wait()
                if not isinstance(error, TimeoutError):
                    raise
        finally:
            tree.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.end.wait(), _PIPE_SECONDS)
        return code, bytes(reader.data), reader.dropped
    finally:
        reader.close()


class _PipeReader:
    """Reads a pipe as data arrives, so that the writer never blocks, and keeps it up to a limit."""

    def __init__(self, source: int) -> None:
        self.data, self.dropped, self.end = bytearray(), 0, asyncio.Event()
        self._source = source
        os.set_blocking(source, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(source, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._source, 65_536)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._source)
            self.end.set()
        room = _MAX_OUTPUT_BYTES - len(self.data)
        self.data += chunk[:room]
        self.dropped += max(len(chunk) - room, 0)

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        os.close(self._source)


def _git_needs_approval(words: Sequence[str]) -> bool:
    rest = iter(words)
    for word in rest:
        if word in _GIT_OPTIONS_WITH_VALUE:
            next(rest, None)
        elif word.startswith("-"):
            # -c, --config-env and --exec-path name programs to run.
            if word not in _GIT_SAFE_OPTIONS and word.partition("=")[0] not in _GIT_OPTIONS_WITH_VALUE:
                return True
        else:
            return _GIT_SAFE_COMMANDS.fullmatch(word.rstrip(";|&()`<>")) is None
    return False


def _possible_paths(arg: str) -> set[str]:
    """Return the parts of an argument that a program may read as a path: all of it, and what follows = : , @ or a
    short option."""
    paths = {arg, *re.split(r"[=:,@\s]", arg)}
    if arg.startswith("-"):
        paths |= {arg[arg.index(sign) :] for sign in ("/", "..", "~") if sign in arg} | {arg[2:]}
    return paths


def _may_escape(root: Path, path: str) -> bool:
    if path.startswith("~") or ".git" in path.casefold().split("/"):
        return True  # `git log --output=.git/hooks/x` would install a program
    return not _is_inside(root, os.path.realpath(os.path.join(root, path)))


def _is_inside(root: Path, path: str) -> bool:
    return Path(path).is_relative_to(root)


def _is_secret(name: str, value: str) -> bool:
    return _SECRET_NAME.search(name) is not None or _SECRET_VALUE.search(value) is not None


def _command_line(argv: Sequence[str]) -> str:
    return shlex.join(str(arg) for arg in argv)
