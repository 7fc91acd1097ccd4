"""Output: data on stdout, notices on stderr, colour only at a terminal, JSON with a schema version."""

from __future__ import annotations

import re
import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from itertools import accumulate, cycle, islice
from typing import Any, Protocol
from unicodedata import category, east_asian_width

import click
import msgspec

from oakleaf.cli.option_group import Decorator, option_group
from oakleaf.cli.rendering.error_text import CommandError, suggestions
from oakleaf.errors import plural as plural

SCHEMA_VERSION = 1
MIN_LAST_COLUMN = 12
"""The least width at which a table's last column is worth printing."""

# Characters a terminal obeys and JSON does not escape: C1 controls (one equals ESC [) and bidirectional overrides.
_CONTROL = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

_STYLE = re.compile(r"(\x1b\[(?:0|1|2|3[0-7])m)")
"""What this program styles text with."""

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
force_option = click.option("--force", is_flag=True, help="Overwrite an existing file.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def _parameter(name: str) -> str:
    return f"as_{name}".replace("-", "_")


def format_options(default: str | None, **formats: str) -> Decorator:
    """Add a flag for each format; the command receives the chosen one as `format_`. Two formats are refused."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def command(*args: Any, **parameters: Any) -> Any:
            typed = [name for name in formats if parameters.pop(_parameter(name))]
            if len(typed) > 1:
                raise CommandError(f"--{typed[0]} and --{typed[1]} exclude each other; use one")
            return verb(*args, format_=typed[0] if typed else default, **parameters)

        options = (
            click.option(f"--{name}", _parameter(name), is_flag=True, help=help)
            for name, help in formats.items()
        )
        return option_group(*options)(command)

    return decorate


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=repr)


def encode_json(value: Any) -> bytes:
    """Encode JSON for stdout: UTF-8 whatever the locale, and no character that a terminal obeys."""
    text = msgspec.json.encode(_printable(to_json_value(value))).decode()
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _printable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value


def encode_line(value: Any) -> bytes:
    """Encode an object for a command that prints one per line."""
    return encode_json({"schema_version": SCHEMA_VERSION, **to_json_value(value)})


def encode_report(data: dict[str, Any]) -> bytes:
    return msgspec.json.format(encode_line(data), indent=2)


def echo(text: str | bytes = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for people, with every control in it made visible but the styles of this program; bytes as they are.

    Every text of a command goes through here: what a store holds may come from a stranger, and a pipe may end in a
    terminal. Only data that was asked for as it is, an export or an answer, does not.
    """
    click.echo(text if isinstance(text, bytes) else guard(text), err=err, nl=nl)


def guard(text: str) -> str:
    """Return text with its controls made visible, except for line ends and the styles that `click.style` adds."""
    return "".join(
        piece if is_style else safe(piece)
        for piece, is_style in zip(_STYLE.split(text), cycle((False, True)))
    )


def print_json(**data: Any) -> None:
    """Print one JSON object to stdout."""
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
    """Print lines, 500 at a time: each `echo` is a write of its own."""
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


def format_time(at: int | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at / 1e6).strftime("%Y-%m-%d %H:%M")


def format_age(at: int, now: int) -> str:
    """Return an age such as `3 hours ago`; the date if it is more than a month."""
    seconds = (now - at) // 1_000_000
    if seconds < 60:
        return "just now"
    for unit, size, limit in (("minute", 60, 3_600), ("hour", 3_600, 86_400), ("day", 86_400, 2_678_400)):
        if seconds < limit:
            return f"{plural(seconds // size, unit)} ago"
    return format_time(at)


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6).astimezone().isoformat(timespec="seconds")


def table(
    rows: Iterable[Sequence[str]],
    head: Sequence[str],
    *,
    drop_first: Sequence[str] = (),
    clip_last: bool = True,
) -> list[str]:
    """Return the lines of a table. A pipe gets every column in full.

    At a terminal the last column gets the remaining width, clipped if `clip_last`; where that is too little, the columns
    of `drop_first` are dropped, in that order.
    """
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(_columns(click.unstyle(row[n])) for row in cells) for n in range(len(head))]
    columns, last_width = list(range(len(head))), sys.maxsize
    if sys.stdout.isatty():
        needed = min(MIN_LAST_COLUMN, widths[-1]) if clip_last else widths[-1]
        for name in drop_first:
            if _room(columns, widths) < needed:
                columns.remove(head.index(name))
        last_width = max(_room(columns, widths), MIN_LAST_COLUMN) if clip_last else sys.maxsize
    lines = []
    for number, row in enumerate(cells):
        padded = [row[n] + " " * (widths[n] - _columns(click.unstyle(row[n]))) for n in columns[:-1]]
        line = "  ".join([*padded, clip(row[-1], last_width)]).rstrip()
        lines.append(dim(line) if number == 0 else line)
    return lines


def _room(columns: Sequence[int], widths: Sequence[int]) -> int:
    """Return the width left for the last column."""
    return width() - sum(widths[n] + 2 for n in columns[:-1])


def clip(text: str, limit: int) -> str:
    return fit_line(" ".join(text.split()), limit)


def fit_line(line: str, limit: int) -> str:
    """Return a line cut to `limit` columns of a terminal, with blanks in place of what cannot be printed."""
    line = line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)
    if len(line) <= limit and _columns(line) <= limit:  # a character takes at least one column
        return line
    if line.isascii():
        return line[: limit - 1] + "…"
    ends = list(accumulate(map(_width, line[:limit])))
    return line[: bisect_right(ends, limit - 1)] + "…"


def _columns(text: str) -> int:
    """Return the columns a text takes: letters of some scripts, and most emoji, take two."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    return 1 + (east_asian_width(character) in "WF")


def safe(text: str) -> str:
    """Return text for a terminal with escape sequences and other controls made visible."""
    if text.replace(
        "\n", ""
    ).isprintable():  # the common case; checking each character takes 30 times as long
        return text
    return "".join(
        c if c in "\n\t\u200d" or c.isprintable() or category(c) == "Zs" else _visible(c) for c in text
    )


def for_terminal(text: str) -> str:
    """Return data for stdout: unchanged for a pipe, safe for a terminal."""
    return safe(text) if sys.stdout.isatty() else text


def _visible(c: str) -> str:
    return chr(0x2400 + ord(c)) if ord(c) < 0x20 else "" if c == "\x7f" else "·"


class ProgressStep(Protocol):
    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Show the amount done, the total if it is known, and a note."""


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
