"""The imported facts and entries of a session.

A bundle, or the file of another tool, is data. The data may be shown and given to a model, but decides
nothing here about approvals, settings and open work. `SessionRow.imported_facts` separates imported facts
from own facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from oakleaf.core.entries import Entry
from oakleaf.core.facts import ImportAccepted, StoredFact, kind_of
from oakleaf.core.tree import Leaf
from oakleaf.log.log import Log
from oakleaf.stores.base import StoreBackend

MAX_FORKS = 1_000
"""The maximum number of parents to read: a forged ring of forks must end too."""
PAGE = 256
"""Facts read at once."""


def is_foreign(log: Log, entry: Entry | Leaf) -> bool:
    """Whether an entry of the tree was imported into this session or into the parent of the fork.

    An entry without an owner counts as foreign: nobody can say any more who appended it.
    """
    return ForeignEntries(log).contains(entry)


class ForeignEntries:
    """The imported entries of a session's tree, for many lookups."""

    def __init__(self, log: Log) -> None:
        self._log = log
        row = log.store.session(log.session_id)
        self._may_exist = bool(row.imported_facts) or row.parent_session is not None
        self._first_own: dict[int, float] = {}
        """By branch: the first entry appended here."""

    def contains(self, entry: Entry | Leaf) -> bool:
        if not self._may_exist:
            return False
        if entry.branch not in self._first_own:
            self._first_own[entry.branch] = self._read_first_own(entry.branch)
        return entry.seq < self._first_own[entry.branch]

    def _read_first_own(self, branch: int) -> float:
        store = self._log.store
        owners = {each.branch: each.session_id for each in store.branches(self._log.session_id)}
        owner_id = owners.get(branch)
        owner = None if owner_id is None else store.find_session(owner_id)
        if owner is None:
            return float("inf")
        return first_seq_after(store, owner.session_id, owner.imported_facts, branch)


def has_foreign_detail(log: Log) -> bool:
    """Whether the session's stored agent and workspace were imported. A fork has the detail of the parent."""
    row = log.store.find_session(log.session_id)
    for _ in range(MAX_FORKS):
        if row is None or row.imported_facts:
            return True
        if row.relation not in ("fork", "replay") or row.parent_session is None:
            return False
        row = log.store.find_session(row.parent_session)
    return True


def is_accepted(log: Log) -> bool:
    """Whether somebody in this store accepted the open work of the session's import."""
    imported = log.store.session(log.session_id).imported_facts
    accepted = kind_of(ImportAccepted)
    return any(fact.kind == accepted for fact in _facts(log.store, log.session_id, imported))


def first_seq_after(store: StoreBackend, session_id: str, number: int, branch: int) -> float:
    """Return the first entry of a branch appended after a fact of the session; infinity if there is none."""
    if not number:
        return 0
    for fact in _facts(store, session_id, number):
        if fact.leaf is not None and fact.leaf.branch == branch and fact.first is not None:
            return fact.first
    return float("inf")


def _facts(store: StoreBackend, session_id: str, after: int) -> Iterator[StoredFact]:
    while page := store.journal(session_id, after, PAGE):
        yield from page
        after = page[-1].number
