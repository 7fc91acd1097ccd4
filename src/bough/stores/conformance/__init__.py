"""The store contract as a suite: every law of `stores.store`, runnable against anyone's store.

    class TestMyStore(StoreConformance):
        def opened(self, space="default", owner=None):
            return MyStore(self.place, space=space, owner=owner)

Each test calls `opened` for a store over the same, at first empty, data. Needs nothing but a runner that
calls `test_…` methods on a fresh instance; pytest does.
"""

from __future__ import annotations

from .appends import Appending, Creating
from .branches import Branching, Counting
from .counts import Looking
from .lifecycle import Deleting, Drafting, Finding, KeepingBlobs, Leasing, Queueing
from .search import Searching
from .transfer import Moving


class StoreConformance(
    Creating,
    Appending,
    Branching,
    Counting,
    Finding,
    Deleting,
    Leasing,
    Drafting,
    Queueing,
    KeepingBlobs,
    Searching,
    Looking,
    Moving,
):
    """Define `opened` and run it whole."""


__all__ = ["StoreConformance"]
