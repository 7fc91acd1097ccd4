"""Upgrade a file to this version's format. Opening the file does so, after a backup; here is the text for a person."""

from __future__ import annotations

from oakleaf.stores.opening import Migration, MigrationResult
from oakleaf.stores.sqlite.file import FORMAT
from oakleaf.stores.sqlite.health import format_of
from oakleaf.stores.sqlite.store import SqliteStore


def plan_migration(path: str) -> Migration:
    version = format_of(path)
    is_older = version < FORMAT
    before, after = _version_text(version), _version_text(max(version, FORMAT))

    def run() -> MigrationResult:
        SqliteStore(path).close()
        line = f"{path} now has format {after}" if is_older else f"{path} has format {after}; nothing to do"
        return MigrationResult([line], {"format_before": before, "format": after})

    return Migration(
        [f"{path}: format {before} → {after}, after a backup next to it"] if is_older else [], run
    )


def _version_text(version: int) -> str:
    return f"{version // 1_000}.{version % 1_000}"
