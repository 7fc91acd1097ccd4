"""The errors of MCP servers.

OakleafError
├── InvalidServerFile      a JSON file that names no servers, or one that cannot be meant
└── McpServerUnavailable   a server that does not start, is not reached or does not answer
"""

from __future__ import annotations

from pathlib import Path

from oakleaf.errors import ExitCode, OakleafError


class InvalidServerFile(OakleafError):
    exit_code = ExitCode.USAGE

    def __init__(self, path: Path, reason: str, hint: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}", hint)


class McpServerUnavailable(OakleafError):
    """Raised before anything is written."""

    exit_code = ExitCode.USAGE
    http_status = 502

    def __init__(self, server: str, reason: str, hint: str, command_hint: str | None = None) -> None:
        self.server, self.reason = server, reason
        super().__init__(f"MCP server {server}: {reason}", hint, command_hint)
