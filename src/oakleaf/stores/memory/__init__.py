"""The store in memory."""

from oakleaf.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
