"""A process of its own for one run of a task, so that its death harms no other.

The parent starts the worker's command with the run's id; the child reports on its standard output when it begins the run
and when it has ended it. A child that ends in between has died. The child stops, as a worker does, when its standard
input is closed: also when the parent is killed. Does not know tasks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from threading import Thread
from typing import TextIO

BEGUN, ENDED = "begun", "ended"
READ_SECONDS = 1.0


class OwnProcess:
    """The parent's side."""

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], on_begin: Callable[[], None]
    ) -> None:
        self._on_begin = on_begin
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
            start_new_session=True,  # Ctrl-C reaches the parent, which stops the child
        )
        self.has_begun = self.has_ended = False
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.strip() == BEGUN:
                    self.has_begun = True
                    self._on_begin()
                self.has_ended |= line.strip() == ENDED

    def wait(self) -> None:
        """Wait until the process is over, but not for the process's children."""
        self._process.wait()
        self._reader.join(READ_SECONDS)
        self.stop()

    def stop(self) -> None:
        """Ask the process to return the task after the present step. Thread-safe."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()

    @property
    def outcome(self) -> str:
        """The end of the process, in words."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"it exited with code {code}"
        with contextlib.suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
        return f"signal {-code}"


class ParentPipe:
    """The child's side: owns standard input and output, so tools that use the streams do no harm."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._input: TextIO = os.fdopen(os.dup(0))
        self._output: TextIO = os.fdopen(os.dup(1), "w")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        sys.stdout.flush()
        os.dup2(2, 1)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # if the memory is exhausted, this process is to blame and not its neighbours
        Thread(target=self._watch, args=(on_close,), daemon=True).start()

    def _watch(self, on_close: Callable[[], None]) -> None:
        self._input.read()
        on_close()

    def report(self, event: str) -> None:
        with contextlib.suppress(OSError):  # the parent is gone
            self._output.write(f"{event}\n")
            self._output.flush()
