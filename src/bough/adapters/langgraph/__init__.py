"""LangGraph: Bough as its checkpointer."""

from .. import needs_extra

with needs_extra("langgraph"):
    from .saver import BoughSaver

__all__ = ["BoughSaver"]
