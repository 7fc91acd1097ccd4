"""The bytes of a session, with the share of tools and options of requests."""

from __future__ import annotations

from msgspec.structs import asdict

from oakleaf.core.codec import encode
from oakleaf.core.entries import Settings
from oakleaf.log.log import Log
from oakleaf.stores.counts import StorageSize


class SessionStorage(StorageSize, frozen=True):
    """The size of a session's own branches, with the share of settings and tools."""

    settings: int = 0
    """How many entries on the path change settings."""
    settings_bytes: int = 0
    tool_sets: int = 0
    """The number of distinct sets of tools on the path; each set is one blob."""
    tool_bytes: int = 0


def storage(log: Log) -> SessionStorage:
    size = log.store.storage_size(log.session_id)
    path = log.store.control_entries(log.session_id, leaf=log.leaf)
    settings = [entry.payload for entry in path if isinstance(entry.payload, Settings)]
    definitions = [one.tool_definitions for one in settings if one.tool_definitions is not None]
    tools = {one.hash: one.size for one in definitions}
    return SessionStorage(
        **asdict(size),
        settings=len(settings),
        settings_bytes=sum(len(encode(one)) for one in settings),
        tool_sets=len(tools),
        tool_bytes=sum(tools.values()),
    )
