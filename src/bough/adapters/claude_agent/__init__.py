"""The Claude Agent SDK: Bough as its session store."""

from .. import needs_extra

with needs_extra("claude-agent"):
    from .session_store import BoughSessionStore

__all__ = ["BoughSessionStore"]
