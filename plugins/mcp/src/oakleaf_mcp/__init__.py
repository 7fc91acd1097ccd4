"""Tools of MCP servers for `tools=[…]`, and an MCP server that lets other agents read past sessions.

    session.send_sync("…", model=…, tools=[oakleaf_mcp.server("npx some-mcp-server")])

The names below load when first used, so importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

_HOMES = {
    "oakleaf_mcp.client.server": ["McpServer", "server"],
    "oakleaf_mcp.client.server_text": ["tools"],
    "oakleaf_mcp.errors": ["InvalidServerFile", "McpServerUnavailable"],
}
__getattr__, __all__ = late_names(__name__, _HOMES)

if TYPE_CHECKING:
    from oakleaf_mcp.client.server import McpServer as McpServer
    from oakleaf_mcp.client.server import server as server
    from oakleaf_mcp.client.server_text import tools as tools
    from oakleaf_mcp.errors import InvalidServerFile as InvalidServerFile
    from oakleaf_mcp.errors import McpServerUnavailable as McpServerUnavailable
