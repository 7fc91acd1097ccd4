"""The Claude Agent SDK: Oakleaf as its session store."""

from oakleaf_frameworks.shared import needs_extra

with needs_extra("claude-agent"):
    from oakleaf_frameworks.claude_agent.session_store import OakleafSessionStore

__all__ = ["OakleafSessionStore"]
