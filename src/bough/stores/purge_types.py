"""What goes for good: what a purge took away, and the blobs that nothing points to any more."""

from __future__ import annotations

from msgspec import Struct


class PurgeResult(Struct, frozen=True):
    sessions: tuple[str, ...]
    entries: int
    kept_entries: int
    """Entries a surviving fork stands on; they go with it."""
    blobs: int
    scrubbed: bool = True
    """False if another reader held the write-ahead log open; the next purge or gc cleans it."""


class UnreferencedBlobs(Struct, frozen=True):
    """Blobs that no entry points to."""

    blobs: int
    bytes: int
