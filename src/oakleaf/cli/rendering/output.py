"""Output: data on stdout, notices on stderr, colour only at a terminal, JSON with a schema version."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle, islice
from typing import Any, Protocol

import click
import msgspec

from oakleaf.cli.rendering.error_text import suggestions
from oakleaf.errors import plural as plural
from oakleaf.verbs.screen import STYLE, Screen, Table
from oakleaf.verbs.screen import clip as clip
from oakleaf.verbs.screen import fit_line as fit_line
from oakleaf.verbs.screen import format_age as format_age
from oakleaf.verbs.screen import format_time as format_time
from oakleaf.verbs.screen import safe as safe

SCHEMA_VERSION = 1

# Characters a terminal obeys and JSON does not escape: C1 controls (one equals ESC [) and bidirectional overrides.
_CONTROL = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
force_option = click.option("--force", is_flag=True, help="Overwrite an existing file.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=repr)


def encode_json(value: Any) -> bytes:
    """Encode JSON for stdout: UTF-8 whatever the locale, and no character with terminal effects."""
    text = msgspec.json.encode(_printable(to_json_value(value))).decode()
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _printable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value


def encode_line(value: Any) -> bytes:
    """Encode an object for a command with an object per line."""
    return encode_json({"schema_version": SCHEMA_VERSION, **to_json_value(value)})


def encode_report(data: dict[str, Any]) -> bytes:
    return msgspec.json.format(encode_line(data), indent=2)


def echo(text: str | bytes = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for people, with every control visible except the program's styles; bytes verbatim.

    Every text of a command goes through here: what a store holds may come from a stranger, and a pipe may end in a
    terminal. Only data that was asked for as it is, an export or an answer, does not.
    """
    click.echo(text if isinstance(text, bytes) else guard(text), err=err, nl=nl)


def guard(text: str) -> str:
    """Return text with visible controls, except for line ends and the styles of `click.style`."""
    return "".join(
        piece if is_style else safe(piece) for piece, is_style in zip(STYLE.split(text), cycle((False, True)))
    )


def print_json(**data: Any) -> None:
    """Print a JSON object to stdout."""
    echo(encode_report(data))


def notify(text: str = "") -> None:
    """Print a notice to stderr, apart from the data."""
    echo(suggestions.complete(text), err=True)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def bold(text: str) -> str:
    return click.style(text, bold=True)


def width(limit: int = 120) -> int:
    return min(limit, shutil.get_terminal_size((100, 24)).columns)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, 500 at a time: each `echo` is a separate write."""
    remaining = iter(lines)
    while chunk := list(islice(remaining, 500)):
        echo("\n".join(chunk))


def is_terminal() -> bool:
    """Whether the user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm_plan(question: str, *, yes: bool) -> bool:
    """Return whether --yes was passed or the user agrees. Without a terminal the answer is no."""
    if yes:
        return True
    if not is_terminal():
        notify("nothing was done; pass --yes to confirm, since there is no terminal to ask at")
        return False
    try:
        return click.confirm(guard(question), err=True)
    except click.Abort:
        notify()  # the cursor is behind the question
        raise


def table(
    rows: Iterable[Sequence[str]],
    head: Sequence[str],
    *,
    drop_first: Sequence[str] = (),
    clip_last: bool = True,
) -> list[str]:
    """Return the lines of a table. A pipe gets every column in full."""
    values = [tuple(row) for row in rows]
    return list(screen().print([Table(tuple(head), values, tuple(drop_first), clip_last=clip_last)]))


def screen() -> Screen:
    """Return where stdout is shown."""
    return Screen(width() if sys.stdout.isatty() else None, time.time_ns() // 1_000)


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6).astimezone().isoformat(timespec="seconds")


def for_terminal(text: str) -> str:
    """Return data for stdout: unchanged for a pipe, safe for a terminal."""
    return safe(text) if sys.stdout.isatty() else text


class ProgressStep(Protocol):
    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Show the amount done, the total if known, and a note."""


@contextmanager
def progress_bar(label: str, *, unit: str = "") -> Iterator[ProgressStep]:
    """Show a progress bar on stderr, moved by `step(done, total)`. Only at a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, note="": None
        return
    from rich.console import Console  # imported late: it takes longer than most commands
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}{{task.fields[note]}}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None, note="")
        yield lambda done, total, note="": progress.update(task, completed=done, total=total, note=note)
