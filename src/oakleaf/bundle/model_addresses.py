"""The foreign addresses that the models of imported sessions have, named to the person who imports them.

Looks where a later command looks for a session's model: its row, the settings on all of its branches, and the chain it was
started with. Nothing is asked there without the operator's word (`models.names.stored_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from oakleaf.core.codec import decode
from oakleaf.core.entries import Settings
from oakleaf.models.names import foreign_address
from oakleaf.stores.base import StoredEntry
from oakleaf.stores.transfer import SessionExport, SessionExports

MAX_ADDRESSES = 20
"""The number of named addresses; a bundle may have any number."""


class ModelAddresses:
    """Collects the addresses of models while sessions are read."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(sorted(self._found))

    def watch(self, exports: SessionExports) -> SessionExports:
        """Return the same sessions; reading the sessions collects the addresses."""
        return SessionExports(map(self._watch, exports.sessions), exports.blobs)

    def _watch(self, export: SessionExport) -> SessionExport:
        for name in (export.row.model, *_chain(export.detail.spec)):
            self._add(name)
        return replace(export, entries=self._entries(export))

    def _entries(self, export: SessionExport) -> Iterator[StoredEntry]:
        for stored in export.entries:
            if stored.entry.kind == "settings":
                settings = decode("settings", stored.entry.body)
                self._add(settings.model if isinstance(settings, Settings) else None)
            yield stored

    def _add(self, name: object) -> None:
        address = foreign_address(name) if isinstance(name, str) else None
        if address is not None and len(self._found) < MAX_ADDRESSES:
            self._found[address] = None


def _chain(spec: bytes | None) -> list[Any]:
    fields = msgspec.json.decode(spec) if spec else None
    chain = fields.get("models") if isinstance(fields, dict) else None
    return chain if isinstance(chain, list) else []
