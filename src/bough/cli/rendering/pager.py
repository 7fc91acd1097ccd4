"""Long output through a pager, as git does it, and the command that shows the next page of a list.

Knows terminals and pagers: `$BOUGH_PAGER`, else `$PAGER`, else `less`. What fits the terminal is printed as it is, so a
pager is started only by the line that does not fit. Does not know what is printed.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO, cast

import click
from click.core import ParameterSource

from ...errors import InvalidArgument
from .output import notify

LESS = "FRX"
"""Ends by itself if all fits, shows colours, leaves what was read on the screen."""


class PagedOutput:
    """Stands in for stdout at a terminal: what fits is kept until the end, what does not goes to the pager."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, out: IO[str], talk: IO[str], command: str) -> None:
        self._out, self._command = out, command
        size = shutil.get_terminal_size()
        self._columns, self._room = size.columns, size.lines - 1
        self._held: list[str] = []
        self._pager: subprocess.Popen[str] | None = None
        self._talk, self._said = talk, ""

    def isatty(self) -> bool:
        """So that colours are kept, and what a terminal would obey is not."""
        return True

    def fileno(self) -> int:
        return self._out.fileno()

    def flush(self) -> None:
        """Shown when all is known to fit, or by the pager as it likes."""

    def write(self, text: str) -> int:
        if self._pager is not None:
            assert self._pager.stdin is not None
            return self._pager.stdin.write(text)
        lines = text.count("\n")
        if lines <= self._room:  # a line longer than the terminal takes several
            lines += sum(len(click.unstyle(line)) // self._columns for line in text.split("\n"))
        self._held.append(text)
        self._room -= lines
        if self._room < 0:
            self._start()
        return len(text)

    @property
    def buffer(self) -> Any:
        """What is written as bytes is text all the same: JSON is."""
        return _Bytes(self)

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
        held, self._held = "".join(self._held), []
        self.write(held)

    def write_notice(self, text: str) -> int:
        """What is said to stderr: behind what was printed before it, and not across the page that is read."""
        if self._pager is None:
            self._release()
            return self._talk.write(text)
        self._said += text
        return len(text)

    def _release(self) -> None:
        self._out.write("".join(self._held))
        self._out.flush()
        self._held = []

    def finish(self) -> None:
        """Everything is shown, and whoever reads has put the pager away."""
        if self._pager is None:
            self._release()
            return
        assert self._pager.stdin is not None
        with suppress(BrokenPipeError):  # left before the end: they have seen enough
            self._pager.stdin.close()
        while self._pager.poll() is None:
            with suppress(KeyboardInterrupt):  # Ctrl-C is the pager's
                self._pager.wait()
        self._talk.write(self._said)


class _Talk:
    """Stands in for stderr as long as stdout is paged."""

    def __init__(self, talk: IO[str], paged: PagedOutput) -> None:
        self._talk, self._paged = talk, paged

    def write(self, text: str) -> int:
        return self._paged.write_notice(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._talk, name)


class _Bytes(io.RawIOBase):
    def __init__(self, paged: PagedOutput) -> None:
        self._paged = paged

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._paged.write(bytes(data).decode("utf-8", "backslashreplace"))


def pager() -> str | None:
    """The command to page with; None where there is nobody to turn pages."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    name = next((name for name in ("BOUGH_PAGER", "PAGER") if name in os.environ), None)
    command = os.environ[name].strip() if name else "less"
    if command in ("", "cat"):
        return None
    if shutil.which(command.split()[0]) is None:
        if name is None:
            return None
        notify(f"{name}={command} cannot be started; shown without it")
        return None
    return command


@contextmanager
def paged(*, wanted: bool) -> Iterator[None]:
    """Whatever goes to stdout in here is paged, if it is wanted and does not fit the terminal."""
    command = pager() if wanted else None
    if command is None:
        yield
        return
    out, talk = sys.stdout, sys.stderr
    paged = PagedOutput(out, talk, command)
    sys.stdout, sys.stderr = cast(TextIO, paged), cast(TextIO, _Talk(talk, paged))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, talk
        paged.finish()


# -- the next page of a list ---------------------------------------------------------------------------


@contextmanager
def page_errors(page: str | None) -> Iterator[None]:
    """A cursor that makes no sense is refused by the name it has here."""
    try:
        yield
    except InvalidArgument as error:
        if error.name != "before":
            raise
        raise InvalidArgument("--page", page, "what the page before said behind `more:`") from None


def print_next_page(following: str) -> None:
    """The same command for the next page, as a shell takes it."""
    ctx = click.get_current_context()
    words = ["bough", *_given(ctx.find_root()), str(ctx.info_name), "--page", following, *_given(ctx)]
    notify(f"more: {shlex.join(words)}")


def _given(ctx: click.Context) -> list[str]:
    """What was typed for this command, less the page and a store's password; words last, and as one."""
    options: list[str] = []
    words: list[str] = []
    for param in ctx.command.params:
        name = str(param.name)
        if name == "page" or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.obj.display_url if name == "store" else ctx.params[name]
        if isinstance(param, click.Option):
            options += [param.opts[0]] if param.is_flag else [param.opts[0], str(value)]
        else:
            words.append(" ".join(value))
    return [*options, *words]
