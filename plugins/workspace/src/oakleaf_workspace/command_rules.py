"""Which commands may start, and which only after a person's approval.

The allow-list decides what may start, not what it then does: `pytest` runs the code it finds, `make` what the Makefile
says. Whoever allows such a command means that. Of programs that are known to run other programs or to write wherever their
arguments say, tier sandboxed asks for approval of each call, or of the options that do so.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from oakleaf.errors import InvalidArgument, OutOfScope
from oakleaf_workspace.git_rules import GIT_IN_TEXT, check_sandboxed, git_words, script_reason_to_ask
from oakleaf_workspace.git_rules import reason_to_ask as git_reason_to_ask
from oakleaf_workspace.scope import Scope

MAX_SCRIPT_LENGTH = 10_000
"""A longer script that names git at all needs approval: each git in it would be read to the script's end."""
_QUOTES = re.compile(r"""[\\'"]|\$\{?@\}?|\$\*""")

_LANGUAGE = re.compile(
    r"(?:python|pypy|perl|ruby|php|lua)[\d.]*|nodejs|node|deno|bun|luajit|tclsh|rscript|(?:ba|da|z|k|fi|c|tc)?sh"
    r"|busybox|toybox|uv|uvx|npx|bunx|pipx"
)
"""Runs whatever program its arguments are. An entry of the allow-list that names the program too, as
`python -m pytest`, means that one."""
_RUNNER = re.compile(
    r"g?sed|[gmn]?awk|ed|ex|n?vim?|view|emacs|nano|less|more|man|info|env|xargs|parallel|nice|ionice|nohup|setsid|timeout"
    r"|time|stdbuf|watch|flock|script|expect|strace|ltrace|gdb|lldb|sudo|doas|su|chroot|unshare|nsenter|ssh|scp|sftp"
    r"|rsync|(?:g|bsd)?tar|cpio|zip|m4|dc|sqlite3|psql|mysql|docker|podman|systemd-run|at|batch|crontab|entr"
)
"""Has a language of its own, or many ways to name a program or a file: sed's `w/etc/x`, awk's `system()`."""
_PROGRAM_OPTIONS = {
    "find": r"-exec(dir)?|-ok(dir)?|-fprint(0|f)?|-fls|-files0-from",
    "sort": r"--com?p?r?e?s?s?.*|--f.*",
    "split": r"--fi.*",
    "rg": r"--pre(=.*)?|--hostname-bin.*",
    "fd": r"-[^-]*[xX].*|--exec.*",
    "wc": r"--f.*",
    "du": r"--fi.*",
    "install": r"--strip-.*",
}
"""Options that run a program, or read more names of files from a file; abbreviated ones too."""


def check(scope: Scope, argv: Sequence[str]) -> None:
    """Raise OutOfScope unless the tier and the allow-list permit the command."""
    if isinstance(argv, str) or not argv or not all(isinstance(arg, str) for arg in argv):
        raise InvalidArgument("argv", argv, "a list of strings: the program and its arguments")
    if any("\0" in arg for arg in argv) or not argv[0]:
        raise OutOfScope(command_line(argv), "it contains a NUL character or names no program")
    if scope.tier == "full":
        return
    if not _entries(scope, argv):
        names = ", ".join(sorted(scope.commands)) or "empty"
        raise OutOfScope(command_line(argv), f"it is not on the allow-list ({names})")
    if scope.tier == "sandboxed":
        for arg in argv[1:]:
            if any(_may_escape(scope.root, path) for path in _possible_paths(arg)):
                raise OutOfScope(
                    command_line(argv),
                    f"the argument {arg!r} may be a path outside {scope.root}, or in .git",
                )
        if (words := git_words(argv)) is not None:
            check_sandboxed(words, command_line(argv))


def reason_to_ask(scope: Scope, argv: Sequence[str]) -> str | None:
    """Return why a person must approve the command; None if nobody must.

    At every tier a commit needs approval, and what may be one. `git commit` is recognised in any spelling as an argument
    list. In a shell script this only guards against haste: a script can hide any command.
    """
    words = [str(arg) for arg in argv]
    if not words:
        return None
    if (after_git := git_words(words)) is not None:
        return git_reason_to_ask(after_git)
    if scope.tier == "sandboxed" and (reason := _program_reason(scope, words)) is not None:
        return reason
    text = _QUOTES.sub("", " ".join(words[1:]))
    if len(text) <= MAX_SCRIPT_LENGTH:
        return script_reason_to_ask(text)
    return "it is long and names git" if GIT_IN_TEXT.search(text) else None


def _program_reason(scope: Scope, argv: Sequence[str]) -> str | None:
    name = Path(argv[0]).name.casefold().removesuffix(".exe")
    if _RUNNER.fullmatch(name):
        return f"{name} can run any program or write any file"
    if _LANGUAGE.fullmatch(name) and not any(_names_a_program(entry) for entry in _entries(scope, argv)):
        return f"{name} runs any program; the allow-list may name one, as '{name} PROGRAM'"
    options = _PROGRAM_OPTIONS.get(name, "(?!)")
    option = next((arg for arg in argv[1:] if re.fullmatch(options, arg, re.DOTALL)), None)
    return None if option is None else f"{name} {option} runs a program or reads names of files"


def _entries(scope: Scope, argv: Sequence[str]) -> list[list[str]]:
    """Return the permitting entries of the allow-list."""
    entries = [shlex.split(entry) for entry in sorted(scope.commands)]
    return [entry for entry in entries if entry and list(argv[: len(entry)]) == entry]


def _names_a_program(entry: Sequence[str]) -> bool:
    return len(entry) > 1 and not entry[-1].startswith("-")


def _possible_paths(arg: str) -> set[str]:
    """Return the possible paths in an argument: all of the argument, and the text after = : , @ or a short option."""
    paths = {arg, *re.split(r"[=:,@\s]", arg)}
    if arg.startswith("-"):
        paths |= {arg[arg.index(sign) :] for sign in ("/", "..", "~") if sign in arg} | {arg[2:]}
    return paths


def _may_escape(root: Path, path: str) -> bool:
    if path.startswith("~") or ".git" in path.casefold().split("/"):
        return True  # `git log --output=.git/hooks/x` would install a program
    return not is_inside(root, os.path.realpath(os.path.join(root, path)))


def is_inside(root: Path, path: str) -> bool:
    return Path(path).is_relative_to(root)


def command_line(argv: Sequence[str]) -> str:
    return shlex.join(str(arg) for arg in argv)
