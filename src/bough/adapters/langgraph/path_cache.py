"""What of a session is read once and kept while it is looked at: paths, and the calls its ledger holds.

Knows a log. Does not know what a checkpoint is made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.entries import Entry
from ...core.tree import Leaf
from ...core.usage import Call
from ...log.log import Log
from ...session import Session
from .index import told_by


class Paths:
    """Paths read once each, and no more of them than is asked for."""

    def __init__(self, log: Log, places: Iterable[Leaf]) -> None:
        self._log = log
        self._spans: dict[int, tuple[int, int]] = {}
        self._read: dict[int, list[Entry]] = {}
        for place in places:
            first, last = self._spans.get(place.branch, (place.seq, place.seq))
            self._spans[place.branch] = min(first, place.seq), max(last, place.seq)

    def upto(self, place: Leaf) -> list[Entry]:
        """The path root → place."""
        entries = self._read.get(place.branch)
        if not entries or entries[0].seq != 1:
            entries = self._entries(place.branch, 1)
        return entries[: place.seq]

    def told(self, place: Leaf, seq: int | None = None) -> dict[str, Any]:
        """What the note at a place says; with `seq` another one, on the path to it."""
        wanted = place.seq if seq is None else seq
        entries = self._read.get(place.branch) or self._entries(place.branch, self._spans[place.branch][0])
        if wanted < entries[0].seq:  # a value that was set long ago
            entries = self._log.store.path(
                self._log.session_id, leaf=place, first=wanted, last=wanted
            ).entries
        return told_by(entries[wanted - entries[0].seq]) or {}

    def _entries(self, branch: int, first: int) -> list[Entry]:
        leaf = Leaf(branch, self._spans[branch][1])
        self._read[branch] = self._log.store.path(self._log.session_id, leaf=leaf, first=first).entries
        return self._read[branch]


class Counted:
    """The model calls that are in a thread's ledgers, by the ids of their messages; read when first asked for.

    A subgraph tells its parent what its model said: whoever wrote it first has counted it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: set[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._names is None:
            below = self._session.log.store.inherited_calls(self._session.session_id)
            self._names = {call.call_id for call in [*self._session.model_calls("tree"), *below]}
        return name in self._names

    def add(self, calls: Iterable[Call]) -> None:
        if self._names is not None:
            self._names.update(call.call_id for call in calls)
