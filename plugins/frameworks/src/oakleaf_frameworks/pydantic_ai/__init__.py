"""Pydantic AI: Oakleaf as its conversation store."""

from oakleaf_frameworks.shared import needs_extra

with needs_extra("pydantic-ai"):
    from oakleaf_frameworks.pydantic_ai.conversation_store import OakleafConversationStore, OakleafSteps

__all__ = ["OakleafConversationStore", "OakleafSteps"]
