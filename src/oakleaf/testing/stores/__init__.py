"""The store contract as a suite: every law of `stores.base`, runnable against anyone's store.

    class TestMyStore(StoreConformance):
        def open_store(self, space="default", owner=None):
            return MyStore(self.place, space=space, owner=owner)

Each test calls `open_store` for a store over the same, at first empty, data. A law about a capability that the store does
not have is skipped; at the end pytest prints which laws hold and which were not checked. Needs pytest and the library.
"""

from __future__ import annotations

from oakleaf.testing.stores.appends import AppendConformance, CreateConformance
from oakleaf.testing.stores.branches import BranchConformance, UsageConformance
from oakleaf.testing.stores.counts import CountConformance
from oakleaf.testing.stores.lifecycle import (
    BlobConformance,
    DeleteConformance,
    DraftConformance,
    InboxConformance,
    LeaseConformance,
    QueryConformance,
)
from oakleaf.testing.stores.search import SearchConformance
from oakleaf.testing.stores.tool_calls import ToolCallConformance
from oakleaf.testing.stores.transfer import TransferConformance


class StoreConformance(
    CreateConformance,
    AppendConformance,
    BranchConformance,
    UsageConformance,
    QueryConformance,
    DeleteConformance,
    LeaseConformance,
    DraftConformance,
    InboxConformance,
    BlobConformance,
    ToolCallConformance,
    SearchConformance,
    CountConformance,
    TransferConformance,
):
    """Define `open_store`; the suite does the rest."""


__all__ = ["StoreConformance"]
