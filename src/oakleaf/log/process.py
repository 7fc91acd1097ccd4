"""The process with a lease, and whether the process is alive.

The name of a process holds host, pid, start time, pid namespace and boot. Whether a process is alive can be
known only within the same boot and pid namespace: pid 1 of one container says nothing about pid 1 of another,
and a host may be renamed. Between namespaces of one boot a lock tells, if the store has locks.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

ENDED = ("Z", "X")
"""The states of an ended process, whether or not noticed by the parent."""


class Process(Struct, frozen=True):
    """One process of one boot. Start time, namespace and boot are "" where the system does not say."""

    host: str
    pid: int
    start: str = ""
    namespace: str = ""
    boot: str = ""
    life_token: str = ""
    """The lock held until the end of the process (`StoreBackend.life_token`), if the store has a lock."""

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}/{self.start}/{self.namespace}/{self.boot}/{self.life_token}"

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Return the process with the name; None for any other name, such as a task of an engine."""
        name, *details = text.rsplit("/", 4)
        host, _, pid = name.rpartition(":")
        return cls(host, int(pid), *details) if len(details) == 4 and pid.isdecimal() else None

    def is_gone(self, has_ended: Callable[[str], bool | None] = lambda life_token: None) -> bool | None:
        """Whether the process has ended; None if unknown to this process.

        `has_ended` asks the lock: a process of the same boot sees the lock from any namespace.
        """
        here = current_process()
        if self.boot != here.boot:
            return None
        if self.namespace != here.namespace:
            return has_ended(self.life_token) if self.boot and self.life_token else None
        if not self.boot and self.host != here.host:
            return None
        return not _is_alive(self)


def current_process() -> Process:
    return _process(os.getpid())


@lru_cache(maxsize=1)
def _process(pid: int) -> Process:
    """Return this process; `pid` is an argument because a fork has another pid."""
    host = platform.node()  # already loaded by msgspec; socket would be one more import at every start
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
        return Process(host, pid, _stat("self")[1], str(namespace), boot)
    except OSError:  # not Linux, or without /proc
        return Process(host, pid)


def _is_alive(process: Process) -> bool:
    if os.name != "posix":  # os.kill would end it there
        return True
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not process.start or os.readlink("/proc/self") != str(os.getpid()):  # /proc shows another namespace
        return True
    try:
        state, start = _stat(str(process.pid))
    except OSError:  # it exists, but may not be seen
        return True
    return state not in ENDED and start == process.start


def _stat(pid: str) -> tuple[str, str]:
    """Return state and start time of a process; the name before may hold spaces and parentheses."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # the name may be cut within a letter
        fields = file.read().rpartition(b")")[2].decode().split()
    return fields[0], fields[19]
