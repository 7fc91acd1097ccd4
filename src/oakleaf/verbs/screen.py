"""What people read of a result: lines and tables, fitted to a width, with few colours.

A text carries its styles as escape sequences; a surface without colours takes them out. Knows no terminal.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from unicodedata import category, east_asian_width

from msgspec import Struct

from oakleaf.errors import plural

MIN_LAST_COLUMN = 12
"""The least width at which a table's last column is worth printing."""
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
STYLE = re.compile(r"(\x1b\[(?:0|1|2|3[0-7])m)")
"""What a text is styled with."""


def style(text: str, *names: str) -> str:
    """Return a text in colours or weights, such as `style("failed", "red", "bold")`."""
    codes = "".join(f"\x1b[{_CODES[name]}m" for name in names)
    return f"{codes}{text}\x1b[0m" if codes and text else text


def plain(text: str) -> str:
    """Return a text without its styles."""
    return STYLE.sub("", text)


class Table(Struct, frozen=True):
    """Rows under a head. Where the width is too small, columns of `drop_first` go, in that order, and the last is clipped."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    drop_first: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    """Columns of numbers, which end at the same place."""
    clip_last: bool = True


Line = str | Table


class Screen(Struct, frozen=True):
    """Where lines are shown."""

    width: int | None = None
    """In columns; None for a pipe, where nothing is cut and times are absolute."""
    now: int = 0
    """Microseconds since 1970."""

    def fit(self, text: str, used: int = 0) -> str:
        """Return a text in one line, cut to the width that is left."""
        line = " ".join(text.split())
        return line if self.width is None else fit_line(line, max(self.width - used, MIN_LAST_COLUMN))

    def wrap(self, text: str, used: int = 0) -> list[str]:
        """Return the lines of a text, broken between words where they are wider than the width that is left."""
        if self.width is None:
            return text.splitlines()
        room = max(self.width - used, MIN_LAST_COLUMN)
        return [piece for line in text.splitlines() for piece in _pieces(line, room)]

    def facts(self, facts: Iterable[str], indent: str = "") -> Iterator[str]:
        """Yield facts in a row, in as many lines as the width needs."""
        line = ""
        for fact in filter(None, facts):
            longer = f"{line}{style(' · ', 'dim')}{fact}" if line else indent + fact
            if line and self.width is not None and columns(plain(longer)) > self.width:
                yield line
                longer = indent + fact
            line = longer
        yield line

    def time(self, at: int) -> str:
        """Return an age where somebody looks, else the time."""
        return format_time(at) if self.width is None else format_age(at, self.now)

    def print(self, lines: Iterable[Line]) -> Iterator[str]:
        """Yield the lines of texts and tables."""
        for line in lines:
            yield from self._table(line) if isinstance(line, Table) else (line,)

    def _table(self, table: Table) -> Iterator[str]:
        cells = [table.head, *table.rows]
        widths = [max(columns(plain(row[n])) for row in cells) for n in range(len(table.head))]
        shown, last = list(range(len(table.head))), None
        if self.width is not None:
            needed = min(MIN_LAST_COLUMN, widths[-1]) if table.clip_last else widths[-1]
            for name in table.drop_first:
                if self._room(shown, widths) < needed:
                    shown.remove(table.head.index(name))
            last = max(self._room(shown, widths), MIN_LAST_COLUMN) if table.clip_last else None
        right = {table.head.index(name) for name in table.right}
        for number, row in enumerate(cells):
            padded = [_pad(row[n], widths[n], right=n in right) for n in shown[:-1]]
            end = _pad(row[-1], widths[-1], right=True) if len(row) - 1 in right else row[-1]
            end = end if last is None else clip(end, last)
            line = "  ".join([*padded, end]).rstrip()
            yield style(line, "dim") if number == 0 else line

    def _room(self, shown: Sequence[int], widths: Sequence[int]) -> int:
        """Return the width left for the last column."""
        assert self.width is not None
        return self.width - sum(widths[n] + 2 for n in shown[:-1])


def _pad(text: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - columns(plain(text)))
    return blanks + text if right else text + blanks


# -- texts ---------------------------------------------------------------------------------------------------


def clip(text: str, limit: int) -> str:
    return fit_line(" ".join(text.split()), limit)


def fit_line(line: str, limit: int) -> str:
    """Return a line cut to `limit` columns of a terminal, with blanks in place of what cannot be printed."""
    line = line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)
    if len(line) <= limit and columns(line) <= limit:  # a character takes at least one column
        return line
    if line.isascii():
        return line[: limit - 1] + "…"
    ends = list(accumulate(map(_width, line[:limit])))
    return line[: bisect_right(ends, limit - 1)] + "…"


def _pieces(line: str, room: int) -> Iterator[str]:
    """Yield a line in pieces of at most `room` columns."""
    while len(line) > room or columns(line) > room:
        most = bisect_right(list(accumulate(map(_width, line[: room + 1]))), room)
        space = line.rfind(" ", 0, most + 1)
        end = space if line[: max(space, 0)].strip() else max(most, 1)
        yield line[:end].rstrip()
        line = line[end:].lstrip(" ")
    yield line


def columns(text: str) -> int:
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


def _visible(c: str) -> str:
    return chr(0x2400 + ord(c)) if ord(c) < 0x20 else "" if c == "\x7f" else "·"


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
