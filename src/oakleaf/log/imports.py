"""What of a session came from elsewhere: a fact, or an entry that such a fact appended.

A bundle, or the file of another tool, is data. It may be shown and given to a model; what it says was approved, set or
left open decides nothing here. `SessionRow.imported_facts` is the line between the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from oakleaf.core.entries import Entry
from oakleaf.core.facts import ImportAccepted, StoredFact, kind_of
from oakleaf.core.tree import Leaf
from oakleaf.log.log import Log
from oakleaf.stores.base import StoreBackend

MAX_FORKS = 1_000
"""Parents that are looked at: a forged ring of forks must end too."""
PAGE = 256
"""Facts read at once."""


def is_foreign(log: Log, entry: Entry | Leaf) -> bool:
    """Whether an entry of this session's tree came with an import, to this session or to the one it was forked from.

    An entry without an owner counts as foreign: nobody can say any more who appended it.
    """
    return ForeignEntries(log).contains(entry)


class ForeignEntries:
    """The entries of a session's tree that came with an import, for one who asks about many of them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        row = log.store.session(log.session_id)
        self._may_exist = bool(row.imported_facts) or row.parent_session is not None
        self._first_own: dict[int, float] = {}
        """By branch: the first entry that was appended here."""

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
    """Whether the session's agent and workspace, as they are stored, came with an import: a fork has those of its parent."""
    row = log.store.find_session(log.session_id)
    for _ in range(MAX_FORKS):
        if row is None or row.imported_facts:
            return True
        if row.relation not in ("fork", "replay") or row.parent_session is None:
            return False
        row = log.store.find_session(row.parent_session)
    return True


def is_accepted(log: Log) -> bool:
    """Whether somebody accepted, in this store, what the session's import left open."""
    imported = log.store.session(log.session_id).imported_facts
    accepted = kind_of(ImportAccepted)
    return any(fact.kind == accepted for fact in _facts(log.store, log.session_id, imported))


def first_seq_after(store: StoreBackend, session_id: str, number: int, branch: int) -> float:
    """Return the first entry of a branch that was appended after a fact of its session; infinity if none was."""
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
