"""What a person types: lines with editing, history and completion, or lines of a pipe.

Knows readline and how several lines make one input. The history file holds what the log would hold: secrets are
hidden before they are written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import msgspec

from ..rendering.error_text import CommandError
from ..store_option import default_store

MAX_HISTORY = 1_000
QUOTES = '"""'


def read_input(line: Callable[[bool], str]) -> str:
    """One input: a line, lines that end in a backslash and the next, or all between triple quotes.

    `line` is told whether an input goes on. An end of file in the middle ends the input, not the program.
    """
    text = line(False)
    if not text.lstrip().startswith(QUOTES):
        while text.endswith("\\"):
            text = f"{text[:-1]}\n{_next(line) or ''}"
        return text
    text = text.lstrip()[len(QUOTES) :]
    while not text.rstrip().endswith(QUOTES):
        more = _next(line)
        if more is None:
            return text.strip("\n")
        text += f"\n{more}"
    return text.rstrip()[: -len(QUOTES)].strip("\n")


def _next(line: Callable[[bool], str]) -> str | None:
    try:
        return line(True)
    except EOFError:
        return None


class PipedInput:
    """Lines from stdin, without a prompt."""

    def read(self) -> str:
        """The next input; EOFError at the end."""
        return read_input(self._line)

    def _line(self, is_more: bool) -> str:
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise CommandError("what is piped in is not UTF-8 text; check the file it comes from") from None
        if not line:
            raise EOFError
        return line.rstrip("\n")


class TerminalInput:
    """Lines from a terminal, by the stdlib's readline."""

    def __init__(self, words: Sequence[str], hide: Callable[[str], str]) -> None:
        import readline

        self._readline, self._words, self._hide = readline, words, hide
        self._place = default_store().parent / "chat_history"
        self._remember()
        readline.set_auto_history(False)  # an approval's y is no input to come back to
        readline.set_completer(self._completion)
        readline.set_completer_delims(" \t\n")
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

    def read(self) -> str:
        """The next input; EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        text = read_input(self._line)
        if text.strip():
            self._readline.add_history(text)
            self._keep(text)
        return text

    def _line(self, is_more: bool) -> str:
        return input(prompt("…" if is_more else "›"))

    def _completion(self, text: str, n: int) -> str | None:
        begins = self._readline.get_line_buffer().lstrip() == text
        found = [f"{word} " for word in self._words if begins and word.startswith(text)]
        return found[n] if n < len(found) else None

    def _remember(self) -> None:
        if not self._place.exists():
            return
        lines = self._place.read_bytes().splitlines()[-MAX_HISTORY:]
        for line in lines:
            self._readline.add_history(msgspec.json.decode(line, type=str))

    def _keep(self, text: str) -> None:
        self._place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = msgspec.json.encode(self._hide(text.encode("utf-8", "replace").decode())) + b"\n"
        file = os.open(self._place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def prompt(sign: str) -> str:
    """The sign before the cursor. Readline must be told which bytes take no room."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return f"{sign} "
    return f"\001\033[1;36m\002{sign}\001\033[0m\002 "
