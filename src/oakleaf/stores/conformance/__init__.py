"""The store contract as a suite: every law of `stores.base`, runnable against anyone's store.

    class TestMyStore(StoreConformance):
        def open_store(self, space="default", owner=None):
            return MyStore(self.place, space=space, owner=owner)

Each test calls `open_store` for a store over the same, at first empty, data. Needs nothing but a runner that
calls `test_…` methods on a fresh instance; pytest does.
"""

from __future__ import annotations

from .appends import AppendConformance, CreateConformance
from .branches import BranchConformance, UsageConformance
from .counts import CountConformance
from .lifecycle import (
    BlobConformance,
    DeleteConformance,
    DraftConformance,
    InboxConformance,
    LeaseConformance,
    QueryConformance,
)
from .search import SearchConformance
from .tool_calls import ToolCallConformance
from .transfer import TransferConformance


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
