"""An MCP server as a child process: JSON-RPC messages, one per line, on its standard input and output.

The server ends with everything it started, when the connection ends and with this process (see `process_tree`). A line
beyond the limit ends the connection, so that a server that floods costs a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import IO

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

from oakleaf.core.json_repair import repair_json
from oakleaf.ext import ProcessTree
from oakleaf_mcp.client.server import McpServer
from oakleaf_mcp.errors import McpServerUnavailable

Incoming = SessionMessage | Exception
_Connected = tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]

EXIT_SECONDS = 1.0
"""How long a server has to end after its input was closed, and again after SIGTERM."""
MAX_NOISE_BYTES = 8 * 1024 * 1024
"""Bytes that a server may send between two answers that are none: a flood of notifications ends the connection."""
_STDERR_BYTES = 2_000


class ServerProcess:
    """The process of a server."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._tree: ProcessTree | None = None
        self._stderr = b""
        self._noise = 0
        self.has_closed = False
        """Whether nothing more comes from it."""
        self.failure = ""
        """Why the connection ended, if it did by itself."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        """Start the process and yield the messages; end the process with all children."""
        tree, pipes = self._start()
        try:
            async with pipes.connect(self._server.max_bytes) as (stdin, stdout, stderr):
                to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
                outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
                pumps = [
                    asyncio.create_task(self._read(tree, stdout, to_session)),
                    asyncio.create_task(self._write(stdin, from_session)),
                    asyncio.create_task(self._read_stderr(stderr)),
                ]
                try:
                    yield incoming, outgoing
                finally:
                    try:
                        await _end(tree, stdin)
                    finally:
                        for pump in pumps:
                            pump.cancel()
                        for stream in (to_session, incoming, outgoing, from_session):
                            stream.close()
        finally:
            tree.close()  # from here on the supervisor kills what is left, if this was cancelled
            pipes.close()

    @property
    def is_running(self) -> bool:
        return self._tree is not None and self._tree.exit_code is None and not self.has_closed

    def describe_end(self) -> str:
        """Return the end of the process, with the last lines of its standard error."""
        if self.failure:
            return self.failure
        code = None if self._tree is None else self._tree.exit_code
        if code is None:
            end = "it closed its output"
        else:
            end = f"it ended with exit code {code}" if code >= 0 else f"it was ended by signal {-code}"
        output = self._stderr.decode("utf-8", "replace").strip()
        return f"{end}: {output}" if output else end

    def _start(self) -> tuple[ProcessTree, _Pipes]:
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
        pipes = _Pipes()
        try:
            self._tree = ProcessTree(
                server.argv, env=environ, cwd=server.cwd, streams=pipes.of_server, pipes=pipes.own
            )
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.close_those_of_server()
        return self._tree, pipes

    async def _read(
        self,
        tree: ProcessTree,
        stdout: asyncio.StreamReader,
        to_session: MemoryObjectSendStream[Incoming],
    ) -> None:
        async with to_session:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await self._line(stdout):
                    if (message := self._parse(line)) is not None:
                        await to_session.send(message)
            self.has_closed = True
            if not self.failure:  # so that the exit code is known when the calls in flight fail
                await _has_ended(tree)

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
        """Return the message; None for an ignored notification, and for a line without a message: many
        servers print such lines.
        """
        message = _decode(line) or _decode(repair_json(line))
        is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
        self._noise = 0 if is_answer else self._noise + len(line)
        if message is None or isinstance(message, JSONRPCNotification):
            return None
        return SessionMessage(message)

    async def _write(
        self, stdin: asyncio.StreamWriter, from_session: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        with suppress(ConnectionError, anyio.ClosedResourceError):  # it has ended: reading tells
            async for item in from_session:
                data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(data.encode() + b"\n")
                await stdin.drain()

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        while chunk := await stderr.read(65_536):
            self._stderr = (self._stderr + chunk)[-_STDERR_BYTES:]


def _decode(line: bytes) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None


class _Pipes:
    """The pipes of the three standard streams, and the own end of each."""

    def __init__(self) -> None:
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
        self.of_server = (stdin, stdout, stderr)
        self.own: tuple[IO[bytes], ...] = (
            os.fdopen(to_stdin, "wb", 0),
            os.fdopen(from_stdout, "rb", 0),
            os.fdopen(from_stderr, "rb", 0),
        )

    def close_those_of_server(self) -> None:
        for descriptor in self.of_server:
            os.close(descriptor)

    def close(self) -> None:
        for pipe in self.own:
            pipe.close()

    @asynccontextmanager
    async def connect(self, limit: int) -> AsyncIterator[_Connected]:
        """Yield the streams for the task's event loop."""
        loop = asyncio.get_running_loop()
        stdout, stderr = asyncio.StreamReader(limit), asyncio.StreamReader()
        to_close: list[Callable[[], None]] = []
        try:
            for reader, pipe in ((stdout, self.own[1]), (stderr, self.own[2])):
                source, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
                to_close.append(source.close)
            protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
            sink, _ = await loop.connect_write_pipe(lambda: protocol, self.own[0])
            to_close.append(lambda: _close(sink))
            yield asyncio.StreamWriter(sink, protocol, None, loop), stdout, stderr
        finally:
            for close in to_close:
                close()


def _close(sink: asyncio.WriteTransport) -> None:
    if sink.get_write_buffer_size():
        sink.abort()  # closing waits until the server has read the rest
    else:
        sink.close()


async def _end(tree: ProcessTree, stdin: asyncio.StreamWriter) -> None:
    """End the process as the protocol asks: close the input, then SIGTERM, then kill all children."""
    try:
        stdin.close()
        if not await _has_ended(tree):
            tree.terminate()
            await _has_ended(tree)
    finally:
        tree.kill()
    await _has_ended(tree)


async def _has_ended(tree: ProcessTree) -> bool:
    # Not tree.wait(), which one task alone may call.
    deadline = asyncio.get_running_loop().time() + EXIT_SECONDS
    while tree.exit_code is None and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)
    return tree.exit_code is not None
