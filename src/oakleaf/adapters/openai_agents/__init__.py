"""OpenAI's Agents SDK: Oakleaf as its session."""

from .. import needs_extra

with needs_extra("openai-agents"):
    from .session import OakleafHooks, OakleafSession

__all__ = ["OakleafHooks", "OakleafSession"]
