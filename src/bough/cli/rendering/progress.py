"""A bar on stderr while something long is done; nothing where no one looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Step = Callable[[int, int | None], None]
"""How far it is, and of how much if that is known."""


@contextmanager
def bar(label: str, *, unit: str = "") -> Iterator[Step]:
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
