"""A command and all descendant processes, bound to end together and with the host process.

A supervisor of our own stands between this process and the command (see `supervisor`). It holds one end of a socket;
this process holds the other. However this process ends, by kill -9 too, the socket closes, and the supervisor ends the
command with everything it started. Does not know what the command is for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))

_trees: set[ProcessTree] = set()
"""The trees kept alive by the process."""


def _release_descriptors() -> None:
    """In a forked process, let go of the descriptors of all trees. A tree ends with the first process alone.

    Replaced, not closed, because the objects of this process will close the same numbers again.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for tree in _trees:
        for descriptor in tree.descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _trees.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_descriptors)


class ProcessTree:
    """Starts a command. `pipes` are this process's ends of its streams: a forked process lets go of them too."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path | None,
        streams: tuple[int, int, int],
        pipes: Sequence[IO[Any]] = (),
    ) -> None:
        self._program, self._pipes = argv[0], pipes
        self._hold, life = socket.socketpair()
        self._hold.setblocking(False)
        _trees.add(self)
        stdin, stdout, stderr = streams
        try:
            with life:
                # Isolated from the variables and folders that the command gets.
                self._supervisor = subprocess.Popen(
                    [sys.executable, "-I", "-S", _SUPERVISOR, str(life.fileno()), *argv],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=env,
                    cwd=cwd,
                    pass_fds=(life.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            self._release()
            raise

    @property
    def descriptors(self) -> set[int]:
        """The descriptors behind the life of the tree. Asked for now: a pipe that was closed left its number
        to another file."""
        return {self._hold.fileno(), *(pipe.fileno() for pipe in self._pipes if not pipe.closed)}

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, or the signal as a negative number. None as long as a process of the tree
        is left."""
        return self._supervisor.poll()

    async def wait(self) -> int:
        """Wait until the command and all descendants have ended. Raise OSError if the command did not start."""
        failure = await asyncio.get_running_loop().sock_recv(self._hold, 16)
        code = self._supervisor.wait()
        if failure:
            raise OSError(int(failure), os.strerror(int(failure)), self._program)
        return code

    def terminate(self) -> None:
        """Ask the command and the whole group to end."""
        self._supervisor.terminate()

    def kill(self) -> None:
        """Have all remaining processes killed."""
        if self._hold.fileno() >= 0:
            self._hold.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Have all remaining processes killed, without waiting for the end."""
        self._release()
        if self._supervisor.poll() is None:
            threading.Thread(target=self._supervisor.wait, daemon=True).start()  # or it stays a zombie

    def _release(self) -> None:
        _trees.discard(self)
        self._hold.close()
