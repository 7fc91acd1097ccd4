"""Run a command in a workspace.

Knows environments, time limits and output. Does not know which commands may run: `command_rules` decides that. Does not
know how a person approves a command: `run` refuses one that needs approval, `run_approved` runs it afterwards.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from oakleaf.errors import InvalidArgument, OutOfScope
from oakleaf.ext import ProcessTree
from oakleaf_workspace.command_rules import check, command_line, is_inside, reason_to_ask
from oakleaf_workspace.files import MAX_SHOWN_BYTES, Spill, text_of, truncate
from oakleaf_workspace.git_rules import check_repository, git_variables, git_words
from oakleaf_workspace.scope import Scope

_MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""The maximum bytes of output kept; what a program writes beyond is read and dropped."""
_PIPE_SECONDS = 0.5
"""How long to read the rest of the pipe after the command's processes were killed; only one that could not be killed
can still keep it open."""

_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|COLORTERM|TMPDIR|TZ|LANG|LANGUAGE"
    r"|LC_(ALL|ADDRESS|COLLATE|CTYPE|IDENTIFICATION|MEASUREMENT|MESSAGES|MONETARY|NAME|NUMERIC|PAPER|TELEPHONE|TIME)"
)
"""The variables that every command inherits. A list of what to leave out would never be complete."""


class CommandResult(Struct, frozen=True):
    argv: tuple[str, ...]
    exit_code: int | None
    """None: stopped after the timeout. Negative: the signal that ended it."""
    output: str
    """Standard output and error as written; if long, their first and last bytes and the handle of the spilled text."""
    timeout: float

    @property
    def text(self) -> str:
        """The output and how the command ended, for the model."""
        if self.exit_code is None:
            end = f"[stopped after {self.timeout:g} s, with all processes it had started]"
        else:
            end = f"[exit code {self.exit_code}]"
        return f"{self.output}\n{end}" if self.output else end


class Shell:
    """Runs the commands of a workspace. `environ` is the environment they inherit from, usually `os.environ`."""

    def __init__(
        self, scope: Scope, spill: Spill, environ: Mapping[str, str], timeout: float = 120.0
    ) -> None:
        self._scope, self._spill, self._timeout = scope, spill, timeout
        self._environ = dict(environ)

    async def run(self, argv: list[str], timeout: float | None = None) -> CommandResult:
        """Run a program with arguments in the workspace's folder. There is no shell: `|`, `>` and `*` have no effect."""
        check(self._scope, argv)
        if (reason := reason_to_ask(self._scope, argv)) is not None:
            raise OutOfScope(
                command_line(argv), f"{reason}, so a person must approve it; shell_approved asks for that"
            )
        return await self.run_approved(argv, timeout)

    def preview(self, argv: list[str], timeout: float | None = None) -> str:
        """Return the command without running the command."""
        check(self._scope, argv)
        return f"would run {command_line(argv)} in {self._scope.root}"

    async def run_approved(self, argv: list[str], timeout: float | None = None) -> CommandResult:
        """Run a command approved by a person, within the tier."""
        check(self._scope, argv)
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        if not seconds > 0:
            raise InvalidArgument("timeout", timeout, "a positive number of seconds")
        environ = environment(self._scope, self._environ)
        if self._scope.tier == "sandboxed" and git_words(argv) is not None:
            environ |= git_variables(self._scope.root)
            await check_repository(self._scope.root, environ)
        exit_code, data, dropped = await _run_process(tuple(argv), self._scope.root, environ, seconds)
        text = text_of(data) + (f"\n[{dropped:,} more bytes were not kept]" if dropped else "")
        head = MAX_SHOWN_BYTES // 4
        output = truncate(text.rstrip("\n"), self._spill, head, MAX_SHOWN_BYTES - head)
        return CommandResult(tuple(argv), exit_code, output, seconds)


def environment(scope: Scope, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: a short list, the operator's variables, and a PATH without
    writable folders.
    """
    variables = {
        name: value for name, value in environ.items() if _INHERITED.fullmatch(name) or name in scope.env
    }
    if scope.tier != "full":
        path = variables.get("PATH", os.defpath)
        folders = [folder for folder in path.split(os.pathsep) if os.path.isabs(folder)]
        if scope.tier == "sandboxed":
            folders = [folder for folder in folders if not is_inside(scope.root, os.path.realpath(folder))]
        variables["PATH"] = os.pathsep.join(folders)
    return variables | {"PAGER": "cat"} | git_variables()


async def _run_process(
    argv: tuple[str, ...], folder: Path, environ: dict[str, str], seconds: float
) -> tuple[int | None, bytes, int]:
    """Run a command; return the exit code, the output and the number of bytes dropped.

    However it ends, by timeout and cancellation too, every process it started is killed before this returns: nothing
    writes to the workspace afterwards.
    """
    source, sink = os.pipe()
    reader = _PipeReader(source)
    try:
        try:
            tree = ProcessTree(
                argv, env=environ, cwd=folder, streams=(asyncio.subprocess.DEVNULL, sink, sink)
            )
        finally:
            os.close(sink)
        code: int | None = None
        try:
            try:
                code = await asyncio.wait_for(tree.wait(), seconds)
            except (TimeoutError, asyncio.CancelledError) as error:
                tree.kill()
                await tree.wait()
                if not isinstance(error, TimeoutError):
                    raise
        finally:
            tree.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.end.wait(), _PIPE_SECONDS)
        return code, bytes(reader.data), reader.dropped
    finally:
        reader.close()


class _PipeReader:
    """Reads a pipe as data arrives, so the writer never blocks, and keeps a bounded part."""

    def __init__(self, source: int) -> None:
        self.data, self.dropped, self.end = bytearray(), 0, asyncio.Event()
        self._source = source
        os.set_blocking(source, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(source, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._source, 65_536)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._source)
            self.end.set()
        room = _MAX_OUTPUT_BYTES - len(self.data)
        self.data += chunk[:room]
        self.dropped += max(len(chunk) - room, 0)

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        os.close(self._source)
