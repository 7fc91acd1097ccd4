"""Write a report of a comparison: to a file that is opened before the work, or to the terminal in colour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from oakleaf.cli.rendering.output import echo, safe
from oakleaf.ext import atomic_file
from oakleaf.verbs.files import check_target

_COLOURS = {"  expected ": "red", "  actual ": "green"}


@contextmanager
def open_report(output: str | None, *, force: bool) -> Iterator[BinaryIO | None]:
    """Open the report's file, or None for stdout. Before the work: it may cost money, and the report must not be lost."""
    if output is None:
        yield None
        return
    check_target(Path(output), force=force)
    with atomic_file(output) as file:
        yield file


def write_report(report: bytes | str, file: BinaryIO | None) -> None:
    """Write a report, JSON as bytes, to the file or to stdout."""
    if file is not None:
        file.write((report.encode() if isinstance(report, str) else report) + b"\n")
    elif isinstance(report, str):
        echo("\n".join(map(_colour, safe(report).split("\n"))))
    else:
        echo(report)


def _colour(line: str) -> str:
    """Colour the expected and the actual line like a diff."""
    return next((click.style(line, fg=_COLOURS[head]) for head in _COLOURS if line.startswith(head)), line)
