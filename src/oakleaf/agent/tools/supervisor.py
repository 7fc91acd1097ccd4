"""Run one command, and end all descendant processes with the command: a program started by `process_tree`.

    python -I -S supervisor.py LIFE COMMAND [ARGUMENT…]

LIFE is the number of a descriptor, one end of a socket whose other end the host holds. The command ends, and with it each
process that descends from it, when the command itself ends and when the other end of LIFE closes: also by `kill -9` of
the host. SIGTERM is passed on to the command's group. The exit status is the command's.

On Linux this process adopts what loses its parent, so that a process which left the group and the session is found too.
Elsewhere only the group of the command is killed. Imports the standard library alone, so that it starts at once.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

_SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux."""
_MAX_MISSES, _MISS_SECONDS = 100, 0.01
"""Number of further looks for a child not listed or not to be killed, as a program of another user, and the pause."""
_IS_LINUX = sys.platform == "linux"


def main(life: int, command: list[str]) -> None:
    _adopt_orphans()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # wakes the loop
    try:
        # A session of its own: what the command sends to its group does not reach this process.
        child = subprocess.Popen(
            command, start_new_session=True
        )  # kept: an object that goes collects its process
    except OSError as error:
        with socket.socket(fileno=life) as connection:
            connection.send(str(error.errno).encode())
        sys.exit(f"cannot start {command[0]}: {error.strerror}")
    leader = child.pid
    _close_streams()
    status: int | None = None
    while status is None:
        readable, _, _ = select.select([life, woken], [], [])
        if life in readable:
            break
        numbers = os.read(woken, 4096)
        status = _collect(leader)
        if signal.SIGTERM in numbers and status is None:
            _signal_group(leader, signal.SIGTERM)
    _exit(_kill_all(leader, status))


def _adopt_orphans() -> None:
    if _IS_LINUX:
        # A Python without ctypes, or a system that forbids the call, leaves the group of the command to be killed.
        with suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _close_streams() -> None:
    """Let go of the command's streams, so a reader sees the end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)


def _collect(leader: int) -> int | None:
    """Collect the ended children. Return the status of the command, if the command is among them."""
    status: int | None = None
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            status = child[1] if child[0] == leader else status
    return status


def _kill_all(leader: int, status: int | None) -> int | None:
    """Kill every descendant; return the status of the command.

    The children of a process that is killed become children of this one, so the loop ends when no child is left. A child
    is killed before it is collected: its number cannot belong to another process meanwhile.
    """
    if status is None or not _IS_LINUX:
        _signal_group(leader, signal.SIGKILL)
    misses = 0
    with suppress(ChildProcessError):
        while misses < _MAX_MISSES:
            killed = [pid for pid in _children() if _kill(pid)]
            pid, ended = os.waitpid(-1, 0 if killed else os.WNOHANG)
            status = ended if pid == leader else status
            if not pid:
                misses += 1
                time.sleep(_MISS_SECONDS)
    return status


def _kill(pid: int) -> bool:
    """Kill a child. Return whether the kill was possible."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (PermissionError, ProcessLookupError):
        return False
    return True


def _children() -> list[int]:
    try:
        with open("/proc/thread-self/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return list(_scan_children())


def _scan_children() -> Iterator[int]:
    """Yield the children on a kernel without a list of children."""
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError, ValueError, IndexError):
                pid = int(name)
                with open(f"/proc/{pid}/stat") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                        yield pid


def _signal_group(leader: int, number: signal.Signals) -> None:
    # macOS reports EPERM for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _exit(status: int | None) -> None:
    """End like the command, by the same signal if any."""
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(1 if status is None else os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
