"""Errors as the command line prints them, each with its exit code."""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import click

from oakleaf import errors
from oakleaf.install import install_line

FAILURE, USAGE, CONFLICT = errors.ExitCode.PROBLEM, errors.ExitCode.USAGE, errors.ExitCode.LOCKED


class CommandError(click.ClickException):
    """An invalid request; printed without the usage text."""

    exit_code: ClassVar[int] = USAGE

    def show(self, file: Any = None) -> None:
        print_error(self.message)


class TakenOver(CommandError):
    """Another process changed or removed the session during the command."""

    exit_code = CONFLICT


def print_error(text: str) -> None:
    """Print an error to stderr. Escapes its text, and checks NO_COLOR itself: click's context is gone here."""
    from oakleaf.cli.rendering.output import safe  # late: `oakleaf --help` needs none of it

    color = False if os.environ.get("NO_COLOR") else None
    text = errors.without_passwords(suggestions.complete(text))
    click.echo(f"{click.style('oakleaf:', fg='red')} {safe(text)}", err=True, color=color)


class Suggestions:
    """The suggested commands in messages, as typed: with the --store, --space and --owner of the running command."""

    def __init__(self) -> None:
        self._flags: dict[str, str] = {}
        self._verbs = re.compile("(?!)")

    def use(self, flags: Mapping[str, str], verbs: Iterable[str]) -> None:
        """Add the flags of the whole command line to every suggested command with one of the verbs."""
        self._flags = dict(flags)
        self._verbs = re.compile(rf"(?<![\w/.-])oakleaf (?=(?:{'|'.join(map(re.escape, verbs))})\b)")

    def complete(self, text: str, more: Mapping[str, str] = {}) -> str:
        if not self._flags and not more:
            return text
        flags = shlex.join(word for flag in {**self._flags, **more}.items() for word in flag)
        return self._verbs.sub(lambda _: f"oakleaf {flags} ", text)


suggestions = Suggestions()


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Say which extra to install after a failed import in the block."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise CommandError(
            f"{missing.name} is not installed; install it with: {install_line(extra)}"
        ) from None


class ErrorReport(NamedTuple):
    text: str
    exit_code: int


def describe_error(error: BaseException) -> ErrorReport | None:
    """Return the text to print and the exit code; None for an unexpected error."""
    if isinstance(error, click.ClickException):
        return ErrorReport(error.format_message(), error.exit_code)
    if isinstance(error, errors.OakleafError):
        return ErrorReport(error.command_text, error.exit_code)
    if isinstance(error, OSError) and error.filename is not None:
        hint = (
            "; check the permissions of the file and its folder" if isinstance(error, PermissionError) else ""
        )
        return ErrorReport(f"{error.filename}: {error.strerror}{hint}", FAILURE)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return ErrorReport(f"cannot write the output ({error.strerror})", FAILURE)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return ErrorReport(
            f"{error.object!r} is not UTF-8 text; type it again, or check your terminal's locale", USAGE
        )
    return None
