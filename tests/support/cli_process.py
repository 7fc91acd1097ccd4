"""A process that has loaded the command line once and is forked for each command.

What a fork runs is a process like any other: its own number, streams, terminal, folder, variables, signals and
exit code. It only does not load Python and Bough anew, which is nine tenths of what a command costs. What an
interpreter reads once, when it starts (PYTHON…, the locale), it cannot be given: `terminals.BOUGH` is for that.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

INTERPRETER_VARIABLES = ("PYTHON", "LC_", "LANG")
"""How the names of variables begin that an interpreter reads when it starts."""
WARNINGS = {"PYTHONWARNINGS": "error"}
"""With which the nursery starts, and so every command."""


class ForkedProcess:
    """A process of the nursery, waited for and signalled as `subprocess.Popen` has it."""

    def __init__(self, line: socket.socket) -> None:
        self._told = line.makefile("r")
        self._line = line
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self._line.recv(1, socket.MSG_PEEK)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("bough", timeout or 0) from None
            self._line.settimeout(None)
            self.returncode = int(self._told.readline())
            self._told.close()
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str],
    streams: tuple[int, int, int],
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    is_terminal: bool = False,
) -> ForkedProcess:
    """`bough …` with these streams; with a terminal they are its only one, and Ctrl-C there is heard."""
    base = {name: value for name, value in os.environ.items() if name.startswith(INTERPRETER_VARIABLES)}
    given = {name: value for name, value in env.items() if name.startswith(INTERPRETER_VARIABLES)}
    assert given == {**base, **WARNINGS}, "read when an interpreter starts: start one, with terminals.BOUGH"
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(_fork_server(), [b"+"], [*streams, theirs.fileno()])
    request = {
        "arguments": list(arguments),
        "cwd": str(cwd or Path.cwd()),
        "env": dict(env),
        "is_terminal": is_terminal,
    }
    ours.sendall(json.dumps(request).encode() + b"\n")
    return ForkedProcess(ours)


@cache
def _fork_server() -> socket.socket:
    """One for the tests of a process, started when the first one asks; it ends when this end is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env={**os.environ, **WARNINGS},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


# -- in the nursery ------------------------------------------------------------------------------------


def serve(control: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """Fork for whoever asks, until nobody can; returns in the children only, with streams and what is wanted."""
    lines: dict[int, socket.socket] = {}

    def reap(*_: object) -> None:
        while lines and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with lines.pop(ended[0]) as line, contextlib.suppress(OSError):  # nobody may listen any more
                line.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the commands; we end with the tests
    signal.signal(signal.SIGCHLD, reap)
    while True:
        asked, fds, _, _ = socket.recv_fds(control, 1, 4)
        if not asked:
            control.close()
            sys.exit()
        line = socket.socket(fileno=fds.pop())
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # it is noted before it can be reaped
        pid = os.fork()
        if pid == 0:
            for other in (control, *lines.values()):
                other.close()
            with line, line.makefile("r") as words:
                return fds, json.loads(words.readline())
        lines[pid] = line
        line.sendall(b"%d\n" % pid)
        for fd in fds:
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def apply_request(streams: list[int], request: dict[str, Any]) -> None:
    """What `exec` would have made of this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["is_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv = ["bough", *request["arguments"]]
    sys.path[0] = request["cwd"]
    _open_streams()


def _open_streams() -> None:
    """As the interpreter opens them; a terminal is written to line by line."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        buffering = 1 if number == 2 or os.isatty(number) else -1
        new = open(number, "w" if number else "r", buffering, old.encoding, old.errors, closefd=False)  # noqa: SIM115 - open as long as we run
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def main() -> None:
    import bough
    from bough.cli.entry import run

    for module in walk_packages(bough.__path__, "bough."):
        if not module.name.startswith(("bough.server", "bough.adapters")):
            import_module(module.name)
    gc.freeze()  # what is loaded stays in the pages we share
    apply_request(*serve(socket.socket(fileno=int(sys.argv[1]))))
    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int):
            _leave(end.code)
        raise


def _leave(code: int) -> None:
    """As the interpreter ends, but for taking its modules apart, which would copy every page we share."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
