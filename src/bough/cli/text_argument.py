"""Text of a command line: as it was typed, from a file (@FILE) or from stdin. UTF-8, or refused before anything is made."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .rendering.error_text import CommandError


def text_or_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """For an option that takes TEXT|@FILE: what the file says, or the text as given."""
    if value is None:
        return None
    return check_utf8(value, param.opts[-1]) if not value.startswith("@") else _of_file(value[1:])


def read_stdin() -> str:
    """All of stdin."""
    try:
        return check_utf8(sys.stdin.read(), "stdin")
    except UnicodeDecodeError:
        raise _not_utf8("stdin") from None


def check_utf8(text: str, what: str) -> str:
    """The text itself; refused if a byte of it was none of UTF-8, which Python passes on as half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_utf8(what) from None
    return text


def _not_utf8(what: str) -> CommandError:
    return CommandError(f"{what} is not UTF-8 text; check your terminal's locale, or the file it comes from")


def _of_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{name}: {error.strerror}; @FILE reads a text from a file, name one that is there"
        ) from None
    except UnicodeDecodeError:
        raise CommandError(f"{name} is not UTF-8 text; save it as UTF-8") from None
