"""LangGraph: Bough as its checkpointer."""

from .saver import BoughSaver

__all__ = ["BoughSaver"]
