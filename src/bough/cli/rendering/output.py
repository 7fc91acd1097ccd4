"""Printing: data on stdout, talk on stderr, colour only on a terminal, JSON with a schema version."""

from __future__ import annotations

import re
import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from itertools import accumulate, islice
from typing import Any
from unicodedata import category, east_asian_width

import click
import msgspec

from ...core.usage import Totals
from .error_text import CommandError

SCHEMA_VERSION = 1
MIN_LAST_COLUMN = 12
"""Columns of a terminal without which the last one of a table says nothing."""

# What a terminal may obey, and JSON lets stand: C1 controls (one is as good as ESC [), and what turns the line around.
_CONTROL = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def format_options(default: str | None, **said: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A flag for each format; the verb is given the one that was typed as `format_`, and two are refused."""

    def taking(verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def parsed(*args: Any, **given: Any) -> Any:
            typed = [name for name in said if given.pop(f"as_{name}")]
            if len(typed) > 1:
                raise CommandError(f"--{typed[0]} and --{typed[1]} are two formats; ask for one at a time")
            return verb(*args, format_=typed[0] if typed else default, **given)

        made: Callable[..., Any] = parsed
        for name in reversed(said):
            made = click.option(f"--{name}", f"as_{name}", is_flag=True, help=said[name])(made)
        return made

    return taking


def to_json_value(value: Any) -> Any:
    """A value as JSON holds it: bytes as hex."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=repr) if value is not None else None


def encode_json(value: Any) -> bytes:
    """JSON as it leaves the program: UTF-8 whatever the locale says, and nothing in it that a terminal obeys."""
    text = msgspec.json.encode(_printable(to_json_value(value))).decode()
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def _printable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _printable(one) for name, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list | tuple) else value


def encode_report(data: dict[str, Any]) -> bytes:
    return msgspec.json.format(encode_json({"schema_version": SCHEMA_VERSION, **data}), indent=2)


def print_json(**data: Any) -> None:
    """One JSON object on stdout."""
    click.echo(encode_report(data))


def notify(text: str = "") -> None:
    """A remark to the person: never mixed with the data."""
    click.echo(text, err=True)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def bold(text: str) -> str:
    return click.style(text, bold=True)


def width(most: int = 120) -> int:
    return min(most, shutil.get_terminal_size((100, 24)).columns)


def print_lines(lines: Iterable[str]) -> None:
    """Many lines, some hundred at a time: each `echo` is a write of its own."""
    waiting = iter(lines)
    while chunk := list(islice(waiting, 500)):
        click.echo("\n".join(chunk))


def is_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm_plan(question: str, *, yes: bool) -> bool:
    """Whether to go on: --yes, or a person who says so. Without a terminal nobody is asked."""
    if yes:
        return True
    if not is_terminal():
        notify("nothing was done: this wants --yes, and there is no terminal to ask at")
        return False
    return click.confirm(question, err=True)


def format_time(at: int | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at / 1e6).strftime("%Y-%m-%d %H:%M")


def format_age(at: int, now: int) -> str:
    """How long ago, as people say it; what lies more than a month back by its date."""
    seconds = (now - at) // 1_000_000
    if seconds < 60:
        return "just now"
    for unit, size, most in (("minute", 60, 3_600), ("hour", 3_600, 86_400), ("day", 86_400, 2_678_400)):
        if seconds < most:
            return f"{plural(seconds // size, unit)} ago"
    return format_time(at)


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6).astimezone().isoformat(timespec="seconds")


def tokens(totals: Totals) -> str:
    return f"{totals.input_tokens:,} in, {totals.output_tokens:,} out"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def table(
    rows: Iterable[Sequence[str]], head: Sequence[str], *, spare: Sequence[str] = (), is_cut: bool = True
) -> list[str]:
    """Columns as wide as they need; a pipe gets all of them whole.

    At a terminal the last takes what is left, cut if it may be; where that is too little, those of `spare` are left
    out, in that order.
    """
    cells = [list(head), *(list(row) for row in rows)]
    wide = [max(_columns(click.unstyle(row[n])) for row in cells) for n in range(len(head))]
    kept, most = list(range(len(head))), sys.maxsize
    if sys.stdout.isatty():
        least = min(MIN_LAST_COLUMN, wide[-1]) if is_cut else wide[-1]
        for name in spare:
            if _room(kept, wide) < least:
                kept.remove(head.index(name))
        most = max(_room(kept, wide), MIN_LAST_COLUMN) if is_cut else sys.maxsize
    lines = []
    for number, row in enumerate(cells):
        padded = [row[n] + " " * (wide[n] - _columns(click.unstyle(row[n]))) for n in kept[:-1]]
        line = "  ".join([*padded, clip(row[-1], most)]).rstrip()
        lines.append(dim(line) if number == 0 else line)
    return lines


def _room(kept: Sequence[int], wide: Sequence[int]) -> int:
    """What is left for the last column."""
    return width() - sum(wide[n] + 2 for n in kept[:-1])


def clip(text: str, most: int) -> str:
    line = " ".join(text.split())
    line = line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)
    if len(line) <= most and _columns(line) <= most:  # a character takes a column at least
        return line
    if line.isascii():
        return line[: most - 1] + "…"
    ends = list(accumulate(map(_width, line[:most])))
    return line[: bisect_right(ends, most - 1)] + "…"


def _columns(text: str) -> int:
    """How much of a terminal's line it takes: letters of some scripts, and most emoji, take two columns."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    return 1 + (east_asian_width(character) in "WF")


def safe(text: str) -> str:
    """Text of a model or a tool for a terminal: escape sequences and other controls are shown, not obeyed."""
    if text.replace("\n", "").isprintable():  # nearly all is; character by character takes 30 times as long
        return text
    return "".join(
        c if c in "\n\t\u200d" or c.isprintable() or category(c) == "Zs" else _visible(c) for c in text
    )


def for_terminal(text: str) -> str:
    """Data on stdout: as it is for a pipe, safe for a terminal."""
    return safe(text) if sys.stdout.isatty() else text


def _visible(c: str) -> str:
    return chr(0x2400 + ord(c)) if ord(c) < 0x20 else "" if c == "\x7f" else "·"


Step = Callable[[int, int | None], None]
"""How far it is, and of how much if that is known."""


@contextmanager
def progress_bar(label: str, *, unit: str = "") -> Iterator[Step]:
    """`step(done, of)` moves it. On a terminal only: logs and pipes stay clean."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.console import Console  # loaded late: it takes longer than most verbs
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
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=None)
        yield lambda done, of: shown.update(task, completed=done, total=of)
