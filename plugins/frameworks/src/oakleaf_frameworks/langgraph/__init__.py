"""LangGraph: Oakleaf as its checkpointer."""

from oakleaf_frameworks.shared import needs_extra

with needs_extra("langgraph"):
    from oakleaf_frameworks.langgraph.saver import OakleafSaver

__all__ = ["OakleafSaver"]
