"""The Absurd engine: runs are tasks on a PostgreSQL queue, executed by any number of workers."""

from .engine import Agent

__all__ = ["Agent"]
