"""Pydantic AI: Oakleaf as its conversation store."""

from .. import needs_extra

with needs_extra("pydantic-ai"):
    from .conversation_store import OakleafConversationStore, OakleafSteps

__all__ = ["OakleafConversationStore", "OakleafSteps"]
