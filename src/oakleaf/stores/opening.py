"""How a plugin opens a store: an entry point of the group `oakleaf.stores`, under the scheme of its addresses.

    def open_store(url: str, *, space: str, owner: str | None, options: StoreOptions) -> StoreBackend

The function may have two attributes. `display_url(url) -> str` returns the address without secrets. `plan_migration(url, options)
-> Migration` prepares what `oakleaf migrate` does, given the options of that command by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct


class StoreOptions(Struct, frozen=True):
    """What `oakleaf.open` was given besides the address. A store that does not know an option refuses it."""

    synchronous: Literal["full", "normal"] = "full"
    key: str | None = None


class MigrationResult(Struct, frozen=True):
    """What a migration did."""

    lines: Sequence[str]
    """For people."""
    report: dict[str, Any]
    """For programs."""
    warnings: Sequence[str] = ()


class Migration(Struct, frozen=True):
    """What a migration would do. Nothing has happened yet."""

    plan: Sequence[str]
    run: Callable[[], MigrationResult]
