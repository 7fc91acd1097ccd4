"""MCP servers as people write them: `[NAME=]COMMAND`, `[NAME=]URL`, or a JSON file as other programs keep it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from oakleaf.core.typed_json import json_decoder
from oakleaf_mcp.client.server import McpServer, server
from oakleaf_mcp.errors import InvalidServerFile

_NAMED = re.compile(r"([a-z][a-z0-9_-]{0,30})=(.+)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w++)(?::-([^{}]*+))?\}")


class ServerEntry(Struct, frozen=True, rename="camel"):
    """A server in a JSON file; unknown fields of other programs are ignored."""

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


_decode_file = json_decoder(ServerFile)


def tools(text: str, /, *, trust: bool = False, approve: bool = False) -> list[McpServer]:
    """Return the servers of a text in the form of `mcp.servers`; several for a file."""
    if _is_file(text):
        return list(_read_file(Path(text), trust=trust, approve=approve))
    named = _NAMED.fullmatch(text)
    prefix, where = (f"{named[1]}_", named[2]) if named else ("", text)
    return [server(where, prefix=prefix, trust=trust, approval=approve)]


def _is_file(text: str) -> bool:
    return text.endswith(".json") and not re.match(r"https?://", text) and " " not in text.strip()


def _read_file(path: Path, *, trust: bool, approve: bool) -> Iterator[McpServer]:
    try:
        entries = _decode_file(path.read_bytes()).mcp_servers
    except OSError as error:
        raise InvalidServerFile(path, error.strerror or str(error), "name a file that can be read") from None
    except msgspec.MsgspecError as error:
        expected = 'expected {"mcpServers": {NAME: {"command": …} or {"url": …}}}'
        raise InvalidServerFile(path, str(error), expected) from None
    for name, entry in entries.items():
        if entry.disabled:
            continue
        if (entry.command is None) == (entry.url is None):
            raise InvalidServerFile(
                path, f"server {name!r} needs either command or url", "give it one of them"
            )
        yield _server(path, entry, trust=trust, approve=approve)


def _server(path: Path, entry: ServerEntry, *, trust: bool, approve: bool) -> McpServer:
    fields = {name: _expand(path, value) for name, value in asdict(entry).items()}
    command, url = fields["command"], fields["url"]
    return server(
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
        raise InvalidServerFile(path, f"the variable {match[1]} is not set", "export it first")
    return value
