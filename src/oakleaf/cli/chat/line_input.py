"""Reads the chat's input: lines with editing, history and completion at a terminal, or lines of a pipe.

Joins several lines into one input. Secrets are masked before they are written to the history file, as in the log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

import msgspec

from oakleaf.cli.chat_history import decode_input, history_path
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import echo, safe

MAX_HISTORY = 1_000
QUOTES = '"""'


def read_input(line: Callable[[bool], str]) -> str:
    """Read an input: a line, lines joined by a trailing backslash, or the text between triple quotes.

    `line` receives True for a continuation line. End of file inside an input ends the input, not the program.
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


def read_piped(draft: str) -> str:
    """Return the next input of stdin, without a prompt; raise EOFError at the end. The draft is ignored: a pipe cannot edit it."""
    return read_input(_piped_line)


def _piped_line(is_more: bool) -> str:
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError:
        raise CommandError("stdin is not UTF-8 text; check the file it comes from") from None
    if not line:
        raise EOFError
    return line.rstrip("\n")


def read_plain(draft: str) -> str:
    """Return the next input of a terminal where Python has no readline, as on Windows: without history and completion.

    A draft is printed, to be copied.
    """
    if draft:
        echo(safe(draft))
    return read_input(lambda is_more: input("… " if is_more else "› "))


class TerminalInput:
    """Lines from a terminal, read with readline.

    `complete` returns the words that may come next, given the line before the cursor's word; those that begin with
    the word are offered.
    """

    def __init__(self, complete: Callable[[str], Iterable[str]], redact: Callable[[str], str]) -> None:
        import readline

        self._readline, self._complete, self._redact = readline, complete, redact
        self._draft = ""
        self._matches: list[str] = []
        self._history_path = history_path()
        self._load_history()
        readline.set_auto_history(False)  # keep the y of an approval out of the history
        readline.set_completer(self._completion)
        readline.set_completer_delims(" \t\n")
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

    def read(self, draft: str) -> str:
        """Return the next input, with a draft to edit; raise EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C."""
        self._draft = draft
        text = read_input(self._line)
        if text.strip():
            self._readline.add_history(text)
            self._save(text)
        return text

    def _line(self, is_more: bool) -> str:
        draft, self._draft = self._draft, ""
        self._readline.set_startup_hook((lambda: self._readline.insert_text(draft)) if draft else None)
        try:
            return input(prompt("…" if is_more else "›"))
        finally:
            self._readline.set_startup_hook(None)  # for this line only, not for the question of an approval

    def _completion(self, text: str, n: int) -> str | None:
        if n == 0:
            before = self._readline.get_line_buffer()[: self._readline.get_begidx()]
            self._matches = [word for word in self._complete(before.lstrip()) if word.startswith(text)]
        return self._matches[n] if n < len(self._matches) else None

    def _load_history(self) -> None:
        if not self._history_path.exists():
            return
        for line in self._history_path.read_bytes().splitlines()[-MAX_HISTORY:]:
            if text := decode_input(line):
                self._readline.add_history(text)

    def _save(self, text: str) -> None:
        self._history_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = msgspec.json.encode(self._redact(text.encode("utf-8", "replace").decode())) + b"\n"
        file = os.open(self._history_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def prompt(sign: str) -> str:
    """Return the prompt. The marked bytes tell readline that the colour codes take no columns."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return f"{sign} "
    return f"\001\033[1;36m\002{sign}\001\033[0m\002 "
