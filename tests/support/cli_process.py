"""A process that has loaded the command line once and is forked for each command.

A fork is an ordinary process with its own pid, streams, terminal, working directory, environment, signals and exit
code. It skips loading Python and Oakleaf, which is nine tenths of the time of a command. Variables that the interpreter
reads only at its start (PYTHON…, the locale) cannot be changed for a fork: use `terminal.OAKLEAF` for those.
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
"""Prefixes of the variables that the interpreter reads only at its start."""
WARNINGS = {"PYTHONWARNINGS": "error"}
"""Variables of the fork server, and so of every command."""


class ForkedProcess:
    """A child of the fork server, with the `wait`, `poll` and `send_signal` of `subprocess.Popen`."""

    def __init__(self, line: socket.socket) -> None:
        self._reader = line.makefile("r")
        self._line = line
        self.pid = int(self._reader.readline())
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
                raise subprocess.TimeoutExpired("oakleaf", timeout or 0) from None
            self._line.settimeout(None)
            self.returncode = int(self._reader.readline())
            self._reader.close()
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
    """Run `oakleaf …` with these streams; `is_terminal` makes them its controlling terminal, so Ctrl-C there reaches it."""
    base = {name: value for name, value in os.environ.items() if name.startswith(INTERPRETER_VARIABLES)}
    requested = {name: value for name, value in env.items() if name.startswith(INTERPRETER_VARIABLES)}
    assert requested == {**base, **WARNINGS}, "the interpreter reads these at its start: use terminal.OAKLEAF"
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
    """Start one fork server per test process, on first use; it ends when this socket is closed."""
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


# -- in the fork server --------------------------------------------------------------------------------


def serve(control: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """Fork a child for each request until the control socket closes; return its streams and request in the child only."""
    lines: dict[int, socket.socket] = {}

    def reap(*_: object) -> None:
        while lines and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with (
                lines.pop(ended[0]) as line,
                contextlib.suppress(OSError),
            ):  # the test may have closed its end
                line.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the commands; the server ends with the tests
    signal.signal(signal.SIGCHLD, reap)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 4)
        if not data:
            control.close()
            sys.exit()
        line = socket.socket(fileno=fds.pop())
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # record the child before it can be reaped
        pid = os.fork()
        if pid == 0:
            for other in (control, *lines.values()):
                other.close()
            with line, line.makefile("r") as reader:
                return fds, json.loads(reader.readline())
        lines[pid] = line
        line.sendall(b"%d\n" % pid)
        for fd in fds:
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def apply_request(streams: list[int], request: dict[str, Any]) -> None:
    """Set up this process as `exec` would have."""
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
    sys.argv = ["oakleaf", *request["arguments"]]
    sys.path[0] = request["cwd"]
    _open_streams()


def _open_streams() -> None:
    """Open the standard streams as the interpreter does; a terminal is line-buffered."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        buffering = 1 if number == 2 or os.isatty(number) else -1
        new = open(number, "w" if number else "r", buffering, old.encoding, old.errors, closefd=False)  # noqa: SIM115 - open as long as we run
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def main() -> None:
    import oakleaf
    from oakleaf.cli.entry import run

    for module in walk_packages(oakleaf.__path__, "oakleaf."):
        import_module(module.name)
    gc.freeze()  # keep the loaded modules in memory pages shared with the children
    apply_request(*serve(socket.socket(fileno=int(sys.argv[1]))))
    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit(end.code)
        raise


def _exit(code: int) -> None:
    """End as the interpreter does, without tearing down the modules, which would copy every shared memory page."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
