"""A connection to an MCP server: its tools, its calls and their results.

A task of its own holds the connection, because the client must be left by the task that entered it. Whatever the server
does, each call has a result in time, and after `close` no process of it is left. Everything but `RunConnection` and the
function of a tool runs on the thread of `kept_servers`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types import Tool as ToolListing
from msgspec import Struct
from pydantic import ValidationError

from oakleaf import Tool, ToolContext, __version__
from oakleaf.core.codec import to_json
from oakleaf.core.messages import Attachment, Media, Message, Text, ToolCall, tool_result
from oakleaf.core.redact import Redactor
from oakleaf.errors import OakleafError, OutOfScope, shorten
from oakleaf.ext import BEFORE_A_SESSION
from oakleaf_mcp.client.egress import check_address, http_client
from oakleaf_mcp.client.kept_servers import kept_servers, log
from oakleaf_mcp.client.process import ServerProcess
from oakleaf_mcp.client.server import McpServer, describe
from oakleaf_mcp.errors import McpServerUnavailable

MAX_TEXT_BYTES = 64_000
"""The maximum bytes of text of one result that a model sees; the whole text is stored with it."""
MAX_DETAIL_BYTES = 256_000
"""Structured content beyond this is stored as a file of the result instead."""
CLOSE_SECONDS = 5.0
RELIST_SECONDS = 5.0
"""How long a server that is kept has to list its tools again; one that does not is restarted."""
_MAX_PAGES = 100
_MAX_WORDS = 4_000
_MAX_TOOLS = 1_000

# Without a handler Python prints the warnings of libraries on the terminal.
for _name in ("mcp", "client", log.name):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class ServerResult(Struct, frozen=True):
    """A server's result of a call."""

    content: list[Text | Media | Attachment]
    is_error: bool
    details: dict[str, Any] | None


class ServerTool(Tool, frozen=True, kw_only=True):
    """A tool of an MCP server."""

    def failure(self, call: ToolCall, error: BaseException) -> Message:
        if not isinstance(error, ServerGone):
            return super().failure(call, error)
        why = str(error).encode("utf-8", "replace").decode()
        if self.effect != "unsafe":
            return tool_result(call.id, why, error=True)
        unknown = f"{why}; whether it took effect is unknown"
        return tool_result(call.id, unknown, error=True, outcome="unknown")

    def message(self, context: ToolContext, value: object) -> Message:
        assert isinstance(value, ServerResult)
        content = value.content or ""
        return tool_result(context.call.id, content, error=value.is_error, details=value.details)


class ServerGone(Exception):
    """Leaves a call whose server is gone."""


