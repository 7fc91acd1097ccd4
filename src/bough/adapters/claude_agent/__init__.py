"""The Claude Agent SDK: Bough as its session store."""

from .session_store import BoughSessionStore

__all__ = ["BoughSessionStore"]
