"""The Claude Agent SDK: Oakleaf as its session store."""

from .. import needs_extra

with needs_extra("claude-agent"):
    from .session_store import OakleafSessionStore

__all__ = ["OakleafSessionStore"]
