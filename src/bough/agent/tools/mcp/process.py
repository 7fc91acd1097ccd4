"""An MCP server as a child process: JSON-RPC messages, one per line, on its standard input and output.

A supervisor between this process and the command holds one end of a pipe. However this process ends, by kill -9 too, the
pipe closes, and the supervisor kills the command with everything it started. A line beyond the limit ends the
connection, so that a server that floods costs a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from ....errors import McpServerUnavailable
from ....formats.jsonl import repair_json
from ..shell import signal_group
from .server import McpServer

_servers: dict[int, asyncio.subprocess.Process | None] = {}
"""The processes of servers, by the end of the pipe that keeps each alive; None while it starts."""


def _release_descriptors() -> None:
    """In a forked process: let go of all pipes to servers, which end with the first process alone.

    Replaced, not closed, because objects of asyncio will close the same numbers again. Asked for now: a pipe that was
    closed meanwhile left its number to another file.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for hold, process in _servers.items():
        for descriptor in {hold, *_open_pipes(process)}:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_descriptors)

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]

EXIT_SECONDS = 1.0
"""How long a server has to end after its input was closed, and again after SIGTERM."""
MAX_NOISE_BYTES = 8 * 1024 * 1024
"""Bytes that a server may send between two answers that are none: a flood of notifications ends the connection."""
_STDERR_BYTES = 2_000

_SUPERVISOR = """
import os, select, signal, subprocess, sys
life = int(sys.argv[1])
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.signal(signal.SIGTERM, lambda *_: None)
try:
    child = subprocess.Popen(sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot start {sys.argv[2]}: {error.strerror}")
os.close(0)
os.close(1)
while child.poll() is None:
    readable, _, _ = select.select([life, woken], [], [])
    if life in readable:
        os.killpg(0, signal.SIGKILL)
    os.read(woken, 100)
if select.select([life], [], [], 0)[0]:
    os.killpg(0, signal.SIGKILL)
os._exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)
"""


class ServerProcess:
    """The process of one server."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = b""
        self._noise = 0
        self.has_closed = False
        """Whether nothing more comes from it."""
        self.failure = ""
        """Why the connection ended, if it did by itself."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        """Start the process and yield its messages; end it with everything it started."""
        life, hold = os.pipe()
        _servers[hold] = None
        try:
            process = self._process = _servers[hold] = await self._start(life)
        except BaseException:
            _servers.pop(hold, None)
            os.close(hold)
            raise
        finally:
            os.close(life)
        to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        pumps = [
            asyncio.create_task(self._read(process, to_session)),
            asyncio.create_task(self._write(process, from_session)),
            asyncio.create_task(self._read_stderr(process)),
        ]
        try:
            yield incoming, outgoing
        finally:
            try:
                await _end(process)
            finally:
                _servers.pop(hold, None)
                os.close(hold)  # from here on the supervisor kills what is left, if this was cancelled
                for pump in pumps:
                    pump.cancel()
                _close_pipes(process)
                for stream in (to_session, incoming, outgoing, from_session):
                    stream.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self.has_closed

    def describe_end(self) -> str:
        """Return how the process ended, with the end of what it wrote to its standard error."""
        if self.failure:
            return self.failure
        code = None if self._process is None else self._process.returncode
        end = "it closed its output" if code is None else f"it ended with exit code {code}"
        output = self._stderr.decode("utf-8", "replace").strip()
        return f"{end}: {output}" if output else end

    async def _start(self, life: int) -> asyncio.subprocess.Process:
        server = self._server
        environ = {**get_default_environment(), **server.env}
        program = server.argv[0]
        if "/" not in program and shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
            raise McpServerUnavailable(
                str(server), f"there is no program {program!r}", "install it, or pass its whole path"
            )
        if server.cwd is not None and not os.path.isdir(server.cwd):
            raise McpServerUnavailable(
                str(server), f"there is no folder {server.cwd}", "pass another with cwd="
            )
        # The supervisor is isolated from the variables and folders that the server gets.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _SUPERVISOR, str(life), *server.argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
            cwd=server.cwd,
            pass_fds=(life,),
            start_new_session=True,
            limit=server.max_bytes,
        )

    async def _read(
        self, process: asyncio.subprocess.Process, to_session: MemoryObjectSendStream[Incoming]
    ) -> None:
        assert process.stdout is not None
        async with to_session:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await self._line(process.stdout):
                    if (message := self._parse(line)) is not None:
                        await to_session.send(message)
            self.has_closed = True
            if not self.failure:  # so that the exit code is known when the calls in flight fail
                await _has_ended(process)

    async def _line(self, stdout: asyncio.StreamReader) -> bytes:
        """Return the next line; b"" at the end, and if the server sends more than is read."""
        if self._noise > MAX_NOISE_BYTES:
            self.failure = f"it sent {self._noise:,} bytes without answering"
            return b""
        try:
            return await stdout.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError:
            self.failure = f"it sent a message of more than {self._server.max_bytes:,} bytes"
            return b""

    def _parse(self, line: bytes) -> SessionMessage | None:
        """Return the message; None for a notification, which nothing here waits for, and for a line that is no message:
        many servers print there."""
        message = _decode(line) or _decode(repair_json(line))
        is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
        self._noise = 0 if is_answer else self._noise + len(line)
        if message is None or isinstance(message, JSONRPCNotification):
            return None
        return SessionMessage(message)

    async def _write(
        self, process: asyncio.subprocess.Process, from_session: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError, anyio.ClosedResourceError):  # it has ended: reading tells
            async for item in from_session:
                data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(data.encode() + b"\n")
                await process.stdin.drain()

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(65_536):
            self._stderr = (self._stderr + chunk)[-_STDERR_BYTES:]


def _decode(line: bytes) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process as the protocol asks: close its input, then SIGTERM, then kill its whole group."""
    try:
        assert process.stdin is not None
        process.stdin.close()
        if not await _has_ended(process):
            signal_group(process.pid, signal.SIGTERM)
            await _has_ended(process)
    finally:
        signal_group(process.pid, signal.SIGKILL)
    await _has_ended(process)


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes, which a process that left the group may keep open. asyncio has no public way to."""
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


def _open_pipes(process: asyncio.subprocess.Process | None) -> set[int]:
    """Return the descriptors of its standard streams on this side."""
    transport = getattr(process, "_transport", None)
    ends = [] if transport is None else [transport.get_pipe_transport(number) for number in range(3)]
    pipes = [end.get_extra_info("pipe") for end in ends if end is not None]
    return {pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed}


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    # Not process.wait(): it also waits for the end of the pipes, which a grandchild may keep open.
    deadline = asyncio.get_running_loop().time() + EXIT_SECONDS
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)
    return process.returncode is not None
