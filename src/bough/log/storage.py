"""What a session takes in bytes, and what of it records the tools and options of its requests."""

from __future__ import annotations

from msgspec import Struct

from ..core.codec import encode
from ..core.entries import Settings
from .log import Log


class SessionStorage(Struct, frozen=True):
    """What a session's own branches hold."""

    entries: int
    bytes: int
    """Of the bodies as they are stored, settings included."""
    branches: int
    blobs: int
    blob_bytes: int
    """Media and definitions of tools."""
    settings: int
    """How many entries on the path change settings."""
    settings_bytes: int
    tool_sets: int
    """How many distinct sets of tools were used on the path; each is one blob."""
    tool_bytes: int


def storage(log: Log) -> SessionStorage:
    size = log.store.storage_size(log.session_id)
    path = log.store.control_entries(log.session_id, leaf=log.leaf)
    settings = [entry.payload for entry in path if isinstance(entry.payload, Settings)]
    tools = {
        definitions.hash: definitions.size
        for definitions in (one.tool_definitions for one in settings)
        if definitions is not None
    }
    return SessionStorage(
        size.entries,
        size.bytes,
        size.branches,
        size.blobs,
        size.blob_bytes,
        len(settings),
        sum(len(encode(one)) for one in settings),
        len(tools),
        sum(tools.values()),
    )
