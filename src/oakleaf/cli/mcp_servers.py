"""The MCP servers of an agent: by command, by address, or from a JSON file as other programs keep it.

The plugin of the name `mcp` reads them; without it the error names what to install.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from oakleaf import Tool
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.errors import OakleafError
from oakleaf.ext import ToolLike, ToolSource, list_tools, plugin_tools


def load_servers(sources: Sequence[str], *, trust: bool = False, approve: bool = False) -> list[ToolLike]:
    """Return the servers as sources of tools; refuse a text without a server."""
    if (trust or approve) and not sources:
        raise CommandError("mcp.trust and mcp.approve need mcp.servers")
    servers: list[ToolLike] = []
    for source in sources:
        try:
            servers += plugin_tools("mcp", source, trust=trust, approve=approve)
        except OakleafError as error:
            raise CommandError(f"mcp.servers: {error.command_text}") from None
    return servers


def connect_once(own: Mapping[str, Tool], sources: Sequence[ToolSource]) -> tuple[Tool, ...]:
    """Return the sources' tools, before anything is written: a failing server should not leave an empty
    session behind. The session then uses these servers.
    """
    return tuple(asyncio.run(list_tools(own, sources))) if sources else ()
