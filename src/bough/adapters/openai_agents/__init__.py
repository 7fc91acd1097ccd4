"""OpenAI's Agents SDK: Bough as its session."""

from .. import needs_extra

with needs_extra("openai-agents"):
    from .session import BoughHooks, BoughSession

__all__ = ["BoughHooks", "BoughSession"]
