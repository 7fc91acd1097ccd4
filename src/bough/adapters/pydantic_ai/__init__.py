"""Pydantic AI: Bough as its conversation store."""

from .. import needs_extra

with needs_extra("pydantic-ai"):
    from .conversation_store import BoughConversationStore, BoughSteps

__all__ = ["BoughConversationStore", "BoughSteps"]
