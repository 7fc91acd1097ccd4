"""OpenAI"s Agents SDK: Bough as its session."""

from .session import BoughHooks, BoughSession

__all__ = ["BoughHooks", "BoughSession"]
