"""LangGraph: Oakleaf as its checkpointer."""

from .. import needs_extra

with needs_extra("langgraph"):
    from .saver import OakleafSaver

__all__ = ["OakleafSaver"]
