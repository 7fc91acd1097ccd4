"""The store on a PostgreSQL server."""

from .store import PostgresStore

__all__ = ["PostgresStore"]
