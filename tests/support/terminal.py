"""The real command line for tests: in a pseudo-terminal, typed at and looked at, or in a pipe.

A command is a process of its own, forked from one that has loaded Bough already (`nursery`). `BOUGH` is the line
for `subprocess` where the interpreter's own start is part of what is shown.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import selectors
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support import cli_process

PROMPT = "\n› "
BOUGH = [sys.executable, "-m", "bough.cli.main"]
Start = Callable[..., "cli_process.Child | subprocess.Popen[bytes]"]
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>])|\r|\x01|\x02")


def plain(text: str) -> str:
    return _ESCAPES.sub("", text)


def start_interpreter(
    arguments: Sequence[str],
    streams: tuple[int, int, int],
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    is_terminal: bool = False,
) -> subprocess.Popen[bytes]:
    """As `cli_process.start`, by an interpreter of its own."""
    reads, writes, tells = streams
    return subprocess.Popen(
        [*BOUGH, *arguments],
        stdin=reads,
        stdout=writes,
        stderr=tells,
        cwd=cwd,
        env=env,
        start_new_session=is_terminal,
        preexec_fn=_take_terminal if is_terminal else None,
    )


def _take_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may have been told to ignore it
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """`bough …` in a terminal of its own. What it shows is read until it says what is waited for."""

    def __init__(
        self,
        *arguments: object,
        home: Path | None = None,
        store: Path | str | None = None,
        columns: int = 80,
        patience: float = 60,
        start: Start = cli_process.start,
        **variables: str,
    ) -> None:
        self._patience = patience
        self._shown = b""
        self._read_to = 0
        main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._main = main
        self.process = start(
            [*map(str, arguments)],
            (side, side, side),
            cwd=home,
            env={**environment(home, store), **variables},
            is_terminal=True,
        )
        os.close(side)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._main)

    @property
    def raw(self) -> str:
        return self._shown.decode("utf-8", "replace")

    @property
    def screen(self) -> str:
        """Everything shown so far, without the sequences that colour and move."""
        return plain(self.raw)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def enter(self, line: str) -> None:
        self.type(f"{line}\r")

    def wait_for(self, wanted: str) -> str:
        """Wait for it, behind what was waited for last; returns what was shown up to there."""
        end = time.monotonic() + self._patience
        while (found := self.screen.find(wanted, self._read_to)) < 0:
            if not self._more(end):
                raise AssertionError(f"{wanted!r} was never shown; what was:\n{self.screen}")
        shown, self._read_to = self.screen[self._read_to : found], found + len(wanted)
        return shown

    def prompt(self, line: str) -> str:
        """Type a line at the chat's prompt; returns what was shown until the next prompt."""
        self.enter(line)
        self.wait_for(line)
        return self.wait_for(PROMPT)

    def interrupt(self, wanted: str) -> None:
        """Ctrl-C at a prompt, again if it was not heard: one that comes before Python reads the line waits for a key."""
        for patience in (1, 5, self._patience):
            self.type("\x03")
            end = time.monotonic() + patience
            while wanted not in self.screen[self._read_to :] and self._more(end):
                pass
            if wanted in self.screen[self._read_to :]:
                break
        self.wait_for(wanted)

    def wait(self) -> int:
        """Until it ends by itself; its exit code."""
        end = time.monotonic() + self._patience
        while self._more(end):
            pass
        return self.process.wait(self._patience)

    def _more(self, end: float) -> bool:
        ready, _, _ = select.select([self._main], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._main, 65536)
        except OSError:  # the other side is closed
            return False
        self._shown += data
        return bool(data)


class CommandResult(subprocess.CompletedProcess[str]):
    """What a command printed, and how it ended."""

    @property
    def code(self) -> int:
        return self.returncode

    @property
    def out(self) -> str:
        return self.stdout

    @property
    def err(self) -> str:
        return self.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


def bough(
    *arguments: object,
    home: Path | None = None,
    store: Path | str | None = None,
    stdin: str | None = None,
    **variables: str,
) -> CommandResult:
    """`bough …` without a terminal, what it reads given as `typed`."""
    (reads, feed), (out, out_end), (err, err_end) = os.pipe(), os.pipe(), os.pipe()
    ends = (reads, out_end, err_end)
    child = cli_process.start(
        [*map(str, arguments)], ends, cwd=home, env={**environment(home, store), **variables}
    )
    for end in ends:
        os.close(end)
    said = _communicate(child, feed, os.fsencode(stdin or ""), out, err)
    return CommandResult(arguments, child.wait(60), *(text.decode() for text in said))


def _communicate(
    child: cli_process.ForkedProcess, feed: int, typed: bytes, *pipes: int, patience: float = 120
) -> list[bytes]:
    """Write what is typed and read all that is said, as each side is ready, until the pipes are closed."""
    heard = dict.fromkeys(pipes, b"")
    end = time.monotonic() + patience
    with selectors.DefaultSelector() as waiting:
        waiting.register(feed, selectors.EVENT_WRITE)
        for pipe in pipes:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(end - time.monotonic())
            if not ready:
                child.kill()
                raise subprocess.TimeoutExpired("bough", patience)
            for key, _ in ready:
                if key.fd == feed:
                    typed = _write_some(feed, typed)
                    is_over = not typed
                else:
                    data = os.read(key.fd, 65536)
                    heard[key.fd] += data
                    is_over = not data
                if is_over:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
    return list(heard.values())


def _write_some(feed: int, typed: bytes) -> bytes:
    """Write as much as surely fits; returns the rest, of which nothing is left if nobody reads."""
    try:
        return typed[os.write(feed, typed[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return b""


def environment(home: Path | None = None, store: Path | str | None = None) -> dict[str, str]:
    """This one's without what would change how bough behaves; all it keeps goes below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BOUGH_")}
    kept["PAGER"] = "cat"
    kept.pop("NO_COLOR", None)
    own = {} if home is None else {"XDG_DATA_HOME": str(home / "data"), "BOUGH_STORE": str(home / "agent.db")}
    named = {} if store is None else {"BOUGH_STORE": str(store)}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "", "PYTHONWARNINGS": "error", **own, **named}
