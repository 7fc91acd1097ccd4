"""OpenAI's Agents SDK: Oakleaf as its session."""

from oakleaf_frameworks.shared import needs_extra

with needs_extra("openai-agents"):
    from oakleaf_frameworks.openai_agents.session import OakleafHooks, OakleafSession

__all__ = ["OakleafHooks", "OakleafSession"]
