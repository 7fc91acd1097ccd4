"""How a plugin opens a store: an entry point of the group `oakleaf.stores`, under the scheme of its addresses.

    def open_store(url: str, *, space: str, owner: str | None, options: StoreOptions) -> StoreBackend

The function may have two attributes. `display_url(url) -> str` returns the address without secrets. `plan_migration(url, options)
-> Migration` prepares what `oakleaf migrate` does, given the options of that command by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from oakleaf import plugins
from oakleaf.errors import PluginBroken
from oakleaf.stores.address import store_scheme


class StoreOptions(Struct, frozen=True):
    """The options of `oakleaf.open` besides the address. A store that does not know an option refuses it."""

    synchronous: Literal["full", "normal"] = "full"
    key: str | None = None


class MigrationResult(Struct, frozen=True):
    """The outcome of a migration."""

    lines: Sequence[str]
    """For people."""
    report: dict[str, Any]
    """For programs."""
    warnings: Sequence[str] = ()
    """For people."""


class Migration(Struct, frozen=True):
    """A planned migration. Nothing has happened yet."""

    plan: Sequence[str]
    """The lines for a person to confirm; empty if there is nothing to do."""
    run: Callable[[], MigrationResult]


def plan_migration(url: str, options: Mapping[str, str]) -> Migration | None:
    """Return the plan to upgrade a store to this version's format; None for a store without a format to upgrade."""
    scheme = store_scheme(url)
    if scheme is not None:
        plan = getattr(plugins.find(plugins.STORES, scheme), "plan_migration", None)
        return None if plan is None else _checked(plan(url, options), scheme)
    if url == "memory:":
        return None
    from oakleaf.stores.sqlite.migration import plan_migration

    return plan_migration(url)


def _checked(plan: object, scheme: str) -> Migration:
    """Return the plan of a plugin; raise PluginBroken for a value of another type."""
    if isinstance(plan, Migration):
        return plan
    provider = str(plugins.provider_of(plugins.STORES, scheme))
    reason = f"plan_migration returned {type(plan).__name__}, not a Migration"
    raise PluginBroken(plugins.STORES, scheme, provider, reason)
