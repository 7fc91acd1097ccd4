"""A session that ends earlier: a copy in memory, for a bundle that leaves out what came later.

Ids and times follow from the source: the same excerpt again has the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from msgspec.structs import replace

from oakleaf.bundle.copy import copy_session
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.tree import Leaf
from oakleaf.log.fork import fork
from oakleaf.log.log import Log
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.memory import MemoryStore


def excerpt(source: Log, last: int) -> Log:
    """Return a session in memory with the entries of the path up to `last`, and nothing else."""
    store = MemoryStore(space=source.store.space)
    entry = source.path().entries[last - 1]
    runtime = replace(source.runtime, new_id=_ids(f"{source.session_id}@{last}"), now=lambda: entry.at)
    session_id = copy_session(source.store, source.session_id, store, runtime, new_id=False)
    log = Log(store, replace(store.session(session_id), leaf=_find(store, session_id, entry)), runtime)
    return fork(log, log.place(last), Settings())


def _find(store: StoreBackend, session_id: str, entry: Entry) -> Leaf:
    """Return the entry's position in a copy: branches have other numbers than in the source."""
    leaves = (
        Leaf(branch.branch, entry.seq)
        for branch in store.branches(session_id)
        if branch.parent_seq < entry.seq <= branch.tail
    )
    return next(
        leaf
        for leaf in leaves
        if store.path(session_id, leaf=leaf, first=leaf.seq).entries[0].entry_id == entry.entry_id
    )


def _ids(origin: str) -> Callable[[str], str]:
    count = 0

    def new_id(prefix: str) -> str:
        nonlocal count
        count += 1
        digest = sha256(f"{origin} {count}".encode()).hexdigest()
        return f"{prefix}_{digest[:20]}" if prefix else digest[:12]

    return new_id
