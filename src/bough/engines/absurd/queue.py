"""The queue of Bough's tasks."""

DEFAULT_QUEUE = "bough"
"""Bough's own: a worker that claims a task of another program puts it off by 15 to 30 seconds."""
