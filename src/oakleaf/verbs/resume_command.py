"""The command that continues a session's turn, with the flags that load the tools of its open calls."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from oakleaf.ext import read
from oakleaf.session import Session


def resume_command(session: Session) -> str:
    """Return the command with the tools that the session was started with, if a command started it."""
    return f"oakleaf resume {session.session_id}{original_flags(session) or ' --agent FILE.py'}"


def original_flags(session: Session) -> str:
    """Return the agent file the session was started with, else its tools, MCP servers and workspace, with a leading space.

    None of an imported session: its commands and files are a stranger's, and nobody should be told to run them.
    """
    if read(session).has_foreign_detail():
        return ""
    spec = start_spec(session)
    if spec.get("agent_file"):
        return f" --agent {shlex.quote(spec['agent_file'])}"
    was = [
        f"{key}={source}"
        for key, name in (("tools", "tools"), ("mcp.servers", "mcp"))
        for source in spec.get(name, ())
    ]
    was += [f"workspace.dir={spec['workspace']}"] if spec.get("workspace") else []
    return "".join(f" --set {shlex.quote(change)}" for change in was)


def start_spec(session: Session) -> dict[str, Any]:
    """Return what the session's first command recorded of its agent."""
    spec = read(session).detail().spec
    fields = msgspec.json.decode(spec) if spec else {}
    return fields if isinstance(fields, dict) else {}
