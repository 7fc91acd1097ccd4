"""Our errors as the command line ends with them: in the words of `telling`, each with its exit code."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from ... import errors
from ...error_messages import tell

FAILURE, USAGE, CONFLICT = 1, 2, 3


class CommandError(click.ClickException):
    """What was asked for makes no sense here; the usage text would not help."""

    exit_code = USAGE

    def show(self, file: Any = None) -> None:
        print_error(self.message)


class TakenOver(CommandError):
    """Somebody else got in between; what was done until then is done."""

    exit_code = CONFLICT


def print_error(text: str) -> None:
    """An error to the person. It may hold what a stranger wrote, and is said where click no longer minds NO_COLOR."""
    from .output import safe  # late: `bough --help` needs none of it

    color = False if os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style('bough:', fg='red')} {safe(text)}", err=True, color=color)


def require_folder(target: Path) -> None:
    """Before the work: what cannot be written for want of a folder would be lost."""
    if not target.parent.is_dir():
        raise CommandError(f"{target} cannot be written: there is no folder {target.parent}")


class Said(NamedTuple):
    text: str
    code: int


_CODES: dict[type[errors.BoughError], int] = {
    errors.NotFound: USAGE,
    errors.StaleLeaf: CONFLICT,
    errors.Fenced: CONFLICT,
    errors.SessionRunning: CONFLICT,
    errors.SessionTrashed: USAGE,
    errors.NotTrashed: USAGE,
    errors.InvalidPosition: USAGE,
    errors.NothingToRedo: USAGE,
    errors.InvalidValue: USAGE,
    errors.UnknownProvider: USAGE,
    errors.ModelUnavailable: USAGE,
    errors.InvalidTool: USAGE,
    errors.InvalidReplay: USAGE,
    errors.NotAStore: USAGE,
    errors.PostgresRequired: USAGE,
    errors.TokenRequired: USAGE,
}


_OWN: dict[type[errors.BoughError], Callable[[Any], str]] = {
    errors.NothingToRedo: lambda _: (
        "nothing was rewound since the last append; bough log --all lists every branch, "
        "bough rewind REFERENCE@BRANCH:SEQ goes to one"
    ),
    errors.SessionIsReplay: lambda e: (
        f"session {e.session_id} is a replay: its tools were answered by a recording and must not run for real by "
        f"accident; bough fork {e.session_id} makes a session of it that goes on"
    ),
    errors.InvalidText: lambda e: (
        f"{str(e).partition('; clean')[0]}: it is no text; type it again, or check your terminal's locale or the file it "
        "comes from"
    ),
    errors.IdConflict: lambda e: (
        f"session id {e.session_id!r} holds other content here (or is another tenant's); nothing was taken in. With "
        "--new-id it is taken in beside, under an id of its own"
    ),
    errors.StoreFull: lambda e: str(e).removesuffix(" with the same key"),
    errors.PageTooLarge: lambda e: (
        f"the session is more than the {e.most:,} bytes one HTML file should hold; nothing was written. Leave out its "
        "tasks (--no-children) or its attachments (no --blobs), write it with bough export --bundle, or show it with "
        "bough serve"
    ),
}
"""What `telling` says in words of Python, or not for the command line."""


_LIMITS = {
    "fork it or raise Limits(turns=)": "raise it with --max-turns N, or bough fork {} goes on in a new one",
    "raise Limits(rounds=)": "bough run --resume {} TEXT goes on with another turn",
    "raise Limits(max_cost_microcents=)": "raise it with --max-cost DOLLARS, or bough fork {} begins a new account",
}


def stop_message(message: str, session_id: str) -> str:
    """Why a turn ended, with the options that raise a limit where the loop names its own."""
    for python, typed in _LIMITS.items():
        message = message.replace(python, typed.format(session_id))
    return message


def describe_error(error: BaseException) -> Said | None:
    """What to print and how to exit; None if the error is none of ours."""
    if isinstance(error, click.ClickException):
        return Said(error.format_message(), error.exit_code)
    if isinstance(error, errors.BoughError):
        known = next((kind for kind in type(error).__mro__ if kind in _CODES), None)
        locked = CONFLICT if "was locked by" in str(error) else FAILURE
        own = _OWN.get(type(error))
        return Said(
            tell(error).text if own is None else own(error), locked if known is None else _CODES[known]
        )
    if isinstance(error, OSError) and error.filename is not None:
        return Said(f"{error.filename}: {error.strerror}", FAILURE)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return Said(f"what is printed cannot be written ({error.strerror}); send it elsewhere", FAILURE)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return Said(
            f"{error.object!r} is not UTF-8 text; type it again, or check your terminal's locale", USAGE
        )
    return None
