"""Pages long output like git does.

Uses `$OAKLEAF_PAGER`, else `$PAGER`, else `less`. The pager starts with the first line that does not fit the terminal;
shorter output is printed directly.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO, cast

import click

from oakleaf.cli.rendering.output import notify

LESS = "FRX"
"""Exit if everything fits, show colours, leave the text on the screen."""


class PagedOutput(io.RawIOBase):
    """Takes the bytes of stdout at a terminal: buffers a screenful, and pipes the rest to the pager."""

    def __init__(self, out: IO[str], stderr: IO[str], command: str) -> None:
        self._out, self._command = out, command
        size = shutil.get_terminal_size()
        self._columns, self._room = size.columns, size.lines - 1
        self._buffer: list[str] = []
        self._pager: subprocess.Popen[str] | None = None
        self._stderr, self._notices = stderr, ""

    def isatty(self) -> bool:
        """True, so colours are kept and control characters are escaped."""
        return True

    def fileno(self) -> int:
        return self._out.fileno()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def _write(self, text: str) -> None:
        if self._pager is not None:
            assert self._pager.stdin is not None
            self._pager.stdin.write(text)
            return
        lines = text.count("\n")
        if lines <= self._room:  # a line wider than the terminal takes several
            lines += sum(len(click.unstyle(line)) // self._columns for line in text.split("\n"))
        self._buffer.append(text)
        self._room -= lines
        if self._room < 0:
            self._start()

    def _start(self) -> None:
        environment = {"LESS": LESS, "LESSCHARSET": "utf-8", **os.environ}
        self._pager = subprocess.Popen(
            self._command,
            shell=True,
            stdin=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
        )
        buffered, self._buffer = "".join(self._buffer), []
        self._write(buffered)

    def write_notice(self, text: str) -> int:
        """Write a notice to stderr after the output printed so far, or after the pager has ended."""
        if self._pager is None:
            self._flush()
            return self._stderr.write(text)
        self._notices += text
        return len(text)

    def _flush(self) -> None:
        self._out.write("".join(self._buffer))
        self._out.flush()
        self._buffer = []

    def finish(self) -> None:
        """Print the buffer, or wait until the user quits the pager."""
        if self._pager is None:
            self._flush()
            return
        assert self._pager.stdin is not None
        with suppress(BrokenPipeError):  # the user quit before the end
            self._pager.stdin.close()
        while self._pager.poll() is None:
            with suppress(KeyboardInterrupt):  # Ctrl-C is for the pager
                self._pager.wait()
        self._stderr.write(self._notices)


class _PagedStderr:
    """Replaces stderr while stdout is paged."""

    def __init__(self, stderr: IO[str], paged: PagedOutput) -> None:
        self._stderr, self._paged = stderr, paged

    def write(self, text: str) -> int:
        return self._paged.write_notice(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stderr, name)


def pager_command() -> str | None:
    """Return the pager's command, or None without a terminal or a pager."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    name = next((name for name in ("OAKLEAF_PAGER", "PAGER") if name in os.environ), None)
    command = os.environ[name].strip() if name else "less"
    if command in ("", "cat"):
        return None
    if shutil.which(command.split()[0]) is None:
        if name is None:
            return None
        notify(f"{name}={command} cannot be started; output is not paged")
        return None
    return command


@contextmanager
def paged() -> Iterator[None]:
    """Page the output of the block, if longer than the terminal."""
    command = pager_command()
    if command is None:
        yield
        return
    out, err = sys.stdout, sys.stderr
    output = PagedOutput(out, err, command)
    # Each write goes through at once: a notice comes after the output before it.
    sys.stdout = io.TextIOWrapper(output, "utf-8", "backslashreplace", newline="", write_through=True)
    sys.stderr = cast(TextIO, _PagedStderr(err, output))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        output.finish()
