"""Which MCP server a run connects to, and how far its tools are trusted.

Knows commands, addresses and limits; connects to nothing and needs no package. `connection` connects.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.errors import InvalidArgument, shorten
from oakleaf.ext import Effect
from oakleaf.install import install_line
from oakleaf_mcp.errors import McpServerUnavailable

if TYPE_CHECKING:
    from oakleaf.core.redact import Redactor
    from oakleaf_mcp.client.connection import RunConnection

INHERITED_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""What a command inherits of this process's environment."""
MAX_IDLE_SECONDS = 86_400
MAX_NAME_LENGTH = 64
"""What every provider accepts as the name of a tool."""
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_PREFIX = re.compile(r"[a-zA-Z0-9_-]{0,32}")


class McpServer(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """An MCP server with tools for runs: a command to start, or the address of a running server."""

    argv: tuple[str, ...] = ()
    url: str = ""
    prefix: str = ""
    trust: bool = False
    approval: bool | frozenset[str] = False
    only: frozenset[str] | None = None
    timeout: float = 60.0
    connect_timeout: float = 30.0
    idle_timeout: float = 300.0
    max_bytes: int = 16 * 1024 * 1024
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    cwd: str | None = None
    hosts: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"McpServer({str(self)!r})"  # without env and headers, which hold credentials

    def __str__(self) -> str:
        """The command, or the address without the query: for messages."""
        if self.argv:
            return shorten(shlex.join([os.path.basename(self.argv[0]), *self.argv[1:]]), 120)
        parts = urlsplit(self.url)
        return shorten(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")

    @property
    def process_key(self) -> object:
        """The identity of a running process; the other fields may differ from turn to turn."""
        inherited = tuple((name, os.environ.get(name)) for name in INHERITED_VARIABLES)
        return (
            self.argv,
            _absolute(self.cwd or ""),
            self.max_bytes,
            tuple(sorted(self.env.items())),
            inherited,
        )

    def tool_name(self, name: str) -> str:
        """Return the name a model sees: with the prefix, and `_` for characters refused by providers."""
        return _ILLEGAL.sub("_", f"{self.prefix}{name}")[:MAX_NAME_LENGTH]

    def needs_approval(self, name: str) -> bool:
        return self.approval if isinstance(self.approval, bool) else name in self.approval

    def for_one_turn(self) -> McpServer:
        """Return the server for a session of a single turn: no process is kept."""
        return replace(self, idle_timeout=0.0)

    def open(self, redactor: Redactor, session_key: object) -> RunConnection:
        """Return a connection for a run; imports the client code."""
        file = shadowing_file()
        if file is not None:
            raise McpServerUnavailable(str(self), f"{file} hides the package mcp", "rename that file")
        try:
            from oakleaf_mcp.client.connection import RunConnection
        except ModuleNotFoundError as error:
            hint = f"install it with: {install_line('mcp')}"
            raise McpServerUnavailable(str(self), f"{error.name} is not installed", hint) from None
        return RunConnection(self, redactor, session_key)

    def effect(self, read_only: bool | None, idempotent: bool | None) -> Effect:
        """Return the effect by a tool's hints. They are claims of the server: without `trust` every tool is unsafe."""
        if not self.trust:
            return "unsafe"
        return "read" if read_only else "idempotent" if idempotent else "unsafe"


def server(
    where: str | Sequence[str],
    /,
    *,
    prefix: str = "",
    trust: bool = False,
    approval: bool | Collection[str] = False,
    only: Collection[str] | None = None,
    timeout: float = 60.0,
    connect_timeout: float = 30.0,
    idle_timeout: float = 300.0,
    max_bytes: int = 16 * 1024 * 1024,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    cwd: str | None = None,
    hosts: Iterable[str] = (),
) -> McpServer:
    """Return the tools of an MCP server, for `tools=[…]`: a command to start, or an http(s) address.

    A command is started when a session first uses it and is kept for the next turns of that session in this process, not
    for other sessions. An address is connected to for each turn.

    prefix: put before the name of each tool, to tell the tools of two servers apart.
    trust: believe the server's hints about what its tools do. By default each tool is unsafe: after a crash it is not
        run again.
    approval: whether a person must approve each call; or the names, as the server has them, of the tools that need it.
    only: the names, as the server has them, of the tools to offer; by default all.
    timeout: seconds after which a call is given up and its result is an error.
    connect_timeout: seconds that the server has to start and list its tools.
    idle_timeout: seconds that a command is kept between two turns; 0 ends it with each turn.
    max_bytes: the longest message of the server that is read; a longer one ends the connection.
    env: variables for the command. It inherits PATH, HOME, USER, SHELL, TERM and LOGNAME only.
    headers: headers of each HTTP request, such as authorization.
    cwd: the folder the command runs in.
    hosts: hosts (`name` or `name:port`) that may be at a private address. Without it an address must be public, or be
        written as this machine: localhost, 127.0.0.1 or [::1].
    """
    argv, url = _parse(where)
    if not _PREFIX.fullmatch(prefix):
        raise InvalidArgument("prefix", prefix, "at most 32 letters, digits, - and _")
    for name, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
        if not seconds > 0:
            raise InvalidArgument(name, seconds, "a positive number of seconds")
    if not 0 <= idle_timeout <= MAX_IDLE_SECONDS:
        raise InvalidArgument("idle_timeout", idle_timeout, f"seconds from 0 to {MAX_IDLE_SECONDS:,}")
    if max_bytes < 1024:
        raise InvalidArgument("max_bytes", max_bytes, "at least 1024")
    if argv and headers:
        raise InvalidArgument("headers", sorted(headers), "an http(s) address; pass env= to a command")
    if url and (env or cwd):
        raise InvalidArgument("env or cwd", url, "a command; pass headers= to an address")
    return McpServer(
        argv=argv,
        url=url,
        prefix=prefix,
        trust=trust,
        approval=approval if isinstance(approval, bool) else frozenset(approval),
        only=None if only is None else frozenset(only),
        timeout=timeout,
        connect_timeout=connect_timeout,
        idle_timeout=idle_timeout,
        max_bytes=max_bytes,
        env=dict(env or {}),
        headers=dict(headers or {}),
        cwd=cwd,
        hosts=frozenset(host.lower() for host in hosts),
    )


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except FileNotFoundError:  # the working directory was deleted
        return folder


def _parse(server: str | Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the words of a command, or an address."""
    if not isinstance(server, str):
        argv = tuple(server)
    elif re.match(r"https?://", server, re.IGNORECASE):
        return (), server
    else:
        try:
            argv = tuple(shlex.split(server))
        except ValueError as error:
            raise InvalidArgument("server", server, f"a command as typed in a shell ({error})") from None
    if not argv or not all(isinstance(word, str) and "\0" not in word for word in argv) or not argv[0]:
        raise InvalidArgument("server", server, "a command, or an http:// or https:// address")
    if "://" in argv[0]:
        raise InvalidArgument("server", server, "an http:// or https:// address, or a command")
    return argv, ""


def describe(name: str, description: str | None, schema: Mapping[str, Any]) -> ToolSpec:
    """Return a server's tool as described to a model."""
    return ToolSpec(name, description or name.replace("_", " "), {**schema, "type": "object"})


def shadowing_file() -> str | None:
    """Return the file Python would import as `mcp` instead of the package: a user's script in the path.

    It is not imported to see: a script that serves at once would wait for its client for ever.
    """
    if "mcp" in sys.modules:
        return None
    spec = importlib.util.find_spec("mcp")
    is_file = spec is not None and spec.submodule_search_locations is None
    return spec.origin if spec is not None and is_file else None
