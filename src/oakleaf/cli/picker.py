"""Pick one of several lines at the terminal with the arrow keys.

Draws on stderr, below the cursor, and clears what it drew. Needs a POSIX terminal: where `can_pick` says there is none,
a command names what to type instead.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from typing import Self

import click

from oakleaf.cli.rendering.output import bold, dim, fit_line, is_terminal

KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x10": "up",  # Ctrl-P, as in a line editor
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x0e": "down",
    "\x1b[5~": "page_up",
    "\x1b[6~": "page_down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "leave",
    "\x03": "leave",
    "\x04": "leave",
    "": "leave",
}
"""The keys that have a name. An empty read is the end of the input."""
_SEQUENCE = re.compile(r"\x1b(\[[0-9;]*[A-Za-z~]|O[A-Za-z])")
ESCAPE_SECONDS = 0.05
"""How long the rest of a sequence may take after its first byte: after that it was the key Esc."""


def can_pick() -> bool:
    """Whether single keys can be read, and a drawing be replaced."""
    return is_terminal() and os.environ.get("TERM") != "dumb" and find_spec("termios") is not None


class Keyboard:
    """Reads single keys from stdin, Ctrl-C included. On exit the terminal is as it was."""

    def __enter__(self) -> Self:
        import termios

        self._input = sys.stdin.fileno()
        self._mode = termios.tcgetattr(self._input)
        mode = termios.tcgetattr(self._input)
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
        termios.tcsetattr(self._input, termios.TCSADRAIN, mode)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unread = ""
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        termios.tcsetattr(self._input, termios.TCSADRAIN, self._mode)

    def read(self) -> str:
        """Return the name of a key, or the typed character."""
        if not self._unread:
            self._receive()
        if self._unread[:1] == "\x1b":
            while not (match := _SEQUENCE.match(self._unread)) and self._has_more():
                self._receive()
            key = match[0] if match else "\x1b"
        else:
            key = self._unread[:1]
        self._unread = self._unread[len(key) :]
        return KEYS.get(key, key)

    def _has_more(self) -> bool:
        return len(self._unread) < 16 and bool(select.select([self._input], [], [], ESCAPE_SECONDS)[0])

    def _receive(self) -> None:
        while True:
            try:
                data = os.read(self._input, 1_024)
            except OSError:  # the terminal is gone
                data = b""
            text = self._decoder.decode(data)
            self._unread += text
            if text or not data:
                return


class Picker:
    """The rows, the rows matching the typed text, and the marked row."""

    def __init__(self, rows: Sequence[str], skip: Collection[int] = (), start: int = 0) -> None:
        self.rows, self.skip = rows, frozenset(skip)
        self.filter = ""
        self.matches = list(range(len(rows)))
        self.at = start

    @property
    def picked(self) -> int | None:
        """The index of the marked row; None if no row matches."""
        return self.matches[self.at] if self.matches else None

    def move(self, steps: int) -> None:
        """Move the mark by the given rows, or to the nearest selectable row in the direction, else stay."""
        if not self.matches:
            return
        last = len(self.matches) - 1
        aim = min(max(self.at + steps, 0), last)
        onwards = range(aim, last + 1) if steps > 0 else range(aim, -1, -1)
        back = range(aim, self.at, -1) if steps > 0 else range(aim, self.at)
        self.at = next((n for n in (*onwards, *back) if self.matches[n] not in self.skip), self.at)

    def set_filter(self, text: str) -> None:
        """Show only the rows with all of the words."""
        words = text.casefold().split()
        self.filter = text
        self.matches = [n for n, row in enumerate(self.rows) if all(word in row.casefold() for word in words)]
        self.at = 0

    def lines(self, title: str, columns: int, height: int, *, has_filter: bool) -> list[str]:
        """Return the drawing: at most `height` lines."""
        count = max(1, height - 3 - has_filter)
        first = min(max(0, self.at - count // 2), max(0, len(self.matches) - count))
        lines = [bold(fit_line(title, columns))]
        if has_filter:
            hint = dim(fit_line("type to filter", columns - 2))
            lines.append(f"  {fit_line(self.filter, columns - 4)}▏" if self.filter else f"  {hint}")
        for n, index in enumerate(self.matches[first : first + count], first):
            text = fit_line(self.rows[index], columns - 2)
            lines.append(click.style(f"❯ {text}", fg="cyan", bold=True) if n == self.at else f"  {text}")
        if not self.matches:
            lines.append(f"  {fit_line('nothing matches', columns - 2)}")
        hidden = len(self.matches) > count
        where = f"{self.at + 1} of {len(self.matches)} · " if hidden else ""
        leave = "Esc" if has_filter else "q"
        return [*lines, dim(fit_line(f"{where}↑ ↓ move · Enter picks · {leave} leaves", columns))]


def pick(
    rows: Sequence[str], title: str, *, start: int = 0, skip: Collection[int] = (), has_filter: bool = False
) -> int | None:
    """Let the user pick a row; return the index, or None after leaving. Rows in `skip` are shown only.

    With `has_filter`, what is typed filters the rows; without, q leaves and j and k move.
    """
    picker, screen = Picker(rows, skip, start), Screen()
    page = max(1, shutil.get_terminal_size().lines - 6)
    moves = {"up": -1, "down": 1, "page_up": -page, "page_down": page, "home": -len(rows), "end": len(rows)}
    moves |= {} if has_filter else {"k": -1, "j": 1}
    try:
        with Keyboard() as keyboard:
            while True:
                screen.draw(
                    lambda columns, height: picker.lines(title, columns, height, has_filter=has_filter)
                )
                key = keyboard.read()
                if key == "enter" and picker.picked is not None:
                    return picker.picked
                if key == "leave" or (key == "q" and not has_filter):
                    return None
                if key in moves:
                    picker.move(moves[key])
                elif has_filter and key == "backspace":
                    picker.set_filter(picker.filter[:-1])
                elif has_filter and len(key) == 1 and key.isprintable():
                    picker.set_filter(picker.filter + key)
    finally:
        screen.clear()


class Screen:
    """Lines at the cursor, drawn again and again."""

    def __init__(self) -> None:
        self._height = 0
        self._has_colour = not os.environ.get("NO_COLOR")

    def draw(self, lines: Callable[[int, int], list[str]]) -> None:
        size = shutil.get_terminal_size()
        rows = lines(size.columns - 1, size.lines - 1)
        text = "\r\n".join(rows if self._has_colour else map(click.unstyle, rows))
        sys.stderr.write(f"\x1b[?25l{self._back()}{text}")
        sys.stderr.flush()
        self._height = len(rows)

    def clear(self) -> None:
        sys.stderr.write(f"{self._back()}\x1b[?25h")
        sys.stderr.flush()
        self._height = 0

    def _back(self) -> str:
        """Go to where the drawing began and clear the screen from there."""
        up = f"\x1b[{self._height - 1}A" if self._height > 1 else ""
        return f"{up}\r\x1b[J"
