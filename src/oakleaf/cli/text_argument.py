"""Text arguments: typed, from a file (@FILE) or from stdin. Anything but UTF-8 is refused before anything is written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from oakleaf.cli.option_group import Decorator
from oakleaf.cli.rendering.error_text import CommandError


def text_option(name: str, *, help: str, metavar: str = "TEXT|@FILE") -> Decorator:
    """Return an option whose value is a text, or the contents of a file."""
    return click.option(name, metavar=metavar, callback=_text_or_file, help=help)


def _text_or_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return None if value is None else read_text(value, param.opts[-1])


def read_text(value: str, what: str) -> str:
    """Return a text, the contents of @FILE, or of stdin for `-`. The name of a file without @ is refused."""
    if value == "-":
        return read_stdin()
    if value.startswith("@"):
        return _of_file(value[1:])
    refuse_file_name(value, what)
    return check_utf8(value, what)


def refuse_file_name(value: str, what: str, folder: Path = Path()) -> None:
    """Refuse a file's name as a text: a model would be sent the name, and nobody would see the reason for the
    failure.
    """
    if os.path.isfile(folder / value):  # not Path.is_file: a long text is no error
        raise CommandError(
            f"{what}: {value} is a file; write @{value} for its content, or - and pipe the words {value!r}"
        )


def read_stdin() -> str:
    """Return all of stdin."""
    try:
        return check_utf8(sys.stdin.read(), "stdin")
    except UnicodeDecodeError:
        raise _not_utf8("stdin") from None


def check_utf8(text: str, what: str) -> str:
    """Return the text; refuse a text with surrogates, Python's mark of bytes other than UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_utf8(what) from None
    return text


def _not_utf8(what: str) -> CommandError:
    return CommandError(f"{what} is not UTF-8 text; check your terminal's locale, or the file it comes from")


def _of_file(name: str) -> str:
    try:
        return Path(name).read_bytes().decode()
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}; @FILE reads the text from an existing file") from None
    except UnicodeDecodeError:
        raise CommandError(f"{name} is not UTF-8 text; save it as UTF-8") from None
