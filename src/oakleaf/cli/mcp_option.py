"""The --mcp options: MCP servers by command, by address, or from a JSON file as other programs keep it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from oakleaf.agent.tools.tool import Tool
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.errors import OakleafError
from oakleaf_mcp.client.server import McpServer, load_connections, mcp, merge_tools

_NAMED = re.compile(r"([a-z][a-z0-9_-]{0,30})=(.+)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w++)(?::-([^{}]*+))?\}")


class ServerEntry(Struct, frozen=True, rename="camel"):
    """A server in a JSON file; fields of other programs that are not known here are ignored."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    prefix: str = ""
    trust: bool | None = None
    approval: bool | tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    timeout: float = 60.0
    idle_timeout: float = 300.0
    hosts: tuple[str, ...] = ()
    disabled: bool = False


class ServerFile(Struct, frozen=True, rename="camel"):
    mcp_servers: dict[str, ServerEntry]


mcp_options = (
    click.option(
        "--mcp",
        multiple=True,
        metavar="[NAME=]COMMAND|URL|FILE.json",
        help="Give the agent the tools of an MCP server: a command to start, an address, or the mcpServers of a JSON file. "
        "With NAME= its tools are called NAME_…",
    ),
    click.option(
        "--mcp-trust",
        is_flag=True,
        help="Trust what MCP servers state about the effects of their tools. Default: every call is unsafe.",
    ),
    click.option("--mcp-approve", is_flag=True, help="Ask before every call of an MCP server's tool."),
)


def load_servers(sources: Sequence[str], *, trust: bool = False, approve: bool = False) -> list[McpServer]:
    """Return the servers of the --mcp options; refuse what is no server."""
    if (trust or approve) and not sources:
        raise CommandError("--mcp-trust and --mcp-approve need --mcp SERVER")
    servers: list[McpServer] = []
    for source in sources:
        try:
            if _is_file(source):
                servers += _read_file(Path(source), trust=trust, approve=approve)
            else:
                named = _NAMED.fullmatch(source)
                prefix, target = (f"{named[1]}_", named[2]) if named else ("", source)
                servers.append(mcp(target, prefix=prefix, trust=trust, approval=approve))
        except OakleafError as error:
            raise CommandError(f"--mcp {source}: {error.command_text}") from None
    return servers


def connect_once(own: Mapping[str, Tool], servers: Sequence[McpServer]) -> tuple[Tool, ...]:
    """Return the tools that the servers list, before anything is written: a session records the names of its tools, and
    a server that does not start should not leave an empty one behind. The session then uses these servers."""

    async def connect() -> tuple[Tool, ...]:
        connections = load_connections().before_a_session(servers)
        try:
            offers = await connections.open()
        finally:
            await connections.close()
        return tuple(tool for name, tool in merge_tools(own, offers).items() if name not in own)

    return asyncio.run(connect()) if servers else ()


def _is_file(source: str) -> bool:
    return source.endswith(".json") and not re.match(r"https?://", source) and " " not in source.strip()


def _read_file(path: Path, *, trust: bool, approve: bool) -> Iterator[McpServer]:
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=ServerFile).mcp_servers
    except OSError as error:
        raise CommandError(f"--mcp {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise CommandError(
            f'--mcp {path}: {error}; expected {{"mcpServers": {{NAME: {{"command": …}} or {{"url": …}}}}}}'
        ) from None
    for name, entry in entries.items():
        if entry.disabled:
            continue
        if (entry.command is None) == (entry.url is None):
            raise CommandError(f"--mcp {path}: server {name!r} needs either command or url")
        yield _server(path, entry, trust=trust, approve=approve)


def _server(path: Path, entry: ServerEntry, *, trust: bool, approve: bool) -> McpServer:
    fields = {name: _expand(path, value) for name, value in asdict(entry).items()}
    command, url = fields["command"], fields["url"]
    return mcp(
        url if command is None else [command, *fields["args"]],
        prefix=entry.prefix,
        trust=trust if entry.trust is None else entry.trust,
        approval=True if approve else entry.approval or False,
        only=entry.only,
        timeout=entry.timeout,
        idle_timeout=entry.idle_timeout,
        env=fields["env"],
        headers=fields["headers"],
        cwd=fields["cwd"],
        hosts=entry.hosts,
    )


def _expand(path: Path, value: Any) -> Any:
    """Return the value with ${NAME} and ${NAME:-default} replaced by variables of the environment."""
    if isinstance(value, dict):
        return {name: _expand(path, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_expand(path, item) for item in value]
    return _VARIABLE.sub(lambda match: _variable(path, match), value) if isinstance(value, str) else value


def _variable(path: Path, match: re.Match[str]) -> str:
    value = os.environ.get(match[1], match[2])
    if value is None:
        raise CommandError(f"--mcp {path}: the variable {match[1]} is not set; export it first")
    return value
