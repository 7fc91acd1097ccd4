"""Run a command in a workspace.

Knows argument lists, allow-lists, environments and process groups. Does not know who approves what:
`needs_approval` says which commands want it, `run` refuses those, `run_approved` is for after the yes.
The allow-list decides what starts, not what it then does: `pytest` runs the code it finds, and whoever
allows `sh`, `env` or `python` allows everything.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ...errors import InvalidArgument, OutOfScope
from .files import MAX_SHOWN_BYTES, Spill, text_of, truncate
from .scope import Scope

_KEPT = 8 * 1024 * 1024
"""Bytes of output kept; a program that writes more goes on, unheard."""
_LINGER = 0.5
"""Seconds to read what is left in the pipe after the group was killed; only a process that left the group
can still hold it open."""

_SECRET_NAME = re.compile(
    r"KEYS?(_|\d|$)|TOKENS?(_|\d|$)|SECRET|PASSW|PASSPHRASE|PASS$|PWD\w|\wPWD$(?<!OLDPWD)|CREDENTIAL|PRIVATE|COOKIE|AUTH(?!OR)|DSN$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|-----BEGIN |\b(sk|pk|rk)[-_][\w-]{16,}|\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bxox[abprs]-|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\beyJ[\w-]{10,}\.[\w-]{10,}\.|\bglpat-|\bAIza[\w-]{30,}"
)
_SANDBOX_NAME = re.compile(r"PATH|HOME|LANG|LC_[A-Z]+|TZ|TERM|TMPDIR|USER|LOGNAME|SHELL")
_ADDED = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    # A folder that merely looks like a repository must not bring settings, hence programs, along.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
}

_GIT_VALUED = frozenset({"-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source"})
_GIT_PLAIN = frozenset({"-P", "--no-pager", "--no-optional-locks", "--literal-pathspecs", "--bare"})
_GIT_QUIET = re.compile(
    r"add|blame|branch|cat-file|check-ignore|checkout|clone|count-objects|describe|diff|diff-files"
    r"|diff-index|diff-tree|fetch|for-each-ref|grep|help|init|log|ls-files|ls-remote|ls-tree|merge-base"
    r"|mv|name-rev|restore|rev-list|rev-parse|rm|shortlog|show|show-ref|status|switch|version"
)
"""What leaves no commit. All else of git wants approval: an unknown word may be an alias of commit."""
_GIT_INSIDE = re.compile(r"(?<![\w./+-])(?:[\w./-]*/)?git(?=\s|$)")


class CommandResult(Struct, frozen=True):
    argv: tuple[str, ...]
    exit_code: int | None
    """None: it was stopped when its time was up. Negative: the signal that ended it."""
    output: str
    """What it wrote, errors in between; if long, the first and last of it and the handle of the whole."""
    timeout: float

    @property
    def text(self) -> str:
        """As a model is told."""
        if self.exit_code is None:
            end = f"[stopped after {self.timeout:g} s, with all it had started]"
        else:
            end = f"[exit code {self.exit_code}]"
        return f"{self.output}\n{end}" if self.output else end


class Shell:
    """The commands of one workspace. `environ` is what they may inherit, as a rule `os.environ`."""

    def __init__(
        self, scope: Scope, spill: Spill, environ: Mapping[str, str], timeout: float = 120.0
    ) -> None:
        self._scope, self._spill, self._timeout = scope, spill, timeout
        self._environ = dict(environ)

    async def run(self, argv: list[str], timeout: float | None = None) -> CommandResult:
        """Run a program with arguments in the workspace's folder. No shell reads them: no `|`, `>`, `*`."""
        if needs_approval(argv):
            raise OutOfScope(_line(argv), "it makes or may make a commit, which wants a person's approval")
        return await self.run_approved(argv, timeout)

    async def run_approved(self, argv: list[str], timeout: float | None = None) -> CommandResult:
        """As `run`, for a command that was approved; what the tier forbids stays forbidden."""
        check(self._scope, argv)
        return await self._run(tuple(argv), timeout)

    async def run_script(self, script: str, timeout: float | None = None) -> CommandResult:
        """Run a line of shell. At tier full only."""
        if self._scope.tier != "full":
            raise OutOfScope(script, f"the tier is {self._scope.tier}, a line of shell wants full")
        return await self.run(["/bin/sh", "-c", script], timeout)

    async def _run(self, argv: tuple[str, ...], timeout: float | None) -> CommandResult:
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        if not seconds > 0:
            raise InvalidArgument("timeout", timeout, "seconds, more than none")
        environ = environment(self._scope, self._environ)
        exit_code, data, lost = await _finish(argv, self._scope.root, environ, seconds)
        text = text_of(data) + (f"\n[{lost:,} more bytes were not kept]" if lost else "")
        output = truncate(
            text.rstrip("\n"),
            self._spill,
            head=MAX_SHOWN_BYTES // 4,
            tail=MAX_SHOWN_BYTES - MAX_SHOWN_BYTES // 4,
        )
        return CommandResult(argv, exit_code, output, seconds)


