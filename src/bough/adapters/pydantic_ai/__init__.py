"""Pydantic AI: Bough as its conversation store."""

from .conversation_store import BoughConversationStore, BoughSteps

__all__ = ["BoughConversationStore", "BoughSteps"]
