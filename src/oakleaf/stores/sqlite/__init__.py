"""The store in one SQLite file."""

from oakleaf.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
