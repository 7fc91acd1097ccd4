"""What people read of a verb's result, compared with a file in tests/golden/text.

    check_golden("fork", Fork(session="ses_1"), result, now)

The file has the lines at a terminal of 80 and of 160 columns and in a pipe, without styles, each with the notes beside
them after `| `. `UPDATE_GOLDEN=1 pytest FILE` writes the files anew: read their difference before it is committed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oakleaf.verbs.base import Verb
from oakleaf.verbs.screen import Screen, plain

FOLDER = Path(__file__).parents[1] / "golden" / "text"
WIDTHS = {"at a terminal of 80 columns": 80, "at a terminal of 160 columns": 160, "in a pipe": None}


def check_golden(name: str, verb: Verb, result: Any, now: int) -> None:
    """Compare what people read of a result with the file of a name. `now` is the time from which ages count."""
    with utc():
        text = "\n".join(_section(title, verb, result, Screen(width, now)) for title, width in WIDTHS.items())
    file = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    expected = file.read_text("utf-8") if file.exists() else ""
    assert text == expected, f"UPDATE_GOLDEN=1 writes {file.name} anew"


def _section(title: str, verb: Verb, result: Any, screen: Screen) -> str:
    lines = [plain(line) for line in screen.print(verb.lines(result, screen))]
    notes = [f"| {line}" for note in verb.notes(result, screen) for line in plain(note).split("\n")]
    return "\n".join([f"-- {title} --", *lines, *notes, ""])


@contextmanager
def utc() -> Iterator[None]:
    """Make local times those of UTC, as in the files."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()
