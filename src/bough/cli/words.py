"""Our errors as the command line ends with them: in the words of `telling`, each with its exit code."""

from __future__ import annotations

import errno
import os
from typing import Any, NamedTuple

import click

from .. import errors
from ..telling import tell

PROBLEM, USAGE, HELD = 1, 2, 3


class Refused(click.ClickException):
    """What was asked for makes no sense here; the usage text would not help."""

    exit_code = USAGE

    def show(self, file: Any = None) -> None:
        complain(self.message)


def complain(text: str) -> None:
    """An error to the person. It may hold what a stranger wrote, and is said where click no longer minds NO_COLOR."""
    from .printing import safe  # late: `bough --help` needs none of it

    color = False if os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style('bough:', fg='red')} {safe(text)}", err=True, color=color)


class Said(NamedTuple):
    text: str
    code: int


_CODES: dict[type[errors.BoughError], int] = {
    errors.NotFound: USAGE,
    errors.StaleLeaf: HELD,
    errors.Fenced: HELD,
    errors.Running: HELD,
    errors.Trashed: USAGE,
    errors.NotTrashed: USAGE,
    errors.BadPoint: USAGE,
    errors.NothingToRedo: USAGE,
    errors.BadValue: USAGE,
    errors.UnknownProvider: USAGE,
    errors.NoModel: USAGE,
    errors.BadTool: USAGE,
    errors.BadReplay: USAGE,
    errors.WrongStore: USAGE,
}


def explain(error: BaseException) -> Said | None:
    """What to print and how to exit; None if the error is none of ours."""
    if isinstance(error, errors.BoughError):
        known = next((kind for kind in type(error).__mro__ if kind in _CODES), None)
        locked = HELD if "was locked by" in str(error) else PROBLEM
        return Said(tell(error).text, locked if known is None else _CODES[known])
    if isinstance(error, OSError) and error.filename is not None:
        return Said(f"{error.filename}: {error.strerror}", PROBLEM)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return Said(f"what is printed cannot be written ({error.strerror}); send it elsewhere", PROBLEM)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return Said(
            f"{error.object!r} is not UTF-8 text; type it again, or check your terminal's locale", USAGE
        )
    return None
