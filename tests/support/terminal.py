"""Run the real command line in a pseudo-terminal or with pipes.

Each command is a process forked from one that has already loaded Oakleaf (`cli_process`). `OAKLEAF` is the command for
`subprocess`, for tests to which the start of the interpreter matters.
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
OAKLEAF = [sys.executable, "-m", "oakleaf.cli.main"]
Start = Callable[..., "cli_process.ForkedProcess | subprocess.Popen[bytes]"]
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
    """Do the same as `cli_process.start` with a new interpreter."""
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [*OAKLEAF, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=env,
        start_new_session=is_terminal,
        preexec_fn=_take_terminal if is_terminal else None,
    )


def _take_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the test runner may have been started with SIGINT ignored
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """`oakleaf …` in its own pseudo-terminal; the output is read as far as the test waits for it."""

    def __init__(
        self,
        *arguments: object,
        home: Path | None = None,
        store: Path | str | None = None,
        columns: int = 80,
        timeout: float = 60,
        start: Start = cli_process.start,
        **variables: str,
    ) -> None:
        self._timeout = timeout
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
        """The output so far, without escape sequences."""
        return plain(self.raw)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def enter(self, line: str) -> None:
        self.type(f"{line}\r")

    def wait_for(self, expected: str) -> str:
        """Wait for the text after the last match; return the output between the two."""
        end = time.monotonic() + self._timeout
        while (position := self.screen.find(expected, self._read_to)) < 0:
            if not self._more(end):
                raise AssertionError(f"{expected!r} did not appear; the output is:\n{self.screen}")
        text, self._read_to = self.screen[self._read_to : position], position + len(expected)
        return text

    def prompt(self, line: str) -> str:
        """Type a line at the prompt of the chat; return the output until the next prompt."""
        self.enter(line)
        self.wait_for(line)
        return self.wait_for(PROMPT)

    def interrupt(self, expected: str) -> None:
        """Press Ctrl-C until the text appears: one that arrives before Python reads the line takes effect at the next key."""
        for timeout in (1, 5, self._timeout):
            self.type("\x03")
            end = time.monotonic() + timeout
            while expected not in self.screen[self._read_to :] and self._more(end):
                pass
            if expected in self.screen[self._read_to :]:
                break
        self.wait_for(expected)

    def wait(self) -> int:
        """Wait for the process to exit; return its exit code."""
        end = time.monotonic() + self._timeout
        while self._more(end):
            pass
        return self.process.wait(self._timeout)

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
    """The output and the exit code of a command."""

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


def oakleaf(
    *arguments: object,
    home: Path | None = None,
    store: Path | str | None = None,
    stdin: str | None = None,
    **variables: str,
) -> CommandResult:
    """Run `oakleaf …` without a terminal."""
    (stdin_end, feed), (out, out_end), (err, err_end) = os.pipe(), os.pipe(), os.pipe()
    ends = (stdin_end, out_end, err_end)
    child = cli_process.start(
        [*map(str, arguments)], ends, cwd=home, env={**environment(home, store), **variables}
    )
    for end in ends:
        os.close(end)
    outputs = _communicate(child, feed, os.fsencode(stdin or ""), out, err)
    return CommandResult(arguments, child.wait(60), *(text.decode() for text in outputs))


def _communicate(
    child: cli_process.ForkedProcess, feed: int, data: bytes, *pipes: int, timeout: float = 120
) -> list[bytes]:
    """Write the input and read the output as each pipe becomes ready, until all are closed."""
    outputs = dict.fromkeys(pipes, b"")
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(feed, selectors.EVENT_WRITE)
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(end - time.monotonic())
            if not ready:
                child.kill()
                raise subprocess.TimeoutExpired("oakleaf", timeout)
            for key, _ in ready:
                if key.fd == feed:
                    data = _write_some(feed, data)
                    is_over = not data
                else:
                    chunk = os.read(key.fd, 65536)
                    outputs[key.fd] += chunk
                    is_over = not chunk
                if is_over:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return list(outputs.values())


def _write_some(feed: int, data: bytes) -> bytes:
    """Write at most PIPE_BUF bytes and return the rest; return nothing if the reader is closed."""
    try:
        return data[os.write(feed, data[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return b""


def environment(home: Path | None = None, store: Path | str | None = None) -> dict[str, str]:
    """Return the current environment without the variables Oakleaf reads; its files go below `home`."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OAKLEAF_")}
    variables["PAGER"] = "cat"
    variables.pop("NO_COLOR", None)
    home_variables = (
        {} if home is None else {"XDG_DATA_HOME": str(home / "data"), "OAKLEAF_STORE": str(home / "agent.db")}
    )
    store_variables = {} if store is None else {"OAKLEAF_STORE": str(store)}
    return {
        **variables,
        "TERM": "xterm-256color",
        "COLUMNS": "",
        "PYTHONWARNINGS": "error",
        "OAKLEAF_CONFIG": os.devnull if home is None else str(home / "config.toml"),
        **home_variables,
        **store_variables,
    }