class McpConnection:
    """The connection to a server."""

    def __init__(self, server: McpServer, redactor: Redactor) -> None:
        self.server, self._redactor = server, redactor
        self._process = ServerProcess(server) if server.argv else None
        self._closing = asyncio.Event()
        self._connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._unfinished_calls = 0

    @property
    def is_reusable(self) -> bool:
        """Whether a later run may use the connection: the process runs, without abandoned work."""
        return self._process is not None and self._process.is_running and not self._unfinished_calls

    async def open_again(self, server: McpServer, redactor: Redactor) -> list[Tool]:
        """Return the tools for another run, from the server's current list; `ServerGone` without a list."""
        self.server, self._redactor = server, redactor
        try:
            async with asyncio.timeout(min(server.connect_timeout, RELIST_SECONDS)):
                listings = await self._list_tools(self._connected.result())
        except TimeoutError:
            raise ServerGone("it did not list its tools again") from None
        except (MCPError, ValidationError, OSError) as error:
            raise ServerGone(self._reason(error, self._has_ended)) from None
        return self._tools(listings)

    async def open(self) -> list[Tool]:
        """Connect and return the server's tools; raise `McpServerUnavailable` after a failure or a timeout."""
        seconds = self.server.connect_timeout
        try:
            async with asyncio.timeout(seconds):
                if self.server.url:
                    await self._check_address()
                self._owner = asyncio.create_task(self._hold())
                listings = await self._list_tools(await asyncio.shield(self._connected))
            return self._tools(listings)
        except TimeoutError:
            await self.close()
            raise McpServerUnavailable(
                str(self.server),
                f"it did not list its tools within {seconds:g} s",
                "start it by hand to see what it does, or allow more with connect_timeout=",
            ) from None
        except (MCPError, ValidationError, httpx2.HTTPError, OSError) as error:
            has_ended = self._has_ended  # by itself, and not because it is closed now
            await self.close()
            raise self._unavailable(self._reason(error, has_ended)) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection, and the process if any."""
        if self._owner is None:
            return
        self._closing.set()
        if self._connected.done():
            await asyncio.wait([self._owner], timeout=CLOSE_SECONDS)
        if not self._owner.done():
            self._owner.cancel()
            await asyncio.wait([self._owner], timeout=CLOSE_SECONDS)
        if self._connected.done():
            self._connected.exception()  # retrieved, or asyncio logs it

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ServerResult:
        client = self._connected.result()
        self._unfinished_calls += 1  # stays so if this is cancelled: the server may work on it for long
        try:
            result = self._result(await client.call_tool(name, dict(arguments)))
        except MCPError as error:
            # Servers answer with the same code, which is free for their own errors.
            if error.code == CONNECTION_CLOSED and (self._process is None or self._has_ended):
                raise ServerGone(f"{self.server} is gone: {self._reason(error, self._has_ended)}") from None
            result = self._error(f"the server refused the call: {error}")
        except ValidationError as error:
            result = self._error(f"the server returned an invalid result: {error.errors()[0]['msg']}")
        except RuntimeError as error:  # what the SDK raises of a result that it cannot use
            result = self._error(str(error))
        except httpx2.HTTPError as error:
            raise ServerGone(f"{self.server} is gone: {_plain(str(error))}") from None
        self._unfinished_calls -= 1
        return result

    # -- connecting --------------------------------------------------------------------------------

    async def _check_address(self) -> None:
        try:
            await asyncio.to_thread(check_address, self.server)
        except OutOfScope as error:
            raise McpServerUnavailable(
                str(self.server),
                error.reason,
                "pass hosts=[…] if a private address is meant",
                'if a private address is meant, name it in a file for mcp.servers: {"mcpServers": {"NAME": {"url": …, "hosts": […]}}}',
            ) from None
        except OSError as error:
            raise self._unavailable(f"its host has no address ({error.strerror})") from None

    async def _hold(self) -> None:
        """Enter the client, and leave the client in the same task after `close`."""
        try:
            async with self._transport() as streams:
                await self._use(streams)
        except BaseException as error:
            self._fail(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _use(self, streams: Any) -> None:
        info = Implementation(name="oakleaf", version=__version__)
        try:
            async with Client(nullcontext(streams), client_info=info, cache=None) as client:
                # The SDK checks results against a schema of the server, whose expressions may take ages to match.
                client.session.validate_tool_result = _accept  # type: ignore[method-assign]
                self._connected.set_result(client)
                await self._closing.wait()
        except BaseException as error:
            self._fail(error)  # before the process is ended: how it ends then says nothing
            raise

    def _fail(self, error: BaseException) -> None:
        if not self._connected.done():
            self._connected.set_exception(_first(error))

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        if self._process is not None:
            async with self._process.connect() as streams:
                yield streams
            return
        server = self.server
        async with (
            http_client(server) as client,
            streamable_http_client(
                server.url, http_client=client, max_sse_event_size=server.max_bytes
            ) as streams,
        ):
            yield streams

    async def _list_tools(self, client: Client) -> list[ToolListing]:
        listings: list[ToolListing] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            listings += page.tools
            cursor = page.next_cursor
            if cursor is None or len(listings) > _MAX_TOOLS:
                break
        if len(listings) > _MAX_TOOLS or cursor is not None:
            raise self._unavailable(f"it lists more than {_MAX_TOOLS:,} tools")
        return listings

    def _tools(self, listings: Sequence[ToolListing]) -> list[Tool]:
        only, approval = self.server.only, self.server.approval
        names = {listing.name for listing in listings}
        # A name that the server does not have would leave another tool without approval.
        for option, expected in (("only", only), ("approval", approval)):
            if isinstance(expected, frozenset) and (missing := sorted(expected - names)):
                raise McpServerUnavailable(
                    str(self.server),
                    f"it has no tool {', '.join(missing)}",
                    f"it has {_plain(', '.join(sorted(names))) or 'none'}; correct {option}=[…]",
                )
        return [self._tool(listing) for listing in listings if only is None or listing.name in only]

    def _tool(self, listing: ToolListing) -> Tool:
        server, hints = self.server, listing.annotations
        name = server.tool_name(listing.name)

        async def call(**arguments: Any) -> ServerResult:
            return await kept_servers.run(self.call(listing.name, arguments))

        call.__name__ = call.__qualname__ = name
        call.__doc__ = listing.description
        return ServerTool(
            describe(name, listing.description, listing.input_schema),
            call,
            None,
            effect="unsafe" if hints is None else server.effect(hints.read_only_hint, hints.idempotent_hint),
            approval=server.needs_approval(listing.name),
            timeout=server.timeout,
        )

    # -- results -----------------------------------------------------------------------------------

    def _result(self, result: CallToolResult) -> ServerResult:
        pieces = [_piece(block) for block in result.content]
        details: dict[str, Any] | None = None
        structured = result.structured_content
        if structured is not None:
            data = to_json(structured, "structured content")
            if not pieces:
                pieces = [Text(data.decode())]
            if len(data) <= MAX_DETAIL_BYTES:
                details = {"structured": structured}
            else:
                # Redacted here, because the bytes of files are stored as they are.
                text = self._redactor.redact_text(data.decode("utf-8", "replace"))
                pieces.append(Attachment(text.encode(), "application/json", "structured content"))
        return ServerResult(self._bounded(pieces), result.is_error, details)

    def _bounded(self, pieces: Sequence[Text | Media | Attachment]) -> list[Text | Media | Attachment]:
        """Return the parts with bounded text; the full text is stored as a file of the result."""
        size = sum(len(piece.text.encode("utf-8", "replace")) for piece in pieces if isinstance(piece, Text))
        if size <= MAX_TEXT_BYTES:
            return list(pieces)
        bounded: list[Text | Media | Attachment] = []
        whole = b""
        for piece in pieces:
            if not isinstance(piece, Text):
                bounded.append(piece)
                continue
            # Redacted before it is cut: of a secret at the cut one half would stay.
            data = self._redactor.redact_text(piece.text).encode("utf-8", "replace")
            head = data[: max(0, MAX_TEXT_BYTES - len(whole))]
            whole += data
            if head:
                bounded.append(Text(head.decode("utf-8", "ignore")))
        note = f"[{size:,} bytes of text in total, only the first {MAX_TEXT_BYTES:,} are shown; ask for less]"
        return [*bounded, Text(note), Attachment(whole, "text/plain", "the whole output")]

    def _error(self, text: str) -> ServerResult:
        return ServerResult(self._bounded([Text(text)]), True, None)

    # -- what went wrong ---------------------------------------------------------------------------

    @property
    def _has_ended(self) -> bool:
        return self._process is not None and self._process.has_closed

    def _reason(self, error: Exception, has_ended: bool) -> str:
        """Return the end of the process, if ended, else the fault of the answer."""
        text = str(error)
        if has_ended and self._process is not None:
            text = self._process.describe_end()
        elif isinstance(error, ValidationError):
            text = f"its answer is not valid: {error.errors()[0]['msg']}"
        return _plain(self._redactor.redact_text(text))

    def _unavailable(self, reason: str) -> McpServerUnavailable:
        hint = (
            "start the command by hand to see what it says" if self._process else "check that it runs there"
        )
        return McpServerUnavailable(str(self.server), reason, hint)


class RunConnection:
    """A run's connection to a server. A command that a session uses is kept for the session's next run."""

    def __init__(self, server: McpServer, redactor: Redactor, session_key: object) -> None:
        self._server, self._redactor, self._session_key = server, redactor, session_key
        self._connection: McpConnection | None = None
        self._connecting: asyncio.Task[Any] | None = None
        self.restarts: list[str] = []
        """That the server was started again, and why: it had ended since the last run, and what it remembered is gone."""

    async def connect(self) -> list[Tool]:
        """Take over the session's kept server, or start a server; return the tools."""
        return await kept_servers.run(self._connect())

    async def close(self) -> None:
        """End the connection, unless a later run will use the connection."""
        await kept_servers.run(self._close())

    async def _connect(self) -> list[Tool]:
        self._connecting = asyncio.current_task()
        server = self._server
        keys = [(key, server.process_key) for key in (self._session_key, BEFORE_A_SESSION) if key is not None]
        kept = next(filter(None, (kept_servers.take(key, McpConnection) for key in keys)), None)
        if kept is not None:
            self._connection = kept
            try:
                return await kept.open_again(server, self._redactor)
            except ServerGone as error:
                await kept.close()
                self.restarts.append(f"{server} was started again: {error}")
                log.warning("%s", self.restarts[-1])
        self._connection = McpConnection(server, self._redactor)
        return await self._connection.open()

    async def _close(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        connection, self._connection = self._connection, None
        if connection is None:
            return
        seconds = connection.server.idle_timeout
        if self._session_key is not None and seconds and connection.is_reusable:
            kept_servers.keep((self._session_key, connection.server.process_key), connection, seconds)
        else:
            await connection.close()


async def _accept(name: str, result: CallToolResult) -> None:
    """Accept a result unchanged, in place of the SDK's check."""


def _plain(text: str) -> str:
    """Return a server's words for an error: bounded, and without terminal controls."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\ufffd" for char in shorten(text, _MAX_WORDS)
    )


def _first(error: BaseException) -> BaseException:
    """Return the error inside the error groups of task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    expected = (OakleafError, MCPError, ValidationError, httpx2.HTTPError, OSError)
    return error if isinstance(error, expected) else OSError(f"{type(error).__name__}: {error}")


def _piece(block: ContentBlock) -> Text | Attachment:
    """Return a block as a part: an image, audio or file as bytes, anything else as text."""
    match block:
        case TextContent(text=text):
            return Text(text)
        case ImageContent(data=data, mime_type=mime) | AudioContent(data=data, mime_type=mime):
            return _attachment(data, mime, None)
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return Text(f"[{resource.uri}]\n{resource.text}")
        case EmbeddedResource(resource=BlobResourceContents() as file):
            return _attachment(file.blob, file.mime_type or "application/octet-stream", file.uri)
        case ResourceLink():
            return Text(f"[link to {block.uri}: {block.title or block.name}]")
    return Text(f"[{type(block).__name__}: not shown]")


def _attachment(data: str, mime: str, name: str | None) -> Text | Attachment:
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return Text(f"[{mime}: the server sent invalid base64]")
    return Attachment(decoded, mime, name) if decoded else Text(f"[{mime}: empty]")