def check(scope: Scope, argv: Sequence[str]) -> None:
    """OutOfScope unless the tier and the allow-list let this start."""
    if isinstance(argv, str) or not argv or not all(isinstance(arg, str) for arg in argv):
        raise InvalidArgument("argv", argv, "a list of the program and its arguments, each of them text")
    if any("\0" in arg for arg in argv) or not argv[0]:
        raise OutOfScope(_line(argv), "it holds a NUL or no program")
    if scope.tier == "full":
        return
    allowed = [shlex.split(entry) for entry in sorted(scope.commands)]
    if not any(entry and list(argv[: len(entry)]) == entry for entry in allowed):
        known = ", ".join(sorted(scope.commands)) or "nothing"
        raise OutOfScope(_line(argv), f"it is not on the allow-list ({known})")
    if scope.tier == "sandboxed":
        for arg in argv[1:]:
            if any(_leads_out(scope.root, piece) for piece in _pieces(arg)):
                raise OutOfScope(
                    _line(argv), f"the argument {arg!r} may lead out of {scope.root}, or into .git"
                )


def needs_approval(argv: Sequence[str]) -> bool:
    """Whether the command makes a commit, or may. `git commit` always does, however it is dressed; for a
    line of shell it is a guard against haste, since a script can hide any word."""
    words = [str(arg) for arg in argv]
    if not words:
        return False
    if Path(words[0]).name.casefold() in ("git", "git.exe"):
        return _git_needs_approval(words[1:])
    if Path(words[0]).name.startswith("git-"):
        return _git_needs_approval([Path(words[0]).name[4:], *words[1:]])
    rest = re.sub(r"""[\\'"]|\$\{?@\}?|\$\*""", "", " ".join(words[1:]))
    return any(_git_needs_approval(rest[met.end() :].split()) for met in _GIT_INSIDE.finditer(rest))


def environment(scope: Scope, environ: Mapping[str, str]) -> dict[str, str]:
    """What a command inherits: nothing that looks secret, and a PATH that leads to no file of the model's."""
    kept = {name: value for name, value in environ.items() if not _is_secret(name, value)}
    if scope.tier == "sandboxed":
        kept = {name: value for name, value in kept.items() if _SANDBOX_NAME.fullmatch(name)}
    if scope.tier != "full":
        folders = [place for place in kept.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]
        if scope.tier == "sandboxed":
            folders = [place for place in folders if not _within(scope.root, os.path.realpath(place))]
        kept["PATH"] = os.pathsep.join(folders)
    return kept | _ADDED


def secret_values(environ: Mapping[str, str]) -> frozenset[str]:
    """The values that are kept from commands; the place that redacts wants to know them."""
    return frozenset(value for name, value in environ.items() if value and _is_secret(name, value))


async def _finish(
    argv: tuple[str, ...], folder: Path, environ: dict[str, str], seconds: float
) -> tuple[int | None, bytes, int]:
    """Exit code, output, bytes not kept. However it ends (timeout and cancel included), the whole process
    group is killed before this returns: nothing goes on writing behind the session's back."""
    source, sink = os.pipe()
    heard = _Heard(source)
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=folder,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        finally:
            os.close(sink)
        code: int | None = None
        try:
            with suppress(TimeoutError):
                code = await asyncio.wait_for(process.wait(), seconds)
        finally:
            _kill_group(process.pid)
            await process.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.end.wait(), _LINGER)
        return code, bytes(heard.data), heard.lost
    finally:
        heard.close()


class _Heard:
    """What arrives in a pipe, read as it comes so that the writer never waits, kept up to a limit."""

    def __init__(self, source: int) -> None:
        self.data, self.lost, self.end = bytearray(), 0, asyncio.Event()
        self._source = source
        os.set_blocking(source, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(source, self._listen)

    def _listen(self) -> None:
        try:
            got = os.read(self._source, 65_536)
        except BlockingIOError:
            return
        if not got:
            self._loop.remove_reader(self._source)
            self.end.set()
        room = _KEPT - len(self.data)
        self.data += got[:room]
        self.lost += max(len(got) - room, 0)

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        os.close(self._source)


def _kill_group(leader: int) -> None:
    # EPERM is what macOS says of a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _git_needs_approval(words: Sequence[str]) -> bool:
    rest = iter(words)
    for word in rest:
        if word in _GIT_VALUED:
            next(rest, None)
        elif word.startswith("-"):
            # -c, --config-env and --exec-path name programs to run: in doubt, ask.
            if word not in _GIT_PLAIN and word.partition("=")[0] not in _GIT_VALUED | {"--version", "--help"}:
                return True
        else:
            return _GIT_QUIET.fullmatch(word.rstrip(";|&()`<>")) is None
    return False


def _pieces(arg: str) -> set[str]:
    """What of an argument a program may take for a path: itself, what follows = : , @ or a short option."""
    pieces = {arg, *re.split(r"[=:,@\s]", arg)}
    if arg.startswith("-"):
        pieces |= {arg[arg.index(sign) :] for sign in ("/", "..", "~") if sign in arg} | {arg[2:]}
    return pieces


def _leads_out(root: Path, piece: str) -> bool:
    if piece.startswith("~") or ".git" in piece.casefold().split("/"):
        return True  # `git log --output=.git/hooks/x` would plant a program
    return not _within(root, os.path.realpath(os.path.join(root, piece)))


def _within(root: Path, real: str) -> bool:
    return Path(real).is_relative_to(root)


def _is_secret(name: str, value: str) -> bool:
    return _SECRET_NAME.search(name) is not None or _SECRET_VALUE.search(value) is not None


def _line(argv: Sequence[str]) -> str:
    return shlex.join(str(arg) for arg in argv)
